"""The committer: what was acknowledged is committed once, whoever races, whatever is lost, wherever it crashes."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
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
from refstore.errors import BranchReplaced, Conflict, Corrupt, NoChanges, OutcomeUnknown, Unavailable
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
    run_content,
    visible,
)

Do = Callable[[], Awaitable[Branch]]


async def committed(repository: Repository, identity: CommitId) -> dict[bytes, Entry | None]:
    """What a commit holds."""
    commit = await repository.commits.load(identity)
    return await run_content(repository.tables, await repository.tables.load_run(commit.metarange))


async def head(repository: Repository) -> Branch:
    return await repository.branches.read("main")


async def parents(repository: Repository) -> list[str]:
    """The messages of the branch's commits, newest first."""
    client = await another_client(repository, undisturbed(repository))
    return [commit.message async for _, commit in client.log("main")]


def undisturbed(repository: Repository) -> Any:
    return repository.refs.inner if isinstance(repository.refs, RefWrapper) else repository.refs


async def truth(repository: Repository) -> dict[bytes, Entry]:
    return await visible(await another_client(repository, undisturbed(repository)))


async def seal(repository: Repository) -> None:
    """A commit that has begun and then crashed."""
    branch = await undisturbed(repository).read("repo", "main")
    await undisturbed(repository).change("repo", "main", SealLayers(incarnation=branch.incarnation))


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


# ---- races, driven step by step


class Turnstile:
    """Stops a client's changes of one kind until it is opened."""

    def __init__(self, kind: type[BranchChange]) -> None:
        self._kind = kind
        self.reached = asyncio.Event()
        self.open = asyncio.Event()

    async def __call__(self, change: BranchChange, do: Do) -> Branch:
        if isinstance(change, self._kind):
            self.reached.set()
            await self.open.wait()
        return await do()


async def stopped(repository: Repository, kind: type[BranchChange], message: str) -> tuple[Turnstile, Any]:
    """Another client's commit, stopped before the change of this kind."""
    turnstile = Turnstile(kind)
    client = await another_client(repository, DisturbedRefs(undisturbed(repository), turnstile))
    task = asyncio.ensure_future(client.commit("main", message))
    await turnstile.reached.wait()
    return turnstile, task


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
