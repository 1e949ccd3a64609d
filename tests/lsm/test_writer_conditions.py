"""Conditional writes: done if the condition holds, by exactly one of any number of racers."""

import asyncio

import pytest

from compactor.executor import compact
from compactor.planner import Plan
from lsmfs import paths
from lsmfs.model import Entry
from lsmfs.objectstore.counting import CountingStore
from lsmfs.objectstore.memory import MemoryStore
from lsmfs.repository import Repository
from refstore import refs as rules
from refstore.errors import (
    Conflict,
    Corrupt,
    ViewChanged,
)
from refstore.records import Append, Branch, BranchChange
from refstore.store import ABSENT, Absent
from tests.aio import aio
from tests.lsm.support import (
    another_client,
    entry,
    keys,
    memory_repository,
    put_all,
)
from tests.lsm.writing import Do, disturbed, truth, with_writer


@pytest.mark.parametrize(
    ("there", "expected", "allowed"),
    [
        (None, ABSENT, True),
        (None, "e1", False),
        (None, "", False),
        (entry(1), ABSENT, False),
        (entry(1), "e1", True),
        (entry(1), "e2", False),
        (Entry("x", 1), "", True),
    ],
)
@pytest.mark.parametrize("place", ["l1", "l2", "base", "deleted above base"])
@aio
async def test_a_conditional_put_is_done_if_its_condition_holds(
    there: Entry | None, expected: str | Absent, allowed: bool, place: str
) -> None:
    repository = await memory_repository()
    await put_all(repository, {b"a": there or entry(9), b"other": entry(1)})
    if place != "l1":
        branch = await repository.branches.read("main")
        await compact(repository, Plan(branch, branch.l1, branch.l2, "test"))
    if place in ("base", "deleted above base"):
        await repository.commit("main", "base")
    if there is None:
        await put_all(repository, {b"a": None})
    async with repository.writer("main") as writer:
        if allowed:
            await writer.put("a", entry(5), expected)
        else:
            with pytest.raises(Conflict, match="'a'"):
                await writer.put("a", entry(5), expected)
    assert (await truth(repository)).get(b"a") == (entry(5) if allowed else there)


@pytest.mark.parametrize(("there", "expected", "allowed"), [(1, "e1", True), (1, "e2", False), (None, "e1", False)])
@aio
async def test_a_conditional_delete_is_done_if_its_etag_is_there(
    there: int | None, expected: str, allowed: bool
) -> None:
    repository = await memory_repository()
    await put_all(repository, {b"a": entry(there)} if there else {})
    async with repository.writer("main") as writer:
        if allowed:
            await writer.delete("a", expected)
        else:
            with pytest.raises(Conflict):
                await writer.delete("a", expected)
    assert (await truth(repository)).get(b"a") == (entry(1) if there and not allowed else None)


@aio
async def test_conditions_of_one_batch_see_the_operations_before_them() -> None:
    repository = await memory_repository()
    async with repository.writer("main") as writer:
        answers = await asyncio.gather(
            writer.put("a", entry(1), ABSENT),
            writer.put("a", entry(2), ABSENT),
            writer.put("a", entry(3), "e1"),
            writer.put("a", entry(4), "e1"),
            writer.put("b", entry(1)),
            writer.put("b", entry(2), ABSENT),
            writer.delete("a", "e3"),
            writer.put("a", entry(5), ABSENT),
            return_exceptions=True,
        )
    assert [type(answer) for answer in answers] == [
        type(None), Conflict, type(None), Conflict, type(None), Conflict, type(None), type(None)
    ]  # fmt: skip
    assert await truth(repository) == {b"a": entry(5), b"b": entry(1)}


@aio
async def test_a_batch_of_which_everything_is_refused_stores_nothing() -> None:
    store = CountingStore(MemoryStore())
    repository = await memory_repository(store)
    await put_all(repository, {b"a": entry(1)})
    before = store.calls("put"), (await repository.branches.read("main")).version
    async with repository.writer("main") as writer:
        with pytest.raises(Conflict, match="exists, with etag 'e1'"):
            await writer.put("a", entry(2), ABSENT)
    assert (store.calls("put"), (await repository.branches.read("main")).version) == before


