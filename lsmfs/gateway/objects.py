"""GetObject, HeadObject, PutObject, DeleteObject and GetObjectAttributes.

A put stores the body first and then, by the branch's shared writer, its entry: readers see all of it or nothing. Its
condition is decided where the entry is written, so of any number of racers one wins.

The root of a branch (`main/`) is a folder that is always there: clients put, look at and delete its marker.
"""

import hashlib
from collections.abc import AsyncIterator

import msgspec

from lsmfs.gateway.addressing import Place
from lsmfs.gateway.answers import Answer, Header, http_date, xml_answer
from lsmfs.gateway.calls import Call, check_branch, entry_at, unwritable
from lsmfs.gateway.checksums import HEADER as CHECKSUM_HEADER
from lsmfs.gateway.checksums import Checksums
from lsmfs.gateway.conditions import ANY, Written, check_readable, etags_of, seconds_of, span_of, write_condition
from lsmfs.gateway.errors import S3Error
from lsmfs.gateway.markup import element
from lsmfs.gateway.properties import (
    CHECKSUM,
    checksum_headers,
    checksums_of,
    content_type_of,
    headers_of,
    metadata_of,
    overridden,
    part_sizes,
    safe,
)
from lsmfs.model import Entry
from lsmfs.objectstore.store import Span
from lsmfs.repository import Repository
from refstore.errors import BranchReplaced, Conflict, Error, Invalid, LayersFull, NotFound, ViewChanged

READ_AT_ONCE_BYTES_MAX = 64 * 1024  # as large as a body in a pack; hashed here, a thread's turn would cost more
CHECKED_BYTES_MIN = 64 * 1024  # the branch of a smaller body is only looked at by its writer
EMPTY_ETAG = hashlib.md5(b"", usedforsecurity=False).hexdigest()
_ROOT = Entry("", 0, EMPTY_ETAG, content_type="application/x-directory")
_RANGES: Header = (b"accept-ranges", b"bytes")


async def get_object(call: Call) -> Answer:
    repository = await call.repository()
    entry = await _entry(repository, call.place)
    seconds = entry.mtime_us // 1_000_000
    headers = [(b"etag", quoted(entry.etag)), (b"last-modified", http_date(seconds)), _RANGES]
    try:
        check_readable(call.request, entry.etag, seconds)
    except S3Error as error:
        if error.code != "NotModified":
            raise
        return Answer(304, headers)
    span, count = _span(call, entry, seconds)
    headers += overridden(headers_of(entry), call.request.query)
    if count:
        headers.append((b"x-amz-mp-parts-count", b"%d" % count))
    if span is None:
        if (call.request.header("x-amz-checksum-mode") or "").upper() == "ENABLED":
            headers += checksum_headers(entry)
        status, length = 200, entry.size_bytes
    else:
        status, length = 206, span.stop - span.start
        place = (span.start, span.stop - 1, entry.size_bytes)
        headers.append((b"content-range", b"bytes %d-%d/%d" % place))
    if call.request.method == "HEAD":
        return Answer(status, headers, length=length)
    if 0 < length <= READ_AT_ONCE_BYTES_MAX and not entry.rest and entry.extents[0].is_ours:
        return Answer(status, headers, await call.lake.read_small(repository.name, entry, span))
    return Answer(status, headers, bytes_of(call, entry, span), length)


def bytes_of(
    call: Call, entry: Entry, span: Span | None = None, repository: str = ""
) -> "bytes | AsyncIterator[bytes]":
    if not entry.size_bytes:
        return b""
    return call.lake.read_body(repository or call.place.repository, entry, span)


def _span(call: Call, entry: Entry, seconds: int) -> tuple[Span | None, int]:
    """The bytes asked for, and the number of parts if one of them was."""
    ranged, number = call.request.header("range"), call.request.query.get("partNumber")
    if number is not None:
        if ranged is not None:
            raise S3Error("InvalidRequest", "Cannot specify both Range header and partNumber query parameter")
        return _part(entry, part_number(number))
    condition = call.request.header("if-range") if ranged is not None else None
    if condition is not None and entry.etag not in etags_of(condition) and seconds_of(condition) != seconds:
        return None, 0
    return span_of(ranged, entry.size_bytes), 0


def _part(entry: Entry, number: int) -> tuple[Span | None, int]:
    sizes = part_sizes(entry)
    if number > max(len(sizes), 1):
        raise S3Error("InvalidPartNumber", extra={"ActualPartCount": str(max(len(sizes), 1))})
    if not entry.size_bytes:
        return None, len(sizes)
    start = sum(sizes[: number - 1])
    return Span(start, start + (sizes[number - 1] if sizes else entry.size_bytes)), len(sizes)


def part_number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 5 and 1 <= int(text) <= 10_000):
        raise S3Error("InvalidArgument", "Part number must be an integer between 1 and 10000, inclusive")
    return int(text)


async def _entry(repository: Repository, place: Place) -> Entry:
    if place.path:
        return await entry_at(repository, place)
    if place.slashed:
        try:
            await repository.view(place.ref)
            return _ROOT
        except (NotFound, Invalid):
            pass
    raise S3Error("NoSuchKey", extra={"Key": place.key})


