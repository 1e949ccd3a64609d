"""The simulated world: stores that fail, clocks that disagree, and processes that pause and crash.

Faults are drawn per call: an error before the effect, an error after it (a lost answer), a change delivered twice, the
second time late, a delay and a stall. A `Client` is one process. When it pauses, its calls wait; when it crashes, no
call of it begins any more and no answer reaches it, but a request that is under way may still arrive: a zombie's.
"""

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from lsmfs.clock import id_of
from lsmfs.lsm.build import Shape
from lsmfs.objectstore.faulting import Fault, FaultingStore, Kind
from lsmfs.objectstore.memory import MemoryStore
from lsmfs.objectstore.retrying import RetryingStore, RetryPolicy
from lsmfs.objectstore.store import ANYTHING, Body, ObjectStore, Precondition, Span, Tag
from lsmfs.objectstore.wrapper import WrapperStore
from lsmfs.repository import Repository
from lsmfs.settings import Settings, WriterSettings
from refstore.drivers.memory import MemoryRefStore
from refstore.errors import Error, OutcomeUnknown, Unavailable
from refstore.records import Branch, BranchChange, Create, Event, Restore, SealLayers
from refstore.store import Absent, Item
from tests.sim.truth import REPOSITORY, Truth

T = TypeVar("T")

SETTINGS = Settings(
    writer=WriterSettings(deadline_seconds=1.0, unit_rows_max=4, flush_bytes=600, flushes_max=3, buffer_bytes_max=2500),
    shape=Shape(rows_mean=3, weight_max=2000),
    retry_seconds=3.0,
)
RETRY = RetryPolicy(attempts_max=3, delay_seconds_first=0.02, delay_seconds_max=0.1, deadline_seconds=3.0)
STALL_SECONDS_MAX = 5.0  # longer than every deadline above, so that zombies come back after their successors
LATE_SECONDS_MAX = 6.0


@dataclass(frozen=True)
class Profile:
    """What kind of history it is: different kinds find different bugs."""

    faulty: float = 0.06
    """The share of calls that meet a fault."""
    kinds: tuple[str, ...] = ("before", "after", "twice", "delay", "stall")
    lost: tuple[str, ...] = ("", "stall")
    """How long it takes until a lost answer is noticed."""
    writers: int = 3
    operations: int = 8
    """Of a writer before it closes, all under way at once, begun within `spread_seconds`."""
    spread_seconds: float = 2.0
    readers: int = 2
    mergers: int = 0
    users: bool = False
    """Whether there are also those who reset, stash, revert, delete and restore; and objects that are appended to."""
    l1_tables_max: int = 10
    seals_max: int = 2
    writers_max: int = 12


PROFILES = {
    "mixed": Profile(),
    "stormy": Profile(faulty=0.2, writers_max=2),
    "crowded": Profile(faulty=0.25, kinds=("after", "twice"), lost=("delay",), writers=6, readers=0, writers_max=1),
    "timeouts": Profile(faulty=0.15, kinds=("after", "twice", "stall"), lost=("stall",), writers=4, readers=1),
    "bursts": Profile(
        faulty=0.4, kinds=("before", "delay"), writers=2, operations=30, spread_seconds=0.3, readers=0, l1_tables_max=40
    ),
    "merges": Profile(writers=1, operations=3, readers=1, mergers=3),
    "users": Profile(
        faulty=0.1, writers=1, operations=6, spread_seconds=3.0, readers=1, mergers=2, users=True, seals_max=3
    ),
    "stalls": Profile(faulty=0.2, kinds=("delay", "stall"), readers=5, l1_tables_max=6),
}


class SimClock:
    """Virtual time; wall clocks that disagree by up to a minute; ids from the seed."""

    def __init__(self, rng: random.Random, skew_us: int = 0) -> None:
        self._rng = rng
        self._skew_us = skew_us

    def now_us(self) -> int:
        return 10**15 + int(asyncio.get_running_loop().time() * 1e6) + self._skew_us

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    def jitter(self) -> float:
        return self._rng.random()

    def new_id(self) -> str:
        return id_of(self._rng.getrandbits(100))


@dataclass
class Weather:
    """How often things fail. `calm()` ends all faults: after it, everything must progress."""

    rng: random.Random
    profile: Profile
    faulty: float = 0.0

    def begin(self) -> None:
        self.faulty = self.profile.faulty

    def calm(self) -> None:
        self.faulty = 0.0

    def draw(self) -> str | None:
        if self.rng.random() >= self.faulty:
            return None
        return self.rng.choice(self.profile.kinds)

    def seconds(self, kind: str) -> float:
        return self.rng.random() * {"": 0.01, "delay": 0.4, "stall": STALL_SECONDS_MAX}[kind]

    def plan(self, verb: str, name: str, number: int) -> Fault:
        kind = self.draw()
        if kind in ("delay", "stall", None):
            return Fault(Kind.DELAY, delay_seconds=self.seconds(kind or ""))
        return Fault(Kind(kind))


class Life:
    """Whether a process runs, pauses, or has crashed."""

    def __init__(self) -> None:
        self.dead = False
        self.paused_until = 0.0

    async def breathe(self) -> None:
        """Go on if it runs, wait while it pauses, end if it has crashed."""
        if (rest := self.paused_until - asyncio.get_running_loop().time()) > 0:
            await asyncio.sleep(rest)
        if self.dead:
            raise asyncio.CancelledError("this process has crashed")


