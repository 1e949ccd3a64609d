"""Branches against plain dicts: whatever is committed, merged, reverted, reset, stashed, deleted and restored in
whatever order, every branch shows, every commit holds and every log tells what the model says.

The model of a branch is its newest commit, what is staged as a delta, and the deltas of its stashes. The model of a
merge is the merge of three dicts. Names are few, so that they have many lives.
"""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from compactor.executor import compact
from compactor.planner import Plan
from lsmfs.lsm.build import Shape
from lsmfs.model import Entry
from lsmfs.objectstore.memory import MemoryStore
from lsmfs.repository import Repository
from lsmfs.settings import Settings, WriterSettings
from lsmfs.tree.merge import MergeConflict
from refstore.drivers.memory import MemoryRefStore
from refstore.errors import AlreadyExists, DirtyBranch, Error, Invalid, NoChanges, NotFound
from refstore.records import CommitId
from tests.lsm.support import entry, scanned

T = TypeVar("T")
Tree = dict[bytes, Entry]
Delta = dict[bytes, Entry | None]

SETTINGS = Settings(WriterSettings(unit_rows_max=4), Shape(rows_mean=3, weight_max=2000))
KEYS = st.sampled_from([b"a", b"b/1", b"b/2", b"c"])
NAMES = st.sampled_from(["main", "one", "two"])
DELTAS = st.dictionaries(KEYS, st.none() | st.integers(0, 9).map(entry), min_size=1, max_size=3)
CLIENTS = st.integers(0, 1)
TIDY = st.sampled_from([True, True, True, False])


def applied(tree: Tree, delta: Delta) -> Tree:
    return {key: value for key, value in {**tree, **delta}.items() if value is not None}


def merged(base: Tree, source: Tree, into: Tree) -> Tree | None:
    """Into, with what the source changed; None if both changed a key, and not to the same."""
    result = dict(into)
    for key in base.keys() | source.keys():
        if source.get(key) != base.get(key):
            if into.get(key) not in (base.get(key), source.get(key)):
                return None
            result.pop(key, None)
            if key in source:
                result[key] = source[key]
    return result


@dataclass(frozen=True)
class Commit:
    parents: tuple[CommitId, ...]
    tree: Tree
    generation: int


@dataclass(frozen=True)
class Line:
    """A branch: its newest commit, what is staged as a delta, and the stashes, the latest last."""

    head: CommitId
    staged: Delta = field(default_factory=dict)
    stashes: tuple[Delta, ...] = ()
    dirty: bool = False
    """Whether a layer is there, also if it changes nothing."""


class BranchesMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        store, refs = MemoryStore(), MemoryRefStore()
        first = self.run(Repository.create(store, refs, "repo", settings=SETTINGS, threads=False))
        second = self.run(Repository.open(store, refs, "repo", settings=SETTINGS, threads=False))
        self.clients = [first, second]
        root = self.run(first.resolve("main"))
        self.commits = {root: Commit((), {}, 0)}
        self.branches = {"main": Line(root)}
        for name in ("one", "two"):
            self.create(0, name, "main")
        self.deleted: dict[str, list[Line]] = {}
        self.turn = 0

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    def refused(self, error: type[Error], work: Coroutine[Any, Any, Any]) -> None:
        with pytest.raises(error):
            self.run(work)

    def living(self, name: str) -> str:
        """It, or the main branch: most steps shall have something to do."""
        return name if name in self.branches else "main"

    def shown(self, line: Line) -> Tree:
        return applied(self.commits[line.head].tree, line.staged)

    def history(self, head: CommitId) -> list[CommitId]:
        found = [head]
        while parents := self.commits[found[-1]].parents:
            found.append(parents[0])
        return found

    def ancestors(self, head: CommitId) -> set[CommitId]:
        found, waiting = {head}, [head]
        while waiting:
            parents = self.commits[waiting.pop()].parents
            waiting += [parent for parent in parents if parent not in found]
            found.update(parents)
        return found

    def merge_base(self, left: CommitId, right: CommitId) -> CommitId:
        common = self.ancestors(left) & self.ancestors(right)
        return min(common, key=lambda identity: (-self.commits[identity].generation, identity))

    def committed(self, name: str, identity: CommitId, parents: tuple[CommitId, ...], tree: Tree) -> None:
        generation = max(self.commits[parent].generation for parent in parents) + 1
        self.commits[identity] = Commit(parents, tree, generation)
        self.branches[name] = replace(self.branches[name], head=identity, staged={}, dirty=False)

    @rule(client=CLIENTS, name=NAMES, delta=DELTAS, compacts=st.booleans())
    def write(self, client: int, name: str, delta: Delta, compacts: bool = False) -> None:
        async def work() -> None:
            async with self.clients[client].writer(name) as writer:
                for key, value in delta.items():
                    await (writer.delete(key) if value is None else writer.put(key, value))

        if name not in self.branches:
            self.refused(NotFound, work())
            return
        self.run(work())
        line = self.branches[name]
        self.branches[name] = replace(line, staged={**line.staged, **delta}, dirty=True)
        if compacts:
            self.compact(client, name)

    @rule(client=CLIENTS, name=NAMES, delta=DELTAS)
    def write_and_commit(self, client: int, name: str, delta: Delta) -> None:
        self.write(client, self.living(name), delta)
        self.commit(1 - client, self.living(name))

    @rule(client=CLIENTS, name=NAMES)
    def compact(self, client: int, name: str) -> None:
        name = self.living(name)
        branch = self.run(self.clients[client].branches.read(name))
        if branch.l1:
            self.run(compact(self.clients[client], Plan(branch, branch.l1, branch.l2, "test")))

    @rule(client=CLIENTS, name=NAMES)
    def commit(self, client: int, name: str) -> None:
        name = self.living(name)
        work = self.clients[client].commit(name, "m")
        line = self.branches[name]
        if self.shown(line) == self.commits[line.head].tree:
            self.branches[name] = replace(line, staged={}, dirty=False)
            self.refused(NoChanges, work)
            return
        self.committed(name, self.run(work).id, (line.head,), self.shown(line))

    def tidied(self, name: str, tidy: bool) -> str:
        """A branch that lives, and has nothing staged if that is wanted."""
        name = self.living(name)
        if tidy and self.branches[name].dirty:
            self.commit(0, name)
        return name

    @rule(client=CLIENTS, source=NAMES, name=NAMES, fast_forward=st.booleans(), squash=st.booleans(), tidy=TIDY)
    def merge(self, client: int, source: str, name: str, fast_forward: bool, squash: bool, tidy: bool) -> None:
        source, name = self.tidied(source, tidy), self.tidied(name, tidy)
        fast_forward = fast_forward and not squash
        work = self.clients[client].merge(source, name, squash=squash, fast_forward=fast_forward)
        if source == name:
            self.refused(Invalid, work)
            return
        above, line = self.branches[source].head, self.branches[name]
        base = self.merge_base(above, line.head)
        if base == above:
            self.refused(NoChanges, work)
            return
        if line.dirty:
            self.refused(DirtyBranch, work)
            return
        if fast_forward and base == line.head:
            assert self.run(work)[0] == above
            self.branches[name] = replace(line, head=above)
            return
        others = () if squash else (above,)
        self.bring(name, work, base, above, others)

    def bring(
        self,
        name: str,
        work: Coroutine[Any, Any, tuple[CommitId, Any]],
        base: CommitId,
        above: CommitId,
        others: tuple[CommitId, ...],
    ) -> None:
        line = self.branches[name]
        if line.dirty:
            self.refused(DirtyBranch, work)
            return
        below = self.commits[line.head].tree
        result = merged(self.commits[base].tree, self.commits[above].tree, below)
        if result is None:
            self.refused(MergeConflict, work)
            return
        if result == below and not others:
            self.refused(NoChanges, work)
            return
        identity, _ = self.run(work)
        self.committed(name, identity, (line.head, *others), result)

    @rule(client=CLIENTS, name=NAMES, other=NAMES, back=st.integers(0, 2), pick=st.booleans(), tidy=TIDY)
    def revert_or_pick(self, client: int, name: str, other: str, back: int, pick: bool, tidy: bool) -> None:
        name, other = self.tidied(name, tidy), self.living(other)
        history = self.history(self.branches[other].head)
        identity = history[min(back, len(history) - 1)]
        repository = self.clients[client]
        work = repository.cherry_pick(name, identity, 1) if pick else repository.revert(name, identity, 1)
        parents = self.commits[identity].parents
        if not parents:
            self.refused(Invalid, work)
        else:
            base, above = (parents[0], identity) if pick else (identity, parents[0])
            self.bring(name, work, base, above, ())

    @rule(client=CLIENTS, name=NAMES)
    def reset(self, client: int, name: str) -> None:
        name = self.living(name)
        self.run(self.clients[client].reset(name))
        self.branches[name] = replace(self.branches[name], staged={}, dirty=False)

    @rule(client=CLIENTS, name=NAMES, which=st.integers(0, 30), force=st.booleans())
    def hard_reset(self, client: int, name: str, which: int, force: bool) -> None:
        name = self.living(name)
        identity = list(self.commits)[-1 - which % len(self.commits)]
        work = self.clients[client].hard_reset(name, identity, force)
        if self.branches[name].dirty and not force:
            self.refused(DirtyBranch, work)
            return
        self.run(work)
        self.branches[name] = replace(self.branches[name], head=identity, staged={}, dirty=False)

    @rule(client=CLIENTS, name=NAMES)
    def stash(self, client: int, name: str) -> None:
        work = self.clients[client].stash(name)
        if name not in self.branches:
            self.refused(NotFound, work)
            return
        line = self.branches[name]
        if not line.dirty:
            self.refused(NoChanges, work)
            return
        self.run(work)
        self.branches[name] = replace(line, staged={}, dirty=False, stashes=(*line.stashes, line.staged))

    @rule(client=CLIENTS, name=NAMES)
    def pop(self, client: int, name: str) -> None:
        name = self.living(name)
        work = self.clients[client].pop_stash(name)
        if not self.branches[name].stashes:
            self.refused(NotFound, work)
            return
        line = self.branches[name]
        if line.dirty:
            self.refused(DirtyBranch, work)
            return
        self.run(work)
        self.branches[name] = replace(line, staged=line.stashes[-1], dirty=True, stashes=line.stashes[:-1])

    @rule(client=CLIENTS, name=NAMES, which=st.integers(0, 2))
    def drop(self, client: int, name: str, which: int) -> None:
        name = self.living(name)
        if len(self.branches[name].stashes) <= which:
            return
        repository, line = self.clients[client], self.branches[name]
        found = self.run(repository.stashes(name))
        assert len(found) == len(line.stashes)
        self.run(repository.drop_stash(name, found[which].id))
        self.branches[name] = replace(line, stashes=(*line.stashes[:which], *line.stashes[which + 1 :]))

    @rule(client=CLIENTS, name=NAMES, source=NAMES)
    def create(self, client: int, name: str, source: str) -> None:
        if source not in self.branches:
            return
        if name in self.branches:
            self.refused(AlreadyExists, self.clients[client].create_branch(name, source))
            return
        self.run(self.clients[client].create_branch(name, source))
        self.branches[name] = Line(self.branches[source].head)

    @rule(client=CLIENTS, name=st.sampled_from(["one", "two"]))
    def delete(self, client: int, name: str) -> None:
        work = self.clients[client].delete_branch(name)
        if name not in self.branches:
            self.refused(NotFound, work)
            return
        self.run(work)
        self.deleted.setdefault(name, []).append(self.branches.pop(name))

    @rule(client=CLIENTS, name=st.sampled_from(["one", "two"]))
    def restore(self, client: int, name: str) -> None:
        work = self.clients[client].restore_branch(name)
        if not self.deleted.get(name):
            self.refused(NotFound, work)
            return
        if name in self.branches:
            self.refused(AlreadyExists, work)
            return
        self.run(work)
        self.branches[name] = self.deleted[name].pop()

    @rule(client=CLIENTS, name=NAMES, delta=DELTAS, meanwhile=DELTAS | st.none(), fails=st.booleans(), tidy=TIDY)
    def transact(self, client: int, name: str, delta: Delta, meanwhile: Delta | None, fails: bool, tidy: bool) -> None:
        """Sometimes another client commits to the branch meanwhile; sometimes the block raises."""
        name = self.tidied(name, tidy)
        repository = self.clients[client]
        started = self.branches[name].head
        transaction = repository.transaction(name, "together")

        async def work() -> None:
            async with transaction:
                for key, value in delta.items():
                    await (transaction.delete(key.decode()) if value is None else transaction.put(key.decode(), value))
                assert dict((await transaction.list()).items) == applied(self.commits[started].tree, delta)
                if meanwhile is not None:
                    await self.clients[1 - client].reset(name)
                    async with self.clients[1 - client].writer(name) as writer:
                        for key, value in meanwhile.items():
                            await (writer.delete(key) if value is None else writer.put(key, value))
                    await self.clients[1 - client].commit(name, "meanwhile", allow_empty=True)
                if fails:
                    raise ZeroDivisionError

        error: BaseException | None = None
        try:
            self.run(work())
        except (ZeroDivisionError, Error) as raised:
            error = raised
        if meanwhile is not None:
            others = [transaction.commit] if transaction.commit else []
            tip = self.run(self.clients[client].resolve(name + "~1" * len(others)))
            self.committed(name, tip, (started,), applied(self.commits[started].tree, meanwhile))
        self.check_transaction(name, started, delta, transaction.commit, error, fails)

    def check_transaction(
        self,
        name: str,
        started: CommitId,
        delta: Delta,
        commit: CommitId | None,
        error: BaseException | None,
        fails: bool,
    ) -> None:
        line, base = self.branches[name], self.commits[started].tree
        inner = applied(base, delta)
        if fails:
            assert isinstance(error, ZeroDivisionError)
        elif inner == base:
            assert error is None
            assert commit is None
        elif line.dirty:
            assert isinstance(error, DirtyBranch)
        elif (result := merged(base, inner, self.commits[line.head].tree)) is None:
            assert isinstance(error, MergeConflict)
        else:
            assert error is None
            assert commit is not None
            made = self.run(self.clients[0].commits.load(commit)).parents[1]
            self.commits[made] = Commit((started,), inner, self.commits[started].generation + 1)
            self.committed(name, commit, (line.head, made), result)

    @invariant()
    def every_branch_shows_what_the_model_has(self) -> None:
        self.turn += 1
        repository = self.clients[self.turn % 2]
        found = [branch.name for branch in self.run(listed(repository))]
        assert found == sorted(self.branches)
        for name, line in self.branches.items():
            assert dict(self.run(scanned(repository.scan(name)))) == self.shown(line)

    @invariant()
    def every_log_is_the_history_of_first_parents(self) -> None:
        repository = self.run(self.opened())
        for name, line in self.branches.items():
            assert self.run(logged(repository, name)) == self.history(line.head)
            everything = self.run(logged(repository, name, first_parent=False))
            assert len(everything) == len(set(everything))
            assert set(everything) == self.ancestors(line.head)

    async def opened(self) -> Repository:
        first = self.clients[0]
        return await Repository.open(first.store, first.refs, "repo", settings=SETTINGS, threads=False)

    def teardown(self) -> None:
        for identity, commit in self.commits.items():
            assert dict(self.run(scanned(self.clients[0].scan(identity)))) == commit.tree
        self.loop.close()


async def listed(repository: Repository) -> list[Any]:
    return [branch async for branch in repository.list_branches(hidden=True)]


async def logged(repository: Repository, name: str, first_parent: bool = True) -> list[CommitId]:
    return [identity async for identity, _ in repository.log(name, 1000, first_parent=first_parent)]


TestBranchesMachine = BranchesMachine.TestCase
TestBranchesMachine.settings = settings(
    max_examples=60,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
