"""One suite for every ref store driver: the five verbs, the rules of a branch, the journal, and concurrency.

Each test opens the store as a user would, and where it matters looks at it by a second client.
"""

import asyncio
from pathlib import Path

import pytest

from refstore.drivers.keys import PAGE_ITEMS_MAX
from refstore.errors import Conflict, Invalid, NotFound
from refstore.records import Append, Branch, BranchChange, Event, Replace
from refstore.refs import Refs, replay
from refstore.store import ABSENT, VALUE_BYTES_MAX, Item, Store
from tests.aio import aio
from tests.conformance.refstore_backends import BACKENDS, PARAMETERS, Backend, fresh_name
from tests.conformance.refstore_histories import (
    HISTORIES,
    LIFE,
    RandomHistory,
    advance,
    append,
    create,
    delete,
    replace,
    run_history,
    seal,
)
from tests.conformance.refstore_processes import write_in_processes

KEYS = sorted(
    [bytes([number]) for number in range(256)]
    + [b"\0\0", b"\0\xff", b"a\0", b"a/b", b"a b", b"ab", b"-9", b"%41", "ä".encode(), b"\xff\0", b"\xff\xff"]
    + [b"{a}", b"a:b", b"[x", b"(x", b"a-", b"a_", b"a=", b"a~", b"aZ", b"a0"]
)
NAMES = sorted(
    ["main", "Main", "a/b", "a-b", "a b", "a", "ab", "ä", "z", "~", "_", "é/ü", "\U0001f600", "{x}", "\uffff"]
)


@pytest.fixture(params=PARAMETERS)
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Backend:
    return BACKENDS[request.param](tmp_path)


async def items(store: Store, partition: str, start: bytes = b"", prefix: bytes = b"") -> list[Item]:
    return [item async for item in store.scan(partition, start, prefix)]


async def names(store: Refs, repository: str, after: str = "", prefix: str = "") -> list[str]:
    return [branch.name async for branch in store.branches(repository, after, prefix)]


