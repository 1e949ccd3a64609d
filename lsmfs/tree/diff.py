"""What differs between two Runs: streamed in key order, reading only ranges that one has and the other has not.

A range that both have holds the same records on both sides, and no other range of either has keys within its bounds.
So what differs lies in the other ranges alone; they are read a window at a time and joined by key, in columns.

Two records are the same if all but their mtime is: writing the same object again is no change.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lsmfs.lsm import records
from lsmfs.lsm.build import Shape, by_range, changes, windows
from lsmfs.lsm.run import Run
from lsmfs.lsm.tables import Tables
from lsmfs.model import Entry

ADDED, REMOVED, CHANGED = 0, 1, 2
NAMES = ("added", "removed", "changed")
ROWS_AT_ONCE = 256  # made into objects without a break: some 5 ms
COMPARED = [name for name in records.SCHEMA.names if name not in ("key", "mtime")]


async def diff(
    tables: Tables, left: Run, right: Run, start: bytes = b"", stop: bytes | None = None
) -> AsyncIterator[tuple[pa.Table, pa.Table]]:
    """Pairs of tables of equal length: the records of the same keys on the left and on the right, where they differ.
    A key that a side does not have is a tombstone there."""
    async for left_rows, right_rows in windows(tables, list(apart(left, right)), start, stop):
        pair = await tables.compute(differing, left_rows, right_rows)
        if len(pair[0]):
            yield pair


async def diff_layers(
    tables: Tables,
    base: Run,
    layers: Sequence[str | Run],
    shape: Shape,
    start: bytes = b"",
    stop: bytes | None = None,
) -> AsyncIterator[tuple[pa.Table, pa.Table]]:
    """What the layers (newest first) above a run change of it, as pairs like those of `diff`."""
    async for at, rows in by_range(base, changes(tables, layers, start, stop), shape):
        below = await tables.read(base.files[at]) if at < len(base) else records.EMPTY
        pair = await tables.compute(_unlike, align(below, records.flat(rows["key"])), rows)
        if len(pair[0]):
            yield pair


def apart(left: Run, right: Run) -> tuple[Run, Run]:
    """Both without the ranges that are in both."""
    return _without(left, right), _without(right, left)


def _without(run: Run, other: Run) -> Run:
    shared = pc.is_in(run.table["id"], records.flat(other.table["id"]))
    return Run(run.table.filter(pc.invert(shared)).combine_chunks())


def differing(left: pa.Table, right: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Two sorted tables aligned by key, without what is the same."""
    keys = aligned_keys(left, right)
    return _unlike(align(left, keys), align(right, keys))


def _unlike(left: pa.Table, right: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Two aligned tables without the rows that are the same."""
    unlike = pa.array(~same(left, right))
    return left.filter(unlike).combine_chunks(), right.filter(unlike).combine_chunks()


def aligned_keys(*tables: pa.Table) -> Any:
    """Every key of any of the tables, once, in order."""
    keys = pc.unique(pa.chunked_array([chunk for table in tables for chunk in table["key"].chunks], pa.string()))
    return keys.take(pc.sort_indices(keys))


def align(table: pa.Table, keys: Any) -> pa.Table:
    """The table's records of these keys, in their order; a key that it does not have is a tombstone."""
    if not len(table):
        return _tombstones(keys)
    found = pc.index_in(keys, records.flat(table["key"]))
    absent = pc.is_null(found)
    rows = pa.concat_tables([table.combine_chunks(), _tombstones(keys.filter(absent))]).combine_chunks()
    order = found.to_numpy(zero_copy_only=False)
    missing = absent.to_numpy(zero_copy_only=False)
    at = np.where(missing, len(table) + np.cumsum(missing) - 1, np.nan_to_num(order)).astype(np.int64)
    return rows.take(pa.array(at)).combine_chunks()


def _tombstones(keys: Any) -> pa.Table:
    kinds = pa.array(np.full(len(keys), records.TOMBSTONE, np.uint8))
    return records.conform(pa.table({"key": keys, "kind": kinds})) if len(keys) else records.EMPTY


def same(left: pa.Table, right: pa.Table) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """For each row of two aligned tables, whether they say the same."""
    alike = np.ones(len(left), np.bool_)
    for name in COMPARED:
        mine, theirs = records.flat(left[name]), records.flat(right[name])
        equal = pc.fill_null(pc.equal(mine, theirs), False)
        if mine.null_count or theirs.null_count:
            equal = pc.or_(equal, pc.and_(pc.is_null(mine), pc.is_null(theirs)))
        alike &= equal.to_numpy(zero_copy_only=False)
    return alike


def kinds_of(left: pa.Table, right: pa.Table) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """ADDED, REMOVED or CHANGED for each pair of a diff."""
    was = records.flat(left["kind"]).to_numpy() == records.PUT
    is_now = records.flat(right["kind"]).to_numpy() == records.PUT
    return np.where(was & is_now, CHANGED, np.where(is_now, ADDED, REMOVED)).astype(np.uint8)


class Difference(NamedTuple):
    """One path that differs: `before` or `after` is None where it is not there."""

    type: str
    key: bytes
    before: Entry | None
    after: Entry | None


async def differences(pairs: AsyncIterator[tuple[pa.Table, pa.Table]]) -> AsyncIterator[Difference]:
    """The pairs of a diff one by one: for people and pages. Bulk work stays in columns."""
    async for left, right in pairs:
        for start in range(0, len(left), ROWS_AT_ONCE):
            for difference in _differences(left.slice(start, ROWS_AT_ONCE), right.slice(start, ROWS_AT_ONCE)):
                yield difference
            await asyncio.sleep(0)  # a window has many: others must have their turn


def _differences(left: pa.Table, right: pa.Table) -> Iterator[Difference]:
    keys = records.flat(right["key"]).cast(pa.binary()).to_pylist()
    for row, (key, kind) in enumerate(zip(keys, kinds_of(left, right).tolist(), strict=True)):
        yield Difference(NAMES[kind], key, records.entry_at(left, row), records.entry_at(right, row))
