"""Branches, tags, revisions, diff and merge as a user of `Repository` has them."""

import asyncio

import pytest

from lsmfs import paths
from lsmfs.model import Entry
from lsmfs.objectstore.counting import CountingStore
from lsmfs.objectstore.memory import MemoryStore
from lsmfs.repository import Repository
from lsmfs.tree.merge import DEST_WINS, SOURCE_WINS, MergeConflict
from refstore.errors import AlreadyExists, Denied, DirtyBranch, Invalid, NoChanges, NotFound, OutcomeUnknown
from refstore.records import Branch, BranchChange, CommitId, Move, RaiseFloor
from tests.aio import aio
from tests.lsm.support import DisturbedRefs, another_client, entry, keys, memory_repository, put_all, visible


async def committed(repository: Repository, content: dict[bytes, Entry | None], branch: str = "main") -> CommitId:
    await put_all(repository, content, branch)
    return (await repository.commit(branch, f"{len(content)} changes")).id


async def names(repository: Repository, prefix: str = "") -> list[str]:
    return [branch.name async for branch in repository.list_branches(prefix)]


async def diffed(repository: Repository, left: str, right: str, prefix: str = "") -> list[tuple[str, bytes]]:
    return [(found.type, found.key) async for found in repository.diff(left, right, prefix)]


class TestBranches:
    @aio
    async def test_a_branch_begins_at_the_commit_without_what_is_staged(self) -> None:
        repository = await memory_repository()
        await committed(repository, {b"a": entry(1)})
        await put_all(repository, {b"b": entry(2)})
        await repository.create_branch("dev", "main")
        assert await visible(repository, "dev") == {b"a": entry(1)}
        await put_all(repository, {b"c": entry(3)}, "dev")
        assert await visible(repository, "main") == {b"a": entry(1), b"b": entry(2)}
        assert await names(repository) == ["dev", "main"]
        assert await names(repository, "d") == ["dev"]

    @aio
    async def test_creating_a_branch_costs_the_same_however_much_is_in_it(self) -> None:
        store = CountingStore(MemoryStore())
        repository = await memory_repository(store)
        await committed(repository, {f"k{number:05}".encode(): entry(1) for number in range(500)})
        before = {verb: store.calls(verb) for verb in ("get", "put", "list")}
        await repository.create_branch("dev", "main")
        assert {verb: store.calls(verb) for verb in before} == before

    @aio
    async def test_a_deleted_branch_is_gone_and_its_name_begins_a_new_life(self) -> None:
        repository = await memory_repository()
        await committed(repository, {b"a": entry(1)})
        await repository.create_branch("dev", "main")
        await put_all(repository, {b"b": entry(2)}, "dev")
        assert b"b" in await visible(repository, "dev")
        await repository.delete_branch("dev")
        with pytest.raises(NotFound, match="no branch, tag or commit 'dev'"):
            await repository.get("dev", "a")
        await repository.create_branch("dev", "main")
        assert await visible(repository, "dev") == {b"a": entry(1)}

    @aio
    async def test_wrong_names_and_the_default_branch_are_refused(self) -> None:
        repository = await memory_repository()
        with pytest.raises(AlreadyExists):
            await repository.create_branch("main", "main")
        with pytest.raises(Denied, match="default branch"):
            await repository.delete_branch("main")
        with pytest.raises(NotFound):
            await repository.delete_branch("dev")
        with pytest.raises(NotFound):
            await repository.create_branch("dev", "nothing")
        for bad in ("", "a b", "../x", "a/b"):
            with pytest.raises(Invalid):
                await repository.create_branch(bad, "main")


