"""Small bodies, read at once. The packs and small blocks that they are in are kept in memory, least recently used out.

What was packed together was written together, and is often read together: one read of a store serves them all. What has
a name of ours never changes, so nothing kept is ever stale. Requests for one object at the same time share its read.
"""

import asyncio
import hashlib
from collections import OrderedDict

from lsmfs import paths
from lsmfs.model import MD5, Entry
from lsmfs.objectstore.store import ObjectStore, Span
from refstore.errors import Corrupt, Invalid, NotFound

OBJECT_BYTES_MAX = 512 * 1024  # a larger one is read in part: the rest would cost more than a second read
KEPT_BYTES_MAX = 64 * 1024 * 1024


class SmallBodies:
    """Reads from one store."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._kept: OrderedDict[str, bytes] = OrderedDict()
        self._kept_bytes = 0
        self._reading: dict[str, asyncio.Future[bytes]] = {}

    async def get(self, entry: Entry, span: Span | None = None) -> bytes:
        """The bytes of an entry that has one extent of ours, or those of the span; verified if it is all of them."""
        start, stop = span or (0, entry.size_bytes)
        try:
            data = await self._read(entry.address, Span(entry.offset + start, entry.offset + stop))
        except NotFound:
            raise Corrupt(f"the bytes at {entry.address!r} are gone, though an entry refers to them") from None
        except Invalid as error:
            raise Corrupt(f"the entry does not match what is stored: {error}") from None
        if len(data) != stop - start:
            raise Corrupt(f"{entry.address!r} gave {len(data)} bytes, its entry says {stop - start}")
        if len(data) == entry.size_bytes and MD5.fullmatch(entry.etag):
            found = hashlib.md5(data, usedforsecurity=False).hexdigest()
            if found != entry.etag:
                raise Corrupt(f"{entry.address!r} has md5 {found}, but should have {entry.etag}")
        return data

    async def _read(self, address: str, span: Span) -> bytes:
        whole = self._kept.get(address)
        if whole is None:
            size = paths.data_size(address)
            if size is None or size > OBJECT_BYTES_MAX:
                return await self._store.get(address, span)
            whole = await self._whole(address)
        else:
            self._kept.move_to_end(address)
        return whole[span.start : span.stop]

    async def _whole(self, address: str) -> bytes:
        reading = self._reading.get(address)
        if reading is None:
            reading = self._reading[address] = asyncio.ensure_future(self._store.get(address))
            reading.add_done_callback(lambda done: self._keep(address, done))
        return await asyncio.shield(reading)  # who gives up leaves it to the others

    def _keep(self, address: str, done: "asyncio.Future[bytes]") -> None:
        del self._reading[address]
        if done.cancelled() or done.exception() is not None:
            return
        self._kept[address] = done.result()
        self._kept_bytes += len(done.result())
        while self._kept_bytes > KEPT_BYTES_MAX:
            self._kept_bytes -= len(self._kept.popitem(last=False)[1])
