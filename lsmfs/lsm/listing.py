"""Listing a view page by page, in time that depends on the page and not on what it skips.

One cursor per layer stands at its next key; the smallest of them is next, and the newest cursor there decides, or, if
it stands at an append, those below it too.
- A common prefix is passed by seeking every cursor beyond it: a million keys below a "directory" are never touched.
- A run of deleted keys is passed by comparing bytes: as long as the tombstones above and the keys below are the same
  strings, both cursors leap, farther each time. What does not leap is merged in columns, ever larger pieces.
"""

from dataclasses import dataclass, field
from itertools import takewhile

import pyarrow as pa
import pyarrow.compute as pc

from lsmfs.lsm import records
from lsmfs.lsm.appends import joined
from lsmfs.lsm.records import beyond
from lsmfs.lsm.run import Run
from lsmfs.lsm.table import OpenTable
from lsmfs.lsm.view import Layer, View
from lsmfs.model import Entry
from refstore.errors import Invalid

PAGE_MAX = 1000
DEAD_STEPS_MAX = 32  # deleted keys passed one by one before columns take over
CHUNK_ROWS_MIN, CHUNK_ROWS_MAX = 256, 65536
ALONE_MIN = 16  # entries that are taken in columns: fewer are had sooner one by one
LEAP_ROWS_MIN = 64  # keys compared at once at first; then twice what was alike the last time, or four times as many


@dataclass(frozen=True, slots=True)
class Page:
    """Part of a listing: entries and common prefixes in one order; `after` continues it, None if it is complete."""

    items: list[tuple[bytes, Entry | None]] = field(default_factory=list)  # None: a common prefix
    after: bytes | None = None


class Cursor:
    """A place in one layer."""

    __slots__ = ("_at", "_layer", "_view", "key", "row", "table")

    def __init__(self, view: View, layer: Layer) -> None:
        self._view = view
        self._layer = layer
        self._at = 0
        self.table: OpenTable | None = None
        self.row = 0
        self.key: bytes | None = b""

    async def seek(self, key: bytes) -> None:
        """Stand at the first key >= key, at or after where the cursor is."""
        if self.key is None:
            return
        if self.table is None or key > self.table.last:
            await self._enter(key)
        if self.table is not None:
            self.row = self.table.lower_bound(key, self.row)
            self.key = self.table.key(self.row)

    async def step(self, rows: int = 1) -> None:
        assert self.table is not None
        self.row += rows
        if self.row < self.table.count:
            self.key = self.table.key(self.row)
        else:
            await self.seek(self.table.last + b"\0")

    async def _enter(self, key: bytes) -> None:
        """Open the table that holds the first key >= key."""
        self.row, self.table = 0, None
        if isinstance(self._layer, OpenTable):
            self.table = self._layer if self._layer.count and key <= self._layer.last else None
        else:
            self._at = self._layer.at_or_after(key)
            if self._at < len(self._layer):
                self.table = await self._view._table(self._layer.files[self._at])
        if self.table is None:
            self.key = None

    def is_last_table(self) -> bool:
        return not isinstance(self._layer, Run) or self._at + 1 >= len(self._layer)


async def list_page(view: View, prefix: bytes, delimiter: bytes, after: bytes, limit: int) -> Page:
    """The next `limit` entries and common prefixes with item > after."""
    if not 0 < limit <= PAGE_MAX:
        raise Invalid(f"a page has 1 to {PAGE_MAX} items, not {limit}")
    start = max(prefix, after + b"\0") if after else prefix
    if delimiter and after.startswith(prefix) and delimiter in after[len(prefix) :]:
        start = beyond(_group(after, prefix, delimiter) or after) or start
    walk = Walk(view, prefix)
    await walk.seek(start)
    items: list[tuple[bytes, Entry | None]] = []
    while (key := await walk.live_key()) is not None:
        if len(items) == limit:
            return Page(items, items[-1][0])
        group = _group(key, prefix, delimiter)
        if group is None:
            alone = walk.alone(limit - len(items), delimiter)
            items += alone or [(key, walk.entry())]
            await walk.step(len(alone) or 1)
        else:
            items.append((group, None))
            end = beyond(group)
            if end is None:
                break
            await walk.seek(end)
    return Page(items)


def _group(key: bytes, prefix: bytes, delimiter: bytes) -> bytes | None:
    """The common prefix that hides the key, if one does."""
    if not delimiter:
        return None
    at = key.find(delimiter, len(prefix))
    return None if at < 0 else key[: at + len(delimiter)]


def _keys_there(rows: pa.Table) -> pa.Table:
    """Keys, and whether they are there: that of an append is, whatever is below."""
    return pa.table({"key": rows["key"], "kind": pc.equal(rows["kind"], records.TOMBSTONE).cast(pa.uint8())})


