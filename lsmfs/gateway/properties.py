"""What an object carries beside its bytes: S3's headers into an entry's metadata, and back.

    x-amz-meta-colour: red        metadata["colour"] = "red"
    Cache-Control: no-cache       metadata["lsmfs.header.cache-control"] = "no-cache"     also the others of CONTENT
    Content-Type                  the entry's content type
    x-amz-checksum-crc32: ...     metadata["lsmfs.checksum.crc32"] = "..."                .type if composite
    the sizes of its parts        metadata["lsmfs.parts"] = "5242880*9,77"

Names that begin with `lsmfs.` are ours, and no client may give them. What goes out as a header is looked at first:
other ways lead into the metadata too, and a line feed in it must not become a second header.
"""

import re
from base64 import b64encode
from collections.abc import Iterable, Mapping
from itertools import groupby

from lsmfs.gateway.chunked import content_encoding
from lsmfs.gateway.errors import S3Error
from lsmfs.gateway.request import Request
from lsmfs.model import EXTENTS_MAX, METADATA_BYTES_MAX, Entry

RESERVED = "lsmfs."
HEADER, CHECKSUM, PARTS = "lsmfs.header.", "lsmfs.checksum.", "lsmfs.parts"
USER = "x-amz-meta-"
USER_BYTES_MAX = 2048  # S3's limit
PARTS_CHARACTERS_MAX = 1024  # parts of all different sizes do not fit: then the object answers as one part
OURS_BYTES_MAX = PARTS_CHARACTERS_MAX + 512  # what is added later: parts and checksums
DEFAULT_TYPE = "binary/octet-stream"
CONTENT = ("cache-control", "content-disposition", "content-encoding", "content-language", "expires")
OVERRIDES = {f"response-{name}": name.encode() for name in (*CONTENT, "content-type")}

_USER = USER.encode()
_CONTENT = frozenset(name.encode() for name in CONTENT)
_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]{1,256}\Z")
_PARTS = re.compile(r"[0-9]{1,19}(\*[0-9]{1,5})?(,[0-9]{1,19}(\*[0-9]{1,5})?)*\Z")
_UNSAFE = re.compile(r"[\x00-\x08\x0a-\x1f\x7f\ud800-\udfff]")


def metadata_of(request: Request) -> dict[str, str]:
    """What the request wants to be kept; S3Error if it is too much or not possible."""
    found: dict[str, str] = {}
    names = request.header_names
    for raw in names:
        if raw.startswith(_USER):
            name = raw[len(_USER) :].decode("latin-1")
            if not name or name.startswith(RESERVED):
                raise S3Error("InvalidArgument", f"The metadata name {name!r} cannot be used: choose another one.")
            values = b",".join([value.strip() for value in request.values(raw)])
            found[name] = values.decode(errors="replace")
    if found and sum(len(name) + len(value.encode()) for name, value in found.items()) > USER_BYTES_MAX:
        raise S3Error("MetadataTooLarge", extra={"MaxSizeAllowed": str(USER_BYTES_MAX)})
    for raw in names & _CONTENT:
        name = raw.decode()
        value = content_encoding(request) if name == "content-encoding" else request.header(name)
        if value:
            found[HEADER + name] = value
    if found and sum(len(name) + len(value.encode()) for name, value in found.items()) > (
        METADATA_BYTES_MAX - OURS_BYTES_MAX
    ):
        raise S3Error("MetadataTooLarge", "The content headers are too long to be stored.")
    return found


def content_type_of(request: Request) -> str | None:
    value = request.header("content-type")
    if value and len(value) > USER_BYTES_MAX:
        raise S3Error("MetadataTooLarge", "The Content-Type is too long to be stored.")
    return value or None


def user_metadata(entry: Entry) -> dict[str, str]:
    return {name: value for name, value in (entry.metadata or {}).items() if not name.startswith(RESERVED)}


def headers_of(entry: Entry) -> list[tuple[bytes, bytes]]:
    """The headers of a GET or HEAD that come from the entry's properties."""
    headers = [(b"content-type", safe(entry.content_type or DEFAULT_TYPE))]
    if entry.metadata:
        missing = 0
        for name, value in entry.metadata.items():
            if name.startswith(HEADER):
                headers.append((name[len(HEADER) :].encode(), safe(value)))
            elif name.startswith(RESERVED):
                continue
            elif _TOKEN.match(name):
                headers.append((_USER + name.lower().encode(), safe(value)))
            else:
                missing += 1
        if missing:
            headers.append((b"x-amz-missing-meta", b"%d" % missing))
    return headers


def safe(value: str) -> bytes:
    """As a header's value: UTF-8, or what cannot stand in one as an encoded word, like S3 does it."""
    if _UNSAFE.search(value):
        return b"=?UTF-8?B?" + b64encode(value.encode(errors="replace")) + b"?="
    return value.encode()


def overridden(headers: list[tuple[bytes, bytes]], query: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    """With what response-* parameters ask for in place of what is stored; every request is signed with its query."""
    wanted: dict[bytes, bytes] = {}
    for parameter, name in OVERRIDES.items():
        if parameter in query:
            if _UNSAFE.search(query[parameter]):
                raise S3Error("InvalidArgument", f"{parameter} has characters that a header cannot have.")
            wanted[name] = query[parameter].encode()
    return [header for header in headers if header[0] not in wanted] + list(wanted.items()) if wanted else headers


def checksum_headers(entry: Entry) -> list[tuple[bytes, bytes]]:
    """For x-amz-checksum-mode: ENABLED."""
    found = checksums_of(entry)
    kind = found.pop("type", "FULL_OBJECT")
    headers = [(b"x-amz-checksum-" + name.encode(), value.encode()) for name, value in found.items()]
    return [*headers, (b"x-amz-checksum-type", kind.encode())] if headers else []


def checksums_of(entry: Entry) -> dict[str, str]:
    """Algorithm in lower case, and value; `type` if it is composite."""
    return {name[len(CHECKSUM) :]: value for name, value in (entry.metadata or {}).items() if name.startswith(CHECKSUM)}


def packed_sizes(sizes: Iterable[int]) -> str | None:
    """The sizes of parts in a short text; None if there is no short one."""
    runs = ((size, len(list(same))) for size, same in groupby(sizes))
    text = ",".join(str(size) if count == 1 else f"{size}*{count}" for size, count in runs)
    return text if len(text) <= PARTS_CHARACTERS_MAX else None


def part_sizes(entry: Entry) -> list[int]:
    """The sizes of the parts that the object was made of; none if it was put as one."""
    text = (entry.metadata or {}).get(PARTS, "")
    if not _PARTS.match(text):
        return []
    sizes: list[int] = []
    for run in text.split(","):
        size, _, count = run.partition("*")
        sizes += [int(size)] * int(count or 1)
        if len(sizes) > EXTENTS_MAX:
            return []
    return sizes if sum(sizes) == entry.size_bytes else []
