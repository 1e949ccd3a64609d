"""Bodies out of the object store: an entry's extents one after the other, or a span of them.

An address is a name in the repository's own store, or a URL of somebody else's object (staged from a listing). What is
read whole from our own store is compared with what its name or its entry says (SHA-256 of a block, MD5 otherwise) and
with its size: `Corrupt` if they differ, told after the last byte. A part of an extent cannot be compared.
"""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from lsmfs import paths
from lsmfs.blocks.addresses import locate
from lsmfs.blocks.digests import Digest
from lsmfs.model import MD5, Entry, Extent
from lsmfs.objectstore.store import ObjectStore, Span
from refstore.errors import Corrupt, Invalid, NotFound

if TYPE_CHECKING:
    from hashlib import _Hash as Hash

SMALL_BYTES_MAX, SMALL_AT_ONCE = 256 * 1024, 16  # extents up to this are read so many at once: 4 MiB


async def read_body(
    entry: Entry,
    store: ObjectStore,
    foreign: Callable[[str], ObjectStore],
    store_url: str = "",
    span: Span | None = None,
    verify: bool = True,
) -> AsyncIterator[bytes]:
    """The entry's bytes, or those of the span, in pieces. `foreign` opens the store at a URL."""
    span = span or Span(0, entry.size_bytes)
    if not 0 <= span.start <= span.stop <= entry.size_bytes:
        raise Invalid(f"{entry.address!r} has {entry.size_bytes} bytes, not {span.start} to {span.stop}")
    extents, size = _clipped(entry.extents, span), 0
    check = _Check(_whole_md5(entry) if verify and span == (0, entry.size_bytes) else "")

    def opened(extent: Extent) -> AsyncIterator[bytes]:
        source, name = (store, extent.address) if extent.is_ours else _located(extent.address, foreign, store_url)
        return _stream(extent, source, name, verify)

    for group in _groups(extents):
        async for piece in _pieces([opened(extent) for extent in group]):
            await check.update(piece)
            size += len(piece)
            yield piece
    if size != span.stop - span.start:
        raise Corrupt(f"{entry.address!r} gave {size} bytes, its entry says {span.stop - span.start}")
    await check.end(entry.address)


def _clipped(extents: Sequence[Extent], span: Span) -> list[Extent]:
    """The extents that the span meets; of one that it meets in part, that part, whose digest nobody knows."""
    clipped, begin = [], 0
    for extent in extents:
        start, stop = max(span.start - begin, 0), min(span.stop - begin, extent.length)
        if start == 0 and stop == extent.length:
            clipped.append(extent)
        elif start < stop:
            clipped.append(Extent(extent.address, extent.offset + start, stop - start))
        begin += extent.length
    return clipped


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


async def _stream(extent: Extent, source: ObjectStore, name: str, verify: bool) -> AsyncIterator[bytes]:
    check = _Check(*_expected(extent)) if verify else _Check("")
    try:
        async for piece in source.stream(name, Span(extent.offset, extent.offset + extent.length)):
            await check.update(piece)
            yield piece
    except NotFound:
        if extent.is_ours:
            raise Corrupt(f"the bytes at {extent.address!r} are gone, though an entry refers to them") from None
        raise NotFound(f"{extent.address!r}, which the entry refers to, does not exist") from None
    except Invalid as error:
        raise Corrupt(f"the entry does not match what is stored: {error}") from None
    await check.end(extent.address)


def _expected(extent: Extent) -> "tuple[str, Callable[[], Hash]]":
    """The digest that an extent must have, if that is known: of a block its name says it."""
    block = paths.parse_block(extent.address) if extent.is_ours else None
    if block is not None and (extent.offset, extent.length) == (0, block.size_bytes):
        return block.digest, hashlib.sha256
    return extent.digest if extent.is_ours and MD5.fullmatch(extent.digest) else "", hashlib.md5


def _whole_md5(entry: Entry) -> str:
    """What all of it must have, if that is known and its extents do not tell as much each for itself."""
    extents = [extent for extent in entry.extents if extent.length]
    is_told = all(_expected(extent)[0] for extent in extents)
    is_ours = all(extent.is_ours for extent in extents)
    return entry.etag if is_ours and not is_told and MD5.fullmatch(entry.etag) else ""


class _Check:
    """What bytes must have; nothing is compared if what is expected is none."""

    def __init__(self, expected: str, make: "Callable[[], Hash]" = hashlib.md5) -> None:
        self._expected = expected
        self._digest = Digest(make)

    async def update(self, piece: bytes) -> None:
        if self._expected:
            await self._digest.update(piece)

    async def end(self, address: str) -> None:
        if self._expected and (found := await self._digest.hexdigest()) != self._expected:
            raise Corrupt(f"{address!r} has {self._digest.name.upper()} {found}, but should have {self._expected}")


def _located(address: str, foreign: Callable[[str], ObjectStore], store_url: str) -> tuple[ObjectStore, str]:
    url, name = locate(address, store_url)
    return foreign(url), name
