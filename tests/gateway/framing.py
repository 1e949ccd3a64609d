"""An encoder of aws-chunked bodies, written from AWS's documentation and apart from the decoder that it tests."""

import hashlib
import hmac
from collections.abc import AsyncIterator, Iterable
from itertools import pairwise

from lsmfs.gateway.signatures import ChunkSigning, Kind, Mode, Payload, Verified

# AWS's documented examples of transferring a payload in multiple chunks, without and with a trailer.
SECRET, STAMP, SCOPE = (
    "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
    "20130524T000000Z",
    "20130524/us-east-1/s3/aws4_request",
)
SEED = "4f232c4386841ef735655705268965c44a0e4690baa4adea153f7db9fa80a0a9"
SEED_WITH_TRAILER = "106e2a8a18243abcf37539882f36619c00e2dfc72633413f02d3b74544bfeb8e"


def _mac(key: bytes, text: str) -> bytes:
    return hmac.new(key, text.encode(), hashlib.sha256).digest()


KEY = _mac(_mac(_mac(_mac(b"AWS4" + SECRET.encode(), "20130524"), "us-east-1"), "s3"), "aws4_request")


def signature_of_chunk(previous: str, data: bytes) -> str:
    empty, found = hashlib.sha256().hexdigest(), hashlib.sha256(data).hexdigest()
    return _mac(KEY, "\n".join(["AWS4-HMAC-SHA256-PAYLOAD", STAMP, SCOPE, previous, empty, found])).hex()


def signature_of_trailer(previous: str, trailers: dict[str, str]) -> str:
    text = "".join(f"{name}:{value}\n" for name, value in trailers.items())
    found = hashlib.sha256(text.encode()).hexdigest()
    return _mac(KEY, "\n".join(["AWS4-HMAC-SHA256-TRAILER", STAMP, SCOPE, previous, found])).hex()


def encoded(mode: Mode, chunks: Iterable[bytes], trailers: dict[str, str] | None = None, seed: str = SEED) -> bytes:
    """The chunks, none of them empty, and the end."""
    body, previous = b"", seed
    for data in [*chunks, b""]:
        body += f"{len(data):x}".encode()
        if mode is not Mode.UNSIGNED_CHUNKS_TRAILER:
            previous = signature_of_chunk(previous, data)
            body += f";chunk-signature={previous}".encode()
        body += b"\r\n" + (data + b"\r\n" if data else b"")
    for name, value in (trailers or {}).items():
        body += f"{name}:{value}\r\n".encode()
    if mode is Mode.SIGNED_CHUNKS_TRAILER:
        body += f"x-amz-trailer-signature:{signature_of_trailer(previous, trailers or {})}\r\n".encode()
    return body + b"\r\n"


def verified(
    mode: Mode, length: int | None, trailers: Iterable[str] = (), seed: str = SEED, sha256: str | None = None
) -> Verified:
    signed = mode in (Mode.SIGNED_CHUNKS, Mode.SIGNED_CHUNKS_TRAILER)
    signing = ChunkSigning(KEY, STAMP, SCOPE, seed) if signed else None
    return Verified("key", Kind.V4_HEADER, Payload(mode, sha256, length, frozenset(trailers), signing))


async def in_pieces(body: bytes, cuts: Iterable[int] = ()) -> AsyncIterator[bytes]:
    """The body cut at these places."""
    places = [0, *sorted(cut % (len(body) + 1) for cut in cuts), len(body)]
    for begin, end in pairwise(places):
        yield body[begin:end]
