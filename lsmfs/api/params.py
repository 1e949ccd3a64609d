"""What a request says beside its body: query parameters as a struct, ranges, conditions, user metadata.

Booleans come as `True` and as `true`; a plus in a query is a space; names and values are UTF-8. Whatever is wrong is
`Invalid` and names the parameter.
"""

import re
from collections.abc import Iterable
from typing import Any, get_origin, get_type_hints
from urllib.parse import parse_qsl, unquote_to_bytes

import msgspec

from lsmfs.objectstore.store import Span
from refstore.errors import Invalid

FIELDS_MAX = 1100  # of a query: the longest is `objects` of a log, a page of them and a few others
META_PREFIX = b"x-lakefs-meta-"
_RANGE = re.compile(r"bytes=(\d{0,19})-(\d{0,19})", re.ASCII)
_HEADER_SAFE = re.compile(r"[\x20-\x7e]{1,512}")
_lists: dict[type, frozenset[str]] = {}


def parse_query(raw: bytes, kind: type[Any]) -> Any:
    """The query as a struct of that kind; unknown names are left out, as lakeFS does."""
    lists = _lists.get(kind)
    if lists is None:
        hints = get_type_hints(kind)
        lists = _lists[kind] = frozenset(name for name, hint in hints.items() if get_origin(hint) in (list, tuple))
    values: dict[str, Any] = {}
    try:
        for name, value in parse_qsl(
            raw.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=FIELDS_MAX
        ):
            if name in lists:
                values.setdefault(name, []).append(value)
            else:
                values[name] = value
        return msgspec.convert(values, type=kind, strict=False)
    except (UnicodeError, ValueError) as error:  # msgspec's errors are ValueErrors too
        raise Invalid(f"the query is wrong: {error}") from None


def parse_segments(raw: bytes) -> list[str]:
    """The parts of a path, each decoded by itself, so that %2F is no separator."""
    try:
        return [unquote_to_bytes(part).decode() for part in raw.split(b"/")]
    except UnicodeDecodeError:
        raise Invalid("the path is not UTF-8") from None


def parse_range(text: str, size: int) -> Span | None:
    """The bytes asked for; None for all: no range, or one that we may ignore. `IndexError` if there are none such."""
    match = _RANGE.fullmatch(text.strip().replace(" ", ""))
    if match is None or match.groups() == ("", ""):
        return None
    first, last = match.groups()
    if not first:
        start, stop = max(0, size - int(last)), size
    else:
        start, stop = int(first), min(size, int(last) + 1) if last else size
        if last and int(last) < int(first):
            return None
    if start >= stop:
        raise IndexError(text)
    return Span(start, stop)


def user_metadata(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str] | None:
    """What `x-lakefs-meta-*` headers say. A value that is not UTF-8 is `Invalid`."""
    found: dict[str, str] = {}
    for name, value in headers:
        if name.startswith(META_PREFIX):
            try:
                found[name[len(META_PREFIX) :].decode()] = value.decode()
            except UnicodeDecodeError:
                raise Invalid(f"the header {name!r} is not UTF-8") from None
    return found or None


def header_safe(text: str | None) -> str | None:
    """The text if it may stand in a header. Entries come from many places: one with a line break must not make two."""
    return text if text is not None and _HEADER_SAFE.fullmatch(text) else None


def check_content_type(text: str | None) -> str | None:
    if text and header_safe(text) is None:
        raise Invalid("the content type is no printable ASCII of up to 512 characters")
    return text or None


def etag_of(condition: str) -> str:
    """The etag that If-Match names."""
    return condition.strip().removeprefix("W/").strip('"')
