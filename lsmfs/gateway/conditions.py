"""Conditions and ranges of requests: pure functions of headers and what is there.

    check_readable(request, etag, seconds, prefix="")   GET, HEAD, and a copy's source (prefix COPY_SOURCE)
    write_condition(request) -> Written                 what a PUT, a complete or a delete demands of what is there
    span_of(header, size_bytes) -> Span | None          None: the whole object

Precedence is HTTP's: If-Match over If-Unmodified-Since, If-None-Match over If-Modified-Since. Clients write etags with
quotes, without, and weak ones: all are compared by what is inside.
"""

import re
from email.utils import parsedate_to_datetime
from typing import NamedTuple

from lsmfs.gateway.errors import S3Error
from lsmfs.gateway.request import Request
from lsmfs.objectstore.store import Span
from refstore.store import ABSENT, Absent

_RANGE = re.compile(r"bytes\s*=\s*([0-9]{0,19})\s*-\s*([0-9]{0,19})\Z")
ANY = "*"


def etags_of(value: str) -> list[str]:
    """The etags that a header lists, without quotes and weakness."""
    return [tag.strip().removeprefix("W/").strip('"') for tag in value.split(",")]


def seconds_of(value: str | None) -> int | None:
    """An HTTP date in seconds; None if there is none or it cannot be read, which is then ignored."""
    if not value:
        return None
    try:
        return int(parsedate_to_datetime(value).timestamp())
    except (ValueError, TypeError, OverflowError, IndexError):
        return None


def check_readable(request: Request, etag: str, seconds: int, prefix: str = "") -> None:
    """S3Error PreconditionFailed, or NotModified (PreconditionFailed for a copy's source)."""
    if not request.header_names & _READ_CONDITIONS[prefix]:
        return
    match = request.header(f"{prefix}if-match")
    unmodified_since = seconds_of(request.header(f"{prefix}if-unmodified-since"))
    if match is not None:
        if not _names(match, etag):
            raise S3Error("PreconditionFailed", extra={"Condition": "If-Match"})
    elif unmodified_since is not None and seconds > unmodified_since:
        raise S3Error("PreconditionFailed", extra={"Condition": "If-Unmodified-Since"})
    not_modified = "PreconditionFailed" if prefix else "NotModified"
    none_match = request.header(f"{prefix}if-none-match")
    modified_since = seconds_of(request.header(f"{prefix}if-modified-since"))
    if none_match is not None:
        if _names(none_match, etag):
            raise S3Error(not_modified)
    elif modified_since is not None and seconds <= modified_since:
        raise S3Error(not_modified)


_NAMES = ("if-match", "if-none-match", "if-modified-since", "if-unmodified-since")
COPY_SOURCE = "x-amz-copy-source-"
_READ_CONDITIONS = {prefix: frozenset((prefix + name).encode() for name in _NAMES) for prefix in ("", COPY_SOURCE)}


def _names(value: str, etag: str) -> bool:
    return value.strip() == ANY or etag in etags_of(value)


class Written(NamedTuple):
    """What must be there: nothing (ABSENT), an etag, anything at all ("*"), or no matter (None)."""

    expected: str | Absent | None

    @property
    def is_any(self) -> bool:
        return self.expected == ANY


def write_condition(request: Request) -> Written:
    none_match, match = request.header("if-none-match"), request.header("if-match")
    if none_match is None and match is None:
        return Written(None)
    if none_match is not None and match is not None:
        raise S3Error("NotImplemented", "Give If-Match or If-None-Match, not both.")
    if none_match is not None:
        if none_match.strip() != ANY:
            raise S3Error("NotImplemented", "To write, If-None-Match can only be *: that there is nothing yet.")
        return Written(ABSENT)
    tags = etags_of(match or "")
    if len(tags) != 1 or not tags[0]:
        raise S3Error("InvalidArgument", "To write, If-Match must be one etag.")
    return Written(tags[0])


def span_of(header: str | None, size_bytes: int) -> Span | None:
    """The bytes asked for; S3Error InvalidRange if the object has none of them. Several ranges and what cannot be read
    are ignored, as S3 does."""
    found = _RANGE.match(header.strip()) if header else None
    if found is None:
        return None
    first, last = found.groups()
    if not first and not last:
        return None
    if not first:
        start, stop = max(0, size_bytes - int(last)), size_bytes
    else:
        start = int(first)
        stop = min(int(last) + 1, size_bytes) if last else size_bytes
        if last and int(last) < start:
            return None
    if start >= stop:
        extra = {"RangeRequested": found.group(), "ActualObjectSize": str(size_bytes)}
        raise S3Error("InvalidRange", extra=extra, headers={"content-range": f"bytes */{size_bytes}"})
    return Span(start, stop)


def exact_span(header: str, size_bytes: int) -> Span:
    """The range of a part's copy: both ends must be there."""
    found = _RANGE.match(header.strip())
    if found is None or not found[1] or not found[2] or int(found[2]) < int(found[1]):
        raise S3Error(
            "InvalidArgument", "The x-amz-copy-source-range must be bytes=FIRST-LAST, both inside the source."
        )
    if int(found[2]) >= size_bytes:
        raise S3Error("InvalidRange", f"The source has {size_bytes} bytes, not {found[0]}.")
    return Span(int(found[1]), int(found[2]) + 1)
