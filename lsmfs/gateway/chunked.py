"""Bodies as they were meant: without aws-chunked framing, and verified as they pass.

    decode_body(pieces, verified, checksums=None) -> AsyncIterator[bytes]
    content_encoding(request) -> str | None          Content-Encoding to be stored: without the token aws-chunked

The iterator ends normally only if everything was right: length, hash or chunk signatures, checksums. Else it raises
S3Error, maybe after most of the body has passed: whoever reads it makes nothing visible before the end.
`checksums.values` is set by then.

IncompleteBody                shorter or longer than Content-Length or x-amz-decoded-content-length said, or cut off
InvalidRequest                malformed framing
MalformedTrailerError         malformed, missing or unannounced trailers
SignatureDoesNotMatch         of a chunk or of the trailers
XAmzContentSHA256Mismatch     the hash of the whole
BadDigest, InvalidRequest     from `checksums`

Pieces pass as they came, or as slices; large ones are hashed in a thread, so that other requests go on.
"""

import asyncio
import hashlib
import hmac
from collections.abc import AsyncIterator, Callable, Iterator, Mapping

from lsmfs.gateway.checksums import Checksums
from lsmfs.gateway.errors import S3Error
from lsmfs.gateway.frames import Frames
from lsmfs.gateway.request import Request
from lsmfs.gateway.signatures.payload import Payload, Verified, tokens

HASHED_INLINE_BYTES_MAX = 256 << 10  # a thread hop costs about 50 us: hashing less than this takes little more

_NO_TRAILERS: Mapping[str, str] = {}


async def decode_body(
    pieces: AsyncIterator[bytes], verified: Verified, checksums: Checksums | None = None
) -> AsyncIterator[bytes]:
    """The decoded body. A piece that was given out is already hashed."""
    body: _Whole | Frames = Frames(verified.payload) if verified.payload.mode.chunked else _Whole(verified.payload)
    hashers: list[Callable[[bytes], None]] = [body.hash]
    if checksums is not None:
        hashers.append(checksums.update)
    async for piece in pieces:
        for data in body.feed(piece):
            if len(data) < HASHED_INLINE_BYTES_MAX:
                _hash(hashers, data)
            else:
                await asyncio.to_thread(_hash, hashers, data)
            yield data
    trailers = body.finish()
    if checksums is not None:
        checksums.check(trailers)


def _hash(hashers: list[Callable[[bytes], None]], data: bytes) -> None:
    for update in hashers:
        update(data)


class _Whole:
    """A body without framing: as long as it said, and hashing to what it said."""

    def __init__(self, payload: Payload) -> None:
        self._payload = payload
        self._seen = 0
        self._sha256 = hashlib.sha256() if payload.sha256 is not None else None

    def feed(self, piece: bytes) -> Iterator[bytes]:
        self._seen += len(piece)
        if self._payload.length is not None and self._seen > self._payload.length:
            raise S3Error("IncompleteBody", f"The body is longer than the {self._payload.length} bytes that it said.")
        if piece:
            yield piece

    def hash(self, data: bytes) -> None:
        if self._sha256 is not None:
            self._sha256.update(data)

    def finish(self) -> Mapping[str, str]:
        expected = self._payload.length
        if expected is not None and self._seen != expected:
            raise S3Error("IncompleteBody", f"The body ended after {self._seen} of the {expected} bytes that it said.")
        if self._sha256 is not None:
            self._check_hash(self._sha256.hexdigest(), self._payload.sha256 or "")
        return _NO_TRAILERS

    def _check_hash(self, found: str, said: str) -> None:
        if not hmac.compare_digest(found, said):
            hashes = {"ClientComputedContentSHA256": said, "S3ComputedContentSHA256": found}
            raise S3Error("XAmzContentSHA256Mismatch", extra=hashes)


def content_encoding(request: Request) -> str | None:
    """What to store: the other tokens, or None."""
    kept = [token for token in tokens(request) if token and token != "aws-chunked"]
    return ",".join(kept) or None
