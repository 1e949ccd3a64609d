"""Reset, stash, restore, hidden branches and transactions, as a user of `Repository` has them."""

import pytest

from lsmfs import paths
from lsmfs.objectstore.counting import CountingStore
from lsmfs.objectstore.memory import MemoryStore
from lsmfs.repository import Repository
from lsmfs.tree.merge import MergeConflict
from refstore.errors import AlreadyExists, Conflict, DirtyBranch, Invalid, NoChanges, NotFound, OutcomeUnknown
from refstore.records import Advance, Branch, BranchChange, Delete, Reset, StashLayers, TakeStash
from tests.aio import aio
from tests.lsm.support import DisturbedRefs, another_client, entry, keys, memory_repository, put_all, visible
from tests.tree.test_branches import committed, names


async def staged(repository: Repository, branch: str = "main") -> list[tuple[str, bytes]]:
    return [(found.type, found.key) async for found in repository.diff_uncommitted(branch)]


class TestReset:
    @aio
    async def test_all_that_is_staged_goes(self) -> None:
        repository = await memory_repository()
        await committed(repository, {b"a": entry(1)})
        await put_all(repository, {b"a": entry(2), b"b": entry(2)})
        await repository.reset("main")
        assert await visible(repository) == {b"a": entry(1)}
        assert await staged(repository) == []
        with pytest.raises(NoChanges):
            await repository.commit("main", "nothing")

    @aio
    async def test_a_prefix_or_a_path_goes_back_to_the_commit(self) -> None:
        repository = await memory_repository()
        await committed(repository, {b"d/a": entry(1), b"d/b": entry(1), b"e": entry(1)})
        await put_all(repository, {b"d/a": entry(2), b"d/b": None, b"d/c": entry(2), b"d0": entry(2), b"e": entry(2)})
        await repository.reset("main", prefix="d/")
        assert await staged(repository) == [("added", b"d0"), ("changed", b"e")]
        await repository.reset("main", path="e")
        assert await staged(repository) == [("added", b"d0")]
        await repository.reset("main", path="never there")
        assert await visible(repository) == {b"d/a": entry(1), b"d/b": entry(1), b"d0": entry(2), b"e": entry(1)}

    @aio
    async def test_a_writer_goes_on_after_a_reset(self) -> None:
        repository = await memory_repository()
        async with repository.writer("main") as writer:
            await writer.put("a", entry(1))
            await (await another_client(repository)).reset("main")
            await writer.put("b", entry(1))
        assert await visible(repository) == {b"b": entry(1)}

    @aio
    async def test_a_hard_reset_takes_the_branch_to_another_commit(self) -> None:
        repository = await memory_repository()
        first = await committed(repository, {b"a": entry(1)})
        await committed(repository, {b"a": entry(2)})
        await put_all(repository, {b"b": entry(1)})
        with pytest.raises(DirtyBranch, match="dirty branch"):
            await repository.hard_reset("main", first)
        await repository.hard_reset("main", first, force=True)
        assert await visible(repository) == {b"a": entry(1)}
        assert await repository.resolve("main") == first

    @aio
    async def test_a_commit_under_way_that_is_reset_says_so_and_commits_nothing(self) -> None:
        repository = await memory_repository()
        await committed(repository, {b"z": entry(1)})
        await put_all(repository, {b"a": entry(1)})
        other = await another_client(repository)

        async def reset_first(change: BranchChange, do: object) -> Branch:
            if isinstance(change, Advance):
                await other.reset("main")
            branch: Branch = await do()  # type: ignore[operator]
            return branch

        client = await another_client(repository, DisturbedRefs(repository.refs, reset_first))
        with pytest.raises(Conflict, match="reset or stashed during the commit"):
            await client.commit("main", "mine")
        assert await visible(repository) == {b"z": entry(1)}

    @pytest.mark.parametrize("kind", [Reset, StashLayers, TakeStash])
    @aio
    async def test_a_lost_answer_is_repeated_and_done_once(self, kind: type) -> None:
        repository = await memory_repository()
        await put_all(repository, {b"a": entry(1)})
        if kind is TakeStash:
            await repository.stash("main")
        lost: list[BranchChange] = []

        async def lose(change: BranchChange, do: object) -> Branch:
            branch: Branch = await do()  # type: ignore[operator]
            if isinstance(change, kind) and not lost:
                lost.append(change)
                await put_all(repository, {b"b": entry(1)})  # must not be reset by the repeat
                raise OutcomeUnknown("lost")
            return branch

        client = await another_client(repository, DisturbedRefs(repository.refs, lose))
        if kind is Reset:
            await client.reset("main")
        elif kind is StashLayers:
            await client.stash("main")
        else:
            await client.pop_stash("main")
        assert lost
        assert b"b" in await visible(repository)
        assert (b"a" in await visible(repository)) == (kind is TakeStash)


