"""The three-way merge of Runs: what changed from base to source, applied to the destination.

Flow:
1. The three runs are cut into sections (`lsm/sections.py`); only their lists of ranges are looked at. A section that
   one side has left as the base has it is the other side's, by reference: nothing is read, nothing is written.
2. The ranges of the other sections are read, several at a time, and joined by key, in columns. A source's change is
   applied if the destination still has what the base has; it is nothing if the destination has it already; otherwise
   the key is a conflict, which a rule decides or the caller is told of.
3. All of it goes in order through the cutter, so that the result is cut as if it had been written from scratch. A range
   that comes out as a side has it is that side's, by reference.

What comes out depends on the records of the three runs, not on how they are cut: a record that the destination has
exactly as the base has it is the source's, even if it differs in mtime or address alone. Sides that put equal content
(`diff` says what that is) agree, wherever each has its bytes; the destination's record stays.

Repeating a merge that lost its race (the destination moved from D to D') takes its result as source and D as base: what
only this merge touched is then unchanged on the other side, and step 1 is all there is to do.
"""

import threading
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import aclosing
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lsmfs.lsm import boundary, records
from lsmfs.lsm.build import Assembly, RunWriter, Segment, Shape, Stretch, ahead, segment, windows
from lsmfs.lsm.run import EMPTY_RUN, Run
from lsmfs.lsm.sections import alike, sections
from lsmfs.lsm.tables import Tables
from lsmfs.model import Entry
from lsmfs.tree.diff import align, differing, same
from refstore.errors import Conflict, Invalid

SOURCE_WINS, DEST_WINS = "source-wins", "dest-wins"
CONFLICTS_REPORTED_MAX = 1000  # enough to show a person; all are counted
DESTINATION, SOURCE, BOTH = 0, 1, 2  # whose ranges a section of the result has


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

    def __str__(self) -> str:
        """The rules as a text: equal rules, equal texts."""
        return repr(self._rules)

    def winners(self, keys: Any) -> np.ndarray[Any, np.dtype[np.int64]]:
        """For each key whose record is taken: SOURCE, DESTINATION, or BOTH if no rule says."""
        winners = np.full(len(keys), BOTH)
        for (
            prefix,
            rule,
        ) in self._rules:  # in order of their bytes a longer prefix comes after those that it begins with
            fits = pc.starts_with(keys.cast(pa.binary()), prefix).to_numpy(zero_copy_only=False)
            winners[fits] = SOURCE if rule == SOURCE_WINS else DESTINATION
        return winners


class Sides(NamedTuple):
    """What the three runs have in a section that both sides changed."""

    base: Run
    source: Run
    destination: Run


def plan(base: Run, source: Run, destination: Run, shape: Shape) -> list[Stretch | Sides]:
    """What the result is made of, in order."""
    base_at, source_at, destination_at = sections(base, source, destination)
    taken = np.where(alike(base, base_at, destination, destination_at), SOURCE, BOTH)
    taken[alike(base, base_at, source, source_at)] = DESTINATION
    taken[alike(source, source_at, destination, destination_at)] = DESTINATION
    # Neighbours of one side are one stretch. What both changed stays apart: sections are what is held in memory.
    starts = np.flatnonzero((np.diff(taken, prepend=-1) != 0) | (taken == BOTH))
    pieces: list[Stretch | Sides] = []
    for start, stop in pairwise([*starts.tolist(), len(taken)]):
        parts = [(int(at[start]), int(at[stop])) for at in (base_at, source_at, destination_at)]
        if taken[start] == BOTH:
            pieces.append(Sides(base.part(*parts[0]), source.part(*parts[1]), destination.part(*parts[2])))
        else:
            run, (first, last) = (source, parts[1]) if taken[start] == SOURCE else (destination, parts[2])
            pieces += [Stretch(run, first, last)] if first < last else []
    return [part for number, piece in enumerate(pieces, 1) for part in _closed(piece, number == len(pieces), shape)]