class TestKeysAndValues:
    @aio
    async def test_a_value_is_read_back_overwritten_and_deleted(self, backend: Backend) -> None:
        partition = fresh_name()
        async with backend.open() as store, backend.open() as second:
            assert await store.get(partition, b"k") is None
            await store.delete(partition, b"k")
            for value in (b"one", b"", bytes(range(256)), b"x" * VALUE_BYTES_MAX):
                await store.set(partition, b"k", value)
                assert await second.get(partition, b"k") == value
            await store.delete(partition, b"k")
            assert await second.get(partition, b"k") is None
            assert await items(second, partition) == []

    @aio
    async def test_keys_and_values_out_of_bounds_are_invalid(self, backend: Backend) -> None:
        partition = fresh_name()
        async with backend.open() as store:
            for key in (b"", b"k" * (backend.key_bytes_max + 1)):
                with pytest.raises(Invalid):
                    await store.set(partition, key, b"v")
                with pytest.raises(Invalid):
                    await store.get(partition, key)
            with pytest.raises(Invalid):
                await store.set(partition, b"k", b"x" * (VALUE_BYTES_MAX + 1))
            longest = b"k" * backend.key_bytes_max
            await store.set(partition, longest, b"v")
            assert await items(store, partition) == [Item(longest, b"v")]

    @aio
    async def test_scan_is_in_byte_order_from_start_within_prefix(self, backend: Backend) -> None:
        partition = fresh_name()
        async with backend.open() as store:
            await asyncio.gather(*(store.set(partition, key, key + b"!") for key in reversed(KEYS)))
            for start in (b"", b"a", b"a\0", b"a!", b"b", b"\xff\xff", b"\xff\xff\xff"):
                for prefix in (b"", b"a", b"a/", b"\xff", b"\xff\xff", b"nothing"):
                    expected = [Item(key, key + b"!") for key in KEYS if key >= start and key.startswith(prefix)]
                    assert await items(store, partition, start, prefix) == expected, (start, prefix)

    @aio
    async def test_scan_goes_on_over_pages(self, backend: Backend) -> None:
        partition = fresh_name()
        keys = [b"%04d" % number for number in range(PAGE_ITEMS_MAX + 10)]
        async with backend.open() as store:
            await asyncio.gather(*(store.set(partition, key, key) for key in keys))
            assert await items(store, partition) == [Item(key, key) for key in keys]

    @aio
    async def test_partitions_are_apart(self, backend: Backend) -> None:
        one = fresh_name()
        partitions = [one, f"{one}/b", f"{one}:b", f"{one}}}", f"{{{one}", f"{one}-ü", f"{one} b", f"{one}%2f"]
        async with backend.open() as store:
            for partition in partitions:
                await store.set(partition, b"k", partition.encode())
            await store.change(one, "k", create())
            for partition in partitions:
                assert await items(store, partition) == [Item(b"k", partition.encode())]
            assert await names(store, one) == ["k"]
            assert await names(store, partitions[1]) == []

    @aio
    async def test_set_if_compares_and_swaps(self, backend: Backend) -> None:
        partition = fresh_name()
        async with backend.open() as store:
            for expected in (b"", b"old"):
                with pytest.raises(Conflict):
                    await store.set_if(partition, b"k", b"new", expected)
            await store.set_if(partition, b"k", b"", ABSENT)
            with pytest.raises(Conflict):
                await store.set_if(partition, b"k", b"new", ABSENT)
            await store.set_if(partition, b"k", b"one", b"")
            with pytest.raises(Conflict):
                await store.set_if(partition, b"k", b"two", b"on")
            assert await store.get(partition, b"k") == b"one"
            assert await items(store, partition) == [Item(b"k", b"one")]
            await store.delete(partition, b"k")
            await store.set_if(partition, b"k", b"again", ABSENT)

    @aio
    async def test_of_many_set_if_at_once_one_wins(self, backend: Backend) -> None:
        partition = fresh_name()

        async def attempt(store: Store, value: bytes) -> bytes | None:
            try:
                await store.set_if(partition, b"k", value, ABSENT)
            except Conflict:
                return None
            return value

        async with backend.open() as store, backend.open() as second:
            tries = [attempt((store, second)[number % 2], b"%d" % number) for number in range(20)]
            winners = [value for value in await asyncio.gather(*tries) if value is not None]
            assert winners == [await store.get(partition, b"k")]

    @aio
    async def test_counting_by_set_if_loses_no_step(self, backend: Backend) -> None:
        partition = fresh_name()

        async def count(store: Store) -> None:
            done = 0
            while done < 5:
                old = await store.get(partition, b"n")
                try:
                    await store.set_if(partition, b"n", b"%d" % (int(old or 0) + 1), ABSENT if old is None else old)
                    done += 1
                except Conflict:
                    await asyncio.sleep(0)

        async with backend.open() as store, backend.open() as second:
            await asyncio.gather(count(store), count(store), count(second), count(second))
            assert await store.get(partition, b"n") == b"20"


