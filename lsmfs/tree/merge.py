"""The three-way merge of Runs: what changed from base to source, applied to the destination.

Flow:
1. `diff` of base and source gives the changes; ranges that both have are not read.
2. Each change belongs to the range of the destination that covers its key; ranges without changes stay by reference.
3. In a touched range a change is applied if the destination still has what the base has; it is nothing if the
   destination has it already; otherwise the key is a conflict, which a rule decides or the caller is told of.
4. A range that comes out as the source has it is the source's, by reference: nothing is written.

Repeating a merge that lost its race (the destination moved from D to D') takes its result as source and D as base: the
changes are then those of the first merge, already joined with D, and what is alike needs no work again.
"""

import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from lsmfs.lsm import records
from lsmfs.lsm.build import RunWriter, Shape, apply_changes
from lsmfs.lsm.run import Run
from lsmfs.lsm.tables import Tables
from lsmfs.model import Entry
from lsmfs.tree.diff import align, diff, same
from refstore.errors import Conflict, Invalid

SOURCE_WINS, DEST_WINS = "source-wins", "dest-wins"
CONFLICTS_REPORTED_MAX = 1000  # enough to show a person; all are counted
_BASE = "base."


class Clash(NamedTuple):
    """A key that both sides changed, each its own way; None where a side does not have it."""

    key: bytes
    base: Entry | None
    source: Entry | None
    destination: Entry | None


class MergeConflict(Conflict):
    """Both sides changed the same keys, and no rule decides. `clashes` has the first of them."""

    def __init__(self, count: int, clashes: Sequence[Clash]) -> None:
        shown = ", ".join(repr(clash.key.decode()) for clash in clashes[:3])
        super().__init__(
            f"Conflict: {count} keys were changed on both sides, such as {shown}: choose a strategy "
            f"({SOURCE_WINS} or {DEST_WINS}), or change one side"
        )
        self.count, self.clashes = count, tuple(clashes)


class Strategy:
    """Who wins a conflict: a rule for each prefix, the longest that fits; "" is the rule for all other keys."""

    def __init__(self, rules: Mapping[str, str] | None = None) -> None:
        self._rules = sorted((prefix.encode(), rule) for prefix, rule in (rules or {}).items())
        for prefix, rule in self._rules:
            if rule not in (SOURCE_WINS, DEST_WINS):
                raise Invalid(f"{rule!r} for {prefix.decode()!r} is no strategy: {SOURCE_WINS} or {DEST_WINS}")

    def winner(self, key: bytes) -> str | None:
        fitting = [(len(prefix), rule) for prefix, rule in self._rules if key.startswith(prefix)]
        return max(fitting)[1] if fitting else None


class _Merging:
    """One merge: what its steps, which run in threads, found."""

    def __init__(self, strategy: Strategy) -> None:
        self._strategy = strategy
        self.clashes: list[Clash] = []
        self.count = 0
        self._lock = threading.Lock()

    def combine(self, changes: pa.Table, below: pa.Table) -> pa.Table:
        """The destination's rows of one range, with the changes applied that may be."""
        source, base = _split(changes)
        destination = align(below, records.flat(source["key"]))
        applied = same(destination, base)
        clashing = np.flatnonzero(~(applied | same(destination, source)))
        keys = records.flat(source["key"]).take(pa.array(clashing)).cast(pa.binary()).to_pylist()
        for row, key in zip(clashing.tolist(), keys, strict=True):
            winner = self._strategy.winner(key)
            applied[row] = winner == SOURCE_WINS
            if winner is None:
                self._report(key, row, base, source, destination)
        upper = source.filter(pa.array(applied)).combine_chunks()
        return records.live(records.merge([upper, below]))

    def _report(self, key: bytes, row: int, *sides: pa.Table) -> None:
        """Count a clash. Its entries are made for the first ones only: they cost more than all the rest."""
        with self._lock:
            self.count += 1
            if len(self.clashes) < CONFLICTS_REPORTED_MAX:
                self.clashes.append(Clash(key, *(_entry(side, row) for side in sides)))


async def merge_runs(
    tables: Tables, base: Run, source: Run, destination: Run, generation: int, shape: Shape, strategy: Strategy
) -> Run:
    """The destination with what changed from base to source; `MergeConflict`. Of equal runs no range is read."""
    if destination.content_hash() == base.content_hash():
        return source
    merging = _Merging(strategy)
    known = {row["id"]: row for run in (destination, source) for row in run.table.to_pylist()}
    writer = RunWriter(tables, generation, known)
    merged = await apply_changes(tables, destination, _changes(tables, base, source), merging.combine, writer, shape)
    if merging.count:
        raise MergeConflict(merging.count, sorted(merging.clashes))
    return merged


async def _changes(tables: Tables, base: Run, source: Run) -> AsyncIterator[pa.Table]:
    """What changed: the source's records, with the base's beside them."""
    async for left, right in diff(tables, base, source):
        yield _joined(right, left)


def _joined(source: pa.Table, base: pa.Table) -> pa.Table:
    columns = {name: source[name] for name in source.column_names}
    columns |= {_BASE + name: base[name] for name in base.column_names if name != "key"}
    return pa.table(columns).combine_chunks()


def _split(changes: pa.Table) -> tuple[pa.Table, pa.Table]:
    """The source's records and the base's; their schema is the one of every table."""
    source = [records.flat(changes[name]) for name in records.SCHEMA.names]
    base = [records.flat(changes[name if name == "key" else _BASE + name]) for name in records.SCHEMA.names]
    return tuple(pa.Table.from_arrays(columns, schema=records.SCHEMA) for columns in (source, base))


def _entry(rows: pa.Table, row: int) -> Any:
    return records.entry_at(rows, row)
