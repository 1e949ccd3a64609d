"""What is stored, read straight from the bytes: tables, runs, commits, and what layers on top of each other show."""

from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

import msgspec

from lsmfs import paths
from lsmfs.lsm import records, table
from lsmfs.lsm.run import RANGE_SCHEMA
from lsmfs.lsm.view import stack
from lsmfs.model import Entry
from lsmfs.objectstore.memory import MemoryStore
from lsmfs.tree.commits import Commit
from refstore.errors import NotFound
from refstore.records import Branch, CommitId, Seal, SealId

REPOSITORY = "lake"
GROWN = b"g/"
"""Below this, objects are appended to: their value is their text, with `=` before it; what an append adds has `+`."""

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


def laid_over(below: Content, above: Content) -> Content:
    """Two layers as one; tombstones stay, and so do appends to what neither of them has."""
    content = dict(below)
    for key, value in above.items():
        if value is not None and value.startswith("+") and key in content:
            value = (content[key] or "=") + value[1:]
        content[key] = value
    return content


def live(content: Content) -> Content:
    """What a reader sees of it: an append to nothing is an object, and a tombstone is nothing."""
    return {key: "=" + value[1:] if value[0] == "+" else value for key, value in content.items() if value is not None}


def difference(found: Content, expected: Content) -> str:
    parts = [
        f"{key!r} is {found.get(key)}, not {expected.get(key)}"
        for key in sorted(found.keys() | expected.keys())
        if found.get(key) != expected.get(key)
    ]
    return "; ".join(parts)


def staged_in(branch: Branch) -> tuple[Seal, ...]:
    """Everything staged on a branch, oldest first."""
    return (*branch.sealed, Seal(SealId(0), branch.l1, branch.l2))


class Stored:
    def __init__(self, objects: MemoryStore) -> None:
        self._objects = objects
        self._layers: dict[str, Content] = {}

    def shown(self, branch: Branch) -> Content:
        """What a reader of the record would see."""
        return live(laid_over(self.content(branch.base_commit), self.delta(staged_in(branch))))

    def delta(self, seals: Iterable[Seal]) -> Content:
        """What these layers do to whatever is below them."""
        content: Content = {}
        for seal in seals:
            for name in reversed(stack(seal.l1, seal.l2)):
                content = laid_over(content, self.layer(name))
        return content

    def content(self, identity: CommitId) -> Content:
        return self.layer(self.commit(identity).metarange)

    def commit(self, identity: CommitId) -> Commit:
        return msgspec.json.decode(self._bytes(paths.commit_path(REPOSITORY, identity)), type=Commit)

    def first_parents(self, identity: CommitId) -> list[CommitId]:
        """The history of first parents, the commit itself first."""
        found = [identity]
        while parents := self.commit(found[-1]).parents:
            found.append(parents[0])
        return found

    def ancestors(self, identity: CommitId) -> dict[CommitId, int]:
        """All of them, itself included, with their generations."""
        found: dict[CommitId, int] = {}
        waiting = [identity]
        while waiting:
            commit = self.commit(here := waiting.pop())
            found[here] = commit.generation
            waiting += [parent for parent in commit.parents if parent not in found]
        return found

    def merge_base(self, left: CommitId, right: CommitId) -> CommitId:
        """By a search of all ancestors: the highest, and of several the one with the smallest id."""
        sides = self.ancestors(left), self.ancestors(right)
        return min(sides[0].keys() & sides[1].keys(), key=lambda identity: (-sides[0][identity], identity))

    def layer(self, name: str) -> Content:
        """The content of a table or run, which must be stored."""
        data = self._bytes(paths.layer_path(REPOSITORY, name))
        if not paths.is_run(name):
            return self._rows(name, data)
        content: Content = {}
        for file in table.decode(data, name, RANGE_SCHEMA)[0]["file"].to_pylist():
            content.update(self._rows(file, self._bytes(paths.layer_path(REPOSITORY, file))))
        return content

    def _rows(self, name: str, data: bytes) -> Content:
        if name not in self._layers:
            rows, _, _ = table.decode(data, name, records.SCHEMA)
            keys = [key.encode() for key in rows["key"].to_pylist()]
            found = zip(keys, rows["kind"].to_pylist(), records.entries_at(rows), strict=True)
            self._layers[name] = {key: self.value(key, entry, kind) for key, kind, entry in found}
        return self._layers[name]

    def value(self, key: bytes, entry: Entry | None, kind: int = records.PUT) -> str | None:
        """What stands for an entry: its etag, or the text that its extents have."""
        if entry is None or not key.startswith(GROWN):
            return None if entry is None else entry.etag
        text = b"".join(self._bytes(each.address)[each.offset :][: each.length] for each in entry.extents)
        return ("+" if kind == records.APPEND else "=") + text.decode()

    def facts(self, name: str) -> dict[str, str]:
        """The facts of a table, or of a unit; none if it is not stored."""
        try:
            data = now(self._objects.get(paths.layer_path(REPOSITORY, name)))
        except NotFound:
            return {}
        return table.decode(data, name, RANGE_SCHEMA if paths.is_run(name) else records.SCHEMA)[1]

    def _bytes(self, path: str) -> bytes:
        try:
            return now(self._objects.get(path))
        except NotFound:
            raise Violation(f"{path} is referred to, but is not stored") from None


__all__ = ["GROWN", "REPOSITORY", "Content", "Stored", "Violation", "difference", "laid_over", "live", "staged_in"]
