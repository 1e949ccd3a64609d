"""The committer: what was acknowledged is committed once, whoever races, whatever is lost, wherever it crashes."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from compactor.executor import compact
from compactor.planner import Plan
from lsmfs import paths
from lsmfs.model import Entry
from lsmfs.objectstore.memory import MemoryStore
from lsmfs.objectstore.store import ANYTHING, Body, Precondition, Span, Tag
from lsmfs.objectstore.wrapper import WrapperStore
from lsmfs.repository import Repository
from refstore.drivers.memory import MemoryRefStore
from refstore.errors import Corrupt, NoChanges, OutcomeUnknown, Unavailable
from refstore.records import (
    Advance,
    Branch,
    BranchChange,
    SealLayers,
)
from refstore.refs import SEALS_MAX
from tests.aio import aio
from tests.lsm.support import (
    SETTINGS,
    DisturbedRefs,
    RefWrapper,
    another_client,
    entry,
    keys,
    memory_repository,
    put_all,
)
from tests.tree.committing import Do, committed, head, parents, seal, truth


@aio
async def test_a_commit_holds_what_was_staged_and_the_branch_reads_as_before() -> None:
    repository = await memory_repository()
    first = (await head(repository)).base_commit
    content = {key: entry(1) for key in keys(range(100))}
    await put_all(repository, dict(content))
    done = await repository.commit("main", "message", "me", {"k": "v"})
    assert not done.raced
    assert (done.commit.message, done.commit.committer, done.commit.metadata) == ("message", "me", {"k": "v"})
    assert (done.commit.parents, done.commit.generation) == ((first,), 1)
    assert await committed(repository, done.id) == content == await truth(repository)
    branch = await head(repository)
    assert (branch.base_commit, branch.is_dirty) == (done.id, False)
    await put_all(repository, {b"k00000": None, b"new": entry(2)})
    second = await repository.commit("main", "second")
    expected = {key: value for key, value in {**content, b"new": entry(2)}.items() if key != b"k00000"}
    assert await committed(repository, second.id) == expected == await truth(repository)
    assert await committed(repository, done.id) == content


@aio
async def test_a_commit_of_nothing_is_refused_unless_it_is_allowed() -> None:
    repository = await memory_repository()
    before = await head(repository)
    with pytest.raises(NoChanges, match="branch 'main' has nothing to commit"):
        await repository.commit("main", "nothing")
    assert await head(repository) == before
    done = await repository.commit("main", "nothing", allow_empty=True)
    assert done.commit.parents == (before.base_commit,)
    assert await committed(repository, done.id) == {}


@pytest.mark.parametrize("staged", [{b"a": entry(1)}, {b"never": None}, {b"a": entry(1), b"x": None}])
@aio
async def test_staging_what_is_committed_already_is_no_change_and_does_not_stay_staged(
    staged: dict[bytes, Entry | None],
) -> None:
    repository = await memory_repository()
    await put_all(repository, {b"a": entry(1)})
    first = await repository.commit("main", "first")
    await put_all(repository, staged)
    with pytest.raises(NoChanges, match="equals its last commit"):
        await repository.commit("main", "same")
    branch = await head(repository)
    assert (branch.base_commit, branch.is_dirty) == (first.id, False)
    await put_all(repository, staged)
    allowed = await repository.commit("main", "same", allow_empty=True)
    assert allowed.commit.metarange == first.commit.metarange
    assert not (await head(repository)).is_dirty


@aio
async def test_a_commit_leaves_untouched_ranges_as_they_are() -> None:
    repository = await memory_repository()
    await put_all(repository, {key: entry(1) for key in keys(range(500))})
    await repository.commit("main", "first")
    before = (await repository.view("main")).base
    await put_all(repository, {before.min_keys[7]: entry(2)})
    await repository.commit("main", "second")
    after = (await repository.view("main")).base
    assert len(before) > 20
    assert len(set(before.files) - set(after.files)) == len(set(after.files) - set(before.files)) == 1


STEPS = st.lists(
    st.one_of(
        st.dictionaries(st.integers(0, 60).map(lambda n: keys([n])[0]), st.none() | st.just(entry(1)), max_size=20),
        st.sampled_from(["compact", "commit"]),
    ),
    max_size=8,
)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(STEPS, st.sets(st.integers(0, 60)))
def test_equal_content_gives_equal_metaranges_whatever_the_history(history: list[Any], last: set[int]) -> None:
    async def check() -> None:
        content = {key: entry(1) for key in keys(last)}
        winding, straight = await memory_repository(), await memory_repository()
        for step in history:
            if isinstance(step, dict):
                await put_all(winding, step)
            elif step == "commit":
                await winding.commit("main", "m", allow_empty=True)
            else:
                branch = await head(winding)
                if branch.l1:
                    await compact(winding, Plan(branch, branch.l1, branch.l2, "test"))
        await put_all(winding, {key: content.get(key) for key in keys(range(61))})
        await put_all(straight, dict(content))
        ids = [
            (await repository.commit("main", "last", allow_empty=True)).commit.metarange
            for repository in (winding, straight)
        ]
        assert ids[0] == ids[1]

    asyncio.run(check())


# ---- seals that others left


@aio
async def test_what_a_crashed_commit_has_sealed_is_finished_by_the_next_one() -> None:
    repository = await memory_repository()
    await put_all(repository, {b"a": entry(1), b"b": entry(1)})
    await seal(repository)
    await put_all(repository, {b"b": None})
    await seal(repository)
    done = await repository.commit("main", "next")  # nothing is staged, only sealed
    assert await committed(repository, done.id) == {b"a": entry(1)}
    assert not (await head(repository)).is_dirty


@pytest.mark.parametrize("count", [SEALS_MAX - 1, SEALS_MAX])
@aio
async def test_at_the_cap_of_seals_a_commit_first_finishes_those(count: int) -> None:
    repository = await memory_repository()
    for n in range(count):
        await put_all(repository, {b"a": entry(n), f"k{n}".encode(): entry(n)})
        await seal(repository)
    await put_all(repository, {b"a": entry(99)})
    done = await repository.commit("main", "mine")
    assert len(await committed(repository, done.id)) == count + 1
    assert (await committed(repository, done.id))[b"a"] == entry(99)
    finish = ["Finish interrupted commits"] if count == SEALS_MAX else []
    assert await parents(repository) == ["mine", *finish, "Repository created"]
    assert not (await head(repository)).is_dirty


# ---- answers are lost


@pytest.mark.parametrize("kind", [SealLayers, Advance])
@pytest.mark.parametrize("what", ["request", "answer"])
@aio
async def test_a_commit_whose_answers_are_lost_is_done_once(kind: type[BranchChange], what: str) -> None:
    refs = DisturbedRefs(MemoryRefStore())
    repository = await memory_repository(refs=refs)
    await put_all(repository, {b"a": entry(1)})
    left = 3

    async def lose(change: BranchChange, do: Do) -> Branch:
        nonlocal left
        if not isinstance(change, kind) or not left:
            return await do()
        left -= 1
        if what == "answer":
            await do()
        raise OutcomeUnknown("lost")

    refs.disturb = lose
    done = await repository.commit("main", "m")
    assert (done.raced, left) == (False, 0)
    assert await parents(repository) == ["m", "Repository created"]
    assert await committed(repository, done.id) == {b"a": entry(1)} == await truth(repository)


@aio
async def test_an_advance_whose_answer_was_lost_is_found_under_the_commits_that_came_on_top() -> None:
    refs = DisturbedRefs(MemoryRefStore())
    repository = await memory_repository(refs=refs)
    rival = await another_client(repository, refs.inner)
    await put_all(repository, {b"a": entry(1)})
    lost = False

    async def lose(change: BranchChange, do: Do) -> Branch:
        nonlocal lost
        branch = await do()
        if isinstance(change, Advance) and not lost:
            lost = True
            for n in range(3):
                await put_all(rival, {b"b": entry(n)})
                await rival.commit("main", f"rival {n}")
            raise OutcomeUnknown("lost")
        return branch

    refs.disturb = lose
    done = await repository.commit("main", "mine")
    assert (done.raced, done.commit.message) == (False, "mine")
    assert await parents(repository) == ["rival 2", "rival 1", "rival 0", "mine", "Repository created"]


@pytest.mark.parametrize("kind", [SealLayers, Advance])
@aio
async def test_a_ref_store_that_stays_away_fails_the_commit_and_the_next_one_completes_it(
    kind: type[BranchChange],
) -> None:
    refs = DisturbedRefs(MemoryRefStore())
    repository = await memory_repository(refs=refs)
    await put_all(repository, {b"a": entry(1)})

    async def away(change: BranchChange, do: Do) -> Branch:
        if isinstance(change, kind):
            raise Unavailable("no route")
        return await do()

    refs.disturb = away
    with pytest.raises(Unavailable, match="no route"):
        await repository.commit("main", "first try")
    assert await truth(repository) == {b"a": entry(1)}
    refs.disturb = None
    done = await repository.commit("main", "second try")
    assert await committed(repository, done.id) == {b"a": entry(1)}


# ---- crashes


class Crash(Exception):
    """The process ends here: no handler of ours knows it."""


class Fuse:
    """Counts calls of both stores, and crashes the client at one of them, before or after its effect."""

    def __init__(self, at: int, after: bool) -> None:
        self._left = at
        self._after = after

    async def call(self, do: Callable[[], Awaitable[Any]]) -> Any:
        self._left -= 1
        if self._left < 0 or (self._left == 0 and not self._after):
            raise Crash
        result = await do()
        if self._left == 0:
            raise Crash
        return result


class CrashingStore(WrapperStore):
    def __init__(self, inner: MemoryStore, fuse: Fuse) -> None:
        super().__init__(inner)
        self._fuse = fuse

    async def get(self, name: str, span: Span | None = None) -> bytes:
        return await self._fuse.call(lambda: self.inner.get(name, span))  # type: ignore[no-any-return]

    async def put(self, name: str, body: Body, expected: Precondition = ANYTHING) -> Tag:
        return await self._fuse.call(lambda: self.inner.put(name, body, expected))  # type: ignore[no-any-return]


class CrashingRefs(RefWrapper):
    def __init__(self, inner: Any, fuse: Fuse) -> None:
        super().__init__(inner)
        self._fuse = fuse

    async def read(self, repository: str, name: str) -> Branch:
        return await self._fuse.call(lambda: self.inner.read(repository, name))  # type: ignore[no-any-return]

    async def change(self, repository: str, name: str, change: BranchChange) -> Branch:
        return await self._fuse.call(  # type: ignore[no-any-return]
            lambda: self.inner.change(repository, name, change)
        )


async def committed_until_crash(store: MemoryStore, refs: MemoryRefStore, at: int, after: bool) -> bool:
    """Whether a client with this fuse came to the end of its commit."""
    fuse = Fuse(at, after)
    record = (await Repository.open(store, refs, "repo", threads=False)).record
    client = Repository(CrashingStore(store, fuse), CrashingRefs(refs, fuse), record, settings=SETTINGS, threads=False)
    try:
        await client.commit("main", "crashing")
    except Crash:
        return False
    return True


@pytest.mark.parametrize("after", [False, True])
@aio
async def test_a_crash_at_any_call_leaves_a_branch_that_reads_as_before_and_the_next_commit_completes(
    after: bool,
) -> None:
    at = 0
    while True:
        at += 1
        store, refs = MemoryStore(), MemoryRefStore()
        repository = await memory_repository(store, refs)
        await put_all(repository, {key: entry(1) for key in keys(range(60))})
        await repository.commit("main", "base")
        await put_all(repository, {**dict.fromkeys(keys(range(5))), b"k00030": entry(2), b"z": entry(2)})
        expected = await truth(repository)
        survived = await committed_until_crash(store, refs, at, after)
        assert await truth(repository) == expected
        done = await repository.commit("main", "next", allow_empty=True)
        assert await committed(repository, done.id) == expected == await truth(repository)
        branch = await refs.read("repo", "main")
        assert not branch.is_dirty
        if survived:
            break
    assert at > 12


# ---- the branch or its objects change under the commit


@aio
async def test_a_missing_table_of_a_branch_that_has_not_moved_is_corrupt() -> None:
    repository = await memory_repository()
    await put_all(repository, {b"a": entry(1)})
    await repository.store.delete(paths.layer_path("repo", (await head(repository)).l1[0]))
    client = await another_client(repository)
    with pytest.raises(Corrupt, match="'main' at version 3 refers to it"):
        await client.commit("main", "m")


@pytest.mark.parametrize("what", ["commit", "metarange", "range"])
@aio
async def test_a_missing_part_of_the_base_is_corrupt(what: str) -> None:
    repository = await memory_repository()
    await put_all(repository, {key: entry(1) for key in keys(range(5))})
    done = await repository.commit("main", "base")
    await put_all(repository, {b"k00002": entry(2)})
    missing = {
        "commit": paths.commit_path("repo", done.id),
        "metarange": paths.layer_path("repo", done.commit.metarange),
        "range": paths.layer_path("repo", (await repository.view("main")).base.files[0]),
    }[what]
    await repository.store.delete(missing)
    with pytest.raises(Corrupt, match="'main'"):
        await (await another_client(repository)).commit("main", "m")


@aio
async def test_an_advance_that_was_lost_and_then_not_reached_again_is_of_unknown_outcome() -> None:
    refs = DisturbedRefs(MemoryRefStore())
    repository = await memory_repository(refs=refs)
    await put_all(repository, {b"a": entry(1)})
    sent: list[BranchChange] = []

    async def lose_then_stay_away(change: BranchChange, do: Do) -> Branch:
        if not isinstance(change, Advance):
            return await do()
        sent.append(change)
        if len(sent) == 1:
            await do()
            raise OutcomeUnknown("lost")
        raise Unavailable("no route")

    refs.disturb = lose_then_stay_away
    with pytest.raises(OutcomeUnknown):  # and not "no route", which would say that nothing was done
        await repository.commit("main", "mine")
    assert len(sent) > 1
