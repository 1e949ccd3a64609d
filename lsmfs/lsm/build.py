"""Building a Run from a lower Run and the layers above it: compaction and commit alike.

Flow:
1. `changes` merges the layers into windows: sorted, disjoint, ascending, each of bounded size.
2. Each change belongs to the range of the lower run that covers its key; ranges without changes are kept by reference.
3. Touched ranges are read, merged and hashed ahead, several at a time, in threads.
4. The cutter joins them in order and cuts at content-defined boundaries. While it holds rows that no boundary has
   ended, following ranges are streamed through it too, changed or not, until a range ends where a boundary is.
5. Cut ranges are encoded and uploaded several at a time; the new run lists them in order.

The last range of the lower run ends where the data ended, not at a boundary: keys beyond it belong to it.
Tombstones stay in a compaction, for what lies below; a commit drops them, for nothing does.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lsmfs.lsm import boundary, records
from lsmfs.lsm.run import RANGE_SCHEMA, Run
from lsmfs.lsm.tables import Tables

AHEAD = 4  # ranges read and merged ahead of the cutter, and ranges being written behind it
WINDOW_ROWS = 256 * 1024  # changes merged at a time: about 60 MB
MARK_ROWS = 1024  # how finely loose tables are counted into windows

T = TypeVar("T")

Combine = Callable[[pa.Table, pa.Table], pa.Table]
"""From the changes to a range and the rows it has to the rows it shall have."""


class Shape(NamedTuple):
    """How large ranges are. A property of the installation: trees cut differently do not share ranges."""

    rows_mean: int = boundary.ROWS_MEAN
    weight_max: int = boundary.WEIGHT_MAX


class Segment(NamedTuple):
    """Rows for the cutter, with its flags computed ahead."""

    rows: pa.Table
    ending: Any
    weights: Any


def segment(rows: pa.Table, shape: Shape) -> Segment:
    return Segment(rows, boundary.ends(*records.key_bytes(rows["key"]), shape.rows_mean), records.weights(rows))


class Cutter:
    """Joins segments and cuts them into ranges. Pure: what comes out depends only on the rows that went in."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._held: list[Segment] = []

    @property
    def is_clean(self) -> bool:
        """Whether all rows so far have been cut off, so that a range may follow by reference."""
        return not self._held

    def feed(self, new: Segment) -> list[pa.Table]:
        if not len(new.rows):
            return []
        held = [*self._held, new]
        ending = np.concatenate([s.ending for s in held])
        weights = np.concatenate([s.weights for s in held])
        cuts = boundary.cuts(ending, weights, self._shape.weight_max)
        if not cuts:
            self._held = held
            return []
        rows = pa.concat_tables([s.rows for s in held])
        tail = slice(cuts[-1], len(rows))
        rest = Segment(rows.slice(cuts[-1]).combine_chunks(), ending[tail], weights[tail])
        self._held = [rest] if len(rest.rows) else []
        starts = [0, *cuts[:-1]]
        return [rows.slice(start, stop - start).combine_chunks() for start, stop in zip(starts, cuts, strict=True)]

    def finish(self) -> list[pa.Table]:
        held, self._held = self._held, []
        return [pa.concat_tables([s.rows for s in held]).combine_chunks()] if held else []


class Stretch(NamedTuple):
    """Ranges start to stop of a run."""

    run: Run
    start: int
    stop: int


class RunWriter:
    """Collects the ranges of a new run in order, writing some at a time. A range whose content one of the `stored` runs
    has is not written again."""

    def __init__(self, tables: Tables, generation: int, stored: Sequence[Run] = ()) -> None:
        self._tables = tables
        self._generation = generation
        self._stored = stored
        self._known: dict[bytes, dict[str, Any]] | None = None
        self._parts: list[Stretch | asyncio.Task[dict[str, Any]]] = []
        self._writing: deque[asyncio.Task[dict[str, Any]]] = deque()

    def keep(self, run: Run, start: int, stop: int) -> None:
        """The next ranges are those, by reference. Neighbours are taken as one piece: a run may have thousands."""
        if start >= stop:
            return
        last = self._parts[-1] if self._parts else None
        if isinstance(last, Stretch) and last.run is run and last.stop == start:
            self._parts[-1] = last._replace(stop=stop)
        else:
            self._parts.append(Stretch(run, start, stop))

    async def write(self, rows: pa.Table) -> None:
        if self._known is None:  # made for the first range that is written: most merges write none
            self._known = {row["id"]: row for run in self._stored for row in run.table.to_pylist()}
        if len(self._writing) >= AHEAD:
            await self._writing.popleft()
        task = asyncio.ensure_future(self._tables.save_range(rows, self._generation, self._known))
        self._writing.append(task)
        self._parts.append(task)

    async def finish(self) -> Run:
        pieces, written = [RANGE_SCHEMA.empty_table()], []
        for part in self._parts:
            if not isinstance(part, Stretch):
                written.append(await part)
                continue
            if written:
                pieces.append(Run.of(written).table)
                written = []
            pieces.append(part.run.table.slice(part.start, part.stop - part.start))
        return Run(pa.concat_tables([*pieces, Run.of(written).table]).combine_chunks())

    async def abandon(self) -> None:
        await cancel(list(self._writing))