class TestRevisions:
    @aio
    async def test_every_form_of_a_revision_reads_its_version(self) -> None:
        repository = await memory_repository()
        commits = [await committed(repository, {b"a": entry(number)}) for number in range(1, 4)]
        await put_all(repository, {b"a": entry(9)})
        await repository.tags.create("v1", commits[0])
        forms = {"main": 9, "main@": 3, "main~": 2, "main^": 2, "main~2": 1, "v1": 1, "main^0": 3, "main~^": 1}
        forms |= {commits[1]: 2, commits[1][:8]: 2, f"{commits[2][:8]}~2": 1}
        for form, number in forms.items():
            assert (await repository.get(form, "a")).size_bytes == number, form
        assert [identity async for identity, _ in repository.log("main~")][:2] == [commits[1], commits[0]]

    @aio
    async def test_what_names_nothing_or_several_is_refused_with_the_reason(self) -> None:
        repository = await memory_repository()
        with pytest.raises(NotFound, match="no branch, tag or commit"):
            await repository.resolve("nothing")
        with pytest.raises(NotFound, match="no commit 0000"):
            await repository.get("0" * 64, "a")
        with pytest.raises(NotFound, match="first of its history"):
            await repository.resolve("main~3")
        await committed(repository, {b"a": entry(1)})
        with pytest.raises(NotFound, match="no parent 2"):
            await repository.resolve("main^2")
        for bad in ("", "main!", "main~x", "~2", "a/b", "main@@", "main~99999999999"):
            with pytest.raises(Invalid):
                await repository.resolve(bad)

    @aio
    async def test_an_ambiguous_commit_id_is_refused_with_the_candidates(self) -> None:
        repository = await memory_repository()
        for last in "12":
            await repository.store.put(f"repo/commits/abcd{last * 60}.json", b"{}")
        with pytest.raises(Invalid, match=r"several commits: abcd1111.*, abcd2222"):
            await repository.resolve("abcd")

    @aio
    async def test_tags_never_move(self) -> None:
        repository = await memory_repository()
        first = await committed(repository, {b"a": entry(1)})
        second = await committed(repository, {b"a": entry(2)})
        await repository.tags.create("v1", first)
        await repository.tags.create("v1", first)
        with pytest.raises(AlreadyExists, match="tag already exists"):
            await repository.tags.create("v1", second)
        await repository.tags.create("v2", second)
        assert [tag async for tag in repository.tags.all()] == [("v1", first), ("v2", second)]
        assert [tag async for tag in repository.tags.all(after="v1")] == [("v2", second)]
        await repository.tags.delete("v1")
        with pytest.raises(NotFound):
            await repository.tags.delete("v1")


class TestDiff:
    @aio
    async def test_a_diff_tells_what_was_added_removed_and_changed(self) -> None:
        repository = await memory_repository()
        await committed(repository, {b"a/1": entry(1), b"a/2": entry(2), b"b/1": entry(3)})
        await committed(repository, {b"a/1": None, b"a/2": entry(9), b"b/2": entry(4)})
        expected = [("removed", b"a/1"), ("changed", b"a/2"), ("added", b"b/2")]
        assert await diffed(repository, "main~", "main") == expected
        assert await diffed(repository, "main~", "main", "b/") == expected[2:]
        assert await diffed(repository, "main", "main") == []

    @aio
    async def test_the_diff_of_what_is_staged_leaves_out_what_is_as_committed(self) -> None:
        repository = await memory_repository()
        await committed(repository, {b"a": entry(1), b"b": entry(2), b"c": entry(3)})
        await put_all(repository, {b"a": entry(1), b"b": None})
        await put_all(repository, {b"c": entry(8), b"d": entry(4), b"x": None})
        found = [(item.type, item.key) async for item in repository.diff_uncommitted("main")]
        assert found == [("removed", b"b"), ("changed", b"c"), ("added", b"d")]
        assert [item.key async for item in repository.diff_uncommitted("main", "d")] == [b"d"]


