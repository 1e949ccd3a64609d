"""A fault at every single call of an import to its stores: whoever goes on, the end is the same, and published once.

The process whose call meets the fault may crash: no call of it begins any more. Then another process gives the same
command. In between others may write, compact and commit, so that a published unit is no layer any more. In the end the
branch has what was imported, once, and nothing that others wrote since is undone; the ref store remembers nothing.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from enum import Enum
from typing import Any, TypeVar

import pytest

from lsmfs.imports import sorting, work
from lsmfs.imports.importer import Imported, Importer
from lsmfs.imports.publication import Publisher
from lsmfs.imports.state import ImportState, Part, Publication, States
from lsmfs.objectstore.memory import MemoryStore
from lsmfs.objectstore.store import ANYTHING, Body, Precondition, Span, Tag
from lsmfs.objectstore.wrapper import WrapperStore
from lsmfs.repository import Repository
from refstore.drivers.memory import MemoryRefStore
from refstore.errors import Error, OutcomeUnknown, Unavailable
from refstore.records import Branch, BranchChange
from refstore.store import Absent, Item
from tests.imports.support import ListSource, appended, content, leftovers, names_of
from tests.lsm.support import SETTINGS, RefWrapper, entry, memory_repository, put_all, visible
from tests.sim.loop import run
from tests.sim.world import SimClock

T = TypeVar("T")
TRIES_MAX = 4
SORTED = sorted(names_of(90))
SHUFFLED = names_of(90)


class Fault(Enum):
    CRASH_BEFORE = "crash before"
    CRASH_AFTER = "crash after effect"
    LOST = "lost answer"
    TIMEOUT = "timeout after effect"
    TWICE = "duplicate"
    ERROR = "error"


class Trap:
    """Counts the calls of all processes; the one with number `at` meets the fault."""

    def __init__(self, at: int, fault: Fault) -> None:
        self.at, self.fault, self.calls, self.sprung = at, fault, 0, False

    async def call(self, process: "Process", call: Callable[[], Awaitable[T]]) -> T:
        process.breathe()
        self.calls += 1
        if self.calls != self.at:
            return await call()
        self.sprung = True
        if self.fault is Fault.ERROR:
            raise Unavailable("planned: nothing was done")
        if self.fault is Fault.CRASH_BEFORE:
            process.crash()
        result = await call()
        if self.fault is Fault.TWICE:
            await _ignored(call)
            return result
        if self.fault is Fault.CRASH_AFTER:
            process.crash()
        if self.fault is Fault.TIMEOUT:
            await asyncio.sleep(60)  # beyond every deadline
        raise OutcomeUnknown("planned: the answer is lost")


async def _ignored(call: Callable[[], Awaitable[Any]]) -> None:
    try:
        await call()
    except Error:
        return  # nobody hears the answer


class Process:
    def __init__(self, trap: Trap) -> None:
        self.trap = trap
        self.is_dead = False

    def breathe(self) -> None:
        if self.is_dead:
            raise asyncio.CancelledError("this process has crashed")

    def crash(self) -> None:
        self.is_dead = True
        self.breathe()

    async def call(self, call: Callable[[], Awaitable[T]]) -> T:
        return await self.trap.call(self, call)


class TrappedStore(WrapperStore):
    def __init__(self, inner: MemoryStore, process: Process) -> None:
        super().__init__(inner)
        self._process = process

    async def get(self, name: str, span: Span | None = None) -> bytes:
        return await self._process.call(lambda: self.inner.get(name, span))

    async def put(self, name: str, body: Body, expected: Precondition = ANYTHING) -> Tag:
        return await self._process.call(lambda: self.inner.put(name, body, expected))

    async def delete(self, name: str) -> None:
        await self._process.call(lambda: self.inner.delete(name))


class TrappedRefs(RefWrapper):
    def __init__(self, inner: MemoryRefStore, process: Process) -> None:
        super().__init__(inner)
        self._process = process

    async def get(self, partition: str, key: bytes) -> bytes | None:
        return await self._process.call(lambda: self.inner.get(partition, key))

    async def scan(self, partition: str, start: bytes = b"", prefix: bytes = b"") -> AsyncIterator[Item]:
        async def begin() -> AsyncIterator[Item]:
            return self.inner.scan(partition, start, prefix)

        async for item in await self._process.call(begin):
            yield item

    async def set(self, partition: str, key: bytes, value: bytes) -> None:
        await self._process.call(lambda: self.inner.set(partition, key, value))

    async def delete(self, partition: str, key: bytes) -> None:
        await self._process.call(lambda: self.inner.delete(partition, key))

    async def set_if(self, partition: str, key: bytes, value: bytes, expected: bytes | Absent) -> None:
        await self._process.call(lambda: self.inner.set_if(partition, key, value, expected))

    async def read(self, repository: str, name: str) -> Branch:
        return await self._process.call(lambda: self.inner.read(repository, name))

    async def change(self, repository: str, name: str, change: BranchChange) -> Branch:
        return await self._process.call(lambda: self.inner.change(repository, name, change))


class World:
    def __init__(self, trap: Trap, names: Sequence[str]) -> None:
        self.trap = trap
        self.names = names
        self.objects, self.refs = MemoryStore(), MemoryRefStore()
        self.clock = SimClock(random.Random(trap.at))

    async def client(self, process: Process) -> Repository:
        """As `Repository.open`, whose own calls are not what is tested."""
        healthy = await Repository.open(self.objects, self.refs, "repo")
        store, refs = TrappedStore(self.objects, process), TrappedRefs(self.refs, process)
        return Repository(store, refs, healthy.record, self.clock, SETTINGS, threads=False)

    async def scenario(self) -> None:
        healthy = await memory_repository(self.objects, self.refs)
        await put_all(healthy, {b"before": entry(1)})
        imported = await self.imported(healthy)
        units = [name for name in await appended(self.refs) if name.startswith("u")]
        assert units == [imported.unit]
        expected = {**content(self.names, "in/"), b"before": entry(1)}
        found = await visible(healthy)
        if b"meanwhile" in found:  # another had changed what it saw of the import: that stays
            expected |= {key: found[key] for key in (b"meanwhile", b"in/" + self.names[0].encode()) if key in found}
            if len(found) == len(expected) - 1:
                del expected[b"in/" + self.names[1].encode()]
        assert found == expected
        assert imported.objects == len(self.names)
        assert await leftovers(healthy, imported.id) == []

    async def imported(self, healthy: Repository) -> Imported:
        process = Process(self.trap)
        for number in range(TRIES_MAX):
            client = await self.client(process)
            try:  # the second time it is meant to go on with the first, which may have ended
                return await client.import_objects(ListSource(self.names), "main", "in/", once=number > 0)
            except Unavailable:
                pass  # the same process, or the same person, tries again
            except asyncio.CancelledError:
                assert process.is_dead
                process = Process(self.trap)
            await self.meanwhile(healthy)
        raise AssertionError("the import does not end")

    async def meanwhile(self, healthy: Repository) -> None:
        """Others go on: they change what they see of the import, and commit, so that no layer of it is left."""
        seen = await visible(healthy)
        first, second = (b"in/" + name.encode() for name in self.names[:2])
        if first in seen:
            assert len(seen) >= len(self.names), "half of a unit is visible"
            await put_all(healthy, {first: entry(99), second: None, b"meanwhile": entry(98)})
            await healthy.commit("main", "meanwhile")


def swept(fault: Fault, names: Sequence[str]) -> int:
    """Put the fault at each call, one after the other; how many there are."""
    at = 1
    while sweep(at, fault, names).sprung:
        at += 1
    return at - 1


def sweep(at: int, fault: Fault, names: Sequence[str]) -> Trap:
    trap = Trap(at, fault)
    run(World(trap, names).scenario(), random.Random(at))
    return trap


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small spills, and a save after every batch."""
    monkeypatch.setattr(work, "SAVE_SECONDS", 0.0)
    monkeypatch.setattr(sorting, "SPILL_ROWS", 25)
    monkeypatch.setattr(sorting, "SPILLS_MAX", 2)


