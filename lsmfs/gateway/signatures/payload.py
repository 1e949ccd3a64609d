"""What a verified request says of its body: how it is framed, what it hashes to, how long it is.

    Verified(access_key_id, kind, payload)
    Payload(mode, sha256, length, trailers, signing)
    payload_of(request, said, signing) -> Payload       S3Error NotImplemented, InvalidRequest, MissingContentLength

The mode comes from x-amz-content-sha256, which V4 always signs. A client without it (SigV2, presigned) that frames
its body says so by Content-Encoding: aws-chunked together with x-amz-decoded-content-length.
"""

import re
from dataclasses import dataclass
from enum import Enum

from lsmfs.gateway.errors import S3Error
from lsmfs.gateway.request import Request
from lsmfs.gateway.signatures.claim import Kind

BODY_BYTES_MAX = 50 << 40  # the largest object that S3 itself takes is 50 TB: more digits are nonsense
TRAILERS_MAX = 8  # clients send one, and a signature
_HEX_SHA256 = re.compile(r"[0-9a-fA-F]{64}\Z")
_LENGTH = re.compile(r"[0-9]{1,16}\Z")


class Mode(Enum):
    HASHED = "hex sha256"
    UNSIGNED = "UNSIGNED-PAYLOAD"
    SIGNED_CHUNKS = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"
    SIGNED_CHUNKS_TRAILER = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER"
    UNSIGNED_CHUNKS_TRAILER = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"

    @property
    def chunked(self) -> bool:
        return self not in (Mode.HASHED, Mode.UNSIGNED)


@dataclass(frozen=True, slots=True)
class ChunkSigning:
    """What the first chunk's signature is chained to."""

    key: bytes
    timestamp: str
    scope: str
    seed: str

    def __repr__(self) -> str:
        return "ChunkSigning(...)"  # the key must not reach a log


@dataclass(frozen=True, slots=True)
class Payload:
    mode: Mode
    sha256: str | None  # HASHED: lower case hex
    length: int | None  # of the decoded body; None only if HTTP chunked encoding came without a length
    trailers: frozenset[str] = frozenset()  # names that x-amz-trailer announced
    signing: ChunkSigning | None = None  # the SIGNED_CHUNKS modes


@dataclass(frozen=True, slots=True)
class Verified:
    """A request that its claimed sender did send."""

    access_key_id: str
    kind: Kind
    payload: Payload


def payload_of(request: Request, said: str, signing: ChunkSigning | None = None) -> Payload:
    """`said` is the value of x-amz-content-sha256, or UNSIGNED-PAYLOAD where there is none."""
    framed = bool(request.values(b"x-amz-decoded-content-length")) and "aws-chunked" in tokens(request)
    if _HEX_SHA256.match(said):
        if framed:
            raise S3Error("InvalidRequest", "An aws-chunked body needs a STREAMING- value in x-amz-content-sha256.")
        return Payload(Mode.HASHED, said.lower(), _length(request, "content-length"))
    mode = _mode(said)
    if mode is Mode.UNSIGNED and not framed:
        return Payload(mode, None, _length(request, "content-length"))
    if mode is Mode.UNSIGNED:
        mode = Mode.UNSIGNED_CHUNKS_TRAILER
    if mode is not Mode.UNSIGNED_CHUNKS_TRAILER and signing is None:
        raise S3Error("InvalidRequest", "Signed chunks need a SigV4 signature to begin with.")
    length = _length(request, "x-amz-decoded-content-length")
    if length is None:
        raise S3Error("MissingContentLength", "You must provide the x-amz-decoded-content-length header.")
    signed = mode is not Mode.UNSIGNED_CHUNKS_TRAILER
    return Payload(mode, None, length, _announced(request), signing if signed else None)


def tokens(request: Request) -> list[str]:
    """The content encodings, in order."""
    return [
        token.strip() for token in (request.joined(b"content-encoding") or b"").decode("latin-1").lower().split(",")
    ]


def _mode(said: str) -> Mode:
    try:
        mode = Mode(said)
    except ValueError:
        mode = Mode.HASHED
    if mode is not Mode.HASHED:
        return mode
    if said.startswith("STREAMING-"):
        raise S3Error("NotImplemented", f"The payload mode {said[:64]} is not known: use one of SigV4's.")
    raise S3Error("InvalidArgument", "x-amz-content-sha256 must be UNSIGNED-PAYLOAD, a STREAMING- mode or a sha256.")


def _length(request: Request, name: str) -> int | None:
    said = request.header(name)
    if said is None:
        return None
    if not _LENGTH.match(said) or int(said) > BODY_BYTES_MAX:
        raise S3Error("InvalidArgument", f"The header {name} must be a number of at most {BODY_BYTES_MAX}.")
    return int(said)


def _announced(request: Request) -> frozenset[str]:
    said = (request.joined(b"x-amz-trailer") or b"").decode("latin-1").lower()
    names = frozenset(name.strip() for name in said.split(",") if name.strip())
    if len(names) > TRAILERS_MAX:
        raise S3Error("InvalidRequest", f"At most {TRAILERS_MAX} trailing headers are read.")
    return names