async def put_object(call: Call) -> Answer:
    request, place = call.request, call.place
    call.check_length()
    metadata, content_type, checksums = metadata_of(request), content_type_of(request), Checksums.from_request(request)
    condition = write_condition(request)
    repository = await call.writable()
    length = call.verified.payload.length
    if length is None or length > CHECKED_BYTES_MIN or not place.path:
        await check_branch(repository, place.ref)
    if not place.path:
        return await _put_root(call, checksums)
    condition = await foreseen(repository, place, condition)
    entry = await call.lake.save_body(repository.name, call.body(checksums), content_type, metadata or None)
    if checksums.values:
        for name, value in checksums.values.items():
            metadata[CHECKSUM + name.removeprefix(CHECKSUM_HEADER)] = value
        entry = msgspec.structs.replace(entry, metadata=metadata)
    await put_entry(call, repository, place, entry, condition)
    headers = [(b"etag", quoted(entry.etag))]
    if checksums.values:
        headers += [(name.encode(), value.encode()) for name, value in checksums.values.items()]
        headers.append((b"x-amz-checksum-type", b"FULL_OBJECT"))
    return Answer(200, headers)


async def _put_root(call: Call, checksums: Checksums) -> Answer:
    """The marker of a folder that is there already."""
    if await call.text(checksums):
        raise S3Error("InvalidRequest", f"{call.place.key!r} is a branch: give a path inside it to put an object.")
    return Answer(200, [(b"etag", quoted(EMPTY_ETAG))])


async def foreseen(repository: Repository, place: Place, condition: Written) -> Written:
    """The condition, if it can still hold: known before a body is sent for nothing. The writer has the last word."""
    if condition.expected is None:
        return condition
    there = (await repository.get_many(place.ref, [place.path])).get(place.path.encode()) if place.path else None
    if isinstance(condition.expected, str):
        if there is None:
            raise S3Error("NoSuchKey", extra={"Key": place.key})
        if condition.expected not in (ANY, there.etag):
            raise S3Error("PreconditionFailed", extra={"Condition": "If-Match"})
        return Written(there.etag)
    if there is not None:
        raise S3Error("PreconditionFailed", extra={"Condition": "If-None-Match"})
    return condition


async def put_entry(call: Call, repository: Repository, place: Place, entry: Entry, condition: Written) -> None:
    """Make the entry visible if its condition holds, durably; S3Error PreconditionFailed."""
    try:
        async with call.lake.writing(repository.name, place.ref) as writer:
            await writer.put(place.path, entry, condition.expected)
    except Error as error:
        raise await refused_write(repository, place, error, condition) from error


async def refused_write(repository: Repository, place: Place, error: Error, condition: Written) -> Error:
    if isinstance(error, Conflict) and condition.expected is not None:
        if isinstance(error, (ViewChanged, BranchReplaced)):
            return S3Error("ConditionalRequestConflict")
        if not isinstance(error, LayersFull):
            return S3Error("PreconditionFailed", str(error))
    return await unwritable(repository, place.ref, error)


async def delete_object(call: Call) -> Answer:
    condition = write_condition(call.request)
    repository = await call.writable()
    if condition.expected is not None and not isinstance(condition.expected, str):
        raise S3Error("NotImplemented", "A delete can only be conditional by If-Match.")
    if not call.place.path:
        await check_branch(repository, call.place.ref)
        return Answer(204)
    condition = await foreseen(repository, call.place, condition)
    expected = condition.expected if isinstance(condition.expected, str) else None
    try:
        async with call.lake.writing(repository.name, call.place.ref) as writer:
            await writer.delete(call.place.path, expected)
    except Error as error:
        raise await refused_write(repository, call.place, error, condition) from error
    return Answer(204)


async def get_object_attributes(call: Call) -> Answer:
    wanted = {
        name.strip() for name in (call.request.joined(b"x-amz-object-attributes") or b"").decode("latin-1").split(",")
    }
    if not wanted <= {"ETag", "Checksum", "ObjectParts", "StorageClass", "ObjectSize"}:
        raise S3Error("InvalidArgument", "Invalid attribute name specified.")
    entry = await _entry(await call.repository(), call.place)
    parts = ""
    if "ETag" in wanted:
        parts += element("ETag", entry.etag)
    if "Checksum" in wanted and (checksums := checksums_of(entry)):
        kind = element("ChecksumType", checksums.pop("type", "FULL_OBJECT"))
        values = "".join(element(f"Checksum{name.upper()}", value) for name, value in checksums.items())
        parts += f"<Checksum>{values}{kind}</Checksum>"
    if "ObjectParts" in wanted and (sizes := part_sizes(entry)):
        parts += f"<ObjectParts>{element('PartsCount', len(sizes))}</ObjectParts>"
    if "StorageClass" in wanted:
        parts += element("StorageClass", "STANDARD")
    if "ObjectSize" in wanted:
        parts += element("ObjectSize", entry.size_bytes)
    modified = (b"last-modified", http_date(entry.mtime_us // 1_000_000))
    return xml_answer("GetObjectAttributesResponse", parts, headers=[modified])


def quoted(etag: str) -> bytes:
    return b'"' + safe(etag) + b'"'
