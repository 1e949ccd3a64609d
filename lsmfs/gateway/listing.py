"""ListObjects, versions 1 and 2, of objects and of refs.

    prefix          lists
    ""  "ma"        the refs that begin so (branches that are not hidden, and tags), as common prefixes
    "main/a"        the objects of that ref, any revision; none if there is no such ref

A page begins after a marker, a start or a token: with items that are greater, as strings, than it. So a start inside of
a common prefix passes over that prefix.
"""

from collections.abc import AsyncIterator, Callable
from typing import NamedTuple

from lsmfs.gateway.addressing import Place
from lsmfs.gateway.answers import Answer, xml_answer, xml_date
from lsmfs.gateway.buckets import owner_of
from lsmfs.gateway.calls import Call, is_revision
from lsmfs.gateway.errors import S3Error
from lsmfs.gateway.markup import element, escape, url_encode_key
from lsmfs.gateway.tokens import number_of, read_token, token_of
from lsmfs.lsm.listing import PAGE_MAX
from lsmfs.model import Entry
from lsmfs.repository import Repository
from refstore.errors import Invalid, NotFound

DELIMITER_CHARACTERS_MAX = 1024  # as long as a key


class Listed(NamedTuple):
    """A page: keys and common prefixes (None) in one order, and whether there are more."""

    items: list[tuple[str, Entry | None]]
    is_truncated: bool


class Asked(NamedTuple):
    """What both versions of the request have in common."""

    prefix: str
    delimiter: str
    limit: int
    encode: Callable[[str], str]
    encoding: str

    def echoed(self, name: str, value: str) -> str:
        return element(name, self.encode(value))


def asked_of(call: Call) -> Asked:
    query = call.request.query
    encoding = query.get("encoding-type", "")
    if encoding not in ("", "url"):
        raise S3Error("InvalidArgument", "Invalid Encoding Method specified in Request")
    prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
    if "\0" in prefix + delimiter or len(delimiter) > DELIMITER_CHARACTERS_MAX:
        raise S3Error("InvalidArgument", "The prefix or the delimiter has a NUL byte, or is too long.")
    limit = number_of(query.get("max-keys"), "max-keys", PAGE_MAX)
    return Asked(prefix, delimiter, limit, url_encode_key if encoding else str, encoding)


async def list_objects_v2(call: Call) -> Answer:
    query = call.request.query
    if query["list-type"] != "2":
        raise S3Error("InvalidArgument", "Invalid list type specified in Request: there is 2, and none.")
    asked, token, start = asked_of(call), query.get("continuation-token"), query.get("start-after", "")
    after = read_token(token) if token is not None else start
    page = await _page(call, asked, after)
    head = [element("Name", call.bucket), asked.echoed("Prefix", asked.prefix), element("KeyCount", len(page.items))]
    if token is not None:
        head.append(element("ContinuationToken", token))
    elif start:
        head.append(asked.echoed("StartAfter", start))
    if page.is_truncated:
        head.append(element("NextContinuationToken", token_of(page.items[-1][0])))
    owner = owner_of(call) if query.get("fetch-owner", "").lower() == "true" else ""
    return xml_answer("ListBucketResult", *head, *_common(asked, page), *contents(asked, page, owner))


async def list_objects(call: Call) -> Answer:
    asked, marker = asked_of(call), call.request.query.get("marker", "")
    page = await _page(call, asked, marker)
    head = [element("Name", call.bucket), asked.echoed("Prefix", asked.prefix), asked.echoed("Marker", marker)]
    # Without a delimiter the last key is the next marker; refs are prefixes, so there is no last key among them.
    if page.is_truncated and (asked.delimiter or page.items[-1][1] is None):
        head.append(asked.echoed("NextMarker", page.items[-1][0]))
    return xml_answer("ListBucketResult", *head, *_common(asked, page), *contents(asked, page, owner_of(call)))


def _common(asked: Asked, page: Listed) -> list[str]:
    """The elements of both versions."""
    common = [
        element("MaxKeys", asked.limit),
        element("IsTruncated", "true" if page.is_truncated else "false"),
    ]
    if asked.delimiter:
        common.append(asked.echoed("Delimiter", asked.delimiter))
    if asked.encoding:
        common.append(element("EncodingType", asked.encoding))
    return common


def contents(asked: Asked, page: Listed, owner: str) -> list[str]:
    """Keys, then common prefixes. A page of 1,000 is the hot path."""
    encode, keys, prefixes = asked.encode, [], []
    for key, entry in page.items:
        name = escape(encode(key))
        if entry is None:
            prefixes.append(f"<CommonPrefixes><Prefix>{name}</Prefix></CommonPrefixes>")
        else:
            keys.append(
                f"<Contents><Key>{name}</Key><LastModified>{xml_date(entry.mtime_us)}</LastModified>"
                f"<ETag>&quot;{escape(entry.etag)}&quot;</ETag><Size>{entry.size_bytes}</Size>{owner}"
                "<StorageClass>STANDARD</StorageClass></Contents>"
            )
    return keys + prefixes


async def _page(call: Call, asked: Asked, after: str) -> Listed:
    repository = await call.repository()
    if not asked.limit:
        return Listed([], False)
    place = prefix_place(call.bucket, asked.prefix)
    if not place.slashed:
        return await _refs_page(call, repository, asked, after)
    return await _objects_page(repository, place, asked, after)


def prefix_place(bucket: str, prefix: str) -> Place:
    """A prefix as a place: with a slash it is inside of a ref."""
    ref, slash, path = prefix.partition("/")
    return Place(bucket, ref, path, bool(slash))


async def _objects_page(repository: Repository, place: Place, asked: Asked, after: str) -> Listed:
    root = f"{place.ref}/"
    if after.startswith(root):
        path_after = after[len(root) :]
    elif after > root:
        return Listed([], False)  # everything here is before it
    else:
        path_after = ""
    try:
        page = await repository.list(place.ref, place.path, asked.delimiter, path_after, asked.limit)
    except NotFound:
        return Listed([], False)
    except Invalid:
        if is_revision(place.ref):
            raise
        return Listed([], False)
    return Listed([(root + path.decode(), entry) for path, entry in page.items], page.after is not None)


async def _refs_page(call: Call, repository: Repository, asked: Asked, after: str) -> Listed:
    """All refs are read for each page: they are sorted with their slashes, and stored without."""
    names = sorted({f"{name}/" async for name in _refs(call, repository, asked.prefix)})
    greater = [(name, None) for name in names if name > after]
    return Listed([*greater[: asked.limit]], len(greater) > asked.limit)


async def _refs(call: Call, repository: Repository, prefix: str) -> AsyncIterator[str]:
    async for branch in repository.list_branches(prefix):
        yield branch.name
    async for tag, _ in repository.tags.all(prefix):
        yield tag
