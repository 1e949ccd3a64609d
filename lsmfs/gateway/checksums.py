"""The checksums that an upload carries: CRC32, CRC32C, CRC64NVME, SHA1, SHA256 in a header or a trailer, Content-MD5.

    checksums = Checksums.from_request(request)       S3Error InvalidRequest, InvalidDigest: cannot be right
    checksums.update(piece)                           with each piece of the decoded body; `decode_body` does it
    checksums.check(trailers)                         at the end, by `decode_body`; S3Error BadDigest, InvalidRequest
    checksums.values -> dict[str, str]                after check: {"x-amz-checksum-crc32": "..."} for the answer
    digest_of(algorithm) -> Digest                    a running one, for algorithm in ALGORITHMS ("CRC32", ...)

For uploads of bodies. Complete of a multipart upload has x-amz-checksum-* headers that speak of the object, not of
its body: use `Checksums.from_request(request, md5_only=True)` there.
"""

import base64
import binascii
import hashlib
import hmac
import zlib
from collections.abc import Callable, Mapping
from typing import Protocol

from awscrt.checksums import crc32c, crc64nvme  # type: ignore[import-untyped]

from lsmfs.gateway.errors import S3Error
from lsmfs.gateway.request import Request

HEADER = "x-amz-checksum-"
_NOT_CHECKSUMS = frozenset(("algorithm", "mode", "type"))  # headers of the same prefix that carry no checksum
_NO_TRAILERS: Mapping[str, str] = {}


class Digest(Protocol):
    def update(self, data: bytes, /) -> None: ...

    def digest(self) -> bytes: ...


class _Crc:
    """A running CRC with the face of a hashlib digest."""

    __slots__ = ("_function", "_size_bytes", "_value")

    def __init__(self, function: Callable[[bytes, int], int], size_bytes: int) -> None:
        self._function, self._size_bytes, self._value = function, size_bytes, 0

    def update(self, data: bytes, /) -> None:
        self._value = self._function(data, self._value)

    def digest(self) -> bytes:
        return self._value.to_bytes(self._size_bytes, "big")


_NEW: dict[str, Callable[[], Digest]] = {
    "CRC32": lambda: _Crc(zlib.crc32, 4),
    "CRC32C": lambda: _Crc(crc32c, 4),
    "CRC64NVME": lambda: _Crc(crc64nvme, 8),
    "SHA1": lambda: hashlib.sha1(usedforsecurity=False),
    "SHA256": hashlib.sha256,
}
ALGORITHMS = frozenset(_NEW)
_SIZES_BYTES = {name: len(new().digest()) for name, new in _NEW.items()}


def digest_of(algorithm: str) -> Digest:
    return _NEW[algorithm]()


class Checksums:
    """What one body must hash to, and what it does. Updated piece by piece, checked once."""

    __slots__ = ("_algorithm", "_digest", "_expected", "_md5", "_md5_expected", "values")

    def __init__(self, algorithm: str | None, expected: bytes | None, md5_expected: bytes | None) -> None:
        """`expected` is None for an algorithm whose value comes in the trailer."""
        self._algorithm, self._expected, self._md5_expected = algorithm, expected, md5_expected
        self._digest = digest_of(algorithm) if algorithm else None
        self._md5 = hashlib.md5(usedforsecurity=False) if md5_expected is not None else None
        self.values: dict[str, str] = {}

    @classmethod
    def from_request(cls, request: Request, *, md5_only: bool = False) -> "Checksums":
        said = request.header("content-md5")
        md5 = None if said is None else _md5_said(said)
        if md5_only:
            return cls(None, None, md5)
        in_header, in_trailer = _in_headers(request), _in_trailer(request)
        if len(in_header) + len(in_trailer) > 1:
            raise S3Error(
                "InvalidRequest", "Expecting a single x-amz-checksum- header. Multiple checksum types are not allowed."
            )
        if in_header:
            [(algorithm, value)] = in_header.items()
            return cls(algorithm, _said(algorithm, value), md5)
        if not in_trailer and request.header("x-amz-sdk-checksum-algorithm"):
            raise S3Error(
                "InvalidRequest",
                "x-amz-sdk-checksum-algorithm specified, but no corresponding x-amz-checksum-* or x-amz-trailer.",
            )
        return cls(in_trailer[0] if in_trailer else None, None, md5)

    @property
    def algorithm(self) -> str | None:
        return self._algorithm

    def update(self, piece: bytes) -> None:
        if self._digest is not None:
            self._digest.update(piece)
        if self._md5 is not None:
            self._md5.update(piece)

    def check(self, trailers: Mapping[str, str] = _NO_TRAILERS) -> None:
        """The body has ended; `trailers` came after it."""
        if self._md5 is not None and not hmac.compare_digest(self._md5.digest(), self._md5_expected or b""):
            raise S3Error("BadDigest", "The Content-MD5 you specified did not match what we received.")
        if self._digest is None or self._algorithm is None:
            return
        name = HEADER + self._algorithm.lower()
        expected = self._expected
        if expected is None:
            if name not in trailers:
                raise S3Error("MalformedTrailerError", f"The trailer {name} was announced, and did not come.")
            expected = _said(self._algorithm, trailers[name])
        found = self._digest.digest()
        if not hmac.compare_digest(found, expected):
            raise S3Error("BadDigest", f"The {self._algorithm} you specified did not match the calculated checksum.")
        self.values = {name: base64.b64encode(found).decode()}


def _in_headers(request: Request) -> dict[str, str]:
    found = {}
    prefix = HEADER.encode()
    for header in request.header_names:
        if header.startswith(prefix):
            name = header.decode("latin-1")
            suffix = name.removeprefix(HEADER)
            if suffix not in _NOT_CHECKSUMS:
                found[_known(suffix)] = request.header(name) or ""
    return found


def _in_trailer(request: Request) -> list[str]:
    said = (request.joined(b"x-amz-trailer") or b"").decode("latin-1").lower()
    names = {name.strip() for name in said.split(",")}
    return [_known(name.removeprefix(HEADER)) for name in names if name.startswith(HEADER)]


def _known(suffix: str) -> str:
    algorithm = suffix.upper()
    if algorithm not in ALGORITHMS:
        raise S3Error(
            "InvalidRequest",
            f"{HEADER}{suffix[:32]} is not a checksum that is known here: use CRC32, CRC32C, "
            "CRC64NVME, SHA1 or SHA256.",
        )
    return algorithm


def _said(algorithm: str, value: str) -> bytes:
    decoded = _base64(value)
    if decoded is None or len(decoded) != _SIZES_BYTES[algorithm]:
        raise S3Error("InvalidRequest", f"Value for {HEADER}{algorithm.lower()} header is invalid.")
    return decoded


def _md5_said(value: str) -> bytes:
    decoded = _base64(value)
    if decoded is None or len(decoded) != 16:
        raise S3Error("InvalidDigest")
    return decoded


def _base64(value: str) -> bytes | None:
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        return None