class TestStash:
    @aio
    async def test_what_is_staged_is_put_aside_and_comes_back(self) -> None:
        repository = await memory_repository()
        await committed(repository, {b"a": entry(1)})
        await put_all(repository, {b"a": None, b"b": entry(2)})
        stash = await repository.stash("main", "unfinished")
        assert stash.message == "unfinished"
        assert await visible(repository) == {b"a": entry(1)}
        await committed(repository, {b"c": entry(3)})
        assert await repository.stashes("main") == (stash,)
        await repository.pop_stash("main")
        assert await visible(repository) == {b"b": entry(2), b"c": entry(3)}
        assert await repository.stashes("main") == ()
        await repository.commit("main", "all of it")
        assert await visible(repository) == {b"b": entry(2), b"c": entry(3)}

    @aio
    async def test_mistakes(self) -> None:
        repository = await memory_repository()
        with pytest.raises(NoChanges, match="no changes to stash"):
            await repository.stash("main")
        with pytest.raises(NotFound, match="has no stash"):
            await repository.pop_stash("main")
        await put_all(repository, {b"a": entry(1)})
        stash = await repository.stash("main")
        await put_all(repository, {b"b": entry(1)})
        with pytest.raises(DirtyBranch, match="dirty branch"):
            await repository.pop_stash("main")
        with pytest.raises(NotFound, match="no stash 99"):
            await repository.drop_stash("main", 99)
        await repository.drop_stash("main", stash.id)
        assert await repository.stashes("main") == ()
        assert await visible(repository) == {b"b": entry(1)}


class TestRestore:
    @aio
    async def test_a_deleted_branch_comes_back_with_what_was_staged(self) -> None:
        repository = await memory_repository()
        await repository.create_branch("dev", "main")
        await committed(repository, {b"a": entry(1)}, "dev")
        await put_all(repository, {b"b": entry(2)}, "dev")
        await repository.delete_branch("dev")
        assert [each.branch.name async for each in repository.deleted_branches()] == ["dev"]
        await repository.restore_branch("dev")
        assert await visible(repository, "dev") == {b"a": entry(1), b"b": entry(2)}
        await committed(repository, {b"c": entry(3)}, "dev")
        assert len(await visible(repository, "dev")) == 3
        assert [each async for each in repository.deleted_branches()] == []

    @aio
    async def test_of_several_lives_the_last_one_comes_back(self) -> None:
        repository = await memory_repository()
        for number in (1, 2):
            await repository.create_branch("dev", "main")
            await put_all(repository, {b"a": entry(number)}, "dev")
            await repository.delete_branch("dev")
        await repository.restore_branch("dev")
        assert await visible(repository, "dev") == {b"a": entry(2)}
        with pytest.raises(AlreadyExists):
            await repository.restore_branch("dev")
        with pytest.raises(NotFound, match="no deleted branch"):
            await repository.restore_branch("never")

    @aio
    async def test_a_write_that_comes_while_it_is_deleted_and_the_answer_is_lost_comes_back_too(self) -> None:
        repository = await memory_repository()
        await repository.create_branch("dev", "main")
        steps: list[BranchChange] = []

        async def disturb(change: BranchChange, do: object) -> Branch:
            if not isinstance(change, Delete):
                return await do()  # type: ignore[operator, no-any-return]
            if not steps:
                await put_all(repository, {b"a": entry(1)}, "dev")
            steps.append(change)
            branch: Branch = await do()  # type: ignore[operator]
            if len(steps) == 2:
                raise OutcomeUnknown("lost")
            return branch

        client = await another_client(repository, DisturbedRefs(repository.refs, disturb))
        await client.delete_branch("dev")
        assert len(steps) == 3
        await repository.restore_branch("dev")
        assert await visible(repository, "dev") == {b"a": entry(1)}