class TestMerge:
    @aio
    async def test_a_merge_brings_what_the_source_changed_and_has_two_parents(self) -> None:
        repository = await memory_repository()
        await committed(repository, {b"a": entry(1), b"b": entry(2)})
        await repository.create_branch("dev", "main")
        source = await committed(repository, {b"a": None, b"c": entry(3)}, "dev")
        before = await committed(repository, {b"d": entry(4)})
        identity, commit = await repository.merge("dev", "main", "merge it", "me", {"k": "v"})
        assert await visible(repository) == {b"b": entry(2), b"c": entry(3), b"d": entry(4)}
        assert (commit.parents, commit.message, commit.metadata) == ((before, source), "merge it", {"k": "v"})
        assert await repository.resolve("main") == identity
        assert await repository.resolve("main^2") == source
        with pytest.raises(NoChanges, match="no changes"):
            await repository.merge("dev", "main")

    @aio
    async def test_a_second_merge_starts_from_the_first(self) -> None:
        repository = await memory_repository()
        await committed(repository, {b"a": entry(1)})
        await repository.create_branch("dev", "main")
        await committed(repository, {b"b": entry(1)}, "dev")
        await repository.merge("dev", "main")
        await committed(repository, {b"b": entry(2)})
        await committed(repository, {b"c": entry(3)}, "dev")
        await repository.merge("dev", "main")
        assert await visible(repository) == {b"a": entry(1), b"b": entry(2), b"c": entry(3)}

    @aio
    async def test_conflicts_are_told_by_key_and_decided_by_a_strategy(self) -> None:
        repository = await memory_repository()
        await committed(repository, {b"a/1": entry(1), b"b/1": entry(1)})
        await repository.create_branch("dev", "main")
        await committed(repository, {b"a/1": entry(2), b"b/1": None}, "dev")
        await committed(repository, {b"a/1": entry(3), b"b/1": entry(3)})
        with pytest.raises(MergeConflict, match="Conflict: 2 keys") as conflict:
            await repository.merge("dev", "main")
        assert conflict.value.clashes == (
            (b"a/1", entry(1), entry(2), entry(3)),
            (b"b/1", entry(1), None, entry(3)),
        )
        await repository.create_branch("copy", "main")
        await repository.merge("dev", "copy", strategy=DEST_WINS)
        assert await visible(repository, "copy") == {b"a/1": entry(3), b"b/1": entry(3)}
        await repository.merge("dev", "main", strategy={"a/": DEST_WINS, "b/": SOURCE_WINS})
        assert await visible(repository) == {b"a/1": entry(3)}

    @aio
    async def test_a_squashed_merge_has_one_parent(self) -> None:
        repository = await memory_repository()
        await repository.create_branch("dev", "main")
        await committed(repository, {b"a": entry(1)}, "dev")
        _, commit = await repository.merge("dev", "main", squash=True)
        assert len(commit.parents) == 1

    @aio
    async def test_a_dirty_destination_and_oneself_are_refused(self) -> None:
        repository = await memory_repository()
        await repository.create_branch("dev", "main")
        await committed(repository, {b"a": entry(1)}, "dev")
        await put_all(repository, {b"b": entry(2)})
        with pytest.raises(DirtyBranch, match="dirty branch"):
            await repository.merge("dev", "main")
        with pytest.raises(Invalid, match="into itself"):
            await repository.merge("main", "main")

    @aio
    async def test_merges_that_race_all_succeed_and_write_each_range_once(self) -> None:
        store = CountingStore(MemoryStore())
        repository = await memory_repository(store)
        content: dict[bytes, Entry | None] = {f"{n % 8}/{n:04}".encode(): entry(1) for n in range(800)}
        await committed(repository, content)
        clients = [await another_client(repository) for _ in range(8)]
        for number, client in enumerate(clients):
            await client.create_branch(f"dev{number}", "main")
            await committed(client, {f"{number}/{number:04}".encode(): entry(2)}, f"dev{number}")
        before = len([info async for info in store.list("repo/ranges/")])
        await asyncio.gather(*(client.merge(f"dev{n}", "main") for n, client in enumerate(clients)))
        assert sum(found.size_bytes == 2 for found in (await visible(repository)).values()) == 8
        # Each merge's own range was written by its commit; directories share a range at their ends at most.
        assert len([info async for info in store.list("repo/ranges/")]) - before <= 8

    @aio
    async def test_a_merge_whose_answer_is_lost_is_done_once(self) -> None:
        lost: list[BranchChange] = []

        async def disturb(change: BranchChange, do: object) -> Branch:
            branch: Branch = await do()  # type: ignore[operator]
            if isinstance(change, Move) and not lost:
                lost.append(change)
                raise OutcomeUnknown("lost")
            return branch

        repository = await memory_repository()
        await repository.create_branch("dev", "main")
        await committed(repository, {b"a": entry(1)}, "dev")
        client = await another_client(repository, DisturbedRefs(repository.refs, disturb))
        identity, _ = await client.merge("dev", "main")
        assert lost
        assert await repository.resolve("main") == identity
        assert len([0 async for _ in repository.log("main")]) == 2

    @aio
    async def test_a_merge_that_a_rising_floor_refuses_takes_nothing_of_what_it_wrote_below_it(self) -> None:
        repository = await memory_repository()
        await committed(repository, {key: entry(1) for key in keys(range(100))})
        await repository.create_branch("dev", "main")
        await committed(repository, {b"k00050a": entry(2)}, "dev")
        await committed(repository, {b"k00050b": entry(3)})  # the same range: the merge has to write it

        async def collect(change: BranchChange, do: object) -> Branch:
            if isinstance(change, Move) and change.generation == 0:
                await repository.refs.change("repo", "main", RaiseFloor(incarnation=change.incarnation, floor=1))
            branch: Branch = await do()  # type: ignore[operator]
            return branch

        heads = [(await repository.view(ref)).base for ref in ("dev", "main")]
        client = await another_client(repository, DisturbedRefs(repository.refs, collect))
        await client.merge("dev", "main")
        merged = (await repository.view("main")).base
        written = set(merged.files) - {file for run in heads for file in run.files}
        assert written
        assert {paths.generation_of(file) for file in written} == {1}