class Assembly:
    """A new run on its way: rows go through the cutter, and ranges are kept by reference wherever it is clean."""

    def __init__(self, tables: Tables, writer: RunWriter, shape: Shape) -> None:
        self._tables = tables
        self._writer = writer
        self._shape = shape
        self._cutter = Cutter(shape)

    async def feed(self, new: Segment) -> None:
        await self._write(self._cutter.feed(new))

    async def keep(self, run: Run, start: int, stop: int) -> None:
        """Unchanged ranges. While rows are held that no boundary has ended, ranges go through the cutter too."""
        while start < stop and not self._cutter.is_clean:
            rows = await self._tables.read(run.files[start])
            await self.feed(await self._tables.compute(segment, rows, self._shape))
            start += 1
        self._writer.keep(run, start, stop)

    async def finish(self) -> Run:
        await self._write(self._cutter.finish())
        return await self._writer.finish()

    async def abandon(self) -> None:
        await self._writer.abandon()

    async def _write(self, cuts: list[pa.Table]) -> None:
        for cut in cuts:
            await self._writer.write(cut)


async def cancel(tasks: Sequence["asyncio.Future[Any]"]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def ahead(steps: AsyncIterator[tuple[T, Awaitable[Segment]]]) -> AsyncGenerator[tuple[T, Segment], None]:
    """The steps in their order, each with what its work gives; the work of some is under way while one is looked at.
    Close it (`aclosing`): then what is under way is cancelled."""
    waiting: deque[tuple[T, asyncio.Future[Segment]]] = deque()
    try:
        async for label, work in steps:
            waiting.append((label, asyncio.ensure_future(work)))
            if len(waiting) > AHEAD:
                label, future = waiting.popleft()
                yield label, await future
        while waiting:
            label, future = waiting.popleft()
            yield label, await future
    finally:
        await cancel([future for _, future in waiting])


async def write_run(tables: Tables, rows: pa.Table, generation: int, shape: Shape) -> Run:
    """A run of rows that are sorted already: how a large unit is staged."""
    assembly = Assembly(tables, RunWriter(tables, generation), shape)
    try:
        for start in range(0, len(rows), WINDOW_ROWS):
            await assembly.feed(await tables.compute(segment, rows.slice(start, WINDOW_ROWS), shape))
        return await assembly.finish()
    except BaseException:
        await assembly.abandon()
        raise


async def apply_layers(
    tables: Tables, lower: Run, layers: Sequence[str | Run], generation: int, shape: Shape, drop_tombstones: bool
) -> Run:
    """The run that reads as the layers (newest first; table names and runs) above `lower`."""

    def combine(upper: pa.Table, below: pa.Table) -> pa.Table:
        merged = records.merge([upper, below])
        return records.live(merged) if drop_tombstones else merged

    assembly = Assembly(tables, RunWriter(tables, generation), shape)
    at = 0  # the next range of `lower` that the assembly has not seen
    try:
        async with aclosing(ahead(_steps(tables, lower, layers, combine, shape))) as done:
            async for touched, merged in done:
                await assembly.keep(lower, at, touched)
                await assembly.feed(merged)
                at = touched + 1
        await assembly.keep(lower, at, len(lower))
        return await assembly.finish()
    except BaseException:
        await assembly.abandon()
        raise


async def _steps(
    tables: Tables, lower: Run, layers: Sequence[str | Run], combine: Combine, shape: Shape
) -> AsyncIterator[tuple[int, Awaitable[Segment]]]:
    """The ranges that are touched, each with the work on it."""
    async for at, rows in by_range(lower, changes(tables, layers), shape):
        yield at, _combine_range(tables, lower, at, rows, combine, shape)


async def _combine_range(
    tables: Tables, lower: Run, at: int, rows: pa.Table, combine: Combine, shape: Shape
) -> Segment:
    below = await tables.read(lower.files[at]) if at < len(lower) else records.EMPTY
    return await tables.compute(lambda: segment(combine(rows, below), shape))


async def by_range(lower: Run, windows: AsyncIterator[pa.Table], shape: Shape) -> AsyncIterator[tuple[int, pa.Table]]:
    """Changes grouped by the range of `lower` they belong to; a group is complete when a later range's changes come."""
    last = len(lower) - 1
    if last >= 0 and boundary.ends_after(lower.max_keys[last], shape.rows_mean):
        last += 1  # the last range is closed by its hash: keys beyond it begin a new one
    last = max(last, 0)
    bounds = lower.table["max_key"]
    held: list[pa.Table] = []
    held_at = -1
    async for window in windows:
        owners = np.minimum(pc.search_sorted(bounds, window["key"]).to_numpy().astype(np.int64), last)
        starts = np.flatnonzero(np.diff(owners, prepend=-1))
        for start, stop in zip(starts, [*starts[1:], len(window)], strict=True):
            owner, rows = int(owners[start]), window.slice(start, stop - start)
            if owner != held_at and held:
                yield held_at, pa.concat_tables(held).combine_chunks()
                held = []
            held_at = owner
            held.append(rows)
    if held:
        yield held_at, pa.concat_tables(held).combine_chunks()


async def changes(
    tables: Tables, layers: Sequence[str | Run], start: bytes = b"", stop: bytes | None = None
) -> AsyncIterator[pa.Table]:
    """The layers (newest first) merged: sorted, disjoint, ascending windows of the keys from `start` on and before
    `stop`. Loose tables are held whole; runs are read a window at a time."""
    loose = iter(await asyncio.gather(*(tables.read(layer) for layer in layers if isinstance(layer, str))))
    sources: list[pa.Table | Run] = [next(loose) if isinstance(layer, str) else layer for layer in layers]
    async for parts in windows(tables, sources, start, stop):
        window = await tables.compute(records.merge, parts)
        if len(window):
            yield window


async def windows(
    tables: Tables, sources: Sequence[pa.Table | Run], start: bytes = b"", stop: bytes | None = None
) -> AsyncIterator[list[pa.Table]]:
    """The rows of each source, a window of keys at a time; no range is read twice."""
    if stop is not None and start >= stop:
        return
    passages = [Passage(tables, source) for source in sources]
    ends = [end for key in window_bounds(sources, start) if (end := key + b"\0") and (stop is None or end < stop)]
    for low, high in pairwise([start, *ends, stop]):
        assert low is not None
        yield await asyncio.gather(*(passage.between(low, high) for passage in passages))


def window_bounds(sources: Sequence[pa.Table | Run], start: bytes) -> list[bytes]:
    """Keys that end a window: where all sources together have come to WINDOW_ROWS."""
    bounds, rows = [], 0
    for key, count in sorted(mark for source in sources for mark in _marks(source, start)):
        rows += count
        if rows >= WINDOW_ROWS:
            bounds.append(key)
            rows = 0
    return bounds


def _marks(source: pa.Table | Run, start: bytes) -> list[tuple[bytes, int]]:
    """Keys of a source from `start` on, each with the number of rows that it ends: a range's last key, or every so
    manieth key of a loose table."""
    if isinstance(source, Run):
        first = source.at_or_after(start)
        return list(zip(source.max_keys[first:], source.table["count"].to_pylist()[first:], strict=True))
    rows = pa.array(np.arange(_rank(source, start) + MARK_ROWS - 1, len(source), MARK_ROWS))
    return [(key, MARK_ROWS) for key in source["key"].take(rows).cast(pa.binary()).to_pylist()]


class Passage:
    """A source read once from its beginning to its end, a window of keys after the other. A range that reaches into the
    next window is held until then: of many runs each has one, and reading it anew for every window would cost as many
    requests as there are windows."""

    def __init__(self, tables: Tables, source: pa.Table | Run) -> None:
        self._tables = tables
        self._source = source
        self._held: dict[int, pa.Table] = {}

    async def between(self, start: bytes, stop: bytes | None) -> pa.Table:
        """The rows with start <= key < stop."""
        rows = await self._ranges(self._source, start, stop) if isinstance(self._source, Run) else self._source
        low = _rank(rows, start)
        high = len(rows) if stop is None else _rank(rows, stop)
        return rows.slice(low, max(0, high - low))

    async def _ranges(self, run: Run, start: bytes, stop: bytes | None) -> pa.Table:
        first, last = run.at_or_after(start), len(run)
        if stop is not None and (end := run.at_or_after(stop)) < last:
            last = end + 1 if run.min_keys[end] < stop else end
        wanted = range(first, last)
        read = await asyncio.gather(*(self._tables.read(run.files[at]) for at in wanted if at not in self._held))
        fresh = iter(read)
        parts = {at: self._held[at] if at in self._held else next(fresh) for at in wanted}
        self._held = {at: rows for at, rows in parts.items() if stop is not None and run.max_keys[at] >= stop}
        if not parts:
            return records.EMPTY
        return pa.concat_tables(parts.values()).combine_chunks()


def _rank(rows: pa.Table, key: bytes) -> int:
    """How many rows come before the key, which need not be UTF-8: it may be the end of a prefix."""
    if not len(rows) or not key:
        return 0
    return int(pc.search_sorted(records.flat(rows["key"]).cast(pa.binary()), pa.scalar(key)).as_py())
