"""What the branch really shows, and the invariants that hold after every single change to it.

`Truth` is the ref store of the simulated world. After each change it reads the tables, runs and commits that the
record refers to, straight from the stored bytes, and compares what a reader would see with what the appends so far
say. Anything that is missing, lost, doubled, reordered or brought back is a `Violation` at the very step that did it.
"""

import asyncio
from collections import defaultdict
from collections.abc import Coroutine
from typing import Any, TypeVar

import msgspec

from lsmfs import paths
from lsmfs.lsm import records, table
from lsmfs.lsm.run import RANGE_SCHEMA
from lsmfs.lsm.view import stack
from lsmfs.objectstore.memory import MemoryStore
from lsmfs.tree.commits import Commit
from refstore.drivers.memory import MemoryRefStore
from refstore.errors import NotFound
from refstore.records import Append, Branch, BranchChange, CommitId, Move
from refstore.refs import replay
from refstore.store import Absent

REPOSITORY, BRANCH = "lake", "main"

Content = dict[bytes, str | None]
"""Key to etag; None is a tombstone. Every etag in a simulation is written once."""

T = TypeVar("T")


class Violation(AssertionError):
    """A promise was broken."""


def now(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that never waits: the in-memory store's verbs do not."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    raise AssertionError("it waited")


class Operation(msgspec.Struct, frozen=True):
    """A put (etag) or delete (etag None) that a writer began; `number` counts that writer's operations."""

    writer: str
    number: int
    key: bytes
    etag: str | None
    expected: str | Absent | None
    began: int


class Truth(MemoryRefStore):
    def __init__(self, objects: MemoryStore) -> None:
        super().__init__()
        self._objects = objects
        self._layers: dict[str, Content] = {}
        self.states: dict[int, Content] = {0: {}}
        self._tables: set[str] = set()
        self._appended: dict[str, int] = {}
        self._touched: dict[tuple[str, bytes], int] = {}
        self._newest: dict[str, int] = {}
        self._begun: defaultdict[tuple[str, bytes], list[Operation]] = defaultdict(list)
        self._operations: dict[str, Operation] = {}
        self._winners: defaultdict[tuple[bytes, object], set[str]] = defaultdict(set)
        self.version = 0
        self.violation: Violation | None = None
        self.broken = asyncio.Event()

    async def change(self, repository: str, name: str, change: BranchChange) -> Branch:
        branch = await super().change(repository, name, change)
        if name == BRANCH and branch.version > self.version and self.violation is None:  # nobody ran since the change
            try:
                self._check_step(branch, change)
            except Exception as error:  # kept, because the caller may be a task that nobody waits for
                self.violation = error if isinstance(error, Violation) else Violation(repr(error))
                self.broken.set()
        return branch

    def _check_step(self, branch: Branch, change: BranchChange) -> None:
        if branch.version != self.version + 1:
            raise Violation(f"version went from {self.version} to {branch.version}")
        state = dict(self.states[self.version])
        self.version = branch.version
        if isinstance(change, Append):
            self._check_append(change)
            state.update(self.layer(change.table))
        if isinstance(change, Move):
            state = self._merged(change)
        self.states[self.version] = {key: etag for key, etag in state.items() if etag is not None}
        shown = self.shown(branch)
        if shown != self.states[self.version]:
            raise Violation(
                f"{type(change).__name__} at version {self.version}: {difference(shown, self.states[self.version])}"
            )

    def _check_append(self, change: Append) -> None:
        """The table's values are new, in the order of their writer, and won their conditions."""
        content, writer = self.layer(change.table), self.facts(change.table).get("lsmfs.writer", "")
        if change.table in self._tables:
            raise Violation(f"table {change.table} was appended twice")
        self._tables.add(change.table)
        numbers = []
        for key, etag in content.items():
            self._touched[writer, key] = self.version
            if etag is None or etag not in self._operations:
                continue
            if etag in self._appended:
                raise Violation(f"{etag} was appended at {self._appended[etag]} and again at {self.version}")
            self._appended[etag] = self.version
            self._won(self._operations[etag])
            numbers.append(self._operations[etag].number)
        if numbers and min(numbers) < self._newest.get(writer, 0):
            raise Violation(f"writer {writer}: operation {min(numbers)} came after {self._newest[writer]}")
        self._newest[writer] = max([*numbers, self._newest.get(writer, 0)])

    def _merged(self, change: Move) -> Content:
        """What a merge must give: the merge of plain dicts, by the merge base that a search of all ancestors finds."""
        commit = self.commit(change.new)
        if commit.parents[0] != change.old:
            raise Violation(f"a merge into {change.old} has the parents {commit.parents}")
        sides = [self._ancestors(parent) for parent in commit.parents]
        common = sides[0].keys() & sides[1].keys()
        base = self.layer(self.commit(max(common, key=lambda identity: sides[0][identity])).metarange)
        into, source = (self.layer(self.commit(parent).metarange) for parent in commit.parents)
        merged = dict(into)
        for key in base.keys() | source.keys():
            if source.get(key) != base.get(key):
                if into.get(key) not in (base.get(key), source.get(key)):
                    raise Violation(f"a merge went over the conflict of {key!r}")
                merged[key] = source.get(key)
        return merged

    def _ancestors(self, identity: CommitId) -> dict[CommitId, int]:
        """All of them, itself included, with their generations."""
        found: dict[CommitId, int] = {}
        waiting = [identity]
        while waiting:
            commit = self.commit(here := waiting.pop())
            found[here] = commit.generation
            waiting += [parent for parent in commit.parents if parent not in found]
        return found

    def _won(self, operation: Operation) -> None:
        if operation.expected is None or operation.etag is None:
            return
        winners = self._winners[operation.key, operation.expected]
        winners.add(operation.etag)
        if len(winners) > 1:
            raise Violation(f"{operation.key!r} expected {operation.expected}: both won: {sorted(winners)}")

    def begin(self, operation: Operation) -> None:
        self._begun[operation.writer, operation.key].append(operation)
        if operation.etag is not None:
            self._operations[operation.etag] = operation

    def acknowledge(self, operation: Operation) -> None:
        """What is acknowledged was appended; or a later operation of its writer on the key was, in the same batch."""
        self._won(operation)
        touched = self._touched.get((operation.writer, operation.key), 0) > operation.began
        later = any(other.number > operation.number for other in self._begun[operation.writer, operation.key])
        appended = operation.etag is None or operation.etag in self._appended or later
        if not (touched and appended):
            raise Violation(f"{operation.etag or 'delete'} of {operation.key!r} was acknowledged, but is not there")

    def check_read(self, what: str, found: Content, began: int, prefix: bytes = b"") -> None:
        """What was read is what the branch showed at one moment between the call and its answer."""
        expected: Content = {}
        for version in range(began, self.version + 1):
            expected = {key: etag for key, etag in self.states[version].items() if key.startswith(prefix)}
            if found == expected:
                return
        raise Violation(f"{what} between versions {began} and {self.version}: {difference(found, expected)}")

    def check_journal(self) -> None:
        if replay(self._journal[REPOSITORY]) != self._branches[REPOSITORY]:
            raise Violation("replaying the journal does not give the branches")

    @property
    def head(self) -> Branch:
        return self._branches[REPOSITORY][BRANCH]

    def shown(self, branch: Branch) -> Content:
        """What a reader of the record would see."""
        content = dict(self.layer(self.commit(branch.base_commit).metarange))
        stacks = [*((seal.l1, seal.l2) for seal in branch.sealed), (branch.l1, branch.l2)]
        for l1, l2 in stacks:
            for name in reversed(stack(l1, l2)):
                content.update(self.layer(name))
        return {key: etag for key, etag in content.items() if etag is not None}

    def commit(self, identity: CommitId) -> Commit:
        return msgspec.json.decode(self._stored(paths.commit_path(REPOSITORY, identity)), type=Commit)

    def layer(self, name: str) -> Content:
        """The content of a table or run, which must be stored."""
        data = self._stored(paths.layer_path(REPOSITORY, name))
        if not paths.is_run(name):
            return self._rows(name, data)
        content: Content = {}
        for file in table.decode(data, name, RANGE_SCHEMA)[0]["file"].to_pylist():
            content.update(self._rows(file, self._stored(paths.layer_path(REPOSITORY, file))))
        return content

    def _rows(self, name: str, data: bytes) -> Content:
        if name not in self._layers:
            rows, _, _ = table.decode(data, name, records.SCHEMA)
            values = zip(rows["key"].to_pylist(), rows["kind"].to_pylist(), rows["etag"].to_pylist(), strict=True)
            self._layers[name] = {key.encode(): etag if kind == 0 else None for key, kind, etag in values}
        return self._layers[name]

    def facts(self, name: str) -> dict[str, str]:
        """The facts of a table, or of a unit; none if it is not stored."""
        try:
            data = now(self._objects.get(paths.layer_path(REPOSITORY, name)))
        except NotFound:
            return {}
        return table.decode(data, name, RANGE_SCHEMA if paths.is_run(name) else records.SCHEMA)[1]

    def _stored(self, path: str) -> bytes:
        try:
            return now(self._objects.get(path))
        except NotFound:
            raise Violation(f"{path} is referred to at version {self.version}, but is not stored") from None


def difference(found: Content, expected: Content) -> str:
    parts = [
        f"{key!r} is {found.get(key)}, not {expected.get(key)}"
        for key in sorted(found.keys() | expected.keys())
        if found.get(key) != expected.get(key)
    ]
    return "; ".join(parts)


__all__ = ["BRANCH", "REPOSITORY", "Content", "Operation", "Truth", "Violation", "difference"]