class TestHidden:
    @aio
    async def test_a_hidden_branch_is_listed_only_if_asked_for(self) -> None:
        repository = await memory_repository()
        await repository.create_branch("secret", "main", hidden=True)
        assert await names(repository) == ["main"]
        assert [branch.name async for branch in repository.list_branches(hidden=True)] == ["main", "secret"]
        await committed(repository, {b"a": entry(1)}, "secret")
        await repository.merge("secret", "main")
        assert await visible(repository) == {b"a": entry(1)}


class TestTransactions:
    @aio
    async def test_all_of_it_becomes_visible_at_the_end(self) -> None:
        repository = await memory_repository()
        await committed(repository, {b"z": entry(1)})
        async with repository.transaction("main", "both") as tx:
            await tx.put("a", entry(1))
            await tx.put("b", entry(1))
            await tx.delete("z")
            assert await tx.get("a") == entry(1)
            assert await visible(repository) == {b"z": entry(1)}
        assert await visible(repository) == {b"a": entry(1), b"b": entry(1)}
        assert await repository.resolve("main") == tx.commit
        assert [branch.name async for branch in repository.list_branches(hidden=True)] == ["main"]

    @aio
    async def test_nothing_of_one_that_failed_is_left(self) -> None:
        repository = await memory_repository()
        tx = repository.transaction("main")

        async def fail() -> None:
            async with tx:
                await tx.put("a", entry(1))
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await fail()
        assert await visible(repository) == {}
        assert tx.commit is None
        assert [branch.name async for branch in repository.list_branches(hidden=True)] == ["main"]

    @aio
    async def test_of_two_that_changed_the_same_the_second_fails(self) -> None:
        repository = await memory_repository()

        async def write(number: int) -> None:
            async with repository.transaction("main") as tx:
                await tx.put("a", entry(number))
                if number:
                    await write(number - 1)

        with pytest.raises(MergeConflict):
            await write(1)
        assert await visible(repository) == {b"a": entry(0)}
        assert [branch.name async for branch in repository.list_branches(hidden=True)] == ["main"]

    @aio
    async def test_one_that_changes_nothing_makes_no_commit(self) -> None:
        repository = await memory_repository()
        async with repository.transaction("main"):
            pass
        assert len([0 async for _ in repository.log("main")]) == 1


