"""An object store on a local file system: the default for one machine.

Keeps every promise of the protocol, also between processes on one machine, and after a crash or power cut (as far as
the disk honours fsync). An object is a plain file under its own name. `local_files` says how; here each verb is one
hop to a small pool of threads, because a hop costs more than most system calls.

Not for network file systems: their locks, links and time stamps differ too much to promise anything.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from lsmfs.objectstore.checks import check_within
from lsmfs.objectstore.local_files import NANOSECONDS, Files, Opened, Temporary, read_span, translated
from lsmfs.objectstore.local_listing import list_files
from lsmfs.objectstore.store import ANYTHING, Body, LateName, ObjectInfo, Precondition, Span, Tag, name_of

THREADS = 8  # as many puts share the disk's flushes; more only wait for it
PIECE_BYTES = 1 << 20
LISTING_BATCH = 1000  # entries a hop: 2 ms of work for 50 us of hop

T = TypeVar("T")


class LocalStore:
    def __init__(self, root: str | Path) -> None:
        self._files = Files(str(root))
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="lsmfs-local")

    async def get(self, name: str, span: Span | None = None) -> bytes:
        body, _ = await self._run(lambda: self._files.get(name, span))
        return body

    async def get_tagged(self, name: str) -> tuple[bytes, Tag]:
        return await self._run(lambda: self._files.get(name, None))

    async def stream(self, name: str, span: Span | None = None) -> AsyncIterator[bytes]:
        opened = await self._acquire(lambda: self._files.open(name), lambda opened: os.close(opened.descriptor))
        reading: Future[bytes] | None = None
        try:
            start, stop = check_within(name, span or Span(0, opened.size_bytes), opened.size_bytes)
            while start < stop:
                piece = Span(start, min(stop, start + PIECE_BYTES))
                reading = self._pool.submit(self._read, name, opened, piece)
                yield await asyncio.wrap_future(reading)
                start = piece.stop
        finally:
            self._after(reading, lambda: os.close(opened.descriptor))

    async def put(self, name: str, body: Body, expected: Precondition = ANYTHING) -> Tag:
        return await self._run(lambda: self._files.put(name, body, expected))

    async def put_stream(self, name: str | LateName, body: AsyncIterator[bytes]) -> Tag:
        told = name if isinstance(name, str) else "a body"
        begin = (lambda: self._files.begin(name)) if isinstance(name, str) else self._files.begin_unnamed
        temporary = await self._acquire(begin, Temporary.discard)
        writing: Future[Any] | None = None
        try:
            try:
                async for piece in body:
                    if writing is not None:
                        await asyncio.wrap_future(writing)
                    writing = self._pool.submit(self._write, told, temporary, piece)  # the next one comes meanwhile
            finally:
                if writing is not None:  # then nothing is left of a body that raises when its maker hears of it
                    await asyncio.wrap_future(writing)
            writing = finishing = self._pool.submit(self._finish, name_of(name), temporary)
            return await asyncio.wrap_future(finishing)
        finally:
            self._after(writing, temporary.discard)

    async def delete(self, name: str) -> None:
        await self._run(lambda: self._files.delete(name))

    async def list(self, prefix: str = "", after: str = "") -> AsyncIterator[ObjectInfo]:
        entries = list_files(self._files.root, prefix, after)

        def batch() -> list[ObjectInfo]:
            with translated(prefix, self._files.root):
                return [*islice(entries, LISTING_BATCH)]

        while infos := await self._run(batch):
            for info in infos:
                yield info

    async def head(self, name: str) -> ObjectInfo:
        return await self._run(lambda: self._head(name))

    async def aclose(self) -> None:
        """Wait for what is under way: a put that was cancelled may still be writing."""
        await asyncio.to_thread(self._pool.shutdown)

    def _head(self, name: str) -> ObjectInfo:
        opened = self._files.open(name)
        os.close(opened.descriptor)
        modified = datetime.fromtimestamp(opened.modified_ns // NANOSECONDS, UTC)
        return ObjectInfo(name, opened.size_bytes, opened.tag, modified)

    def _read(self, name: str, opened: Opened, span: Span) -> bytes:
        with translated(name, self._files.root):
            return read_span(opened.descriptor, span)

    def _write(self, name: str, temporary: Temporary, piece: bytes) -> None:
        with translated(name, self._files.root):
            temporary.write(piece)

    def _finish(self, name: str, temporary: Temporary) -> Tag:
        self._files.prepare(name)
        return self._files.finish(name, temporary, ANYTHING)

    async def _run(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, call)

    async def _acquire(self, call: Callable[[], T], release: Callable[[T], None]) -> T:
        """What the call opens; released if the task is cancelled, since then nobody receives it."""

        def release_result(done: Future[T]) -> None:
            if not done.cancelled() and not done.exception():
                release(done.result())

        opening = self._pool.submit(call)
        try:
            return await asyncio.wrap_future(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(release_result)
            raise

    def _after(self, last: Future[Any] | None, close: Callable[[], None]) -> None:
        """Close when the last step has ended: a cancelled task does not stop the thread that works for it."""
        if last is None or last.done():
            close()
        else:
            last.add_done_callback(lambda _: close())
