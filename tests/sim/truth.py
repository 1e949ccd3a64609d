"""What the branches really show, and the invariants that hold after every single change to them.

`Truth` is the ref store of the simulated world. After each change it reads the tables, runs and commits that the
record refers to, straight from the stored bytes, and compares what a reader would see with what the changes so far
say. Anything that is missing, lost, doubled, reordered or brought back is a `Violation` at the very step that did it.

What a change does to what readers see:

    append           the table lies on top
    move             the merge of plain dicts; of a fast-forward, what the commit has
    reset            what the base has
    stash            what the base has; what was staged is remembered
    take             what was remembered lies on top
    create, restore  what the commit has, what the deleted life showed at that version
    everything else  nothing
"""

import asyncio
from collections import defaultdict
from dataclasses import dataclass, field

import msgspec

from lsmfs.objectstore.memory import MemoryStore
from refstore.drivers.memory import MemoryRefStore
from refstore.records import (
    Advance,
    Append,
    Branch,
    BranchChange,
    CommitId,
    Create,
    Delete,
    Move,
    Reset,
    Restore,
    StashLayers,
    TakeStash,
)
from refstore.refs import replay
from refstore.store import Absent
from tests.sim.stored import REPOSITORY, Content, Stored, Violation, difference, laid_over, live, staged_in

BRANCH = "main"
Place = tuple[str, str]


class Operation(msgspec.Struct, frozen=True):
    """A put or append (etag) or delete (etag None) that a writer began; `number` counts that writer's operations."""

    writer: str
    number: int
    key: bytes
    etag: str | None
    expected: str | Absent | None
    began: int


@dataclass
class Lifetime:
    """One incarnation of a branch: its record and what it showed, at every version; and what its stashes do."""

    records: dict[int, Branch] = field(default_factory=dict)
    states: dict[int, Content] = field(default_factory=dict)
    stashes: dict[int, Content] = field(default_factory=dict)
    version: int = 0
    takes: int = 0
    resets: int = 0
    write: str = ""  # the id of the last reset, stash or take
    ended: bool = False

    @property
    def record(self) -> Branch:
        return self.records[self.version]

    @property
    def state(self) -> Content:
        return self.states[self.version]


