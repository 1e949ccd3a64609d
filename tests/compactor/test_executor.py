"""One compaction: readers see no difference, the branch is replaced exactly or not at all."""

import asyncio
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from compactor.executor import compact
from compactor.planner import Plan
from lsmfs import paths
from lsmfs.model import Entry
from lsmfs.repository import Repository
from lsmfs.settings import Settings, WriterSettings
from refstore.drivers.memory import MemoryRefStore
from refstore.errors import Corrupt, NotFound, Unavailable
from refstore.records import Branch, BranchChange, Delete, RaiseFloor, Replace
from tests.aio import aio
from tests.lsm.support import SHAPE, DisturbedRefs, another_client, entry, keys, memory_repository, put_all, visible

Content = dict[bytes, Entry | None]


async def planned(repository: Repository, count: int | None = None) -> Plan:
    branch = await repository.branches.read("main")
    return Plan(branch, branch.l1[:count], branch.l2, "test")


def settled(layers: list[Content]) -> dict[bytes, Entry]:
    merged: Content = {}
    for layer in layers:
        merged.update(layer)
    return {key: merged[key] for key in sorted(merged) if merged[key] is not None}  # type: ignore[misc]


LAYERS = st.lists(
    st.dictionaries(
        st.integers(0, 80).map(lambda n: keys([n])[0]),
        st.none() | st.integers(0, 9).map(entry),
        min_size=1,
        max_size=40,
    ),
    min_size=1,
    max_size=5,
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(LAYERS, LAYERS, st.lists(st.integers(1, 4), max_size=4), st.sampled_from([5, 1000]))
def test_compacting_any_prefix_changes_nothing_that_readers_see(
    base: list[Content], layers: list[Content], counts: list[int], rows_max: int
) -> None:
    async def check() -> None:
        settings = Settings(WriterSettings(unit_rows_max=rows_max), SHAPE)
        repository = await memory_repository(settings=settings)
        for layer in base:
            await put_all(repository, layer)
        await repository.commit("main", "base", allow_empty=True)
        for layer in layers:
            await put_all(repository, layer)
        expected = settled([*base, *layers])
        for count in counts:
            work = await planned(repository, count)
            if not work.tables:
                break
            view = work.branch.view
            result = await compact(repository, work)
            assert result is not None
            assert (result.branch.l1, result.tables) == (work.branch.l1[count:], len(work.tables))
            assert result.branch.view == view  # conditional writers need not decide again
            assert await visible(await another_client(repository)) == expected

    asyncio.run(check())


@aio
async def test_a_compaction_keeps_deletions_of_what_lies_below() -> None:
    repository = await memory_repository()
    await put_all(repository, {b"a": entry(1), b"b": entry(1)})
    await repository.commit("main", "base")
    await put_all(repository, {b"a": None})
    assert await compact(repository, await planned(repository))
    assert await visible(repository) == {b"b": entry(1)}
    await put_all(repository, {b"c": entry(1)})
    assert await compact(repository, await planned(repository))
    assert await visible(repository) == {b"b": entry(1), b"c": entry(1)}
    await repository.commit("main", "second")
    assert await visible(repository) == {b"b": entry(1), b"c": entry(1)}


@aio
async def test_a_write_during_a_compaction_stays_above_it() -> None:
    refs = DisturbedRefs(MemoryRefStore())
    repository = await memory_repository(refs=refs)
    await put_all(repository, {b"a": entry(1)})

    async def write_first(change: BranchChange, do: Any) -> Branch:
        if isinstance(change, Replace):
            await put_all(repository, {b"a": entry(2)})
        return await do()  # type: ignore[no-any-return]

    refs.disturb = write_first
    assert await compact(repository, await planned(repository))
    assert await visible(repository) == {b"a": entry(2)}
    branch = await refs.read("repo", "main")
    assert len(branch.l1) == 1


@aio
async def test_of_two_compactions_of_the_same_tables_one_wins_and_the_other_says_so() -> None:
    repository = await memory_repository()
    other = await another_client(repository)
    for n in range(4):
        await put_all(repository, {b"a": entry(n), f"k{n}".encode(): entry(n)})
    plans = await planned(repository), await planned(other, 2)
    results = await asyncio.gather(compact(repository, plans[0]), compact(other, plans[1]))
    assert sum(result is not None for result in results) == 1
    assert len(await visible(repository)) == 5


@aio
async def test_a_compaction_that_a_commit_overtakes_brings_nothing_back() -> None:
    """Its l2 was empty and is empty again, but the tables that it merged are committed: the exact prefix is gone."""
    repository = await memory_repository()
    await put_all(repository, {b"a": entry(1)})
    work = await planned(repository)
    await repository.commit("main", "takes the table")
    await put_all(repository, {b"a": None})
    await repository.commit("main", "deletes it")
    assert await compact(repository, work) is None
    assert await visible(repository) == {}


@aio
async def test_a_compaction_of_a_branch_that_is_gone_is_overtaken() -> None:
    repository = await memory_repository()
    await put_all(repository, {b"a": entry(1)})
    work = await planned(repository)
    await repository.refs.change("repo", "main", Delete(incarnation=work.branch.incarnation))
    assert await compact(repository, work) is None
    await repository.store.delete(paths.layer_path("repo", work.tables[0]))
    assert await compact(await another_client(repository), work) is None


@aio
async def test_a_compaction_below_the_garbage_floor_is_overtaken_and_the_next_one_is_not() -> None:
    repository = await memory_repository()
    await put_all(repository, {b"a": entry(1)})
    work = await planned(repository)
    await repository.refs.change("repo", "main", RaiseFloor(incarnation=work.branch.incarnation, floor=2))
    assert await compact(repository, work) is None
    result = await compact(repository, await planned(repository))
    assert result is not None
    assert result.branch.l2 is not None
    assert paths.generation_of(result.branch.l2) == 2


@aio
async def test_a_table_that_is_gone_because_the_branch_has_moved_is_no_error() -> None:
    repository = await memory_repository()
    await put_all(repository, {b"a": entry(1)})
    work = await planned(repository)
    await repository.commit("main", "takes the table")
    await repository.store.delete(paths.layer_path("repo", work.tables[0]))
    assert await compact(await another_client(repository), work) is None


@aio
async def test_a_missing_table_of_a_branch_that_has_not_moved_is_corrupt() -> None:
    repository = await memory_repository()
    await put_all(repository, {b"a": entry(1)})
    work = await planned(repository)
    await repository.store.delete(paths.layer_path("repo", work.tables[0]))
    with pytest.raises(Corrupt, match="'main' at version 2"):
        await compact(await another_client(repository), work)


@aio
async def test_a_replace_whose_answer_is_lost_was_done_and_hurts_nobody() -> None:
    refs = DisturbedRefs(MemoryRefStore())
    repository = await memory_repository(refs=refs)
    await put_all(repository, {b"a": entry(1)})

    async def lose(change: BranchChange, do: Any) -> Branch:
        await do()
        raise Unavailable("lost")

    refs.disturb = lose
    work = await planned(repository)
    with pytest.raises(Unavailable):
        await compact(repository, work)
    refs.disturb = None
    assert await compact(repository, work) is None
    assert await visible(repository) == {b"a": entry(1)}


@aio
async def test_a_compaction_rewrites_only_the_ranges_that_l1_touches() -> None:
    repository = await memory_repository()
    await put_all(repository, {key: entry(1) for key in keys(range(500))})
    first = await compact(repository, await planned(repository))
    assert first is not None
    assert first.branch.l2 is not None
    run = await repository.tables.load_run(first.branch.l2)
    await put_all(repository, {run.min_keys[3]: entry(2), run.min_keys[9]: None})
    second = await compact(repository, await planned(repository))
    assert second is not None
    assert second.ranges_kept >= len(run) - 4
    assert second.ranges_written <= 4
    assert second.records == 500
    with pytest.raises(NotFound):
        await repository.get("main", run.min_keys[9])
