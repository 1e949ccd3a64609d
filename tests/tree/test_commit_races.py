"""Commits that race: with each other, with writers and compactions, with the garbage floor and the branch's end."""

import asyncio
from typing import Any

import msgspec
import pytest

from compactor.executor import compact
from compactor.planner import Plan
from lsmfs import paths
from lsmfs.repository import Repository
from refstore.drivers.memory import MemoryRefStore
from refstore.errors import BranchReplaced, Conflict, NoChanges
from refstore.records import (
    Advance,
    Branch,
    BranchChange,
    CommitId,
    Create,
    Delete,
    RaiseFloor,
    SealLayers,
)
from tests.aio import aio
from tests.lsm.support import (
    SETTINGS,
    DisturbedRefs,
    another_client,
    entry,
    memory_repository,
    put_all,
)
from tests.tree.committing import Do, committed, head, parents, stopped, truth


@aio
async def test_identical_commits_become_one_and_the_slower_one_is_told_so() -> None:
    repository = await memory_repository()
    await put_all(repository, {b"a": entry(1)})
    turnstile, slow = await stopped(repository, Advance, "slow")
    fast = await repository.commit("main", "fast")  # consumes the seal of the slow one, and nothing else
    turnstile.open.set()
    done = await slow
    assert (done.id, done.raced, done.commit.message) == (fast.id, True, "fast")
    assert not fast.raced
    assert await parents(repository) == ["fast", "Repository created"]
    assert await truth(repository) == {b"a": entry(1)}


@aio
async def test_a_commit_that_holds_the_changes_of_another_is_the_answer_to_both() -> None:
    repository = await memory_repository()
    await put_all(repository, {b"a": entry(1)})
    turnstile, slow = await stopped(repository, Advance, "slow")
    await put_all(repository, {b"b": entry(2)})
    fast = await repository.commit("main", "fast")
    await put_all(repository, {b"c": entry(3)})
    later = await repository.commit("main", "later")
    turnstile.open.set()
    done = await slow
    assert (done.id, done.raced) == (later.id, True)  # the branch has gone on: its head descends from `fast`
    assert await committed(repository, fast.id) == {b"a": entry(1), b"b": entry(2)}
    assert await parents(repository) == ["later", "fast", "Repository created"]


@aio
async def test_overlapping_commits_apply_only_the_seals_that_are_left_on_the_new_base() -> None:
    repository = await memory_repository()
    await put_all(repository, {b"a": entry(1), b"b": entry(1)})
    first_stop, first = await stopped(repository, Advance, "first")
    await put_all(repository, {b"b": entry(2), b"c": entry(2)})
    second_stop, second = await stopped(repository, Advance, "second")  # has sealed, and built on both seals
    await put_all(repository, {b"c": entry(3)})
    first_stop.open.set()
    one = await first
    second_stop.open.set()
    two = await second
    assert (one.raced, two.raced) == (False, False)
    assert two.commit.parents == (one.id,)
    assert await committed(repository, one.id) == {b"a": entry(1), b"b": entry(1)}
    assert await committed(repository, two.id) == {b"a": entry(1), b"b": entry(2), b"c": entry(2)}
    assert await truth(repository) == {b"a": entry(1), b"b": entry(2), b"c": entry(3)}
    assert (await head(repository)).l1 != ()


@aio
async def test_a_commit_that_stops_before_its_seal_loses_nothing_to_one_that_passes_it() -> None:
    repository = await memory_repository()
    await put_all(repository, {b"a": entry(1)})
    turnstile, slow = await stopped(repository, SealLayers, "slow")
    fast = await repository.commit("main", "fast")
    await put_all(repository, {b"b": entry(1)})
    turnstile.open.set()
    done = await slow
    assert done.commit.parents == (fast.id,)
    assert await committed(repository, done.id) == {b"a": entry(1), b"b": entry(1)}


@aio
async def test_a_compaction_during_a_commit_changes_nothing_of_it() -> None:
    repository = await memory_repository()
    await put_all(repository, {b"a": entry(1)})
    turnstile, slow = await stopped(repository, Advance, "slow")
    await put_all(repository, {b"a": None, b"b": entry(2)})
    branch = await head(repository)
    assert await compact(repository, Plan(branch, branch.l1, branch.l2, "test"))
    turnstile.open.set()
    assert await committed(repository, (await slow).id) == {b"a": entry(1)}
    assert await truth(repository) == {b"b": entry(2)}
    done = await repository.commit("main", "second")
    assert await committed(repository, done.id) == {b"b": entry(2)}