class Truth(MemoryRefStore):
    def __init__(self, objects: MemoryStore) -> None:
        super().__init__()
        self.stored = Stored(objects)
        self.lives: dict[Place, Lifetime] = {}
        self.committed: dict[tuple[str, int], CommitId] = {}  # (incarnation, seal) to the commit that holds it
        self.moved: dict[CommitId, str] = {}  # the commits that branches moved to, and the branch
        self._tables: set[str] = set()
        self._appended: dict[str, int] = {}
        self._touched: dict[tuple[str, bytes], int] = {}
        self._newest: dict[str, int] = {}
        self._begun: defaultdict[tuple[str, bytes], list[Operation]] = defaultdict(list)
        self._operations: dict[str, Operation] = {}
        self._winners: defaultdict[tuple[bytes, object, int], set[str]] = defaultdict(set)
        self._rewound: dict[bytes, int] = {}  # the version at which a key of the main branch changed, but by no append
        self.violation: Violation | None = None
        self.broken = asyncio.Event()

    @property
    def main(self) -> Lifetime:
        return self.lives[BRANCH, self._branches[REPOSITORY][BRANCH].incarnation]

    @property
    def version(self) -> int:
        return self.main.version

    def living(self, name: str) -> Lifetime | None:
        """The life that a branch name has now."""
        branch = self._branches[REPOSITORY].get(name)
        return None if branch is None else self.lives.get((name, branch.incarnation))

    async def change(self, repository: str, name: str, change: BranchChange) -> Branch:
        branch = await super().change(repository, name, change)
        if self.violation is None:  # nobody ran since the change
            try:
                self._check_change(self.lives.setdefault((name, change.incarnation), Lifetime()), branch, change)
            except Exception as error:  # kept, because the caller may be a task that nobody waits for
                self.violation = error if isinstance(error, Violation) else Violation(repr(error))
                self.broken.set()
        return branch

    def _check_change(self, life: Lifetime, branch: Branch, change: BranchChange) -> None:
        if isinstance(change, Delete):
            life.ended = True
        elif life.ended:
            raise Violation(f"{branch.name!r} lives again under the incarnation of a life that has ended")
        elif branch.version > life.version:
            self._check_step(life, branch, change)

    def _check_step(self, life: Lifetime, branch: Branch, change: BranchChange) -> None:
        if life.records and branch.version != life.version + 1:
            raise Violation(f"version went from {life.version} to {branch.version}")
        if isinstance(change, Reset | StashLayers | TakeStash):
            if change.write == life.write:
                raise Violation(f"{type(change).__name__} {change.write} was done twice")
            life.write = change.write
        expected = live(self._expected(life, branch, change))
        if branch.name == BRANCH and not isinstance(change, Append | Create):
            changed = [key for key in life.state.keys() | expected if life.state.get(key) != expected.get(key)]
            self._rewound.update(dict.fromkeys(changed, branch.version))
        self._check_view(life, branch, change)
        life.version = branch.version
        life.records[branch.version], life.states[branch.version] = branch, expected
        if (shown := self.stored.shown(branch)) != expected:
            name = type(change).__name__
            raise Violation(f"{name} of {branch.name!r} at {life.version}: {difference(shown, expected)}")

    def _check_view(self, life: Lifetime, branch: Branch, change: BranchChange) -> None:
        visible = isinstance(change, Create | Restore | Append | Move | Reset | StashLayers | TakeStash)
        if visible and not (isinstance(change, TakeStash) and change.drop):
            expected = branch.version
        else:
            expected = life.record.view
        if branch.view != expected:
            raise Violation(f"{type(change).__name__} at version {branch.version}: the view is {branch.view}")

    def _expected(self, life: Lifetime, branch: Branch, change: BranchChange) -> Content:
        stored = self.stored
        match change:
            case Create():
                return stored.content(change.base_commit)
            case Restore():
                return self._restored(life, branch.name, change)
            case Append():
                self._check_append(change, branch.version)
                return laid_over(life.state, stored.layer(change.table))
            case Move():
                self.moved[change.new] = branch.name
                return self._merged(change)
            case Reset():
                life.resets += 1
                return stored.content(change.base or life.record.base_commit)
            case StashLayers():
                life.stashes[branch.version] = stored.delta(staged_in(life.record))
                return stored.content(life.record.base_commit)
            case TakeStash():
                life.takes += 1
                delta = life.stashes.pop(change.stash)
                return life.state if change.drop else laid_over(life.state, delta)
            case Advance():
                self._check_commit(life.record, change)
        return life.state

    def _restored(self, life: Lifetime, name: str, change: Restore) -> Content:
        """What the branch was: as one of its records says, word for word."""
        old = self.lives.get((name, change.branch.incarnation), Lifetime())
        if old.records.get(change.branch.version) != change.branch:
            raise Violation(f"{name!r} is restored as {change.branch}, which it never was")
        names = {stash.id for stash in change.branch.aside.stashes}
        life.stashes = {number: self._stash_of(change.branch, number) for number in names}
        return old.states[change.branch.version]

    def _stash_of(self, branch: Branch, number: int) -> Content:
        return self.stored.delta(next(stash.layers for stash in branch.aside.stashes if stash.id == number))

    def _check_commit(self, before: Branch, change: Advance) -> None:
        """A commit is its parent's content and the layers that it took, the oldest ones."""
        taken = before.sealed[: len(change.seals)]
        for seal in taken:
            self.committed[change.incarnation, seal.id] = change.new
        expected = live(laid_over(self.stored.content(change.old), self.stored.delta(taken)))
        if (found := self.stored.content(change.new)) != expected:
            raise Violation(f"commit {change.new} is not its parent and what was sealed: {difference(found, expected)}")
        if change.new != change.old and self.stored.commit(change.new).parents != (change.old,):
            raise Violation(f"commit {change.new} on {change.old} has other parents")

    def _check_append(self, change: Append, version: int) -> None:
        """The table's values are new, in the order of their writer, and won their conditions."""
        content, writer = self.stored.layer(change.table), self.stored.facts(change.table).get("lsmfs.writer", "")
        if change.table in self._tables:
            raise Violation(f"table {change.table} was appended twice")
        self._tables.add(change.table)
        numbers = []
        for key, value in content.items():
            self._touched[writer, key] = version
            for etag in etags_of(value):
                if etag not in self._operations:
                    continue
                if etag in self._appended:
                    raise Violation(f"{etag} was appended at {self._appended[etag]} and again at {version}")
                self._appended[etag] = version
                self._won(self._operations[etag])
                numbers.append(self._operations[etag].number)
        if numbers and min(numbers) < self._newest.get(writer, 0):
            raise Violation(f"writer {writer}: operation {min(numbers)} came after {self._newest[writer]}")
        self._newest[writer] = max([*numbers, self._newest.get(writer, 0)])

    def _merged(self, change: Move) -> Content:
        """What a merge, a revert or a cherry-pick must give; a fast-forward gives what is there."""
        stored, commit = self.stored, self.stored.commit(change.new)
        if change.jump:
            if change.old not in stored.ancestors(change.new):
                raise Violation(f"a fast-forward from {change.old} to {change.new}, which does not descend from it")
            return stored.content(change.new)
        if commit.parents[0] != change.old:
            raise Violation(f"a merge into {change.old} has the parents {commit.parents}")
        base, source = self._sides(change.new)
        into = stored.content(change.old)
        merged = dict(into)
        for key in base.keys() | source.keys():
            if source.get(key) != base.get(key):
                if into.get(key) in (base.get(key), source.get(key)):
                    merged[key] = source.get(key)
                elif len(commit.parents) > 1:  # a revert that lost a race may have had nothing to do there at first
                    raise Violation(f"a merge went over the conflict of {key!r}")
        return merged

    def _sides(self, identity: CommitId) -> tuple[Content, Content]:
        """From what to what the changes are that this commit brought to its first parent."""
        stored, commit = self.stored, self.stored.commit(identity)
        if len(commit.parents) > 1:
            return stored.content(stored.merge_base(*commit.parents)), stored.content(commit.parents[1])
        if picked := commit.metadata.get("lsmfs.picked"):
            done = CommitId(picked)
            return stored.content(stored.commit(done).parents[0]), stored.content(done)
        undone = CommitId(commit.metadata["lsmfs.reverts"])
        return stored.content(undone), stored.content(stored.commit(undone).parents[0])

    def _won(self, operation: Operation) -> None:
        """Of those that expect the same value, one wins, until the key gets an older value back."""
        if operation.expected is None or operation.etag is None:
            return
        rewound = self._rewound.get(operation.key, 0)
        winners = self._winners[operation.key, operation.expected, rewound]
        winners.add(operation.etag)
        if len(winners) > 1:
            raise Violation(f"{operation.key!r} expected {operation.expected}: both won: {sorted(winners)}")

    def begin(self, operation: Operation) -> None:
        self._begun[operation.writer, operation.key].append(operation)
        if operation.etag is not None:
            self._operations[operation.etag] = operation

    def acknowledge(self, operation: Operation) -> None:
        """What is acknowledged was appended; or a later operation of its writer on the key was, in the same batch."""
        if operation.began >= self._rewound.get(operation.key, 0):
            self._won(operation)
        touched = self._touched.get((operation.writer, operation.key), 0) > operation.began
        later = any(other.number > operation.number for other in self._begun[operation.writer, operation.key])
        appended = operation.etag is None or operation.etag in self._appended or later
        if not (touched and appended):
            raise Violation(f"{operation.etag or 'delete'} of {operation.key!r} was acknowledged, but is not there")

    def check_read(
        self, what: str, found: Content, began: int, prefix: bytes = b"", life: Lifetime | None = None
    ) -> None:
        """What was read is what the branch showed at one moment between the call and its answer."""
        life = life or self.main
        expected: Content = {}
        for version in range(began, life.version + 1):
            expected = {key: etag for key, etag in life.states[version].items() if key.startswith(prefix)}
            if found == expected:
                return
        raise Violation(f"{what} between versions {began} and {life.version}: {difference(found, expected)}")

    def check_committed(self, branch: Branch, commit: CommitId) -> None:
        """Whoever is told that a commit holds what he sealed finds it there: it was not reset meanwhile."""
        history = self.stored.first_parents(commit)
        for seal in branch.sealed:
            if self.committed.get((branch.incarnation, seal.id)) not in history:
                raise Violation(f"commit {commit} is said to hold seal {seal.id}, but it does not")

    def check_journal(self) -> None:
        if replay(self._journal[REPOSITORY]) != self._branches[REPOSITORY]:
            raise Violation("replaying the journal does not give the branches")

    def heads(self) -> list[Branch]:
        return list(self._branches[REPOSITORY].values())


def etags_of(value: str | None) -> list[str]:
    """The operations that made a value: one, or all that a text was appended by."""
    if value is None:
        return []
    return value[1:].split(";")[:-1] if value[:1] in "+=" else [value]


__all__ = ["BRANCH", "REPOSITORY", "Content", "Lifetime", "Operation", "Truth", "Violation", "difference"]
