"""What a reader sees of a branch at one version: its layers, newest first, above its base.

Point reads ask the layers in order and stop at the first that knows the key; at an append they go on, and join. Bounds
and bloom filters decide which tables are searched at all. Listings walk one cursor per layer; `listing` has them. A
view is immutable. A table that has gone is legal only if the branch has moved on since: `LayerGone` says so, and
`repository` looks again.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence

import pyarrow as pa

from lsmfs import paths
from lsmfs.lsm import records
from lsmfs.lsm.appends import joined
from lsmfs.lsm.branches import BranchReader
from lsmfs.lsm.build import changes
from lsmfs.lsm.run import EMPTY_RUN, Run
from lsmfs.lsm.table import OpenTable, Probe
from lsmfs.lsm.tables import Tables
from lsmfs.model import Entry
from refstore.errors import Corrupt, Error, NotFound
from refstore.records import Branch, CommitId, RunId, TableId

Layer = OpenTable | Run
GET_MANY_AT_ONCE = 64  # keys looked up at once, so that a cold get_many does not open a thousand connections


class LayerGone(Error):
    """A layer of this view is no longer stored."""


def layer_names(branch: Branch) -> list[TableId | RunId]:
    """Every layer of a branch above its base, newest first."""
    stacks = [(branch.l1, branch.l2), *((seal.l1, seal.l2) for seal in reversed(branch.sealed))]
    return [name for l1, l2 in stacks for name in stack(l1, l2)]


def stack(l1: Sequence[TableId], l2: RunId | None) -> list[TableId | RunId]:
    """One l1 above one l2, newest first."""
    return [*reversed(l1), *([l2] if l2 else ())]


async def load_layer(tables: Tables, name: str) -> Layer:
    try:
        return await (tables.load_run(RunId(name)) if paths.is_run(name) else tables.load(name))
    except NotFound as error:
        raise LayerGone(f"layer {name} is gone") from error


async def check_moved(branches: BranchReader, seen: Branch, gone: LayerGone) -> None:
    """A missing layer is legal only if the branch has moved since it was read; if not, `Corrupt`."""
    if not seen.incarnation:
        raise Corrupt(f"{seen.name}: {gone}, though it refers to it") from gone
    now = await branches.read(seen.name)
    if now.incarnation == seen.incarnation and now.version == seen.version:
        raise Corrupt(
            f"branch {seen.name!r} at version {seen.version}: {gone}, though the branch refers to it"
        ) from gone


def commit_as_branch(commit: CommitId) -> Branch:
    """What a view of a commit stands on: it has no layers, and never moves."""
    return Branch(f"commit {commit[:12]}", "", 0, 0, commit)


class View:
    def __init__(self, tables: Tables, branch: Branch, layers: list[Layer], base: Run = EMPTY_RUN) -> None:
        self.tables = tables
        self.branch = branch
        self.layers: list[Layer] = [*layers, base]
        self.base = base

    @staticmethod
    async def open(tables: Tables, branch: Branch, base: Run) -> "View":
        layers = await asyncio.gather(*(load_layer(tables, name) for name in layer_names(branch)))
        return View(tables, branch, list(layers), base)

    async def get(self, key: bytes) -> Entry | None:
        """The entry, or None if there is none or it was deleted."""
        probe = Probe(key)
        appended: list[Entry] = []
        for layer in self.layers:
            if isinstance(layer, Run):
                file = layer.holding(key)
                if file is None:
                    continue
                table = self.tables.peek(file) or await self._table(file)
            else:
                table = layer
            if table.may_hold(probe):
                self.tables.opened += 1
                row = table.find(key)
                if row >= 0:
                    entry: Entry | None = table.entry(row)
                    if entry is None or not table.is_append(row):
                        return joined(appended, entry) if appended else entry
                    appended.append(entry)
        return joined(appended, None) if appended else None

    async def get_many(self, keys: Iterable[bytes]) -> dict[bytes, Entry]:
        """The entries of those keys that are there."""
        found: dict[bytes, Entry] = {}
        wanted = sorted(set(keys))
        for start in range(0, len(wanted), GET_MANY_AT_ONCE):
            some = wanted[start : start + GET_MANY_AT_ONCE]
            entries = await asyncio.gather(*map(self.get, some))
            found.update({key: entry for key, entry in zip(some, entries, strict=True) if entry is not None})
        return found

    async def scan(self, prefix: bytes = b"", start: bytes = b"") -> AsyncIterator[pa.Table]:
        """All live records from `start` on that begin with prefix, as Arrow tables in key order: for bulk readers."""
        names: list[str | Run] = [
            layer if isinstance(layer, Run) else name
            for name, layer in zip(layer_names(self.branch), self.layers, strict=False)
        ]
        try:
            stop = records.beyond(prefix)
            async for window in changes(self.tables, [*names, self.base], max(prefix, start), stop):
                rows = records.live(window)
                if len(rows):
                    yield rows
        except NotFound as error:
            raise LayerGone(str(error)) from error

    async def _table(self, file: str) -> OpenTable:
        try:
            return await self.tables.load(file)
        except NotFound as error:
            raise LayerGone(f"range {file} is gone") from error
