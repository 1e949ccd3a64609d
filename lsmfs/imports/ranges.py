"""The ranges of a run in the making: what an import has stored so far, and what it is storing.

Rows go in ascending order, ranges come out in order. Which rows a range has depends on the rows since the range before
it alone, so an import that goes on after any range makes the same ranges as one that was never interrupted.
"""

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from lsmfs import paths
from lsmfs.lsm.build import AHEAD, Cutter, Shape, cancel, segment
from lsmfs.lsm.run import Run
from lsmfs.lsm.tables import Tables
from refstore.errors import Error, NotFound


class RangeGone(Error):
    """A garbage collector has taken what an import had stored: the import begins again. Not for callers."""


class StoredRange(msgspec.Struct, frozen=True, array_like=True):
    """A range, and the bytes of the objects that it names."""

    min_key: str
    max_key: str
    count: int
    tombstones: int
    size_bytes: int
    file: str


def run_of(ranges: Iterable[StoredRange]) -> Run:
    """The run that they make."""
    files = [(each, paths.parse_table(each.file)) for each in ranges]
    return Run.of(
        [
            {
                "max_key": each.max_key,
                "min_key": each.min_key,
                "count": each.count,
                "tombstones": each.tombstones,
                "id": bytes.fromhex(file.unique),
                "size_bytes": file.size_bytes,
                "file": each.file,
            }
            for each, file in files
        ]
    )


class Output:
    """Cuts rows into ranges and stores them, some at a time. `ranges` are those that are stored, in order."""

    def __init__(self, tables: Tables, shape: Shape, generation: int, ranges: list[StoredRange] | None = None) -> None:
        self.ranges = [] if ranges is None else ranges
        self.generation = generation
        self._tables = tables
        self._shape = shape
        self._cutter = Cutter(shape)
        self._writing: deque[asyncio.Task[StoredRange]] = deque()

    @property
    def last_key(self) -> str:
        return self.ranges[-1].max_key if self.ranges else ""

    def another(self, ranges: list[StoredRange]) -> "Output":
        """One that begins with these, of the same shape and generation."""
        return Output(self._tables, self._shape, self.generation, ranges)

    async def feed(self, rows: pa.Table) -> None:
        for cut in self._cutter.feed(await self._tables.compute(segment, rows, self._shape)):
            await self._write(cut)

    async def finish(self) -> None:
        """Store what is left; all of it is in `ranges` then."""
        for cut in self._cutter.finish():
            await self._write(cut)
        while self._writing:
            await self._take()

    async def collect(self) -> None:
        """Take note of what has been stored, without waiting for what is under way."""
        while self._writing and self._writing[0].done():
            await self._take()

    async def abandon(self) -> None:
        """Stop. What was stored up to the first that was not is in `ranges`."""
        under_way = list(self._writing)
        self._writing.clear()
        await cancel(under_way)
        for task in under_way:
            if task.cancelled() or task.exception() is not None:
                return
            self.ranges.append(task.result())

    async def _write(self, rows: pa.Table) -> None:
        if len(self._writing) >= AHEAD:
            await self._take()
        self._writing.append(asyncio.ensure_future(save(self._tables, rows, self.generation)))

    async def _take(self) -> None:
        # Awaited while it is still in the queue: if this task is cancelled, `abandon` finds it there.
        stored = await asyncio.shield(self._writing[0])
        self._writing.popleft()
        self.ranges.append(stored)


async def save(tables: Tables, rows: pa.Table, generation: int) -> StoredRange:
    row = await tables.save_range(rows, generation)
    size = pc.sum(rows["size_bytes"]).as_py() or 0
    return StoredRange(row["min_key"], row["max_key"], row["count"], row["tombstones"], size, row["file"])


def is_stale(ranges: Iterable[StoredRange], floor: int) -> bool:
    """Whether any of them is of a generation that may not be referred to any more."""
    return any(paths.generation_of(each.file) < floor for each in ranges)


async def renewed(tables: Tables, ranges: Sequence[StoredRange], floor: int) -> list[StoredRange]:
    """The same ranges, those of older generations stored anew; `RangeGone` if the collector was faster."""
    result: list[StoredRange] = []
    for start in range(0, len(ranges), AHEAD):
        some = ranges[start : start + AHEAD]
        result += await asyncio.gather(*(_renewed(tables, each, floor) for each in some))
    return result


async def _renewed(tables: Tables, stored: StoredRange, floor: int) -> StoredRange:
    if paths.generation_of(stored.file) >= floor:
        return stored
    try:
        rows = await tables.read(stored.file)
    except NotFound as error:
        raise RangeGone(str(error)) from error
    return await save(tables, rows, floor)
