"""The async write client: group commit onto one branch.

Flow of a put:
1. It joins the open batch and waits for it.
2. When no flush is under way (or the batch is heavy and few are), the batch closes: a flush begins.
3. Conditions, if any, are decided on the view at one version. Refused operations leave the batch.
4. The batch becomes a Table and is uploaded; what its appends add is one block of bytes, uploaded at the same time.
   Several uploads may be under way.
5. In the order of the batches, the table's id is appended to the branch, once (`lsm/appender.py`). Only then are its
   puts done.

Nothing is acknowledged early and nothing is dropped silently.

A layer carries its history (`_facts`), so that a lost ref store can be rebuilt from the layers alone: `seen` and
`number` order it after everything its writer had seen appended, `expected_view` tells a conditional one that may have
been uploaded for a view that was gone before it could be appended. Number 0 is a layer that was only prepared.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from itertools import islice
from types import TracebackType
from typing import TypeAlias, cast

import pyarrow as pa

from lsmfs import paths
from lsmfs.clock import Clock
from lsmfs.lsm import records
from lsmfs.lsm.appender import Appender, back_off
from lsmfs.lsm.branches import BranchReader
from lsmfs.lsm.build import Shape, write_run
from lsmfs.lsm.memstore import Addition, Batch, Condition, Layout, Operation, laid_out
from lsmfs.lsm.tables import Tables
from lsmfs.lsm.view import LayerGone, View, check_moved
from lsmfs.model import EXTENTS_MAX, Entry, Extent, check_entry, check_extents, key_of
from lsmfs.objectstore.store import Body
from lsmfs.settings import WriterSettings
from refstore.errors import Corrupt, Error, Invalid, OutcomeUnknown, Unavailable, ViewChanged
from refstore.records import RunId, TableId
from refstore.refs import Refs
from refstore.store import Absent

APPEND_BYTES_MAX = 8 * 1024 * 1024  # held and retried whole, like a small body; more is stored first, as a stream
LOOK_EVERY = 1000  # batches with appends: a look costs a read, and a writer can pass the limit of extents by so many
LOOK_KEYS_MAX = 64

Source: TypeAlias = "pa.Table | str | list[Operation]"
"""What a layer is made of: rows, operations, or a layer that is stored already."""


class Writer:
    """Writes to one branch. Use it as an async context manager; any number of tasks may share it."""

    def __init__(
        self,
        tables: Tables,
        refs: Refs,
        branches: BranchReader,
        view: Callable[[], Awaitable[View]],
        branch: str,
        clock: Clock,
        settings: WriterSettings,
        shape: Shape,
        actor: str = "",
        allow: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._tables = tables
        self._branches = branches
        self._view = view
        self._name = branch
        self._clock = clock
        self._settings = settings
        self._shape = shape
        self._allow = allow  # raises if the branch may not be written to; asked before every flush
        self._batch: Batch | None = None
        self._flushes: set[asyncio.Task[None]] = set()
        self._tail: asyncio.Future[None] | None = None  # done when the newest closed batch has been appended or failed
        self._scheduled = False
        self._buffered = 0
        self._queue: deque[asyncio.Future[None]] = deque()  # who waits for room, in the order of arrival
        self._closed = False
        self._appender = Appender(
            refs, branches, tables.repository, branch, clock, settings.deadline_seconds, actor, allow
        )
        self._batches = 0  # that were closed
        self._grown = 0  # batches with appends
        self._full: set[bytes] = set()  # keys found to have so many extents that no more are taken

    async def __aenter__(self) -> "Writer":
        await self._appender.begin_life()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    @property
    def session(self) -> str:
        """One id for all layers of this writer."""
        return self._appender.session

    async def put(self, key: str | bytes, entry: Entry, expected: str | Absent | None = None) -> None:
        """Write an entry; returns when it is durable and visible. With `expected` (ABSENT, or the etag that must be
        there), exactly one of any number of racers wins and the others get `Conflict`."""
        check_entry(entry)
        if self._queue or self._buffered > self._settings.buffer_bytes_max:
            await self._has_room()
        await self._join(key_of(key), entry, expected)

    async def delete(self, key: str | bytes, expected: str | None = None) -> None:
        """Remove a key; no error if it is not there, unless an etag is expected."""
        await self._has_room()
        await self._join(key_of(key), None, expected)

    async def append(self, key: str | bytes, data: Body) -> None:
        """Add bytes to the end of an object, which begins with them if it is not there; nothing is read. Returns when
        they are durable and visible. Its content type and metadata stay. A failed append may be repeated, unless it
        failed with `OutcomeUnknown`: that one may have been done."""
        data = bytes(data)
        if len(data) > APPEND_BYTES_MAX:
            raise Invalid(
                f"{len(data)} bytes are too many for one append, which holds {APPEND_BYTES_MAX}: store them with "
                "blocks.Bodies and append_extents those of its entry"
            )
        await self._add(key_of(key), Addition(self._clock.now_us(), data=data))

    async def append_extents(self, key: str | bytes, extents: Sequence[Extent]) -> None:
        """Add bytes that are stored already, here or elsewhere, to the end of an object."""
        addition = Addition(self._clock.now_us(), extents=tuple(extents))
        check_extents(addition.extents, f"append to {key!r}")
        await self._add(key_of(key), addition)

    async def stage(self, table: pa.Table) -> None:
        """Write all rows of an Arrow table (see `records` for its columns) as one atomic unit."""
        rows = await self._tables.compute(_conform, table)
        if len(rows):
            await self._write_unit(rows, rows.nbytes)

    async def prepare(self, table: pa.Table) -> TableId:
        """Store the rows as a layer that nobody sees until `stage_prepared`, by this or another writer."""
        rows = await self._tables.compute(_conform, table)
        if not len(rows):
            raise Invalid("the table has no rows: there is nothing to prepare")
        return await self._upload(rows, 0)

    async def stage_prepared(self, name: str) -> None:
        """Append a Table or Run that is stored already, after verifying it, as one atomic unit. Each time it is staged,
        what it appends to objects is added to them again."""
        try:
            paths.generation_of(name)
        except Corrupt:
            raise Invalid(f"{name!r} is no layer that `prepare` made") from None
        if paths.is_run(name):
            await self._tables.load_run(RunId(name))
        else:
            await self._tables.load(name)
        await self._write_unit(name, 0)

    async def flush(self) -> None:
        """Wait until everything put so far is acknowledged or has failed."""
        self._close_batch()
        if self._flushes:
            await asyncio.wait(self._flushes)  # not `gather`: cancelled, it would cancel everybody's flushes

    async def aclose(self) -> None:
        """Flush, then refuse further writes."""
        self._closed = True
        while self._batch is not None or self._flushes:
            await self.flush()

    async def _add(self, key: bytes, addition: Addition) -> None:
        if key in self._full:
            raise Invalid(
                f"{key.decode()!r} has more than {EXTENTS_MAX} extents, one for each flush that appended to it: "
                "store it as one (get it and put it) or go on under another key, with a new writer"
            )
        await self._has_room()
        await self._join(key, addition, None)

    def _join(
        self, key: bytes, value: Entry | Addition | None, expected: str | Absent | None
    ) -> "asyncio.Future[None]":
        """Add the operation to the open batch; what its caller waits for."""
        batch = self._open_batch()
        self._buffered += batch.add(key, value)
        if expected is None:
            waiter = batch.waiter()
        else:
            waiter = asyncio.get_running_loop().create_future()
            batch.conditions.append(Condition(len(batch.operations) - 1, expected, waiter))
        if not self._scheduled:
            self._schedule()
        return waiter

    async def _write_unit(self, unit: "pa.Table | str", weight: int) -> None:
        await self._has_room()
        self._close_batch()  # what was put before the unit goes before it
        batch = self._open_batch()
        batch.unit, batch.weight = unit, weight
        self._buffered += weight
        waiter = batch.waiter()
        self._close_batch()
        await waiter

    async def _has_room(self) -> None:
        """Wait for room, first come, first served: who comes while others wait does not overtake them."""
        if not self._queue and self._buffered <= self._settings.buffer_bytes_max:
            return
        turn = asyncio.get_running_loop().create_future()
        self._queue.append(turn)
        try:
            await turn
        finally:
            self._queue.remove(turn)
            # Whoever is next may go as soon as this operation has joined its batch.
            asyncio.get_running_loop().call_soon(self._serve)

    def _serve(self) -> None:
        """Let the first in the queue go, if there is room."""
        if self._queue and self._buffered <= self._settings.buffer_bytes_max and not self._queue[0].done():
            self._queue[0].set_result(None)

    def _open_batch(self) -> Batch:
        if self._batch is None:  # else both have been looked at: closing closes the batch at once
            if self._closed:
                raise Invalid(f"the writer to branch {self._name!r} is closed: open another one")
            if self._appender.life is None:
                raise Invalid("a writer is opened before it is used: async with repository.writer(...) as writer")
            self._batch = Batch()
        return self._batch

    def _schedule(self) -> None:
        """Close the batch soon if a flush may begin: after what is ready to run has had its chance to join."""
        batch = self._batch
        if batch is None or self._scheduled:
            return
        under_way = len(self._flushes)
        if under_way == 0 or (under_way < self._settings.flushes_max and batch.weight >= self._settings.flush_bytes):
            self._scheduled = True
            loop = asyncio.get_running_loop()
            if self._settings.linger_seconds:
                loop.call_later(self._settings.linger_seconds, self._close_batch)
            else:
                loop.call_soon(self._close_batch)

    def _close_batch(self) -> None:
        self._scheduled = False
        batch, self._batch = self._batch, None
        if batch is None or not (batch.operations or batch.unit is not None):
            return
        self._batches += 1
        batch.number = self._batches
        before, self._tail = self._tail, asyncio.get_running_loop().create_future()
        task = asyncio.ensure_future(self._flush(batch, before, self._tail))
        self._flushes.add(task)
        task.add_done_callback(self._flushed)

    def _flushed(self, task: "asyncio.Task[None]") -> None:
        self._flushes.discard(task)
        self._schedule()

    async def _flush(self, batch: Batch, before: "asyncio.Future[None] | None", after: "asyncio.Future[None]") -> None:
        weight = batch.weight
        try:
            if self._allow is not None:
                await self._allow()
            if batch.conditions:
                await _wait(before)
                await self._flush_conditional(batch)
            else:
                source = batch.operations if batch.unit is None else batch.unit
                name = await self._upload(source, batch.number)
                await _wait(before)
                await self._append(name, source, batch.number)
            batch.finish(None)
        except BaseException as error:
            batch.finish(error if isinstance(error, Error) else _interrupted(error))
            if not isinstance(error, Error):
                raise
        finally:
            _follow(before, after)
            self._buffered -= weight
            self._serve()
        if batch.additions:
            await self._look(batch)

    async def _look(self, batch: Batch) -> None:
        """See now and then whether objects have got too many extents: no append reads, so none would notice."""
        self._grown += 1
        if self._grown % LOOK_EVERY:
            return
        keys = dict.fromkeys(key for key, value in batch.operations if isinstance(value, Addition))
        with contextlib.suppress(Error):  # the batch itself is done
            found = await (await self._view()).get_many(islice(keys, LOOK_KEYS_MAX))
            self._full |= {key for key, entry in found.items() if len(entry.rest) >= EXTENTS_MAX}

    async def _flush_conditional(self, batch: Batch) -> None:
        """Decide, upload, append if the view is still the one decided on; else decide again."""
        deadline = self._clock.monotonic() + self._settings.deadline_seconds
        attempt = 0
        while True:
            try:
                refusals = await self._attempt_conditional(batch)
                break
            except OutcomeUnknown:
                raise
            except (ViewChanged, LayerGone, Unavailable) as error:
                if self._clock.monotonic() > deadline:
                    raise
                if isinstance(error, Unavailable):  # the others say that somebody else has made progress
                    attempt += 1
                    await back_off(self._clock, attempt)
        for condition, refusal in zip(batch.conditions, refusals, strict=True):
            if refusal is not None and not condition.done.done():
                condition.done.set_exception(refusal)
                condition.done.exception()

    async def _attempt_conditional(self, batch: Batch) -> list[Error | None]:
        """Do what may be done on the view of now; for each condition why its operation may not."""
        view = await self._view()
        try:
            operations, refusals = batch.decided(await view.get_many(batch.conditional_keys()))
        except LayerGone as gone:
            await check_moved(self._branches, view.branch, gone)
            raise
        if operations:
            name = await self._upload(operations, batch.number, view.branch.view)
            await self._append(name, operations, batch.number, view.branch.view)
        return refusals

    async def _upload(self, source: Source, number: int, expected_view: int | None = None) -> TableId:
        """Store a layer; its name."""
        if isinstance(source, str):
            return TableId(source)
        life = self._appender.life
        assert life is not None
        generation, unique, facts = life.floor, self._clock.new_id(), self._facts(number, expected_view)
        address = paths.data_path(self._tables.repository, paths.whole_name(generation, unique))
        layout = await self._tables.compute(laid_out, source, address) if isinstance(source, list) else Layout(source)
        saving = self._save(layout.rows, generation, unique, facts)
        if not layout.block:
            return await saving
        name, stored = await asyncio.gather(
            saving, self._tables.store.put(address, layout.block), return_exceptions=True
        )
        for answer in (name, stored):
            if isinstance(answer, BaseException):
                raise answer
        return cast(TableId, name)

    async def _save(self, rows: pa.Table, generation: int, unique: str, facts: dict[str, str]) -> TableId:
        if len(rows) <= self._settings.unit_rows_max:
            return await self._tables.save_table(rows, generation, unique, facts)
        run = await write_run(self._tables, rows, generation, self._shape)
        return await self._tables.save_unit(run, generation, unique, facts)

    def _facts(self, number: int, expected_view: int | None) -> dict[str, str]:
        """The layer's history. `number` is the batch's, not the upload's: a conditional batch is uploaded after those
        before it were appended, and so perhaps after those behind it were uploaded."""
        life = self._appender.life
        assert life is not None
        return {
            "lsmfs.repository": self._tables.repository,
            "lsmfs.branch": self._name,
            "lsmfs.incarnation": life.incarnation,
            "lsmfs.writer": self.session,
            "lsmfs.number": str(number),
            "lsmfs.seen": str(self._appender.seen),
            "lsmfs.expected_view": "" if expected_view is None else str(expected_view),
            "lsmfs.made_us": str(self._clock.now_us()),
        }

    async def _append(self, name: TableId, source: Source, number: int, expected_view: int | None = None) -> None:
        """Append the layer; one that the garbage floor has passed is made again, unless it was made elsewhere."""
        remake = None if isinstance(source, str) else lambda: self._upload(source, number, expected_view)
        await self._appender.append(name, expected_view, remake)


def _conform(table: pa.Table) -> pa.Table:
    rows = records.conform(table)
    if records.is_ascending(rows["key"]):
        return rows
    unique = records.sort_unique(rows)
    if len(unique) < len(rows):
        raise Invalid(f"{len(rows) - len(unique)} keys are there more than once: a unit has each key once")
    return unique


def _interrupted(error: BaseException) -> Exception:
    return OutcomeUnknown(f"the flush was interrupted: {error!r}")


def _follow(before: "asyncio.Future[None] | None", after: "asyncio.Future[None]") -> None:
    """`after` is done now, but not before `before` is: a batch that fails lets no later one overtake an earlier one."""
    if before is None or before.done():
        after.set_result(None)
    else:
        before.add_done_callback(lambda _: after.set_result(None))


async def _wait(before: "asyncio.Future[None] | None") -> None:
    if before is not None:
        await asyncio.shield(before)
