"""Bodies and stores for the tests of blocks."""

import random
from collections.abc import AsyncIterator

from lsmfs.blocks import ALONE, Bodies, Layout, read_body
from lsmfs.clock import SystemClock
from lsmfs.model import Entry
from lsmfs.objectstore.store import ObjectStore, Span

MIB = 1024 * 1024
WHOLE = Layout(block_bytes=0, packed_bytes_max=0)
SMALL_BLOCKS = Layout(block_bytes=MIB, packed_bytes_max=1024)


async def pieces(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


def noise(size: int, seed: int = 0) -> bytes:
    """Bytes of which no two mebibytes are alike."""
    return random.Random(seed).randbytes(size)


def nobody(url: str) -> ObjectStore:
    raise AssertionError(f"nothing here is stored at {url}")


def bodies(store: ObjectStore, layout: Layout = ALONE) -> Bodies:
    return Bodies(store, "lake", SystemClock(), layout)


async def saved(store: ObjectStore, *parts: bytes, layout: Layout = ALONE) -> Entry:
    return await bodies(store, layout).save(pieces(*parts))


async def body_of(entry: Entry, store: ObjectStore, span: Span | None = None) -> bytes:
    return b"".join([piece async for piece in read_body(entry, store, nobody, span=span)])


async def names(store: ObjectStore) -> list[str]:
    return [info.name async for info in store.list()]
