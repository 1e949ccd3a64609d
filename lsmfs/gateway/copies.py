"""CopyObject and UploadPartCopy: entries and extents are copied, bytes are not.

A copy within one store refers to the same stored bytes, also across repositories: whose bytes they are is told first
(`Lake.borrow`). Only if the repositories have different stores are the bytes read and stored again.

Whoever copies must be allowed to read the source, and to write the target.
"""

import hashlib
from collections.abc import AsyncIterator
from urllib.parse import unquote

import msgspec

from lsmfs.auth import Action, Resource
from lsmfs.gateway.addressing import Place, check_bucket, place_of
from lsmfs.gateway.answers import Answer, xml_answer, xml_date
from lsmfs.gateway.assembling import joined, with_digest
from lsmfs.gateway.calls import Call, check_branch, entry_at
from lsmfs.gateway.conditions import COPY_SOURCE, check_readable, exact_span, write_condition
from lsmfs.gateway.errors import S3Error
from lsmfs.gateway.markup import element
from lsmfs.gateway.objects import bytes_of, foreseen, part_number, put_entry
from lsmfs.gateway.properties import HEADER as HEADER_PREFIX
from lsmfs.gateway.properties import RESERVED, content_type_of, metadata_of
from lsmfs.gateway.uploads import Part, Uploads
from lsmfs.model import MD5, Entry, Extent
from lsmfs.objectstore.store import Span
from lsmfs.repository import Repository

PART_BYTES_MAX = 5 * 1024**3  # S3's


def source_of(call: Call) -> Place:
    """The source that the header names, with or without a slash before it, encoded."""
    said = (call.request.header("x-amz-copy-source") or "").removeprefix("/")
    path, _, query = said.partition("?")
    if query and query != "versionId=null":
        raise S3Error("NotImplemented", "Objects have no versions here: copy from a tag or a commit.")
    try:
        bucket, _, key = unquote(path, errors="strict").removeprefix("/").partition("/")
    except UnicodeDecodeError:
        bucket = key = ""
    if not bucket or not key:
        raise S3Error("InvalidArgument", "x-amz-copy-source must be /repository/ref/path, encoded as in a URL.")
    return place_of(check_bucket(bucket), key)