class TestRevertAndCherryPick:
    @aio
    async def test_a_revert_undoes_one_commit_and_keeps_what_came_since(self) -> None:
        repository = await memory_repository()
        await committed(repository, {b"a": entry(1), b"b": entry(1)})
        undone = await committed(repository, {b"a": entry(2), b"b": None, b"c": entry(2)})
        await committed(repository, {b"d": entry(3)})
        _, commit = await repository.revert("main", undone)
        assert await visible(repository) == {b"a": entry(1), b"b": entry(1), b"d": entry(3)}
        assert (commit.message, commit.metadata) == ("Revert '3 changes'", {"lsmfs.reverts": undone})
        assert len(commit.parents) == 1
        with pytest.raises(NoChanges):
            await repository.revert("main", undone)

    @aio
    async def test_a_revert_of_what_was_changed_again_is_a_conflict(self) -> None:
        repository = await memory_repository()
        undone = await committed(repository, {b"a": entry(1)})
        await committed(repository, {b"a": entry(2)})
        with pytest.raises(MergeConflict):
            await repository.revert("main", undone)

    @aio
    async def test_a_cherry_pick_brings_one_commit_alone(self) -> None:
        repository = await memory_repository()
        await committed(repository, {b"a": entry(1)})
        await repository.create_branch("dev", "main")
        await committed(repository, {b"x": entry(2)}, "dev")
        picked = await committed(repository, {b"y": entry(3)}, "dev")
        _, commit = await repository.cherry_pick("main", "dev")
        assert await visible(repository) == {b"a": entry(1), b"y": entry(3)}
        assert commit.metadata == {"lsmfs.picked": picked}
        with pytest.raises(NoChanges):
            await repository.cherry_pick("main", picked)

    @aio
    async def test_a_merge_is_reverted_against_a_parent_that_is_named(self) -> None:
        repository = await memory_repository()
        await committed(repository, {b"a": entry(1)})
        await repository.create_branch("dev", "main")
        await committed(repository, {b"b": entry(2)}, "dev")
        await committed(repository, {b"c": entry(3)})
        await repository.merge("dev", "main")
        with pytest.raises(Invalid, match="which parent"):
            await repository.revert("main", "main")
        with pytest.raises(Invalid, match="no parent 3"):
            await repository.revert("main", "main", parent=3)
        await repository.revert("main", "main", parent=1)
        assert await visible(repository) == {b"a": entry(1), b"c": entry(3)}
        with pytest.raises(Invalid, match="has 0 parents"):
            await repository.revert("main", "main~4")
