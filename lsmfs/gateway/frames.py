"""The aws-chunked framing of a body, taken off as the pieces arrive.

    size in hex [;chunk-signature=64 hex] CRLF
    data        CRLF
    ...
    0 [;chunk-signature=64 hex] CRLF
    name:value  CRLF         trailers, if the mode has them; x-amz-trailer-signature if chunks are signed
    CRLF

`feed` gives slices of what it was fed and holds only an unfinished line. Whoever calls it hands each slice to `hash`
before asking for the next one: so it may do that in a thread. A chunk's signature is over its data and the signature
before it; it can only be checked when the chunk has passed.
"""

import hashlib
import hmac
import re
from collections.abc import Iterator
from enum import Enum, auto

from lsmfs.gateway.errors import S3Error
from lsmfs.gateway.signatures.payload import TRAILERS_MAX, Mode, Payload

LINE_BYTES_MAX = 1024  # a chunk header has 100 bytes, a trailer with a SHA256 as many
TRAILER_SIGNATURE = "x-amz-trailer-signature"
_HEADER = re.compile(rb"([0-9a-fA-F]{1,16})(?:;chunk-signature=([0-9a-f]{64}))?\r\n\Z")
_EMPTY_SHA256 = hashlib.sha256(b"").hexdigest()


class _State(Enum):
    HEADER = auto()
    DATA = auto()
    DATA_END = auto()
    TRAILERS = auto()
    ENDED = auto()


class Frames:
    """One body's framing; fed once, in order."""

    def __init__(self, payload: Payload) -> None:
        self._payload = payload
        self._signing = payload.signing
        self._previous = payload.signing.seed if payload.signing else ""
        self._state = _State.HEADER
        self._line = b""
        self._chunk_rest = 0
        self._chunk_signature = ""
        self._chunk_hash = hashlib.sha256()
        self._length = payload.length or 0
        self._body_rest = self._length
        self.trailers: dict[str, str] = {}

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """The data in the next piece of the framed body."""
        at, end = 0, len(piece)
        while at < end:
            if self._state is _State.DATA:
                until = min(end, at + self._chunk_rest)
                self._chunk_rest -= until - at
                yield piece[at:until]  # a whole piece is not copied
                at = until
                if self._chunk_rest == 0:
                    self._check_chunk()
                    self._state = _State.DATA_END
            else:
                at = self._take_line(piece, at)

    def hash(self, data: bytes) -> None:
        """Called with each slice that `feed` gave, before its next."""
        if self._signing is not None:
            self._chunk_hash.update(data)

    def finish(self) -> dict[str, str]:
        """The input has ended: so has the body, if nothing is missing. Its trailers."""
        if self._state is not _State.ENDED:
            raise S3Error("IncompleteBody", "The body ended before its last chunk did.")
        return self.trailers

    def _take_line(self, piece: bytes, at: int) -> int:
        newline = piece.find(b"\n", at, at + LINE_BYTES_MAX)
        until = newline + 1 if newline >= 0 else min(len(piece), at + LINE_BYTES_MAX)
        self._line += piece[at:until]
        if len(self._line) > LINE_BYTES_MAX:
            raise S3Error("InvalidRequest", f"A line of the chunked body is longer than {LINE_BYTES_MAX} bytes.")
        if self._line.endswith(b"\r\n"):
            line, self._line = self._line, b""
            self._on_line(line)
        elif self._state is _State.ENDED:
            raise _malformed("there are bytes after its end")
        return until

    def _on_line(self, line: bytes) -> None:
        if self._state is _State.HEADER:
            self._on_header(line)
        elif self._state is _State.DATA_END and line == b"\r\n":
            self._state = _State.HEADER
        elif self._state is _State.TRAILERS:
            self._on_trailer(line)
        else:
            raise _malformed("a chunk is longer than its size says, or there are bytes after the end")

    def _on_header(self, line: bytes) -> None:
        found = _HEADER.match(line)
        if found is None:
            raise _malformed("a chunk must begin with its size in hex and, if signed, its signature")
        size = int(found[1], 16)
        self._chunk_signature = (found[2] or b"").decode()
        if self._signing is not None and not self._chunk_signature:
            raise _malformed("a chunk has no chunk-signature")
        if size > self._body_rest:
            raise S3Error(
                "IncompleteBody", f"The chunks hold more than the {self._length} bytes of the decoded length."
            )
        self._body_rest -= size
        self._chunk_rest = size
        self._chunk_hash = hashlib.sha256()
        self._state = _State.DATA
        if size == 0:
            self._on_last()

    def _on_last(self) -> None:
        self._check_chunk()
        if self._body_rest:
            raise S3Error(
                "IncompleteBody", f"The chunks hold fewer than the {self._length} bytes of the decoded length."
            )
        self._state = _State.TRAILERS

    def _check_chunk(self) -> None:
        if self._signing is not None:
            self._check(
                "AWS4-HMAC-SHA256-PAYLOAD", f"{_EMPTY_SHA256}\n{self._chunk_hash.hexdigest()}", self._chunk_signature
            )

    def _check(self, algorithm: str, what: str, signature: str) -> None:
        assert self._signing is not None
        signing = self._signing
        text = f"{algorithm}\n{signing.timestamp}\n{signing.scope}\n{self._previous}\n{what}"
        expected = hmac.digest(signing.key, text.encode(), "sha256").hex()
        if not hmac.compare_digest(expected.encode(), signature.encode()):
            raise S3Error("SignatureDoesNotMatch", "The signature of a chunk does not match its data.")
        self._previous = signature

    def _on_trailer(self, line: bytes) -> None:
        if line == b"\r\n":
            self._end()
            return
        name, colon, value = line.strip().decode("latin-1").partition(":")
        name = name.lower()
        signature = name == TRAILER_SIGNATURE and self._payload.mode is Mode.SIGNED_CHUNKS_TRAILER
        if not colon or "\n" in value or name in self.trailers or not (signature or name in self._payload.trailers):
            raise S3Error(
                "MalformedTrailerError", "A trailing header is malformed, or was not announced by x-amz-trailer."
            )
        if self._payload.mode is Mode.SIGNED_CHUNKS or len(self.trailers) > TRAILERS_MAX:
            raise S3Error(
                "MalformedTrailerError", "The mode of the payload has no trailing headers, or there are too many."
            )
        self.trailers[name] = value.strip()

    def _end(self) -> None:
        signature = self.trailers.pop(TRAILER_SIGNATURE, "")
        if self._payload.mode is Mode.SIGNED_CHUNKS_TRAILER:
            text = "".join(f"{name}:{value}\n" for name, value in self.trailers.items())
            self._check("AWS4-HMAC-SHA256-TRAILER", hashlib.sha256(text.encode("latin-1")).hexdigest(), signature)
        if self._payload.mode is not Mode.SIGNED_CHUNKS and self.trailers.keys() != self._payload.trailers:
            raise S3Error("MalformedTrailerError", "A trailing header that x-amz-trailer announced did not come.")
        self._state = _State.ENDED


def _malformed(why: str) -> S3Error:
    return S3Error("InvalidRequest", f"The aws-chunked body is malformed: {why}.")
