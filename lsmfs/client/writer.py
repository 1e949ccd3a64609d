"""The write client over a server: what many tasks put is sent together, in order, and each is answered for itself.

Flow of a put:
1. It joins the open batch and waits for it.
2. When no request is under way, the batch closes and is sent; those that come meanwhile make the next one.
3. The server's writer flushes it with the writes of everybody else, and answers when all is durable and visible.

One request at a time keeps the order in which writes came; a batch has up to `BATCH_MAX` of them. What is lost on the
way back is `OutcomeUnknown`, and nothing is sent twice.
"""

import asyncio
import contextlib
import io
from collections.abc import AsyncIterator, Sequence
from types import TracebackType

import msgspec
import pyarrow as pa

from lsmfs.client import wire
from lsmfs.client.failures import named
from lsmfs.client.reader import RemoteBranches
from lsmfs.client.transport import Transport, path_of
from lsmfs.lsm.writer import APPEND_BYTES_MAX
from lsmfs.model import Entry, Extent, check_branch_name, check_entry, check_extents, key_of
from lsmfs.objectstore.store import Body
from refstore.errors import Error, Invalid, OutcomeUnknown, Unavailable
from refstore.store import ABSENT, Absent

BATCH_BYTES_MAX = 2 * 1024 * 1024  # of JSON: a server takes twice as much
ROWS_AT_ONCE = 65536  # of a table that is staged: some MB
ARROW = "application/vnd.apache.arrow.stream"


class _Rows(msgspec.Struct):
    rows: int


class _Batch:
    """Writes that are sent together."""

    def __init__(self) -> None:
        self.writes: list[msgspec.Raw] = []
        self.waiters: list[asyncio.Future[None]] = []
        self.size_bytes = 0

    def add(self, write: msgspec.Raw, size: int) -> "asyncio.Future[None]":
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.writes.append(write)
        self.waiters.append(waiter)
        self.size_bytes += size
        return waiter

    def is_full(self, size: int) -> bool:
        return len(self.writes) >= wire.BATCH_MAX or self.size_bytes + size > BATCH_BYTES_MAX

    def finish(self, failures: Sequence[Error | None]) -> None:
        for waiter, failure in zip(self.waiters, failures, strict=True):
            # Its caller may be gone; Ctrl-C cancels it even between a look and an answer, so it is not asked first.
            with contextlib.suppress(asyncio.InvalidStateError):
                if failure is None:
                    waiter.set_result(None)
                else:
                    waiter.set_exception(failure)
                    waiter.exception()


class RemoteWriter:
    """Writes to one branch. Use it as an async context manager; any number of tasks may share it."""

    def __init__(self, transport: Transport, repository: str, branch: str) -> None:
        self._transport = transport
        self._repository = repository
        self._branch = check_branch_name(branch)
        self._at = f"{wire.BASE}{path_of(repository)}/branches{path_of(branch)}"
        self._queue: list[_Batch] = []
        self._sending: asyncio.Task[None] | None = None
        self._is_open = self._is_closed = False

    async def __aenter__(self) -> "RemoteWriter":
        await RemoteBranches(self._transport, self._repository).read(self._branch)
        self._is_open = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def put(self, key: str | bytes, entry: Entry, expected: str | Absent | None = None) -> None:
        """Write an entry; returns when it is durable and visible. With `expected` (ABSENT, or the etag that must be
        there), exactly one of any number of racers wins and the others get `Conflict`."""
        check_entry(entry)
        is_new = expected is ABSENT
        etag = expected if isinstance(expected, str) else None
        await self._join(wire.Write(key_of(key).decode(), entry, absent=is_new, expected=etag))

    async def delete(self, key: str | bytes, expected: str | None = None) -> None:
        """Remove a key; no error if it is not there, unless an etag is expected."""
        await self._join(wire.Write(key_of(key).decode(), expected=expected))

    async def append_extents(self, key: str | bytes, extents: Sequence[Extent]) -> None:
        """Add bytes that are stored already, here or elsewhere, to the end of an object."""
        check_extents(tuple(extents), f"append to {key!r}")
        await self._join(wire.Write(key_of(key).decode(), extents=list(extents)))

    async def append(self, key: str | bytes, data: Body) -> None:
        """Add bytes to the end of an object, which begins with them if it is not there."""
        self._check_open()
        if len(data) > APPEND_BYTES_MAX:
            raise Invalid(f"{len(data)} bytes are too many for one append of up to {APPEND_BYTES_MAX}: append_object")
        path = f"/repositories{path_of(self._repository)}/branches{path_of(self._branch)}/objects/append"
        query = {"path": key_of(key).decode()}
        await self._transport.change("POST", path, msgspec.Raw, query, content=bytes(data))

    async def stage(self, table: pa.Table) -> None:
        """Write all rows of an Arrow table (see `lsm.records` for its columns) as one atomic unit, after what was put
        before it."""
        self._check_open()
        await self.flush()
        if not len(table):
            return
        path = f"/repositories{path_of(self._repository)}/branches{path_of(self._branch)}/stage"
        headers = {"content-type": ARROW}
        await self._transport.change("POST", path, _Rows, content=_stream_of(table), headers=headers)

    async def flush(self) -> None:
        """Wait until everything put so far is acknowledged or has failed."""
        while self._sending is not None:
            await asyncio.wait((self._sending,))

    async def aclose(self) -> None:
        """Flush, then refuse further writes."""
        self._is_closed = True
        await self.flush()

    def _check_open(self) -> None:
        if self._is_closed:
            raise Invalid(f"the writer to branch {self._branch!r} is closed: open another one")
        if not self._is_open:
            raise Invalid("a writer is opened before it is used: async with repository.writer(...) as writer")

    async def _join(self, write: wire.Write) -> None:
        self._check_open()
        data = msgspec.json.encode(write)
        if not self._queue or self._queue[-1].is_full(len(data)):
            self._queue.append(_Batch())
        waiter = self._queue[-1].add(msgspec.Raw(data), len(data))
        if self._sending is None:
            self._sending = asyncio.ensure_future(self._send_all())
        await waiter

    async def _send_all(self) -> None:
        try:
            while self._queue:
                await self._send(self._queue.pop(0))
        finally:
            self._sending = None

    async def _send(self, batch: _Batch) -> None:
        try:
            body = {"writes": batch.writes}
            done = await self._transport.change("POST", f"{self._at}/write", wire.Written, body=body)
            failures = [None if each is None else named(each.error, each.message) for each in done.failures]
            if len(failures) != len(batch.writes):
                raise Unavailable("the server answered for other writes than were sent: use its version of lsmfs")
            batch.finish(failures)
        except Error as error:
            batch.finish([error] * len(batch.writes))
        except BaseException:
            batch.finish([OutcomeUnknown("interrupted: the write may or may not be done")] * len(batch.writes))
            raise


async def _stream_of(table: pa.Table) -> AsyncIterator[bytes]:
    """The table as an Arrow IPC stream, in pieces."""
    sink = _Sink()
    with pa.ipc.new_stream(pa.PythonFile(sink, "w"), table.schema) as writer:
        for batch in table.to_batches(max_chunksize=ROWS_AT_ONCE):
            writer.write_batch(batch)
            yield sink.taken()
    yield sink.taken()


class _Sink(io.RawIOBase):
    """A file whose bytes are taken out as they come."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        piece = bytes(data)  # type: ignore[call-overload]
        self._pieces.append(piece)
        return len(piece)

    def taken(self) -> bytes:
        pieces, self._pieces = self._pieces, []
        return b"".join(pieces)