@aio
async def test_of_any_number_of_racers_to_create_a_key_exactly_one_wins() -> None:
    first = await memory_repository(settings=with_writer(deadline_seconds=20.0))
    clients = [first, *[await another_client(first) for _ in range(3)]]
    writers = [client.writer("main") for client in clients for _ in range(2)]
    for writer in writers:
        await writer.__aenter__()
    racers = [(writer, n) for n, writer in enumerate(writers * 3)]
    for key in ("a", "b", "c"):
        answers = await asyncio.gather(
            *(writer.put(key, entry(n), ABSENT) for writer, n in racers), return_exceptions=True
        )
        winners = [n for (_, n), answer in zip(racers, answers, strict=True) if answer is None]
        assert len(winners) == 1
        assert {type(answer) for answer in answers} == {type(None), Conflict}
        assert await first.get("main", key) == entry(winners[0])
    for writer in writers:
        await writer.aclose()


@aio
async def test_a_counter_raised_by_racing_compare_and_swap_loses_no_step() -> None:
    first = await memory_repository(settings=with_writer(deadline_seconds=20.0))
    await put_all(first, {b"n": entry(0)})

    async def raise_it(client: Repository, times: int) -> None:
        async with client.writer("main") as writer:
            while times:
                current = await client.get("main", "n")
                try:
                    await writer.put("n", entry(current.size_bytes + 1), current.etag)
                    times -= 1
                except ViewChanged:
                    raise
                except Conflict:
                    continue

    clients = [first, *[await another_client(first) for _ in range(3)]]
    await asyncio.gather(*(raise_it(client, 5) for client in clients))
    assert await first.get("main", "n") == entry(20)


@aio
async def test_of_racing_deleters_exactly_one_wins() -> None:
    first = await memory_repository(settings=with_writer(deadline_seconds=20.0))
    clients = [first, *[await another_client(first) for _ in range(3)]]
    await put_all(first, {b"a": entry(1)})
    writers = [client.writer("main") for client in clients]
    for writer in writers:
        await writer.__aenter__()
    answers = await asyncio.gather(*(writer.delete("a", "e1") for writer in writers), return_exceptions=True)
    assert sorted(type(answer).__name__ for answer in answers) == ["Conflict", "Conflict", "Conflict", "NoneType"]
    for writer in writers:
        await writer.aclose()


@aio
async def test_a_condition_is_decided_again_when_the_view_changes_under_it() -> None:
    repository, refs = await disturbed(deadline_seconds=5.0)
    intruder = await another_client(repository, refs.inner)
    await put_all(intruder, {b"b": entry(1)})
    intruded = 0

    async def intrude(change: BranchChange, do: Do) -> Branch:
        nonlocal intruded
        if isinstance(change, Append) and change.expected_view is not None and intruded < 2:
            intruded += 1
            await put_all(intruder, {b"b": entry(1 + intruded), b"c": entry(intruded)})
        return await do()

    refs.disturb = intrude
    async with repository.writer("main") as writer:
        answers = await asyncio.gather(
            writer.put("a", entry(1), ABSENT),
            writer.put("b", entry(9), "e1"),  # true at first, false after the intruder
            writer.put("c", entry(9), ABSENT),  # true at first, false after the intruder
            writer.put("d", entry(1)),
            return_exceptions=True,
        )
    assert [type(answer) for answer in answers] == [type(None), Conflict, Conflict, type(None)]
    assert intruded == 2
    assert await truth(repository) == {b"a": entry(1), b"b": entry(3), b"c": entry(2), b"d": entry(1)}


@aio
async def test_a_condition_that_never_finds_a_quiet_moment_ends_in_a_conflict() -> None:
    repository, refs = await disturbed()
    intruder = await another_client(repository, refs.inner)

    async def intrude(change: BranchChange, do: Do) -> Branch:
        if isinstance(change, Append):
            await put_all(intruder, {b"b": entry(1)})
        return await do()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rules, "L1_TABLES_MAX", 10**6)
        refs.disturb = intrude
        async with repository.writer("main") as writer:
            with pytest.raises(Conflict):
                await writer.put("a", entry(1), ABSENT)
    assert await truth(repository) == {b"b": entry(1)}


@aio
async def test_a_condition_on_a_missing_range_of_a_branch_that_has_not_moved_is_corrupt() -> None:
    repository = await memory_repository()
    await put_all(repository, {key: entry(1) for key in keys(range(100))})
    await repository.commit("main", "base")
    for file in (await repository.view("main")).base.files:
        await repository.store.delete(paths.layer_path("repo", file))
    client = await another_client(repository)
    async with client.writer("main") as writer:
        with pytest.raises(Corrupt, match="main"):
            await writer.put("k00050", entry(2), "e1")
