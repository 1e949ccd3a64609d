"""One import under way in this process: what it has stored, and what of that is saved in its state.

Rows that come in ascending order become ranges of the unit as they come. From the first that does not, they are sorted
first: what was stored until then is a sorted spill like those that follow (see `sorting`).
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable
from typing import NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from lsmfs.clock import Clock
from lsmfs.imports import sorting
from lsmfs.imports.ranges import Output, StoredRange, is_stale, renewed
from lsmfs.imports.source import Batch, Place, Source, added
from lsmfs.imports.state import ImportState, Part, Publication, States, TakenOver
from lsmfs.lsm import records
from lsmfs.lsm.branches import BranchReader
from lsmfs.lsm.tables import Tables
from lsmfs.settings import Settings
from refstore.errors import Error, Unavailable

SAVE_SECONDS = 10.0  # of work that may be lost; a save is a read and two or three small writes to the ref store
LAST_SAVE_SECONDS = 5.0  # how long an import that is interrupted may take to save what it has


class Progress(NamedTuple):
    """What an import is doing, and how far it has come."""

    doing: str
    objects: int
    size_bytes: int


Tell = Callable[[Progress], None]


class Work:
    def __init__(
        self,
        states: States,
        tables: Tables,
        branches: BranchReader,
        clock: Clock,
        state: ImportState,
        spills: list[Part],
        output: Output,
        may_repeat: bool,
    ) -> None:
        self.state = state
        self.output = output
        self._states = states
        self._tables = tables
        self._branches = branches
        self._clock = clock
        self._written = Part(output.ranges, state.written, len(output.ranges))
        self._spills = spills
        self._pile = sorting.Pile()
        self._is_sorting = bool(spills)
        self._may_repeat = may_repeat
        self._skipped, self._counted = state.skipped, state.counted
        self._last = output.last_key
        self._objects, self._bytes = self._stored()
        self._due = clock.monotonic() + SAVE_SECONDS
        self._unsure: ImportState | None = None  # a state whose answer was lost: it may be there, or still arrive

    @staticmethod
    async def begin(
        states: States,
        tables: Tables,
        branches: BranchReader,
        clock: Clock,
        settings: Settings,
        state: ImportState,
        source: Source,
    ) -> "Work":
        """Go on where the state says."""
        spills = [await states.load_part(state, chunks) for chunks in state.spills]
        written = await states.load_part(state, state.written)
        generation = (await branches.read(state.branch)).floor
        output = Output(tables, settings.shape, generation, written.ranges)
        return Work(states, tables, branches, clock, state, spills, output, source.may_repeat)

    def place(self) -> Place:
        """After everything that is stored."""
        name = "" if self._is_sorting else self._last.removeprefix(self.state.prefix)
        return Place(self._objects, name, self._counted)

    async def take(self, batch: Batch) -> Progress:
        """The next rows of the source."""
        self._skipped = added(self._skipped, batch.skipped)
        self._counted = batch.reached or self._counted
        if len(batch.rows):
            if not self._is_sorting and not _ascends(batch.rows, self._last):
                await self._begin_sorting()
            await (self._pile_up if self._is_sorting else self._write)(batch.rows)
        self._count(batch.rows)
        await self._save_if_due()
        return Progress("sorting" if self._is_sorting else "reading", self._objects, self._bytes)

    async def end_reading(self) -> None:
        """The source has no more rows."""
        if len(self._pile):
            await self._spill()
        if not self._is_sorting:
            await self.output.finish()
        await self.save(is_read=True)

    async def merge(self) -> AsyncIterator[Progress]:
        """The spills, if there are any, become ranges of the unit."""
        while len(self._spills) > sorting.SPILLS_MAX:
            await self._merge_some()
            yield Progress("sorting", self._objects, self._bytes)
        if not self._spills:
            return
        self._objects, self._bytes = _totals(self.output.ranges)
        spills = [part.ranges for part in self._spills]
        async for rows in sorting.merged(self._tables, spills, self.output.last_key, self._may_repeat):
            await self.output.feed(rows)
            self._count(rows)
            await self._save_if_due()
            yield Progress("merging", self._objects, self._bytes)
        await self.output.finish()
        self._spills = []
        await self.save()

    async def _merge_some(self) -> None:
        some, rest = self._spills[: sorting.SPILLS_MAX], self._spills[sorting.SPILLS_MAX :]
        ranges = [part.ranges for part in some]
        one = await sorting.merge_group(self._tables, ranges, self.output.generation, self._may_repeat)
        self._spills = [*rest, Part(one)]
        await self.save()

    async def save(self, is_read: bool = False, publication: Publication | None = None) -> None:
        """Write down what is stored. If a garbage collector has begun, what is older than it is stored anew first."""
        await self.output.collect()
        await self._renew()
        for part in (*self._spills, self._written):
            await self._states.save_part(self.state, part)
        objects, size = self._stored()
        state = msgspec.structs.replace(
            self.state,
            saved_us=self._clock.now_us(),
            objects=objects,
            size_bytes=size,
            skipped=dict(self._skipped),
            counted=self._counted,
            is_read=is_read or self.state.is_read,
            spills=tuple(part.chunks for part in self._spills),
            written=self._written.chunks,
            publication=publication,
        )
        await self._swap(state)
        self._due = self._clock.monotonic() + SAVE_SECONDS

    async def _swap(self, state: ImportState) -> None:
        if self._unsure is not None and await self._states.find(state.id) == self._unsure:
            self.state = self._unsure
        before = self.state
        try:
            self.state = await self._states.swap(before, state)
        except Unavailable:
            self._unsure = state
            raise
        except TakenOver:  # it is another's now, or has ended: nobody would remove what was only made for this save
            if self._unsure is None:
                await self._states.drop_chunks(_chunks(state) - _chunks(before))
            raise
        with contextlib.suppress(Unavailable):  # what is left over goes when the import ends
            await self._states.drop_chunks(_chunks(before) - _chunks(state))

    @contextlib.asynccontextmanager
    async def saved_if_interrupted(self) -> AsyncIterator[None]:
        """What is stored when the work inside fails or is cancelled is saved all the same, if that can be done soon."""
        try:
            yield
        except BaseException:
            await self.output.abandon()
            with contextlib.suppress(Error, TimeoutError):
                async with asyncio.timeout(LAST_SAVE_SECONDS):
                    await self.save()
            raise

    def _count(self, rows: pa.Table) -> None:
        self._objects += len(rows)
        self._bytes += pc.sum(rows["size_bytes"]).as_py() or 0

    async def _save_if_due(self) -> None:
        if self._clock.monotonic() >= self._due:
            await self.save()

    async def _write(self, rows: pa.Table) -> None:
        await self.output.feed(rows)
        self._last = rows["key"][-1].as_py()

    async def _begin_sorting(self) -> None:
        await self.output.finish()
        self._is_sorting = True
        if self.output.ranges:
            self._spills, self._written = [self._written], Part()
            self.output = self.output.another(self._written.ranges)

    async def _pile_up(self, rows: pa.Table) -> None:
        self._pile.add(rows)
        if len(self._pile) >= sorting.SPILL_ROWS:
            await self._spill()
            await self.save()

    async def _spill(self) -> None:
        rows = self._pile.take()
        self._spills.append(Part(await sorting.spill(self._tables, rows, self.output.generation, self._may_repeat)))

    async def _renew(self) -> None:
        floor = (await self._branches.read(self.state.branch)).floor
        for part in (*self._spills, self._written):
            if is_stale(part.ranges, floor):
                part.ranges[:] = await renewed(self._tables, part.ranges, floor)
                part.saved, part.chunks = 0, ()
        self.output.generation = floor

    def _stored(self) -> tuple[int, int]:
        """How many objects, and of how many bytes, are in what is stored."""
        parts = self._spills or [self._written]
        return _totals(stored for part in parts for stored in part.ranges)


def _totals(ranges: Iterable[StoredRange]) -> tuple[int, int]:
    objects = size = 0
    for each in ranges:
        objects, size = objects + each.count, size + each.size_bytes
    return objects, size


def _chunks(state: ImportState) -> set[str]:
    return {chunk for chunks in (*state.spills, state.written) for chunk in chunks}


def _ascends(rows: pa.Table, after: str) -> bool:
    """Whether the keys are ascending, and all after the key."""
    first: str = rows["key"][0].as_py()
    return first.encode() > after.encode() and records.is_ascending(rows["key"])
