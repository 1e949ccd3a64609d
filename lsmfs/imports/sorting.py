"""Sorting more rows than memory holds: sorted spills, each a run in the object store, then one merge of them.

A spill is cut into smaller ranges than usual, because the merge holds one range of each spill. More than SPILLS_MAX
are merged in groups first. What the spills were is garbage afterwards, and goes with the other garbage.
"""

from collections.abc import AsyncIterator, Sequence

import pyarrow as pa

from lsmfs.imports.columns import check_unique
from lsmfs.imports.ranges import Output, RangeGone, StoredRange, run_of
from lsmfs.lsm import records
from lsmfs.lsm.build import Shape, windows
from lsmfs.lsm.tables import Tables
from refstore.errors import NotFound

SPILL_ROWS = 512 * 1024  # some 130 MB of rows, twice that while they are sorted
SPILLS_MAX = 32  # merged at a time, each with a range or two in memory: some 100 MB
SPILL_SHAPE = Shape(rows_mean=8 * 1024, weight_max=4 << 20)


class Pile:
    """Rows in any order, until there are enough for a spill."""

    def __init__(self) -> None:
        self._parts: list[pa.Table] = []
        self._rows = 0

    def __len__(self) -> int:
        return self._rows

    def add(self, rows: pa.Table) -> None:
        self._parts.append(rows)
        self._rows += len(rows)

    def take(self) -> pa.Table:
        """All of them; the pile is empty then."""
        parts, self._parts, self._rows = self._parts, [], 0
        return pa.concat_tables(parts).combine_chunks()


async def spill(tables: Tables, rows: pa.Table, generation: int, may_repeat: bool) -> list[StoredRange]:
    """The rows, sorted and stored; `Invalid` if a key is there twice and may not be."""
    output = Output(tables, SPILL_SHAPE, generation)
    try:
        await output.feed(await tables.compute(_sorted, rows, may_repeat))
        await output.finish()
    except BaseException:
        await output.abandon()
        raise
    return output.ranges


def _sorted(rows: pa.Table, may_repeat: bool) -> pa.Table:
    result = records.sort_unique(rows)
    if not may_repeat and len(result) < len(rows):
        check_unique(rows)
    return result


async def merged(
    tables: Tables, spills: Sequence[Sequence[StoredRange]], after: str, may_repeat: bool
) -> AsyncIterator[pa.Table]:
    """The rows of all spills after the key, ascending, a window at a time; `RangeGone`."""
    runs = [run_of(ranges) for ranges in spills]
    try:
        async for parts in windows(tables, runs, after.encode() + b"\0" if after else b""):
            rows = await tables.compute(_merged, parts, may_repeat)
            if len(rows):
                yield rows
    except NotFound as error:
        raise RangeGone(str(error)) from error


def _merged(parts: Sequence[pa.Table], may_repeat: bool) -> pa.Table:
    rows = records.merge(parts)
    if not may_repeat and len(rows) < sum(map(len, parts)):
        check_unique(pa.concat_tables(parts))
    return rows


async def merge_group(
    tables: Tables, spills: Sequence[Sequence[StoredRange]], generation: int, may_repeat: bool
) -> list[StoredRange]:
    """Some spills as one."""
    output = Output(tables, SPILL_SHAPE, generation)
    try:
        async for rows in merged(tables, spills, "", may_repeat):
            await output.feed(rows)
        await output.finish()
    except BaseException:
        await output.abandon()
        raise
    return output.ranges
