"""Objects: read, list, copy and delete them."""

import asyncio
from email.utils import formatdate

import msgspec
from msgspec import UNSET, Struct

from lsmfs.api import wire
from lsmfs.api.answers import Answer, ApiError, Stream, stream
from lsmfs.api.branches import ForceQuery
from lsmfs.api.operations import Call, Operation
from lsmfs.api.paging import PAGE_DEFAULT, Amount, limit_of, listed
from lsmfs.api.params import etag_of, header_safe, parse_range
from lsmfs.api.staged import is_staged_only, staged_entry, staged_page
from lsmfs.api.writes import put, written
from lsmfs.auth import Action, Resource
from lsmfs.installation import Installation, without_password
from lsmfs.lsm.listing import Page
from lsmfs.lsm.writer import Writer
from lsmfs.model import Entry, key_of
from lsmfs.objectstore.store import Span
from lsmfs.repository import Repository
from refstore.errors import Denied, Invalid, NotFound

CONTENT_TYPE = "application/octet-stream"
# Users' objects come from the same origin as the API: a browser must not run what is in them.
SAFE_HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", b"default-src 'none'; sandbox"),
    (b"accept-ranges", b"bytes"),
]
NO_PRESIGN = "presigned URLs are not supported: an object is not one object of the store; read it here"


class ObjectQuery(Struct, frozen=True):
    path: str
    presign: bool = False


class StatQuery(Struct, frozen=True):
    path: str
    user_metadata: bool = True
    presign: bool = False


class ListQuery(Struct, frozen=True):
    prefix: str = ""
    delimiter: str = ""
    after: str = ""
    amount: Amount = PAGE_DEFAULT
    user_metadata: bool = True
    presign: bool = False


class PathQuery(Struct, frozen=True):
    path: str
    force: bool = False
    no_tombstone: bool = False


class CopyQuery(Struct, frozen=True):
    dest_path: str


async def get_object(call: Call) -> Answer | Stream:
    entry = await _entry(call)
    headers = _headers(entry)
    if (tag := call.header(b"if-none-match")) and etag_of(tag) in (entry.etag, "*"):
        return Answer(304, headers=headers)
    span = _span(call, entry)
    if span is None:
        start, stop, status = 0, entry.size_bytes, 200
    else:
        start, stop, status = span.start, span.stop, 206
        headers.append((b"content-range", f"bytes {start}-{stop - 1}/{entry.size_bytes}".encode()))
    kind = _content_type(entry).encode()
    if start == stop:
        return Answer(status, headers=[*headers, (b"content-type", kind)])
    headers += [(b"content-type", kind), (b"content-length", b"%d" % (stop - start))]
    try:
        return await stream(status, headers, call.lake.read_body(call.path["repository"], entry, span))
    except NotFound as error:  # somebody else's bytes: of our own that is `Corrupt`
        raise ApiError(410, f"gone: {error}") from None


async def head_object(call: Call) -> Answer:
    entry = await _entry(call)
    span = _span(call, entry)
    size = entry.size_bytes if span is None else span.stop - span.start
    headers = [*_headers(entry), (b"content-type", _content_type(entry).encode())]
    if span is not None:
        headers.append((b"content-range", f"bytes {span.start}-{span.stop - 1}/{entry.size_bytes}".encode()))
    answer = Answer(200 if span is None else 206)
    answer.headers = [*headers, (b"content-length", b"%d" % size)]
    return answer


def _span(call: Call, entry: Entry) -> Span | None:
    try:
        return parse_range(call.header(b"range"), entry.size_bytes)
    except IndexError:
        headers = {"content-range": f"bytes */{entry.size_bytes}"}
        raise ApiError(416, f"the object has {entry.size_bytes} bytes: the range is not in it", headers) from None


def _headers(entry: Entry) -> list[tuple[bytes, bytes]]:
    headers = [*SAFE_HEADERS, (b"last-modified", formatdate(_seconds(entry), usegmt=True).encode())]
    if (tag := header_safe(entry.etag)) and '"' not in tag:
        headers.append((b"etag", f'"{tag}"'.encode()))
    return headers