class TestBranches:
    @pytest.mark.parametrize("history", HISTORIES)
    @aio
    async def test_a_rule_is_the_pure_function(self, backend: Backend, history: str) -> None:
        async with backend.open() as store:
            await run_history(store, fresh_name(), "main", HISTORIES[history])

    @pytest.mark.parametrize(("seed", "writers"), [(1, 4), (2, 8), (3, 70)])
    @aio
    async def test_random_changes_are_the_pure_function(self, backend: Backend, seed: int, writers: int) -> None:
        repository = fresh_name()
        async with backend.open() as store:
            await run_history(store, repository, "main", iter(RandomHistory(seed, 300, writers)))
            await check_journal(store, repository, limit=10_000)

    @aio
    async def test_read_of_no_branch_is_not_found(self, backend: Backend) -> None:
        async with backend.open() as store:
            with pytest.raises(NotFound, match="'main'"):
                await store.read(fresh_name(), "main")

    @aio
    async def test_another_client_reads_every_change_at_once(self, backend: Backend) -> None:
        repository = fresh_name()
        async with backend.open() as store, backend.open() as second:
            await store.change(repository, "main", create())
            for seq in range(1, 11):
                await store.change(repository, "main", append(seq))
                assert len((await second.read(repository, "main")).l1) == seq
            await store.change(repository, "main", delete())
            with pytest.raises(NotFound):
                await second.read(repository, "main")
            await store.change(repository, "main", create("life-2"))
            assert (await second.read(repository, "main")).incarnation == "life-2"

    @aio
    async def test_branches_are_listed_in_byte_order(self, backend: Backend) -> None:
        repository = fresh_name()
        async with backend.open() as store:
            made = await asyncio.gather(*(store.change(repository, name, create(f"life of {name}")) for name in NAMES))
            assert [branch async for branch in store.branches(repository)] == list(made)
            for after in ("", "a", "a/b", "m", "\uffff", "\U0001f601"):
                for prefix in ("", "a", "a/", "m", "é", "nothing"):
                    expected = [name for name in NAMES if name > after and name.startswith(prefix)]
                    assert await names(store, repository, after, prefix) == expected, (after, prefix)
            await store.change(repository, "a", delete("life of a"))
            assert "a" not in await names(store, repository)

    @aio
    async def test_branches_go_on_over_pages(self, backend: Backend) -> None:
        repository = fresh_name()
        expected = [f"b{number:04d}" for number in range(PAGE_ITEMS_MAX + 10)]
        async with backend.open() as store:
            await asyncio.gather(*(store.change(repository, name, create(name)) for name in expected))
            assert await names(store, repository) == expected

    @aio
    async def test_a_full_record_fits(self, backend: Backend) -> None:
        """Every seal and l1 at its cap, with ids as long as real ones."""
        repository, table = fresh_name(), "t" * 60
        async with backend.open() as store:
            await store.change(repository, "main", create())
            seq = 0
            for _ in range(4):
                for _ in range(60):
                    seq += 1
                    await store.change(repository, "main", append(seq, table=f"{table}{seq:04d}"))
                branch = await store.change(repository, "main", seal())
            branch = await store.change(repository, "main", advance("c0", "c1", tuple(s.id for s in branch.sealed)))
            assert branch.sealed == ()
            await check_journal(store, repository, limit=10_000)


async def check_journal(store: Refs, repository: str, limit: int) -> list[Event]:
    """The journal must lead to exactly what the records are."""
    events = await store.events(repository, limit)
    heads: dict[str, Branch] = {branch.name: branch async for branch in store.branches(repository)}
    assert replay(events) == heads
    return events