class MortalStore(WrapperStore):
    """The object store as one process reaches it."""

    def __init__(self, inner: ObjectStore, life: Life) -> None:
        super().__init__(inner)
        self._life = life

    async def _live(self, call: Callable[[], Awaitable[T]]) -> T:
        await self._life.breathe()
        try:
            return await call()
        finally:
            await self._life.breathe()

    async def get(self, name: str, span: Span | None = None) -> bytes:
        return await self._live(lambda: self.inner.get(name, span))

    async def get_tagged(self, name: str) -> tuple[bytes, Tag]:
        return await self._live(lambda: self.inner.get_tagged(name))

    async def put(self, name: str, body: Body, expected: Precondition = ANYTHING) -> Tag:
        return await self._live(lambda: self.inner.put(name, body, expected))

    async def delete(self, name: str) -> None:
        await self._live(lambda: self.inner.delete(name))


class FaultingRefs:
    """The ref store as one process reaches it: over a network that fails."""

    def __init__(self, inner: MemoryRefStore, weather: Weather, life: Life) -> None:
        self.inner = inner
        self._weather = weather
        self._life = life
        self._late: set[asyncio.Task[Any]] = set()
        self.sealed: Branch | None = None  # the answer to the last seal

    async def _call(self, call: Callable[[], Awaitable[T]], changes: bool, late: bool = True) -> T:
        await self._life.breathe()
        try:
            return await self._deliver(call, changes, late)
        finally:
            await self._life.breathe()

    async def _deliver(self, call: Callable[[], Awaitable[T]], changes: bool, late: bool) -> T:
        weather, kind = self._weather, self._weather.draw()
        if kind == "before":
            raise Unavailable("planned fault: not reached")
        slow = kind if kind in ("delay", "stall") else ""
        there, back = weather.rng.choice([(slow, ""), ("", slow)])
        await asyncio.sleep(weather.seconds(there))
        if kind == "after" and changes and late and weather.rng.random() < 0.5:
            self._deliver_late(call)  # the request is still under way when the client gives up
            raise OutcomeUnknown("planned fault: no answer, request under way")
        result = await call()
        if kind == "twice" and changes and late:
            self._deliver_late(call)
        if kind == "after":
            await asyncio.sleep(
                weather.seconds(weather.rng.choice(weather.profile.lost))
            )  # noticed at once, or by a timeout
            raise OutcomeUnknown("planned fault: answer lost") if changes else Unavailable("planned fault: answer lost")
        await asyncio.sleep(weather.seconds(back))
        return result

    def _deliver_late(self, call: Callable[[], Awaitable[Any]]) -> None:
        delay = self._weather.rng.random() * LATE_SECONDS_MAX

        async def late() -> None:
            await asyncio.sleep(delay)
            try:
                await call()
            except Error:
                return  # nobody hears the answer

        task = asyncio.ensure_future(late())
        self._late.add(task)
        task.add_done_callback(self._late.discard)

    async def get(self, partition: str, key: bytes) -> bytes | None:
        return await self._call(lambda: self.inner.get(partition, key), False)

    def scan(self, partition: str, start: bytes = b"", prefix: bytes = b"") -> AsyncIterator[Item]:
        return self.inner.scan(partition, start, prefix)

    async def set(self, partition: str, key: bytes, value: bytes) -> None:
        await self._call(lambda: self.inner.set(partition, key, value), True)

    async def delete(self, partition: str, key: bytes) -> None:
        await self._call(lambda: self.inner.delete(partition, key), True)

    async def set_if(self, partition: str, key: bytes, value: bytes, expected: bytes | Absent) -> None:
        await self._call(lambda: self.inner.set_if(partition, key, value, expected), True)

    async def read(self, repository: str, name: str) -> Branch:
        return await self._call(lambda: self.inner.read(repository, name), False)

    def branches(self, repository: str, after: str = "", prefix: str = "") -> AsyncIterator[Branch]:
        return self.inner.branches(repository, after, prefix)

    async def change(self, repository: str, name: str, change: BranchChange) -> Branch:
        # A copy of a create that arrives after the branch was deleted would begin that life again: a known anomaly.
        late = not isinstance(change, Create | Restore)
        branch = await self._call(lambda: self.inner.change(repository, name, change), True, late)
        if isinstance(change, SealLayers):
            self.sealed = branch
        return branch

    async def events(self, repository: str, limit: int = 1000) -> list[Event]:
        return await self.inner.events(repository, limit)

    async def trim(self, repository: str, events: list[Event]) -> None:
        await self.inner.trim(repository, events)

    async def aclose(self) -> None:
        """Nothing to release."""


class Client:
    """A process with its own Repository: it knows nothing but what the stores say."""

    def __init__(self, world: "World", store: ObjectStore, life: Life) -> None:
        clock = SimClock(world.rng, world.rng.randrange(-60_000_000, 60_000_000))
        self.refs = FaultingRefs(world.truth, world.weather, life)
        self.life = life
        self.repository = Repository(
            RetryingStore(store, clock, RETRY), self.refs, world.record, clock, SETTINGS, threads=False
        )


class World:
    """The stores that all processes share, and the weather between."""

    def __init__(self, rng: random.Random, profile: Profile) -> None:
        self.rng = rng
        self.weather = Weather(rng, profile)
        self.objects = MemoryStore(SimClock(rng))
        self.truth = Truth(self.objects)
        self._numbers = itertools.count(1)

    def next_number(self) -> int:
        """Of an operation; ascending over all writers."""
        return next(self._numbers)

    async def begin(self) -> None:
        created = await Repository.create(
            self.objects, self.truth, REPOSITORY, clock=SimClock(self.rng), settings=SETTINGS, threads=False
        )
        self.record = created.record

    def client(self) -> Client:
        """A new process."""
        life = Life()
        return Client(self, MortalStore(FaultingStore(self.objects, self.weather.plan), life), life)


__all__ = ["SETTINGS", "Client", "Life", "MortalStore", "SimClock", "World"]
