"""The daemon: any number of them at once, stopped at any time, and no bad branch or store ends it."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
import structlog

from compactor.daemon import Daemon
from compactor.planner import Triggers
from lsmfs.model import Entry
from lsmfs.objectstore.faulting import Fault, FaultingStore, Kind
from lsmfs.objectstore.memory import MemoryStore
from lsmfs.repository import Repository
from refstore.drivers.memory import MemoryRefStore
from refstore.errors import Corrupt, Unavailable
from refstore.records import Append, Branch, BranchChange, CommitId, Create, Replace, TableId, WriterId
from tests.aio import aio
from tests.lsm.support import (
    DisturbedRefs,
    RefWrapper,
    another_client,
    entry,
    keys,
    memory_repository,
    put_all,
    visible,
)

EAGER = Triggers(tables_min=2)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Log lines are data here, not output."""
    with structlog.testing.capture_logs():
        yield


async def add_branch(repository: Repository, name: str) -> None:
    base: CommitId = (await repository.refs.read("repo", "main")).base_commit
    await repository.refs.change("repo", name, Create(incarnation=f"life of {name}", base_commit=base))


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(100_000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it never came")


async def tables_of(repository: Repository, name: str = "main") -> int:
    return len((await repository.refs.read("repo", name)).l1)


@aio
async def test_a_round_compacts_every_branch_that_is_due_and_no_other() -> None:
    repository = await memory_repository()
    for name in ("b", "c"):
        await add_branch(repository, name)
    for name, count in (("main", 3), ("b", 1), ("c", 2)):
        for n in range(count):
            await put_all(repository, {b"a": entry(n)}, name)
    daemon = Daemon([repository], EAGER)
    assert await daemon.round() == 2
    assert [await tables_of(repository, name) for name in ("main", "b", "c")] == [0, 1, 0]
    assert await daemon.round() == 0
    assert (daemon.metrics.rounds, daemon.metrics.compactions, daemon.metrics.tables_merged) == (2, 2, 5)
    for name, count in (("main", 3), ("b", 1), ("c", 2)):
        assert await visible(repository, name) == {b"a": entry(count - 1)}


class FixedClock:
    """Time stands until a test moves it."""

    def __init__(self) -> None:
        self.now = 0.0

    def now_us(self) -> int:
        return 0

    def monotonic(self) -> float:
        return self.now

    def jitter(self) -> float:
        return 0.5

    def new_id(self) -> str:
        raise AssertionError("a compactor makes no ids")


@aio
async def test_a_table_is_due_by_age_when_this_daemon_has_seen_it_wait() -> None:
    writing = await memory_repository()
    await put_all(writing, {b"a": entry(1)})
    clock = FixedClock()
    repository = Repository(writing.store, writing.refs, writing.record, clock, writing.settings, threads=False)
    daemon = Daemon([repository], Triggers(tables_min=100, age_seconds=60))
    for now, done in ((1000.0, 0), (1059.0, 0), (1060.0, 1), (1061.0, 0)):
        clock.now = now
        assert await daemon.round() == done
    await put_all(writing, {b"a": entry(2)})
    for now, done in ((2000.0, 0), (2060.0, 1)):  # the new table's age begins when it is first seen
        clock.now = now
        assert await daemon.round() == done


@aio
async def test_several_daemons_on_one_branch_lose_nothing_while_writers_write() -> None:
    first = await memory_repository()
    clients = [first, *[await another_client(first) for _ in range(2)]]
    daemons = [Daemon([client], EAGER, interval_seconds=0.001) for client in clients]
    stop = asyncio.Event()
    running = [asyncio.ensure_future(daemon.run(stop)) for daemon in daemons]
    expected: dict[bytes, Entry] = {}

    async def write(at: int, client: Repository) -> None:
        async with client.writer("main") as writer:
            for n in range(40):
                key = f"{at}-{n % 10}".encode()
                await writer.put(key, entry(n))
                expected[key] = entry(n)
                if n % 4 == 3:
                    await writer.delete(key)
                    del expected[key]

    await asyncio.gather(*(write(at, client) for at, client in enumerate(clients)))
    stop.set()
    await asyncio.gather(*running)
    assert await visible(await another_client(first)) == expected
    assert sum(daemon.metrics.compactions for daemon in daemons) > 3
    assert sum(daemon.metrics.errors for daemon in daemons) == 0


@aio
async def test_one_bad_branch_does_not_stop_the_others() -> None:
    repository = await memory_repository()
    for name in ("aaa", "bad", "worse"):
        await add_branch(repository, name)
    gone = TableId("t0-00000000000000000000-1-" + "0" * 32)
    for name, table in (("bad", gone), ("worse", TableId("no name at all"))):
        for seq in (1, 2):
            change = Append(incarnation=f"life of {name}", writer=WriterId("w"), seq=seq, opened_at=1, table=table,
                            generation=0)  # fmt: skip
            await repository.refs.change("repo", name, change)
    for name in ("aaa", "main"):
        for n in range(2):
            await put_all(repository, {b"a": entry(n)}, name)
    daemon = Daemon([repository], EAGER)
    assert await daemon.round() == 2
    assert [await tables_of(repository, name) for name in ("aaa", "bad", "main", "worse")] == [0, 2, 0, 2]
    assert (daemon.metrics.compactions, daemon.metrics.errors, daemon.metrics.races_lost) == (2, 2, 0)


@aio
async def test_a_branch_that_cannot_be_reached_does_not_stop_the_others() -> None:
    refs = DisturbedRefs(MemoryRefStore())
    repository = await memory_repository(refs=refs)
    names = ["a", "b", "c", "main"]
    for name in names[:3]:
        await add_branch(repository, name)
    for name in names:
        for n in range(2):
            await put_all(repository, {b"a": entry(n)}, name)

    async def fail_first(change: BranchChange, do: Any) -> Branch:
        if change.incarnation == "life of a":
            raise Unavailable("too busy")
        return await do()  # type: ignore[no-any-return]

    refs.disturb = fail_first
    assert await Daemon([repository], EAGER).round() == 3
    assert [await tables_of(repository, name) for name in names] == [2, 0, 0, 0]


@aio
async def test_a_store_that_cannot_be_reached_is_waited_for_longer_each_time_and_then_work_goes_on() -> None:
    away = False

    def plan(verb: str, name: str, number: int) -> Fault | None:
        return Fault(Kind.BEFORE) if away else None

    repository = await memory_repository(FaultingStore(MemoryStore(), plan))
    for n in range(2):
        await put_all(repository, {b"a": entry(n)})
    away = True
    daemon = Daemon([repository], EAGER, interval_seconds=0.01)
    with pytest.raises(Unavailable):
        await daemon.round()
    stop = asyncio.Event()
    with structlog.testing.capture_logs() as lines:
        running = asyncio.ensure_future(daemon.run(stop))
        await until(lambda: daemon.metrics.errors >= 3)
        away = False
        await until(lambda: daemon.metrics.compactions > 0)
        stop.set()
        await running
    waits = [line["retry_in"] for line in lines if "retry_in" in line]
    assert waits[:3] == [0.02, 0.04, 0.08]
    assert await visible(repository) == {b"a": entry(1)}


@aio
async def test_stopping_ends_what_is_under_way_and_begins_nothing_new() -> None:
    refs = DisturbedRefs(MemoryRefStore())
    repository = await memory_repository(refs=refs)
    names = [f"b{n}" for n in range(6)]
    for name in names:
        await add_branch(repository, name)
        for n in range(2):
            await put_all(repository, {b"a": entry(n)}, name)
    reached, proceed = asyncio.Event(), asyncio.Event()

    async def hold(change: BranchChange, do: Any) -> Branch:
        if isinstance(change, Replace):
            reached.set()
            await proceed.wait()
        return await do()  # type: ignore[no-any-return]

    refs.disturb = hold
    daemon, stop = Daemon([repository], EAGER, interval_seconds=0.01), asyncio.Event()
    running = asyncio.ensure_future(daemon.run(stop))
    await reached.wait()
    stop.set()
    await asyncio.sleep(0.01)
    assert not running.done()
    proceed.set()
    await running
    assert 1 <= daemon.metrics.compactions <= 2  # those that had begun
    assert sum([await tables_of(repository, name) == 0 for name in names]) == daemon.metrics.compactions
    assert asyncio.all_tasks() == {asyncio.current_task()}


@aio
async def test_a_daemon_told_to_stop_while_it_rests_stops_at_once() -> None:
    daemon, stop = Daemon([await memory_repository()], EAGER, interval_seconds=3600), asyncio.Event()
    running = asyncio.ensure_future(daemon.run(stop))
    await until(lambda: daemon.metrics.rounds > 0)
    stop.set()
    await running
    assert daemon.metrics.rounds == 1


@aio
async def test_a_daemon_killed_in_the_middle_leaves_only_garbage() -> None:
    refs = DisturbedRefs(MemoryRefStore())
    repository = await memory_repository(refs=refs)
    content = {key: entry(1) for key in keys(range(50))}
    await put_all(repository, dict(content))
    await put_all(repository, {b"z": entry(2)})
    held = asyncio.Event()

    async def hold(change: BranchChange, do: Any) -> Branch:
        held.set()
        await asyncio.sleep(3600)
        return await do()  # type: ignore[no-any-return]

    refs.disturb = hold
    running = asyncio.ensure_future(Daemon([repository], EAGER).run(asyncio.Event()))
    await held.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    refs.disturb = None
    assert await visible(repository) == {**content, b"z": entry(2)}
    assert await Daemon([await another_client(repository)], EAGER).round() == 1
    assert await visible(repository) == {**content, b"z": entry(2)}


@aio
async def test_two_repositories_are_served_by_one_daemon() -> None:
    store, refs = MemoryStore(), MemoryRefStore()
    repositories = [await Repository.create(store, refs, name, threads=False) for name in ("one", "two")]
    for repository in repositories:
        for n in range(2):
            await put_all(repository, {b"a": entry(n)})
    daemon = Daemon(repositories, EAGER)
    assert await daemon.round() == 2
    assert await daemon.round() == 0
    assert not daemon._first_seen


@aio
async def test_a_repository_whose_branches_cannot_be_read_does_not_stop_the_others() -> None:
    class Damaged(RefWrapper):
        async def branches(self, repository: str, after: str = "", prefix: str = "") -> AsyncIterator[Branch]:
            raise Corrupt("a branch record cannot be read")
            yield

    refs = MemoryRefStore()
    good = await memory_repository(refs=refs)
    for n in range(2):
        await put_all(good, {b"a": entry(n)})
    daemon = Daemon([await another_client(good, Damaged(refs)), good], EAGER)
    assert await daemon.round() == 1
    assert (await tables_of(good), daemon.metrics.errors) == (0, 1)
