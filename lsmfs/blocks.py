"""The data path: bodies into the object store, and back.

A body becomes one object under a new name, so nothing is ever replaced and an entry's bytes never change. Memory is
bounded: a small body is held whole, which lets its put be retried; a larger one is streamed. The etag is the MD5 of
the body, computed as it passes.

An address is a name in the installation's own store, or a URL of somebody else's object (staged from a listing).
What is read back from our own store is compared with its size and MD5: `Corrupt` if they differ.
"""

import hashlib
import re
from collections.abc import AsyncIterator, Callable
from urllib.parse import unquote, urlsplit

from lsmfs import paths
from lsmfs.clock import Clock
from lsmfs.model import Entry
from lsmfs.objectstore.store import ObjectStore, Span
from refstore.errors import Corrupt, Invalid, NotFound

HELD_BYTES_MAX = 8 * 1024 * 1024  # a body up to this is one retried put; S3's parts are of this size too
_MD5 = re.compile(r"[0-9a-f]{32}")


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
    digest, size, is_ours = hashlib.md5(usedforsecurity=False), 0, True
    for extent in entry.extents:
        ours = "://" not in extent.address
        is_ours &= ours  # somebody else's etag need not be an MD5, however much it looks like one
        if not extent.length:
            continue
        source, name = (store, extent.address) if ours else _located(extent.address, foreign, store_url)
        try:
            async for piece in source.stream(name, Span(extent.offset, extent.offset + extent.length)):
                digest.update(piece)
                size += len(piece)
                yield piece
        except NotFound:
            if ours:
                raise Corrupt(f"the bytes at {extent.address!r} are gone, though an entry refers to them") from None
            raise NotFound(f"{extent.address!r}, which the entry refers to, does not exist") from None
        except Invalid as error:
            raise Corrupt(f"the entry does not match what is stored: {error}") from None
    if size != entry.size_bytes:
        raise Corrupt(f"{entry.address!r} gave {size} bytes, its entry says {entry.size_bytes}")
    if is_ours and _MD5.fullmatch(entry.etag) and digest.hexdigest() != entry.etag:
        raise Corrupt(f"{entry.address!r} has MD5 {digest.hexdigest()}, its entry says {entry.etag}")


def _located(address: str, foreign: Callable[[str], ObjectStore], store_url: str) -> tuple[ObjectStore, str]:
    url, name = locate(address, store_url)
    return foreign(url), name


def locate(address: str, store_url: str = "") -> tuple[str, str]:
    """The URL of the store that holds a foreign object, and the object's name there. Of the same cloud as our own
    store, it has the same endpoint and region."""
    scheme, _, rest = address.partition("://")
    if scheme == "file":
        folder, _, name = rest.rpartition("/")
        container, name = f"file://{folder or '/'}", unquote(name)
    else:
        bucket, _, name = rest.partition("/")
        own = urlsplit(store_url)
        query = f"?{own.query}" if own.scheme == scheme and own.query else ""
        container = f"{scheme}://{bucket}{query}"
    if not name:
        raise Invalid(f"{address!r} names no object: expected scheme://bucket/name")
    return container, name