async def _source(call: Call) -> tuple[Place, Repository, Entry]:
    """The source, if the caller may read it and its conditions hold."""
    place = source_of(call)
    await call.check(Action.READ_OBJECT, Resource(place.repository, place.ref, place.path))
    repository = await call.repository(place.repository)
    if not place.path:
        raise S3Error("NoSuchKey", extra={"Key": place.key})
    entry = await entry_at(repository, place)
    check_readable(call.request, entry.etag, entry.mtime_us // 1_000_000, COPY_SOURCE)
    return place, repository, entry


async def copy_object(call: Call) -> Answer:
    condition = write_condition(call.request)
    directive = (call.request.header("x-amz-metadata-directive") or "COPY").upper()
    if directive not in ("COPY", "REPLACE"):
        raise S3Error("InvalidArgument", "Unknown metadata directive: it is COPY or REPLACE.")
    source, origin, entry = await _source(call)
    if source[:3] == call.place[:3] and directive == "COPY":
        raise S3Error(
            "InvalidRequest",
            "This copy request is illegal because it is trying to copy an object to itself without changing the "
            "object's metadata: say x-amz-metadata-directive: REPLACE.",
        )
    target = await call.writable()
    if not call.place.path:
        raise S3Error("InvalidRequest", f"{call.place.key!r} is a branch: give a path inside it.")
    condition = await foreseen(target, call.place, condition)
    if directive == "REPLACE":
        kept = {name: value for name, value in (entry.metadata or {}).items() if _is_of_bytes(name)}
        metadata = {**kept, **metadata_of(call.request)} or None
        entry = msgspec.structs.replace(entry, content_type=content_type_of(call.request), metadata=metadata)
    entry = await _brought(call, origin, target, entry)
    entry = msgspec.structs.replace(entry, mtime_us=call.lake.clock.now_us())
    await put_entry(call, target, call.place, entry, condition)
    modified = element("LastModified", xml_date(entry.mtime_us))
    return xml_answer("CopyObjectResult", modified, element("ETag", f'"{entry.etag}"'))


def _is_of_bytes(name: str) -> bool:
    """Checksums and parts tell of the bytes, and go where they go."""
    return name.startswith(RESERVED) and not name.startswith(HEADER_PREFIX)


async def _brought(call: Call, origin: Repository, target: Repository, entry: Entry) -> Entry:
    """The entry as it can stand in the target."""
    if origin.name == target.name:
        return entry
    if origin.store is target.store:
        await _borrow(call, origin, target, entry.extents)
        return entry
    await check_branch(target, call.place.ref)
    saved = await _stored_again(call, origin, target, entry, None)
    return msgspec.structs.replace(saved, etag=entry.etag, content_type=entry.content_type, metadata=entry.metadata)


async def _borrow(call: Call, origin: Repository, target: Repository, extents: tuple[Extent, ...]) -> None:
    """Tell those whose bytes these are: the source may have borrowed them itself, and may go before them."""
    owners = {extent.address.rpartition("/data/")[0] or origin.name for extent in extents if extent.is_ours}
    for owner in sorted(owners - {target.name}):
        await call.lake.borrow(owner, target.name)


async def _stored_again(call: Call, origin: Repository, target: Repository, entry: Entry, span: Span | None) -> Entry:
    pieces = bytes_of(call, entry, span, origin.name)

    async def stream() -> AsyncIterator[bytes]:
        if isinstance(pieces, bytes):
            yield pieces
        else:
            async for piece in pieces:
                yield piece

    return await call.lake.save_body(target.name, stream())


async def upload_part_copy(call: Call) -> Answer:
    number = part_number(call.request.query["partNumber"])
    target = await call.writable()
    uploads = Uploads(target.refs, target.name, call.lake.clock)
    upload = await uploads.open(call.request.query["uploadId"], call.place)
    _, origin, entry = await _source(call)
    ranged = call.request.header("x-amz-copy-source-range")
    span = Span(0, entry.size_bytes) if ranged is None else exact_span(ranged, entry.size_bytes)
    if span.stop - span.start > PART_BYTES_MAX:
        raise S3Error("EntityTooLarge", f"A part has {PART_BYTES_MAX} bytes at most: copy ranges of the source.")
    part = await _part(call, origin, target, entry, span, number)
    await uploads.put_part(upload, part)
    modified = element("LastModified", xml_date(part.modified_us))
    return xml_answer("CopyPartResult", modified, element("ETag", f'"{part.etag}"'))


async def _part(call: Call, origin: Repository, target: Repository, entry: Entry, span: Span, number: int) -> Part:
    if origin.name != target.name and origin.store is not target.store:
        saved = await _stored_again(call, origin, target, entry, span)
        extents, etag = with_digest(saved.extents, saved.etag), saved.etag
    else:
        extents = tuple(joined(clipped(entry.extents, span)))
        if origin.name != target.name:
            await _borrow(call, origin, target, extents)
        is_whole = span == (0, entry.size_bytes) and MD5.fullmatch(entry.etag)
        etag = entry.etag if is_whole else _etag_of(extents)
    return Part(number, etag, span.stop - span.start, call.lake.clock.now_us(), extents)


def clipped(extents: tuple[Extent, ...], span: Span) -> list[Extent]:
    """The extents of a span; of one that it meets in part, that part, whose digest nobody knows."""
    found, begin = [], 0
    for extent in extents:
        start, stop = max(span.start - begin, 0), min(span.stop - begin, extent.length)
        if (start, stop) == (0, extent.length):
            found.append(extent)
        elif start < stop:
            found.append(Extent(extent.address, extent.offset + start, stop - start))
        begin += extent.length
    return [extent for extent in found if extent.length] or [Extent(extents[0].address, 0, 0)]


def _etag_of(extents: tuple[Extent, ...]) -> str:
    """Of bytes that are not read: it differs if they do, and says no more."""
    return hashlib.md5(msgspec.json.encode(extents), usedforsecurity=False).hexdigest()
