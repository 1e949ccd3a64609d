"""The crash sweep: one scripted scenario, a fault at every single store call of it, one history for each.

The scenario goes through every path once: puts, a delete, a conditional put, a unit, two compactions, two commits. The
process whose call meets the fault may crash; then another one takes over and repeats the step that was under way, as a
user would. `Truth` checks every change; at the end everything must progress and the content be what was written.
"""

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import TypeVar

import pyarrow as pa
import pytest

from compactor.executor import compact
from compactor.planner import Triggers, plan
from lsmfs.lsm import tables
from lsmfs.model import Entry
from lsmfs.objectstore.memory import MemoryStore
from lsmfs.objectstore.store import ANYTHING, Body, ObjectStore, Precondition, Tag
from lsmfs.repository import Repository
from refstore.errors import AlreadyExists, Conflict, Error, NoChanges, OutcomeUnknown, Unavailable
from refstore.records import Branch, BranchChange
from refstore.store import ABSENT
from tests.sim import bugs
from tests.sim.history import finish, run_in
from tests.sim.truth import BRANCH
from tests.sim.world import Client, Life, MortalStore, Profile, World

T = TypeVar("T")
STEP_TRIES_MAX = 4


class Fault(Enum):
    CRASH_BEFORE = "crash before"
    CRASH_AFTER = "crash after effect"
    LOST = "lost answer"
    TWICE = "duplicate"
    ERROR = "error"
    TIMEOUT = "timeout after effect"
    TORN = "truncated upload"
    TORN_CRASH = "truncated upload, then crash"


class Trap:
    """Counts the calls of all processes; the one with number `at` meets the fault."""

    def __init__(self, at: int, fault: Fault) -> None:
        self.at, self.fault, self.calls, self.sprung = at, fault, 0, False

    async def call(self, life: Life, call: Callable[[], Awaitable[T]], tear: Callable[[], Awaitable[object]]) -> T:
        self.calls += 1
        if self.calls != self.at:
            return await call()
        self.sprung = True
        match self.fault:
            case Fault.CRASH_BEFORE:
                self._crash(life)
            case Fault.ERROR:
                raise Unavailable("planned: nothing was done")
            case Fault.TORN | Fault.TORN_CRASH:
                await tear()
            case Fault.TWICE:
                result = await call()
                await repeat(call)
                return result
            case _:
                await call()
        if self.fault in (Fault.CRASH_AFTER, Fault.TORN_CRASH):
            self._crash(life)
        if self.fault is Fault.TIMEOUT:
            await asyncio.sleep(10.0)  # beyond every deadline
        raise OutcomeUnknown("planned: the answer is lost")

    def _crash(self, life: Life) -> None:
        life.dead = True
        raise asyncio.CancelledError("crashed")


async def repeat(call: Callable[[], Awaitable[object]]) -> None:
    """Deliver it a second time; nobody hears the answer."""
    try:
        await call()
    except Error:
        return