class TestJournal:
    @aio
    async def test_every_change_has_one_event_and_a_refused_or_repeated_one_has_none(self, backend: Backend) -> None:
        repository = fresh_name()
        changes: list[BranchChange] = [
            create(),
            append(1),
            append(2),
            seal(),
            advance("c0", "c1", (4,)),
            append(3),
            delete(),
        ]
        async with backend.open() as store:
            for change in changes:
                await store.change(repository, "main", change)
                if change in (changes[1], changes[4]):
                    await store.change(repository, "main", change)
                with pytest.raises((Conflict, NotFound)):
                    await store.change(repository, "main", append(9, life="life-9"))
            events = await store.events(repository)
        assert events == [Event("main", version, change) for version, change in enumerate(changes, 1)]

    @aio
    async def test_a_long_journal_of_several_lives_replays_to_the_records(self, backend: Backend) -> None:
        repository = fresh_name()
        async with backend.open() as store:
            for life in ("one", "two", "three"):
                await store.change(repository, "main", create(life))
                await store.change(repository, "side", create(life))
                for seq in range(1, 41):
                    await store.change(repository, "main", append(seq, life=life))
                    if seq % 10 == 0:
                        tables = (await store.read(repository, "main")).l1
                        branch = await store.read(repository, "main")
                        await store.change(repository, "main", replace(tables, branch.l2, f"r{seq}", life=life))
                    if seq % 15 == 0:
                        await store.change(repository, "side", append(seq // 15, life=life))
                if life != "three":
                    await store.change(repository, "main", delete(life))
                    await store.change(repository, "side", delete(life))
            await check_journal(store, repository, limit=1000)

    @aio
    async def test_draining_in_pieces_gives_every_event_once(self, backend: Backend) -> None:
        repository = fresh_name()
        drained: list[Event] = []
        async with backend.open() as store, backend.open() as second:
            for name in ("a", "b"):
                await store.change(repository, name, create(f"{name}1"))
                for seq in range(1, 51):
                    await store.change(repository, name, append(seq, life=f"{name}1"))
            await store.change(repository, "a", delete("a1"))
            while events := await second.events(repository, limit=7):
                assert len(events) <= 7
                drained += events
                await second.trim(repository, events)
                await second.trim(repository, events)
                if len(drained) == 28:
                    await store.change(repository, "a", create("a2"))
            assert len(drained) == 104
            assert replay(drained) == {branch.name: branch async for branch in store.branches(repository)}
            await store.change(repository, "b", append(51, life="b1"))
            assert await store.events(repository) == [Event("b", 52, append(51, life="b1"))]

    @aio
    async def test_a_name_used_again_after_its_journal_was_drained_starts_clean(self, backend: Backend) -> None:
        repository = fresh_name()
        async with backend.open() as store:
            for life in ("one", "two", "three"):
                await store.change(repository, "main", create(life))
                for seq in range(1, 36):
                    await store.change(repository, "main", append(seq, life=life))
                await store.change(repository, "main", delete(life))
                events = await store.events(repository)
                assert [event.version for event in events] == list(range(1, 38))
                assert {event.change.incarnation for event in events} == {life}
                await store.trim(repository, events)
                assert await store.events(repository) == []

    @aio
    async def test_repositories_are_apart(self, backend: Backend) -> None:
        one, other = fresh_name(), fresh_name()
        async with backend.open() as store:
            await store.change(one, "main", create())
            await store.change(other, "main", create())
            await store.trim(one, await store.events(one))
            assert await store.events(one) == []
            assert await store.events(other) == [Event("main", 1, create())]
            assert (await store.read(one, "main")).incarnation == LIFE


class TestConcurrency:
    @aio
    async def test_writers_of_one_branch_lose_and_double_nothing(self, backend: Backend) -> None:
        repository = fresh_name()
        async with backend.open() as store, backend.open() as second:
            await store.change(repository, "main", create())

            async def write(refs: Refs, writer: str) -> None:
                for seq in range(1, 11):
                    await refs.change(repository, "main", append(seq, writer))

            await asyncio.gather(*(write((store, second)[number % 2], f"w{number}") for number in range(6)))
            branch = await second.read(repository, "main")
            for number in range(6):
                mine = [table for table in branch.l1 if table.startswith(f"w{number}-")]
                assert mine == [f"w{number}-{seq}" for seq in range(1, 11)]
            await check_journal(store, repository, limit=1000)

    def test_processes_of_one_branch_lose_double_and_reorder_nothing(self, backend: Backend) -> None:
        if backend.address is None:
            pytest.skip("this store lives in one process")
        repository, processes, appends = fresh_name(), 4, 50
        asyncio.run(self._create(backend, repository))
        write_in_processes(backend.address, repository, processes, appends)
        asyncio.run(self._check_order(backend, repository, processes, appends))

    @staticmethod
    async def _create(backend: Backend, repository: str) -> None:
        async with backend.open() as store:
            await store.change(repository, "main", create())

    @staticmethod
    async def _check_order(backend: Backend, repository: str, processes: int, appends: int) -> None:
        async with backend.open() as store:
            events = await check_journal(store, repository, limit=1000)
            branch = await store.read(repository, "main")
        changes = [event.change for event in events]
        for number in range(processes):
            mine = [change.seq for change in changes if isinstance(change, Append) and change.writer == f"w{number}"]
            assert mine == list(range(1, appends + 1))
        compacted = [table for change in changes if isinstance(change, Replace) for table in change.tables]
        appended = [change.table for change in changes if isinstance(change, Append)]
        assert [*compacted, *branch.l1] == appended
        assert [event.version for event in events] == list(range(1, branch.version + 1))
