"""Appends: what becomes of an object that bytes are added to without anybody reading it.

An append is a record whose extents come after those of the object below. Records of one key are joined, newest first,
wherever layers meet: in a read, a compaction, a commit.

    append over put         a put: the extents of both, the newer time, content type and metadata of the put
    append over tombstone   a put of what was appended
    append over append      an append of both
    append over nothing     an append while layers may lie below (a compaction), a put where none do (a read, a commit)

Joining is associative: whoever joins first, the same row comes out, byte for byte. Therefore
- extents without bytes go, and nothing else is done to the list; an append without bytes changes only the time;
- the etag follows from the extents alone: the MD5 of one extent if it is known, else a hash of their text and their
  number, as S3 does it for the parts of an upload.
Joining never fails, however many extents come together: the writes were acknowledged. It is writers that refuse.
"""

import hashlib
from collections.abc import Sequence

import msgspec

from lsmfs.model import Entry, Extent

EMPTY_ETAG = hashlib.md5(b"", usedforsecurity=False).hexdigest()

_encode = msgspec.json.Encoder().encode


def joined(newest_first: Sequence[Entry], below: Entry | None) -> Entry:
    """What was appended, one or more, joined with the object below; None if there is none."""
    top = newest_first[0]
    if below is None:
        return of_extents([e for entry in reversed(newest_first) for e in entry.extents], top.mtime_us)
    if not any(entry.size_bytes for entry in newest_first):
        return msgspec.structs.replace(below, mtime_us=top.mtime_us)
    extents = [extent for entry in (below, *reversed(newest_first)) for extent in entry.extents]
    return of_extents(extents, top.mtime_us, below.content_type, below.metadata)


def of_extents(
    extents: Sequence[Extent], mtime_us: int, content_type: str | None = None, metadata: dict[str, str] | None = None
) -> Entry:
    """The one entry that these extents make."""
    some = [_plain(extent) for extent in extents if extent.length]
    if not some:
        return Entry("", 0, EMPTY_ETAG, mtime_us, 0, content_type, metadata)
    first, *rest = some
    size = sum(extent.length for extent in some)
    digest = first.digest if rest else ""  # of one extent alone, the etag is it
    return Entry(
        first.address, size, etag_of(some), mtime_us, first.offset, content_type, metadata, tuple(rest), digest
    )


def _plain(extent: Extent) -> Extent:
    """Without a digest if it is not in our store: a row of one extent could not say whose it is."""
    return extent if extent.is_ours or not extent.digest else Extent(extent.address, extent.offset, extent.length)


def etag_of(extents: Sequence[Extent]) -> str:
    if len(extents) == 1 and extents[0].digest:
        return extents[0].digest
    return f"{hashlib.sha256(text_of(extents)).hexdigest()[:32]}-{len(extents)}"


def text_of(extents: Sequence[Extent]) -> bytes:
    """Extents as they are stored: JSON, one way of writing for one list. A digest that is not known is left out."""
    return _encode([e if e.digest else (e.address, e.offset, e.length) for e in extents])