class TestMergeOptions:
    @aio
    async def test_fast_forward_only_moves_the_branch(self) -> None:
        repository = await memory_repository()
        await repository.create_branch("dev", "main")
        head = await committed(repository, {b"a": entry(1)}, "dev")
        identity, _ = await repository.merge("dev", "main", fast_forward=True)
        assert identity == head == await repository.resolve("main")
        await committed(repository, {b"b": entry(1)})
        await committed(repository, {b"c": entry(1)}, "dev")
        _, commit = await repository.merge("dev", "main", fast_forward=True)
        assert len(commit.parents) == 2
        assert len([0 async for _ in repository.log("main")]) == 4

    @aio
    async def test_a_preview_changes_nothing_and_knows_conflicts(self) -> None:
        repository = await memory_repository()
        await committed(repository, {b"a": entry(1), b"b": entry(1)})
        await repository.create_branch("dev", "main")
        await committed(repository, {b"a": None, b"c": entry(3)}, "dev")
        before = await repository.resolve("main")
        found = (await repository.preview_merge("dev", "main"))[""]
        assert (found.added, found.removed, found.changed) == (1, 1, 0)
        assert await repository.resolve("main") == before
        await committed(repository, {b"a": entry(7)})
        with pytest.raises(MergeConflict):
            await repository.preview_merge("dev", "main")

    @aio
    async def test_a_hint_saves_the_work_of_a_merge_that_is_tried_later(self) -> None:
        store = CountingStore(MemoryStore())
        repository = await memory_repository(store)
        await committed(repository, {key: entry(1) for key in keys(range(2000))})
        await repository.create_branch("dev", "main")
        await committed(repository, {b"k00900a": entry(2)}, "dev")
        await committed(repository, {b"k00900b": entry(3)})  # the same range: it has to be written
        hint = await repository.merge_hint("dev", "main")
        await committed(repository, {b"k01900": entry(4)})  # the branch moves on, elsewhere
        puts = store.calls("put")
        client = await another_client(repository)
        _, commit = await client.merge("dev", "main", hint=hint)
        assert store.calls("put") - puts == 2  # the metarange and the commit, and no range
        assert len(commit.parents) == 2
        found = await visible(repository)
        assert (found[b"k00900a"], found[b"k00900b"], found[b"k01900"]) == (entry(2), entry(3), entry(4))

    @pytest.mark.parametrize("gone", ["run", "commit"])
    @aio
    async def test_a_hint_whose_run_or_commit_is_collected_is_not_used(self, gone: str) -> None:
        repository = await memory_repository()
        await committed(repository, {b"a": entry(1)})
        await repository.create_branch("dev", "main")
        await committed(repository, {b"b": entry(2)}, "dev")
        below = await committed(repository, {b"c": entry(3)})
        text = await repository.merge_hint("dev", "main")
        hint = await repository.hints.read(text)
        if gone == "commit":  # the branch was taken elsewhere, and the hint's commit is on nothing any more
            await repository.hard_reset("main", "main~")
            await committed(repository, {b"d": entry(4)})
            await repository.store.delete(paths.commit_path("repo", below))
        else:
            await repository.store.delete(paths.layer_path("repo", hint.merged))
        client = await another_client(repository)
        await client.merge("dev", "main", hint=text)
        assert set(await visible(repository)) == {b"a", b"b", b"c" if gone == "run" else b"d"}

    @aio
    async def test_a_preview_refuses_what_the_merge_refuses(self) -> None:
        repository = await memory_repository()
        await repository.create_branch("dev", "main")
        with pytest.raises(NoChanges):
            await repository.preview_merge("dev", "main")
        await committed(repository, {b"a": entry(1)}, "dev")
        await put_all(repository, {b"b": entry(1)})
        for verb in (repository.preview_merge, repository.merge):
            with pytest.raises(DirtyBranch, match="dirty branch"):
                await verb("dev", "main")
        hint = await repository.merge_hint("dev", "main")  # work ahead may be done: the merge itself looks again
        await repository.commit("main", "staged")
        await repository.merge("dev", "main", hint=hint)
        assert set(await visible(repository)) == {b"a", b"b"}

    @aio
    async def test_a_hint_of_another_merge_is_not_used_and_a_forged_one_is_refused(self) -> None:
        repository = await memory_repository()
        for name in ("dev", "other"):
            await repository.create_branch(name, "main")
            await committed(repository, {name.encode(): entry(1)}, name)
        hint = await repository.merge_hint("dev", "main")
        await repository.merge("other", "main", hint=hint)
        assert set(await visible(repository)) == {b"other"}
        await repository.hard_reset("main", "main~")
        await committed(repository, {b"new": entry(1)})
        await repository.merge("dev", "main", hint=hint)
        assert set(await visible(repository)) == {b"dev", b"new"}
        for forged in (hint[:-8] + "AAAAAAA=", "nonsense", "\u00e4", ""):
            with pytest.raises(Invalid, match="merge hint"):
                await repository.merge("dev", "main", hint=forged)

    @aio
    async def test_three_dots_show_what_one_side_did_and_a_summary_counts_by_directory(self) -> None:
        repository = await memory_repository()
        await committed(repository, {b"d/a": entry(1), b"e": entry(1)})
        await repository.create_branch("dev", "main")
        await committed(repository, {b"d/a": entry(2), b"d/b": entry(1), b"f": entry(1)}, "dev")
        await committed(repository, {b"e": None})
        three = [(d.type, d.key) async for d in repository.diff("main", "dev", three_dot=True)]
        assert three == [("changed", b"d/a"), ("added", b"d/b"), ("added", b"f")]
        by = await repository.diff_summary("main", "dev", delimiter="/", three_dot=True)
        assert {name: (s.added, s.removed, s.changed) for name, s in by.items()} == {"d/": (1, 0, 1), "f": (1, 0, 0)}
        two = await repository.diff_summary("main", "dev")
        assert (two[""].added, two[""].removed, two[""].changed) == (3, 0, 1)
        below = await repository.diff_summary("main", "dev", "d/", "/")
        assert set(below) == {"d/a", "d/b"}
