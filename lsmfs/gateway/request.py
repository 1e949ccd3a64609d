"""A request as it was sent: raw path, raw query, raw headers, and each of them decoded once.

    Request.from_scope(scope) -> Request      S3Error InvalidURI / InvalidRequest / InvalidArgument if it cannot be read
    .method .raw_path .raw_query .headers     as sent; header names in lower case
    .path: str                                percent-decoded once; "+" is a plus
    .query: dict[str, str]                    decoded; "+" is a space; a parameter without "=" is ""
    .host: str                                the Host header, "" if there is none
    .header(name) -> str | None               first value, without outer blanks; name in lower case
    .values(name) -> list[bytes]              all values of a header as sent
    .joined(name) -> bytes | None             all values of a header, folded and joined as signatures want them

Signatures cover the raw form, operations read the decoded one, so both come from the same bytes and nothing is
decoded twice. A parameter given twice with two values is refused: signatures sort parameters, so which came first is
not signed. The same holds for a second Host or Authorization header: two parts of the server might read different
ones. Unknown parameters are kept.
"""

import re
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote_to_bytes

from lsmfs.gateway.errors import S3Error

QUERY_PARAMETERS_MAX = 256  # S3 knows about fifty; the rest of the bound is for what clients add
_BAD_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_SINGLE = frozenset((b"host", b"authorization", b"content-length", b"x-amz-content-sha256", b"x-amz-date"))

Header = tuple[bytes, bytes]


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    raw_path: bytes
    raw_query: bytes
    headers: tuple[Header, ...]
    path: str
    query: dict[str, str]
    host: str
    _by_name: dict[bytes, list[bytes]] = field(repr=False)

    @classmethod
    def from_scope(cls, scope: Mapping[str, Any]) -> "Request":
        raw_path = scope.get("raw_path") or scope["path"].encode()
        return cls.of(scope["method"], raw_path, scope["query_string"], scope["headers"])

    @classmethod
    def of(
        cls, method: str, raw_path: bytes, raw_query: bytes, headers: "list[Header] | tuple[Header, ...]"
    ) -> "Request":
        """The same from its parts; header names in lower case, as ASGI gives them."""
        by_name = _by_name(headers)
        host = by_name.get(b"host", [b""])[0].strip().decode("latin-1")
        path, query = _decoded(raw_path), _parameters(raw_query)
        if "\x00" in path:
            raise S3Error("InvalidURI", "The path holds %00, which no name may have.")
        return cls(method, raw_path, raw_query, tuple(headers), path, query, host, by_name)

    def header(self, name: str) -> str | None:
        """The first value. UTF-8 as S3 clients write it, else Latin-1 as HTTP once said."""
        values = self._by_name.get(name.encode())
        if values is None:
            return None
        value = values[0].strip()
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value.decode("latin-1")

    def joined(self, name: bytes) -> bytes | None:
        """All values, each with its white space folded, joined by commas."""
        values = self._by_name.get(name)
        if values is None:
            return None
        if len(values) == 1:
            return b" ".join(values[0].split())
        return b",".join([b" ".join(value.split()) for value in values])

    def values(self, name: bytes) -> list[bytes]:
        """All values of a header as they were sent."""
        return self._by_name.get(name, [])

    @property
    def header_names(self) -> Set[bytes]:
        return self._by_name.keys()


def _by_name(headers: "list[Header] | tuple[Header, ...]") -> dict[bytes, list[bytes]]:
    by_name: dict[bytes, list[bytes]] = {}
    for name, value in headers:
        values = by_name.setdefault(name, [])
        if values and name in _SINGLE:
            raise S3Error("InvalidRequest", f"The header {name.decode('latin-1')} was sent twice: send it once.")
        values.append(value)
    return by_name


def _decoded(raw: bytes) -> str:
    """Percent-decoded exactly once."""
    if b"%" not in raw and raw.isascii():
        return raw.decode()
    if _BAD_ESCAPE.search(raw):
        raise S3Error("InvalidURI", "A '%' in the URI is not followed by two hexadecimal digits: encode it as %25.")
    try:
        return unquote_to_bytes(raw).decode()
    except UnicodeDecodeError:
        raise S3Error("InvalidURI", "The URI does not decode to UTF-8: encode names as UTF-8.") from None


def _parameters(raw: bytes) -> dict[str, str]:
    parameters: dict[str, str] = {}
    if not raw:
        return parameters
    pairs = raw.split(b"&", QUERY_PARAMETERS_MAX)
    if len(pairs) > QUERY_PARAMETERS_MAX:
        raise S3Error("InvalidURI", f"There are more than {QUERY_PARAMETERS_MAX} query parameters.")
    for pair in pairs:
        raw_name, _, raw_value = pair.partition(b"=")
        name, value = _decoded(raw_name.replace(b"+", b" ")), _decoded(raw_value.replace(b"+", b" "))
        if parameters.setdefault(name, value) != value:
            raise S3Error("InvalidArgument", f"The query parameter {name!r} was given twice: give it once.")
    parameters.pop("", None)
    return parameters