@aio
async def test_any_number_of_writers_and_committers_at_once_lose_and_double_nothing() -> None:
    first = await memory_repository(settings=msgspec_settings(10.0))
    clients = [first, *[await another_client(first) for _ in range(3)]]
    ids: set[CommitId] = set()

    async def work(at: int, client: Repository) -> None:
        async with client.writer("main") as writer:
            for n in range(6):
                await writer.put(f"{at}-{n}", entry(n))
                try:
                    done = await client.commit("main", f"{at}-{n}")
                except NoChanges:
                    continue
                ids.add(done.id)
                assert f"{at}-{n}".encode() in await committed(client, done.id)

    await asyncio.gather(*(work(at, client) for at, client in enumerate(clients)))
    assert len(await truth(first)) == 24
    branch = await head(first)
    assert not branch.is_dirty
    assert len(await committed(first, branch.base_commit)) == 24
    log = [identity async for identity, _ in first.log("main", 1000)]
    assert len(log) == len(set(log))
    assert ids <= set(log)


def msgspec_settings(retry_seconds: float) -> Any:
    return type(SETTINGS)(SETTINGS.writer, SETTINGS.shape, retry_seconds=retry_seconds)


@aio
async def test_a_commit_that_always_comes_second_gives_up_with_a_conflict() -> None:
    refs = DisturbedRefs(MemoryRefStore())
    repository = await memory_repository(refs=refs)
    rival = await another_client(repository, refs.inner)
    await put_all(repository, {b"a": entry(0)})
    rounds = 0

    async def overtake(change: BranchChange, do: Do) -> Branch:
        nonlocal rounds
        if isinstance(change, Advance):
            rounds += 1
            branch = await rival.branches.read("main")
            await rival.refs.change(  # only the base moves; the seal stays for this one to apply
                "repo", "main", Advance(incarnation=branch.incarnation, old=branch.base_commit,
                                        new=await empty_commit(rival, branch, rounds), seals=(), generation=0)
            )  # fmt: skip
        return await do()

    refs.disturb = overtake
    with pytest.raises(Conflict, match="other commits were first"):
        await repository.commit("main", "mine")
    assert rounds == repository.settings.commit_tries_max
    refs.disturb = None
    assert await truth(repository) == {b"a": entry(0)}
    assert await committed(repository, (await repository.commit("main", "mine")).id) == {b"a": entry(0)}


async def empty_commit(repository: Repository, branch: Branch, number: int) -> CommitId:
    parent = await repository.commits.load(branch.base_commit)
    return await repository.commits.save(
        msgspec.structs.replace(parent, parents=(branch.base_commit,), message=f"rival {number}")
    )


@aio
async def test_a_branch_created_again_during_a_commit_is_not_advanced() -> None:
    repository = await memory_repository()
    await put_all(repository, {b"a": entry(1)})
    turnstile, slow = await stopped(repository, Advance, "slow")
    branch = await head(repository)
    await repository.refs.change("repo", "main", Delete(incarnation=branch.incarnation))
    await repository.refs.change("repo", "main", Create(incarnation="new", base_commit=branch.base_commit))
    turnstile.open.set()
    with pytest.raises(BranchReplaced, match="main"):
        await slow
    assert (await repository.refs.read("repo", "main")).version == 1
    assert await truth(repository) == {}


@aio
async def test_a_commit_built_before_the_garbage_floor_rose_is_built_again() -> None:
    repository = await memory_repository()
    await put_all(repository, {b"a": entry(1)})
    turnstile, slow = await stopped(repository, Advance, "slow")
    branch = await head(repository)
    await repository.refs.change("repo", "main", RaiseFloor(incarnation=branch.incarnation, floor=4))
    turnstile.open.set()
    done = await slow
    assert paths.generation_of(done.commit.metarange) == 4
    client = await another_client(repository)
    assert {paths.generation_of(file) for file in (await client.view("main")).base.files} == {4}
    assert await committed(client, done.id) == {b"a": entry(1)}