class SweptStore(MortalStore):
    def __init__(self, inner: MemoryStore, life: Life, trap: Trap) -> None:
        super().__init__(inner, life)
        self._trap = trap

    async def get(self, name: str, span: object = None) -> bytes:
        return await self._swept(lambda: self.inner.get(name))

    async def put(self, name: str, body: Body, expected: Precondition = ANYTHING) -> Tag:
        half = bytes(body)[: len(body) // 2]
        return await self._swept(
            lambda: self.inner.put(name, body, expected), lambda: self.inner.put(name, half, expected)
        )

    async def _swept(self, call: Callable[[], Awaitable[T]], tear: Callable[[], Awaitable[object]] | None = None) -> T:
        return await self._live(lambda: self._trap.call(self._life, call, tear or call))


class SweptWorld(World):
    def __init__(self, rng: random.Random, trap: Trap) -> None:
        super().__init__(rng, Profile())
        self.trap = trap

    def swept(self) -> Client:
        life = Life()
        client = Client(self, SweptStore(self.objects, life, self.trap), life)
        trap, inner = self.trap, self.truth

        async def change(repository: str, name: str, change: BranchChange) -> Branch:
            await life.breathe()
            return await trap.call(life, do := lambda: inner.change(repository, name, change), do)

        async def read(repository: str, name: str) -> Branch:
            await life.breathe()
            return await trap.call(life, do := lambda: inner.read(repository, name), do)

        client.repository.refs.change = change  # type: ignore[method-assign]
        client.repository.refs.read = read  # type: ignore[method-assign]
        return client


Step = Callable[[Repository], Awaitable[None]]


def puts(*keys: str) -> Step:
    async def step(repository: Repository) -> None:
        async with repository.writer(BRANCH) as writer:
            await asyncio.gather(*(writer.put(key, Entry(f"mem://{key}", 1, key)) for key in keys))

    return step


def delete(key: str) -> Step:
    async def step(repository: Repository) -> None:
        async with repository.writer(BRANCH) as writer:
            await writer.delete(key)

    return step


async def create(repository: Repository) -> None:
    async with repository.writer(BRANCH) as writer:
        try:
            await writer.put("c", Entry("mem://c", 1, "c"), ABSENT)
        except Conflict:
            assert (await repository.get(BRANCH, "c")).etag == "c"  # an earlier try of ours had won


async def stage(repository: Repository) -> None:
    keys = [f"b/{number}" for number in range(6)]
    async with repository.writer(BRANCH) as writer:
        await writer.stage(pa.table({"key": keys, "address": keys, "etag": keys}))


async def compact_once(repository: Repository) -> None:
    work = plan(await repository.branches.read(BRANCH), 0, Triggers(tables_min=1))
    if work is not None:
        await compact(repository, work)


async def commit(repository: Repository) -> None:
    try:
        await repository.commit(BRANCH, "sweep")
    except NoChanges:
        return  # an earlier try of ours had ended


SCENARIO: list[Step] = [
    puts("a/0", "a/1", "a/2"), delete("a/1"), stage, compact_once, puts("a/2"), create, commit,
    puts("a/5"), delete("b/0"), compact_once, puts("d"), commit,
]  # fmt: skip
CONTENT = {"a/0", "a/2", "a/5", "b/1", "b/2", "b/3", "b/4", "b/5", "c", "d"}


async def scenario(world: SweptWorld) -> None:
    await world.begin()
    client = world.swept()
    for step in SCENARIO:
        client = await taken(world, client, step)
    world.trap.at = 0
    assert {key.decode() for key in world.truth.main.state} == CONTENT
    await finish(world)


async def taken(world: SweptWorld, client: Client, step: Step) -> Client:
    """Take the step, repeating it as a user would; the process that is alive after it."""
    for _ in range(STEP_TRIES_MAX):
        try:
            await step(client.repository)
            return client
        except Unavailable:
            continue
        except asyncio.CancelledError:
            assert client.life.dead
            client = world.swept()
    raise AssertionError("the step does not succeed")


def sweep(at: int, fault: Fault) -> Trap:
    world = SweptWorld(random.Random(at), Trap(at, fault))
    run_in(world, scenario(world))
    return world.trap


@pytest.mark.parametrize("fault", Fault, ids=lambda fault: fault.value.replace(" ", "-"))
def test_a_fault_at_any_call_loses_nothing(fault: Fault) -> None:
    at = 1
    while sweep(at, fault).sprung:
        at += 1
    assert at > 50, f"the scenario makes only {at - 1} calls"


def torn_leftovers_are_trusted(patch: pytest.MonkeyPatch) -> None:
    async def trusting(store: ObjectStore, name: str, body: bytes) -> None:
        with contextlib.suppress(AlreadyExists):
            await store.put(name, body, ABSENT)

    patch.setattr(tables, "put_content", trusting)


@pytest.mark.parametrize(
    ("bug", "fault"),
    [
        (torn_leftovers_are_trusted, Fault.TORN_CRASH),
        (bugs.writes_are_acknowledged_early, Fault.CRASH_BEFORE),
        (bugs.compaction_drops_tombstones, Fault.ERROR),
        (bugs.appends_have_no_sequence, Fault.LOST),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_the_sweep_catches_a_planted_bug(
    bug: Callable[[pytest.MonkeyPatch], None], fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    bug(monkeypatch)
    at = 1
    try:
        while sweep(at, fault).sprung:
            at += 1
    except (AssertionError, Error):
        return
    pytest.fail(f"{at} faults did not show it")