def _closed(piece: Stretch | Sides, is_last: bool, shape: Shape) -> list[Stretch | Sides]:
    """The last range of a run is open: what follows it in another run belongs to it, so it goes through the cutter."""
    if isinstance(piece, Sides) or piece.stop < len(piece.run) or is_last:
        return [piece]
    if boundary.ends_after(piece.run.max_keys[-1], shape.rows_mean):
        return [piece]
    last = piece.stop - 1
    return [piece._replace(stop=last), Sides(EMPTY_RUN, EMPTY_RUN, piece.run.part(last, piece.stop))]


class _Merging:
    """One merge: what its steps, which run in threads, found."""

    def __init__(self, strategy: Strategy, shape: Shape) -> None:
        self._strategy = strategy
        self._shape = shape
        self.clashes: list[Clash] = []
        self.count = 0
        self._lock = threading.Lock()

    def combine(self, base: pa.Table, source: pa.Table, destination: pa.Table) -> Segment:
        """The destination's rows, with the source's changes applied that may be."""
        before, after = differing(base, source, exactly=True)
        if not len(after):
            return segment(destination, self._shape)
        keys = records.flat(after["key"])
        now = align(destination, keys)
        changed, untouched = ~same(before, after), same(now, before)
        applied = np.where(changed, untouched, same(now, before, exactly=True))
        clashing = np.flatnonzero(changed & ~untouched & ~same(now, after))
        if len(clashing):
            winners = self._strategy.winners(keys.take(pa.array(clashing)))
            applied[clashing[winners == SOURCE]] = True
            self._report(clashing[winners == BOTH], before, after, now)
        upper = after.filter(pa.array(applied)).combine_chunks()
        return segment(records.live(records.merge([upper, destination])), self._shape)

    def _report(self, rows: Any, *sides: pa.Table) -> None:
        """Count clashes. Entries are made for the first ones only: they cost more than all the rest."""
        with self._lock:
            self.count += len(rows)
            for row in rows[: max(0, CONFLICTS_REPORTED_MAX - len(self.clashes))].tolist():
                key = sides[0]["key"][row].as_py().encode()
                self.clashes.append(Clash(key, *(records.entry_at(side, row) for side in sides)))


async def merge_runs(
    tables: Tables, base: Run, source: Run, destination: Run, generation: int, shape: Shape, strategy: Strategy
) -> Run:
    """The destination with what changed from base to source; `MergeConflict`. Of equal runs no range is read."""
    if destination.content_hash() == base.content_hash():
        return source
    merging = _Merging(strategy, shape)
    assembly = Assembly(tables, RunWriter(tables, generation, (destination, source)), shape)
    kept: list[Stretch] = []  # what comes before the next window
    steps = _steps(tables, plan(base, source, destination, shape), merging, kept)
    try:
        async with aclosing(ahead(steps)) as done:
            async for before, merged in done:
                if merging.count:
                    continue  # it will not come to a result: nothing more is written, conflicts are still counted
                await _keep(assembly, before)
                await assembly.feed(merged)
        if merging.count:
            raise MergeConflict(merging.count, sorted(merging.clashes))
        await _keep(assembly, kept)
        return await assembly.finish()
    except BaseException:
        await assembly.abandon()
        raise


async def _steps(
    tables: Tables, pieces: Sequence[Stretch | Sides], merging: _Merging, kept: list[Stretch]
) -> AsyncIterator[tuple[list[Stretch], Awaitable[Segment]]]:
    """The work on what both sides changed, a window at a time, each with what is kept before it; what is kept after the
    last one is left in `kept`."""
    for piece in pieces:
        if isinstance(piece, Stretch):
            kept.append(piece)
            continue
        async for rows in windows(tables, piece):
            before = kept.copy()
            kept.clear()
            yield before, tables.compute(merging.combine, *rows)


async def _keep(assembly: Assembly, stretches: Sequence[Stretch]) -> None:
    for stretch in stretches:
        await assembly.keep(*stretch)