@pytest.mark.parametrize("names", [SORTED, SHUFFLED], ids=["sorted", "shuffled"])
@pytest.mark.parametrize("fault", Fault, ids=lambda fault: fault.value.replace(" ", "-"))
def test_a_fault_at_any_call_of_an_import_changes_nothing_of_its_end(
    fault: Fault, names: list[str], eager: None
) -> None:
    assert swept(fault, names) >= 30


def the_append_is_not_written_down_before_it_is_sent(patch: pytest.MonkeyPatch) -> None:
    async def forgetful(self: work.Work, is_read: bool = False, publication: Publication | None = None) -> None:
        await save(self, is_read)

    save = work.Work.save
    patch.setattr(work.Work, "save", forgetful)


def who_goes_on_appends_as_another_writer(patch: pytest.MonkeyPatch) -> None:
    async def never(self: Publisher, state: ImportState, publication: Publication) -> bool:
        return False

    patch.setattr(Publisher, "repeat", never)


def the_result_is_not_remembered(patch: pytest.MonkeyPatch) -> None:
    async def forgets(self: Importer, state: ImportState, publication: Publication, resumed: bool) -> Imported:
        await self.states.remove(state)
        return Imported(state.id, state.objects, state.size_bytes, state.skipped, publication.unit, resumed)

    patch.setattr(Importer, "_end", forgets)


def what_is_half_written_counts(patch: pytest.MonkeyPatch) -> None:
    async def before(self: States, state: ImportState, part: Part) -> None:
        part.chunks = (*part.chunks, state.life + "never")[:1]

    patch.setattr(States, "save_part", before)


@pytest.mark.parametrize(
    "bug",
    [
        the_append_is_not_written_down_before_it_is_sent,
        who_goes_on_appends_as_another_writer,
        the_result_is_not_remembered,
        what_is_half_written_counts,
    ],
    ids=lambda bug: bug.__name__,
)
def test_the_sweep_finds_planted_bugs(
    bug: Callable[[pytest.MonkeyPatch], None], eager: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    bug(monkeypatch)
    sweep(0, Fault.CRASH_AFTER, SORTED)  # without a fault it does not show
    with pytest.raises((AssertionError, Error)):
        swept(Fault.CRASH_AFTER, SORTED)