class Walk:
    """The cursors of a view, moved together."""

    def __init__(self, view: View, prefix: bytes) -> None:
        self._cursors = [Cursor(view, layer) for layer in view.layers]  # newest first
        self._prefix = prefix
        self._group: list[Cursor] = []
        self._leap = LEAP_ROWS_MIN

    async def seek(self, key: bytes) -> None:
        for cursor in self._cursors:
            if cursor.key is not None and (cursor.key < key or cursor.table is None):
                await cursor.seek(key)
        self._cursors = [cursor for cursor in self._cursors if cursor.key is not None]

    async def live_key(self) -> bytes | None:
        """Pass what is deleted; the next key that is there and begins with the prefix."""
        dead, chunk = 0, CHUNK_ROWS_MIN
        while self._cursors:
            key = min(cursor.key for cursor in self._cursors if cursor.key is not None)
            if not key.startswith(self._prefix):
                return None
            self._group = [cursor for cursor in self._cursors if cursor.key == key]
            top = self._group[0]
            assert top.table is not None
            if not top.table.is_tombstone(top.row):
                return key
            leap = self._equal_run()
            if leap == 1 and dead >= DEAD_STEPS_MAX:
                await self._pass_chunk(chunk)
                chunk = min(2 * chunk, CHUNK_ROWS_MAX)
            else:
                dead += 1 if leap == 1 else 0
                await self.step(leap)
        return None

    def entry(self) -> Entry | None:
        appended: list[Entry] = []
        for cursor in self._group:
            assert cursor.table is not None
            found: Entry | None = cursor.table.entry(cursor.row)
            if found is None or not cursor.table.is_append(cursor.row):
                return joined(appended, found) if appended else found
            appended.append(found)
        return joined(appended, None)

    def alone(self, limit: int, delimiter: bytes) -> list[tuple[bytes, Entry | None]]:
        """The next entries, if one layer has them all and nobody else has a key between: taken in columns."""
        if len(self._group) > 1:
            return []
        top = self._group[0]
        assert top.table is not None
        count = top.table.puts_from(top.row, limit)
        if len(self._cursors) > 1:
            fence = min(cursor.key for cursor in self._cursors if cursor.key is not None and cursor is not top)
            if count and top.table.key(top.row + count - 1) >= fence:
                count = top.table.lower_bound(fence, top.row) - top.row
        if count < ALONE_MIN:
            return []
        keys = top.table.keys(top.row, count)
        if not keys[-1].startswith(self._prefix):
            keys = [key for key in keys if key.startswith(self._prefix)]
        if delimiter:
            keys = list(takewhile(lambda key: delimiter not in key[len(self._prefix) :], keys))
        return list(zip(keys, records.entries_at(top.table.rows.slice(top.row, len(keys))), strict=True))

    async def step(self, rows: int = 1) -> None:
        for cursor in self._group:
            await cursor.step(rows)
        self._cursors = [cursor for cursor in self._cursors if cursor.key is not None]

    def _equal_run(self) -> int:
        """How many rows all cursors of the group may leap: the same keys in each, tombstones on top, and no other
        cursor's key between."""
        top, lower = self._group[0], self._group[1:]
        table, row = top.table, top.row
        assert table is not None
        leap = self._leap
        for cursor in lower:
            assert cursor.table is not None
            leap = min(leap, cursor.table.count - cursor.row)
        leap = table.tombstones_from(row, leap)
        if len(self._cursors) > len(self._group):
            fence = min(c.key for c in self._cursors if c.key is not None and c.key != top.key)
            if table.key(row + leap - 1) >= fence:
                leap = table.lower_bound(fence, row) - row
        for cursor in lower:
            assert cursor.table is not None
            leap = table.common_keys(row, cursor.table, cursor.row, leap)
        self._leap = max(LEAP_ROWS_MIN, 4 * leap if leap == self._leap else 2 * leap)
        return leap

    async def _pass_chunk(self, rows: int) -> None:
        """Merge the next rows of every cursor in columns, and stand at the first live key or beyond them all."""
        slices, horizons = [], []
        for cursor in self._cursors:
            assert cursor.table is not None
            stop = min(cursor.row + rows, cursor.table.count)
            slices.append(_keys_there(cursor.table.rows.slice(cursor.row, stop - cursor.row)))
            if stop < cursor.table.count or not cursor.is_last_table():
                horizons.append(cursor.table.key(stop - 1))
        merged = records.live(records.merge(slices))
        horizon = min(horizons, default=None)
        first = merged["key"][0].as_py().encode() if len(merged) else None
        if first is not None and (horizon is None or first <= horizon):
            await self.seek(first)
        elif horizon is not None:
            await self.seek(horizon + b"\0")
        else:
            self._cursors = []
