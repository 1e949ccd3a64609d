"""What differs between two Runs: streamed in key order, reading only ranges that one has and the other has not.

A range that both have holds the same records on both sides, and no other range of either has keys within its bounds.
So what differs lies in the other ranges alone; they are read a window at a time and joined by key, in columns.

Two records are the same if they say the same of an object: its etag, size, content type and metadata. Where its bytes
are and when they were written is no part of that: putting equal bytes again is no change, and two branches that did it
agree. An etag names content, also those of others (MD5s, S3's of several parts): equal ones with equal sizes for the
same key are taken for equal bytes. An empty etag names nothing: then the places of the bytes are compared. `exactly` is
the other sameness, that of all columns, by which ranges are named.
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
SEARCH_SHARE = 3  # so many times fewer keys are found sooner by bisecting than by hashing the table: measured
PLACE = ("address", "offset", "extents")  # where an object's bytes are
CONTENT = tuple(name for name in records.SCHEMA.names if name not in ("key", "mtime", *PLACE))
_NOTHING = records.from_entries([(b"", None)]).to_pylist()[0]  # what a tombstone says

Flags = np.ndarray[Any, np.dtype[np.bool_]]


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
        pair = await tables.compute(_changed, below, rows)
        if len(pair[0]):
            yield pair


def apart(left: Run, right: Run) -> tuple[Run, Run]:
    """Both without the ranges that are in both."""
    return _without(left, right), _without(right, left)


def _without(run: Run, other: Run) -> Run:
    shared = pc.is_in(run.table["id"], records.flat(other.table["id"]))
    return Run(run.table.filter(pc.invert(shared)).combine_chunks())


def differing(left: pa.Table, right: pa.Table, exactly: bool = False) -> tuple[pa.Table, pa.Table]:
    """Two sorted tables aligned by key, without what is the same; `exactly` compares all columns."""
    left_rows, right_rows = _unmatched(left, right)
    if left_rows.any() or right_rows.any():
        alike = same(_without_rows(left, left_rows), _without_rows(right, right_rows), exactly)
    else:
        alike = same(left, right, exactly)
    left_rows[~left_rows] = ~alike
    right_rows[~right_rows] = ~alike
    left, right = left.filter(pa.array(left_rows)), right.filter(pa.array(right_rows))
    keys = aligned_keys(left, right)
    return align(left, keys), align(right, keys)


def _unmatched(left: pa.Table, right: pa.Table) -> tuple[Flags, Flags]:
    """For each row of two sorted tables whether the other one does not have its key. Most often both have the same
    keys: then their bytes are compared, and nothing is hashed."""
    mine, theirs = records.flat(left["key"]), records.flat(right["key"])
    if mine.equals(theirs):
        return np.zeros(len(left), np.bool_), np.zeros(len(right), np.bool_)
    at = pc.index_in(theirs, mine)
    right_rows = at.is_null().to_numpy(zero_copy_only=False).copy()
    left_rows = np.ones(len(left), np.bool_)
    left_rows[at.drop_null().to_numpy()] = False
    return left_rows, right_rows


def _without_rows(table: pa.Table, rows: Flags) -> pa.Table:
    return table.filter(pa.array(~rows))


def _changed(below: pa.Table, rows: pa.Table) -> tuple[pa.Table, pa.Table]:
    """What rows change of those below, which are looked at for these keys alone; appends count as what they make."""
    after = records.settled(rows, below)
    before = align(below, records.flat(after["key"]))
    unlike = pa.array(~same(before, after))
    return before.filter(unlike).combine_chunks(), after.filter(unlike).combine_chunks()


def aligned_keys(left: pa.Table, right: pa.Table) -> Any:
    """Every key of one of two sorted tables or of both, once, in order."""
    mine, theirs = records.flat(left["key"]), records.flat(right["key"])
    if not len(mine) or mine.equals(theirs):
        return theirs
    keys = pc.unique(pa.concat_arrays([mine, theirs]))
    return keys.take(pc.sort_indices(keys))


def align(table: pa.Table, keys: Any) -> pa.Table:
    """The sorted table's records of these keys, in their order; a key that it does not have is a tombstone."""
    at = _positions(records.flat(table["key"]), keys)
    absent = at < 0
    found = table.take(pa.array(at[~absent]))
    if not absent.any():
        return found.combine_chunks()
    both = pa.concat_tables([found, _tombstones(keys.filter(pa.array(absent)))]).combine_chunks()
    order = np.where(absent, len(found) + np.cumsum(absent), np.cumsum(~absent)) - 1
    return both.take(pa.array(order)).combine_chunks()


def _positions(among: Any, keys: Any) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Where each key is in a sorted array; -1 if it is not there."""
    if len(keys) * SEARCH_SHARE < len(among):
        at = pc.search_sorted(among, keys).to_numpy().astype(np.int64)
        found = among.take(pa.array(np.minimum(at, len(among) - 1)))
        return np.where(pc.equal(found, keys).to_numpy(zero_copy_only=False), at, -1)
    return pc.fill_null(pc.index_in(keys, among), -1).to_numpy().astype(np.int64)  # type: ignore[no-any-return]


def _tombstones(keys: Any) -> pa.Table:
    columns = [pa.repeat(pa.scalar(_NOTHING[field.name], field.type), len(keys)) for field in records.SCHEMA]
    columns[0], columns[1] = keys, pa.array(np.full(len(keys), records.TOMBSTONE, np.uint8))
    return pa.Table.from_arrays(columns, schema=records.SCHEMA)


def same(left: pa.Table, right: pa.Table, exactly: bool = False) -> Flags:
    """For each row of two aligned tables, whether they say the same; `exactly` compares all columns."""
    if exactly:
        return _equal(left, right, (*CONTENT, *PLACE, "mtime"))
    alike = _equal(left, right, CONTENT)
    unnamed = alike & pc.equal(left["etag"], "").to_numpy()
    return alike & (~unnamed | _equal(left, right, PLACE)) if unnamed.any() else alike


def _equal(left: pa.Table, right: pa.Table, names: Sequence[str]) -> Flags:
    """For each row of two aligned tables, whether these columns are equal; null equals null."""
    alike = np.ones(len(left), np.bool_)
    for name in names:
        mine, theirs = left[name], right[name]
        if mine.null_count == theirs.null_count == len(mine):
            continue
        equal = pc.equal(mine, theirs)
        if equal.null_count:
            equal = pc.or_(pc.fill_null(equal, False), pc.and_(pc.is_null(mine), pc.is_null(theirs)))
        alike &= equal.to_numpy()
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
