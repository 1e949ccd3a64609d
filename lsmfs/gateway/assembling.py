"""From parts to an object: which parts a client names, whether they can be one, and the entry that they become.

Pure functions. Nothing is read and no byte moves: an object is the list of its parts' extents. Its etag is the MD5 of
the parts' MD5s and their number, as S3 makes it; its checksum is of the parts' checksums (composite) or, for CRCs, that
of the whole (full object), which can be computed from those of the parts.
"""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from awscrt.checksums import combine_crc32, combine_crc32c, combine_crc64nvme  # type: ignore[import-untyped]

from lsmfs.gateway.checksums import ALGORITHMS, digest_of
from lsmfs.gateway.conditions import etags_of
from lsmfs.gateway.errors import S3Error
from lsmfs.gateway.properties import CHECKSUM, PARTS, packed_sizes
from lsmfs.gateway.uploads import PARTS_MAX, Part, Upload
from lsmfs.gateway.xml import Element, parse
from lsmfs.model import MD5, Entry, Extent

PART_BYTES_MIN = 5 * 1024 * 1024  # S3's, of every part but the last
_COMBINE = {"CRC32": combine_crc32, "CRC32C": combine_crc32c, "CRC64NVME": combine_crc64nvme}


class Named(NamedTuple):
    """A part as the client names it."""

    number: int
    etag: str
    checksums: dict[str, str]


def named_parts(body: bytes) -> list[Named]:
    """The parts of a CompleteMultipartUpload; S3Error MalformedXML, InvalidPartOrder."""
    named = [_named(each) for each in parse(body, "CompleteMultipartUpload").findall("Part")]
    if not 0 < len(named) <= PARTS_MAX:
        raise S3Error("MalformedXML", f"An object has 1 to {PARTS_MAX} parts, not {len(named)}.")
    if any(left.number >= right.number for left, right in pairwise(named)):
        raise S3Error("InvalidPartOrder")
    return named


def _named(each: Element) -> Named:
    number, etag = (each.findtext("PartNumber") or "").strip(), each.findtext("ETag")
    if not (number.isascii() and number.isdigit() and len(number) <= 5) or etag is None:
        raise S3Error("MalformedXML", "A Part needs a PartNumber and an ETag.")
    if not 1 <= int(number) <= PARTS_MAX:
        raise S3Error("InvalidArgument", f"PartNumber must be an integer between 1 and {PARTS_MAX}, inclusive")
    checksums = {name: text for name in ALGORITHMS if (text := each.findtext(f"Checksum{name}"))}
    return Named(int(number), etags_of(etag)[0].lower(), checksums)


def chosen(named: Sequence[Named], parts: Mapping[int, Part]) -> list[Part]:
    """The parts that are there; S3Error InvalidPart, EntityTooSmall."""
    found = []
    for each in named:
        part = parts.get(each.number)
        said = each.checksums.get(part.algorithm) if part else None
        if part is None or part.etag != each.etag or (said and said != part.checksum):
            extra = {"PartNumber": str(each.number), "ETag": each.etag[:80]}
            raise S3Error("InvalidPart", extra=extra)
        found.append(part)
    for part in found[:-1]:
        if part.size_bytes < PART_BYTES_MIN:
            extra = {
                "ProposedSize": str(part.size_bytes),
                "MinSizeAllowed": str(PART_BYTES_MIN),
                "PartNumber": str(part.number),
            }
            raise S3Error("EntityTooSmall", extra=extra)
    return found


def assembled(upload: Upload, parts: Sequence[Part], mtime_us: int) -> tuple[Entry, dict[str, str]]:
    """The object, and its checksums as they are kept."""
    extents = joined([extent for part in parts for extent in part.extents])
    digests = b"".join(bytes.fromhex(part.etag) for part in parts)
    etag = f"{hashlib.md5(digests, usedforsecurity=False).hexdigest()}-{len(parts)}"
    checksums = checksums_of(upload, parts)
    metadata = {**upload.metadata, **{CHECKSUM + name: value for name, value in checksums.items()}}
    sizes = packed_sizes(part.size_bytes for part in parts)
    if sizes is not None:
        metadata[PARTS] = sizes
    return entry_of(extents, etag, mtime_us, upload.content_type, metadata), checksums


def entry_of(
    extents: Sequence[Extent], etag: str, mtime_us: int, content_type: str | None, metadata: dict[str, str]
) -> Entry:
    first, *rest = extents
    return Entry(
        first.address,
        sum(extent.length for extent in extents),
        etag,
        mtime_us,
        offset=first.offset,
        content_type=content_type,
        metadata=metadata or None,
        rest=tuple(rest),
        digest=first.digest if rest else "",
    )


def joined(extents: Sequence[Extent]) -> list[Extent]:
    """The same bytes in as few extents as can be: without empty ones, neighbours in one object as one."""
    found: list[Extent] = []
    for extent in extents:
        last = found[-1] if found else None
        if last is not None and last.address == extent.address and last.offset + last.length == extent.offset:
            found[-1] = Extent(last.address, last.offset, last.length + extent.length)
        elif extent.length:
            found.append(extent)
    return found or [*extents[:1]]


def with_digest(extents: tuple[Extent, ...], etag: str) -> tuple[Extent, ...]:
    """One extent alone has the MD5 that is its part's etag."""
    if len(extents) != 1 or not MD5.fullmatch(etag) or not extents[0].is_ours:
        return extents
    [only] = extents
    return (Extent(only.address, only.offset, only.length, etag),)


def checksums_of(upload: Upload, parts: Sequence[Part]) -> dict[str, str]:
    """The object's checksum by those of its parts: {"crc32": value}, and "type" if it is composite."""
    algorithm = upload.algorithm or parts[0].algorithm
    if not algorithm or any(part.algorithm != algorithm for part in parts):
        return {}
    values = [base64.b64decode(part.checksum) for part in parts]
    if upload.is_composite or algorithm not in _COMBINE:
        digest = digest_of(algorithm)
        digest.update(b"".join(values))
        composite = f"{base64.b64encode(digest.digest()).decode()}-{len(parts)}"
        return {algorithm.lower(): composite, "type": "COMPOSITE"}
    combine, whole = _COMBINE[algorithm], int.from_bytes(values[0], "big")
    for part, value in zip(parts[1:], values[1:], strict=True):
        whole = combine(whole, int.from_bytes(value, "big"), part.size_bytes)
    return {algorithm.lower(): base64.b64encode(whole.to_bytes(len(values[0]), "big")).decode()}
