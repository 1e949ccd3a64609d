"""The data path: bodies into the object store, and back.

A body becomes one object under a new name, so nothing is ever replaced and an entry's bytes never change. Memory is
bounded: a small body is held whole, which lets its put be retried; a larger one is streamed. The etag is the MD5 of
the body, computed as it passes.

An address is a name in the installation's own store, or a URL of somebody else's object (staged from a listing).
What is read back from our own store is compared with its size and MD5, of an object that was appended to extent by
extent: `Corrupt` if they differ.
"""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from itertools import groupby
from urllib.parse import unquote, urlsplit

from lsmfs import paths
from lsmfs.clock import Clock
from lsmfs.model import MD5, Entry, Extent
from lsmfs.objectstore.store import ObjectStore, Span
from refstore.errors import Corrupt, Invalid, NotFound

HELD_BYTES_MAX = 8 * 1024 * 1024  # a body up to this is one retried put; S3's parts are of this size too
SMALL_BYTES_MAX, SMALL_AT_ONCE = 256 * 1024, 16  # extents up to this are read so many at once: 4 MiB


async def store_body(
    store: ObjectStore,
    repository: str,
    body: AsyncIterator[bytes],
    clock: Clock,
    content_type: str | None = None,
    metadata: dict[str, str] | None = None,
) -> Entry:
    """Store the body under a new name; the entry that describes it."""
    name = paths.data_path(repository, clock.new_id())
    digest, size = hashlib.md5(usedforsecurity=False), 0

    async def passing() -> AsyncIterator[bytes]:
        nonlocal size
        async for piece in body:
            digest.update(piece)
            size += len(piece)
            yield piece

    pieces = passing()
    held = [piece async for piece in _up_to(pieces, HELD_BYTES_MAX)]
    if size <= HELD_BYTES_MAX:
        await store.put(name, b"".join(held))
    else:
        await store.put_stream(name, _chained(held, pieces))
    return Entry(name, size, digest.hexdigest(), clock.now_us(), content_type=content_type, metadata=metadata)


async def _up_to(pieces: AsyncIterator[bytes], size_bytes: int) -> AsyncIterator[bytes]:
    """Pieces until there are more bytes than that, or no more pieces."""
    while size_bytes >= 0:
        try:
            piece = await anext(pieces)
        except StopAsyncIteration:
            return
        size_bytes -= len(piece)
        yield piece


async def _chained(held: list[bytes], pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    for piece in held:
        yield piece
    held.clear()
    async for piece in pieces:
        yield piece


async def read_body(
    entry: Entry, store: ObjectStore, foreign: Callable[[str], ObjectStore], store_url: str = ""
) -> AsyncIterator[bytes]:
    """The entry's bytes in pieces, extent after extent. `foreign` opens the store at a URL."""
    extents, size = entry.extents, 0
    digest = _Digest(entry.etag if entry.rest and all(extent.is_ours for extent in extents) else "")

    def opened(extent: Extent) -> AsyncIterator[bytes]:
        source, name = (store, extent.address) if extent.is_ours else _located(extent.address, foreign, store_url)
        return _stream(extent, source, name)

    for group in _groups(extents):
        async for piece in _pieces([opened(extent) for extent in group]):
            digest.update(piece)
            size += len(piece)
            yield piece
    if size != entry.size_bytes:
        raise Corrupt(f"{entry.address!r} gave {size} bytes, its entry says {entry.size_bytes}")
    digest.check(entry.address)


def _groups(extents: Sequence[Extent]) -> Iterator[list[Extent]]:
    """The extents that have bytes, in order: some small ones together, large ones alone."""
    for is_small, some in groupby(
        (extent for extent in extents if extent.length), lambda extent: extent.length <= SMALL_BYTES_MAX
    ):
        group, step = list(some), SMALL_AT_ONCE if is_small else 1
        yield from (group[start : start + step] for start in range(0, len(group), step))


async def _pieces(bodies: Sequence[AsyncIterator[bytes]]) -> AsyncIterator[bytes]:
    """One body as a stream; of several all at once: one after the other, each would cost a round trip."""
    if len(bodies) == 1:
        async for piece in bodies[0]:
            yield piece
    else:
        for whole in await asyncio.gather(*map(_whole, bodies)):
            yield whole


async def _whole(pieces: AsyncIterator[bytes]) -> bytes:
    return b"".join([piece async for piece in pieces])


async def _stream(extent: Extent, source: ObjectStore, name: str) -> AsyncIterator[bytes]:
    digest = _Digest(extent.digest if extent.is_ours else "")
    try:
        async for piece in source.stream(name, Span(extent.offset, extent.offset + extent.length)):
            digest.update(piece)
            yield piece
    except NotFound:
        if extent.is_ours:
            raise Corrupt(f"the bytes at {extent.address!r} are gone, though an entry refers to them") from None
        raise NotFound(f"{extent.address!r}, which the entry refers to, does not exist") from None
    except Invalid as error:
        raise Corrupt(f"the entry does not match what is stored: {error}") from None
    digest.check(extent.address)


class _Digest:
    """The MD5 that bytes must have; nothing is compared if what is expected is none."""

    def __init__(self, expected: str) -> None:
        self._expected = expected if MD5.fullmatch(expected) else ""
        self._digest = hashlib.md5(usedforsecurity=False)

    def update(self, piece: bytes) -> None:
        if self._expected:
            self._digest.update(piece)

    def check(self, address: str) -> None:
        if self._expected and self._digest.hexdigest() != self._expected:
            raise Corrupt(f"{address!r} has MD5 {self._digest.hexdigest()}, its entry says {self._expected}")


def _located(address: str, foreign: Callable[[str], ObjectStore], store_url: str) -> tuple[ObjectStore, str]:
    url, name = locate(address, store_url)
    return foreign(url), name


def locate(address: str, store_url: str = "") -> tuple[str, str]:
    """The URL of the store that holds a foreign object, and the object's name there. Of the same cloud as our own
    store, it has the same endpoint and region, unless the address says others: s3://bucket?region=r/name."""
    scheme, _, rest = address.partition("://")
    if scheme == "file":
        folder, _, name = rest.rpartition("/")
        container, name = f"file://{folder or '/'}", unquote(name)
    else:
        bucket, _, name = rest.partition("/")
        own = urlsplit(store_url)
        is_plain = own.scheme == scheme and "?" not in bucket  # else it says itself how it is reached
        query = f"?{own.query}" if is_plain and own.query else ""
        container = f"{scheme}://{bucket}{query}"
    if not name:
        raise Invalid(f"{address!r} names no object: expected scheme://bucket/name")
    return container, name