def _seconds(entry: Entry) -> int:
    return min(max(entry.mtime_us // 1_000_000, 0), 2**37)  # what a date can say: years 1970 to 6325


def _content_type(entry: Entry) -> str:
    return header_safe(entry.content_type) or CONTENT_TYPE


async def _entry(call: Call) -> Entry:
    if getattr(call.query, "presign", False):
        raise Invalid(NO_PRESIGN)
    repository, ref = await call.repository(), call.path["ref"]
    if is_staged_only(ref):
        return await staged_entry(repository, ref, call.query.path)
    return await repository.get(ref, call.query.path)


async def stat_object(call: Call) -> wire.ObjectStats:
    entry = await _entry(call)
    repository = await call.repository()
    return stats_of(call.query.path, entry, address_base(call, repository), call.query.user_metadata)


async def list_objects(call: Call) -> wire.ObjectList:
    query, repository, ref = call.query, await call.repository(), call.path["ref"]
    if query.presign:
        raise Invalid(NO_PRESIGN)
    wanted = query.prefix, query.delimiter, query.after, limit_of(query.amount)
    page = await (staged_page(repository, ref, *wanted) if is_staged_only(ref) else repository.list(ref, *wanted))
    return objects_of(page, address_base(call, repository), query.user_metadata)


def objects_of(page: Page, base: str, with_metadata: bool) -> wire.ObjectList:
    """A page as it goes out: one struct for each entry, and nothing else is made."""
    results = [
        wire.ObjectStats(key.decode(), "common_prefix", "", "", 0)
        if entry is None
        else stats_of(key.decode(), entry, base, with_metadata)
        for key, entry in page.items
    ]
    return listed(results, None if page.after is None else page.after.decode())


def stats_of(path: str, entry: Entry, base: str, with_metadata: bool = True) -> wire.ObjectStats:
    address = entry.address
    return wire.ObjectStats(
        path,
        "object",
        address if "://" in address else base + address,
        entry.etag,
        entry.mtime_us // 1_000_000,
        entry.size_bytes,
        entry.content_type or CONTENT_TYPE,
        (entry.metadata or {}) if with_metadata else UNSET,
    )


def address_base(call: Call, repository: Repository) -> str:
    """What stands before the names of our own store's objects."""
    installation: Installation = call.lake.installation
    return without_password(installation.storage_url(repository.record)).partition("?")[0].rstrip("/") + "/"


async def delete_object(call: Call) -> None:
    await written(call, lambda writer: writer.delete(call.query.path))


async def delete_objects(call: Call) -> wire.ObjectErrors:
    """Those that may be deleted are, in one flush; the others are told."""
    paths: list[str] = call.body.paths
    failed: dict[str, wire.ObjectError] = {}
    for path in paths:
        try:
            key_of(path)
            await call.check(Action.DELETE_OBJECT, Resource(call.path["repository"], call.path["branch"], path))
        except (Denied, Invalid) as error:
            failed[path] = wire.ObjectError(403 if isinstance(error, Denied) else 400, str(error), path)

    async def delete(writer: Writer) -> None:
        wanted = [path for path in dict.fromkeys(paths) if path not in failed]
        done = await asyncio.gather(*(writer.delete(path) for path in wanted), return_exceptions=True)
        for error in done:
            if isinstance(error, BaseException):
                raise error

    await written(call, delete)
    return wire.ObjectErrors(list(failed.values()))


async def copy_object(call: Call) -> wire.ObjectStats:
    """Another name for the same bytes."""
    given, repository = call.body, await call.repository()
    source = given.src_ref or call.path["branch"]
    await call.check(Action.READ_OBJECT, Resource(repository.name, source, given.src_path))
    entry = await repository.get(source, given.src_path)
    entry = msgspec.structs.replace(entry, mtime_us=call.lake.clock.now_us())
    await put(call, call.query.dest_path, entry)
    return stats_of(call.query.dest_path, entry, address_base(call, repository))


async def update_metadata(call: Call) -> None:
    """The object with other user metadata; 412 if somebody else wrote it meanwhile."""
    repository, path = await call.repository(), call.query.path
    await call.check(Action.READ_OBJECT, Resource(repository.name, call.path["branch"], path))
    entry = await repository.get(call.path["branch"], path)
    await put(call, path, msgspec.structs.replace(entry, metadata=call.body.set or None), entry.etag or None)


async def may_stage(call: Call) -> None:
    """Whether an upload would be let through: the check before this was the answer."""
    await (await call.repository()).policy.check("stage", call.path["branch"])


class Underlying(Struct, frozen=True):
    storage_class: str


async def underlying(call: Call) -> Underlying:
    await _entry(call)
    return Underlying("STANDARD")


def _destination(call: Call) -> Resource:
    return Resource(call.path["repository"], call.path["branch"], call.query.dest_path)


def _in_branch(call: Call) -> Resource:
    """Of many paths each is checked by the handler: what is asked before is whether the branch may be seen."""
    return Resource(call.path["repository"], call.path["branch"])


REF = "/repositories/{repository}/refs/{ref}/objects"
BRANCH = "/repositories/{repository}/branches/{branch}/objects"
OPERATIONS = (
    Operation(
        "getObject", "GET", REF, Action.READ_OBJECT, get_object, "*/*", query=ObjectQuery, also=(206, 304, 410, 416)
    ),
    Operation("headObject", "HEAD", REF, Action.READ_OBJECT, head_object, query=ObjectQuery, also=(206, 416)),
    Operation("statObject", "GET", f"{REF}/stat", Action.READ_OBJECT, stat_object, wire.ObjectStats, query=StatQuery),
    Operation("listObjects", "GET", f"{REF}/ls", Action.LIST_OBJECTS, list_objects, wire.ObjectList, query=ListQuery),
    Operation(
        "getUnderlyingProperties",
        "GET",
        f"{REF}/underlyingProperties",
        Action.READ_OBJECT,
        underlying,
        Underlying,
        query=ObjectQuery,
    ),
    Operation("deleteObject", "DELETE", BRANCH, Action.DELETE_OBJECT, delete_object, status=204, query=PathQuery),
    Operation(
        "deleteObjects",
        "POST",
        f"{BRANCH}/delete",
        Action.READ_BRANCH,
        delete_objects,
        wire.ObjectErrors,
        query=ForceQuery,
        body=wire.PathList,
        resource=_in_branch,
    ),
    Operation(
        "copyObject",
        "POST",
        f"{BRANCH}/copy",
        Action.WRITE_OBJECT,
        copy_object,
        wire.ObjectStats,
        201,
        CopyQuery,
        wire.ObjectCopy,
        resource=_destination,
    ),
    Operation(
        "updateObjectUserMetadata",
        "PUT",
        f"{BRANCH}/stat/user_metadata",
        Action.WRITE_OBJECT,
        update_metadata,
        status=201,
        query=ObjectQuery,
        body=wire.MetadataUpdate,
        also=(412,),
    ),
    Operation(
        "uploadObjectPreflight",
        "GET",
        f"{BRANCH}/stage_allowed",
        Action.WRITE_OBJECT,
        may_stage,
        status=204,
        query=ObjectQuery,
    ),
)
