"""AWS Signature Version 2, for clients that are set to it: in the Authorization header or in the query of a presigned
URL.

    string to sign = method, Content-MD5, Content-Type, Date or Expires, x-amz-* headers sorted, resource
    resource       = /bucket/key as it was sent, and those query parameters that name a sub-resource
    signature      = base64(hmac-sha1(secret; string to sign))

It does not sign the host, nor other query parameters, nor the body: that is SigV2, and why AWS left it. So nothing
that is not signed may change what a request does more than a prefix of a listing can.
"""

import base64
import hmac
import re
from collections.abc import Iterator
from operator import itemgetter
from urllib.parse import quote, unquote_to_bytes

from lsmfs.gateway.errors import S3Error
from lsmfs.gateway.request import Request
from lsmfs.gateway.signatures import times
from lsmfs.gateway.signatures.claim import Claim, Kind
from lsmfs.gateway.signatures.payload import Mode, Verified, payload_of

_CREDENTIAL = re.compile(r"([!-9;-~]{1,128}):([A-Za-z0-9+/=]{1,128})\Z")
_ACCESS_KEY_ID = re.compile(r"[!-9;-~]{1,128}\Z")
_EXPIRES = re.compile(r"[0-9]{1,12}\Z")
# The query parameters that are part of the resource: what botocore signs.
_SUBRESOURCES = frozenset(
    b"accelerate acl analytics cors defaultObjectAcl delete inventory lifecycle location logging metrics notification"
    b" object-lock partNumber policy replication requestPayment response-cache-control response-content-disposition"
    b" response-content-encoding response-content-language response-content-type response-expires restore select"
    b" select-type storageClass tagging torrent uploadId uploads versionId versioning versions website".split()
)


def from_header(parameters: str, request: Request) -> Claim:
    """`parameters` is the Authorization header without `AWS `."""
    found = _CREDENTIAL.match(parameters.strip())
    if found is None:
        raise S3Error("InvalidArgument", "The authorization header is invalid: it must be AWS KEY:SIGNATURE.")
    said = request.header("x-amz-date") or request.header("date")
    signed_at = times.any_form(said) if said else None
    if signed_at is None:
        raise S3Error("AccessDenied", "AWS authentication requires a valid Date or x-amz-date header")
    return Claim(Kind.V2_HEADER, found[1], found[2], signed_at, None)


def from_query(request: Request) -> Claim:
    key, signature, expires = (request.query.get(name, "") for name in ("AWSAccessKeyId", "Signature", "Expires"))
    if not (_ACCESS_KEY_ID.match(key) and signature and _EXPIRES.match(expires)):
        message = "Query-string authentication requires the Signature, Expires and AWSAccessKeyId parameters"
        raise S3Error("AccessDenied", message)
    return Claim(Kind.V2_QUERY, key, signature, None, int(expires))


def verify(claim: Claim, request: Request, secret: str, now: float, bucket: str | None) -> Verified:
    if claim.signed_at is not None:
        times.check_skew(claim.signed_at, now)
    if claim.expires_at is not None:
        times.check_window(None, claim.expires_at, now)
    prefix = _before_resource(claim, request)
    for resource in _resources(request, bucket):
        signed = base64.b64encode(hmac.digest(secret.encode(), prefix + resource, "sha1"))
        if hmac.compare_digest(signed, claim.signature.encode()):
            said = request.header("x-amz-content-sha256") or Mode.UNSIGNED.value
            return Verified(claim.access_key_id, claim.kind, payload_of(request, said))
    raise S3Error("SignatureDoesNotMatch", extra={"AWSAccessKeyId": claim.access_key_id})


def _before_resource(claim: Claim, request: Request) -> bytes:
    if claim.kind is Kind.V2_QUERY:
        date = request.query["Expires"].encode()
    elif request.values(b"x-amz-date"):
        date = b""  # it is among the x-amz-* headers
    else:
        date = _first(request, b"date")
    lines = [request.method.encode(), _first(request, b"content-md5"), _first(request, b"content-type"), date]
    names = sorted(name for name in request.header_names if name.startswith(b"x-amz-"))
    lines += [name + b":" + b",".join(value.strip() for value in request.values(name)) for name in names]
    return b"\n".join(lines) + b"\n"


def _first(request: Request, name: bytes) -> bytes:
    values = request.values(name)
    return values[0].strip() if values else b""


def _resources(request: Request, bucket: str | None) -> Iterator[bytes]:
    """As it was sent, and then as other clients write the same: the path encoded again, a bucket with its slash."""
    paths = [request.raw_path or b"/", quote(request.path or "/", safe="/~").encode()]
    if bucket is not None:
        paths = [b"/" + quote(bucket).encode() + path for path in paths]
    elif request.path.count("/") == 1 and request.path != "/":
        paths += [path + b"/" for path in paths]
    for path in dict.fromkeys(paths):
        for subresources in dict.fromkeys(_subresources(request.raw_query)):
            yield path + subresources


def _subresources(raw_query: bytes) -> Iterator[bytes]:
    """With values decoded, as the specification has it, and as sent. A name is found however it is encoded."""
    pairs = [(_decoded(pair[0]), *pair) for pair in (sent.partition(b"=") for sent in raw_query.split(b"&"))]
    pairs = sorted((pair for pair in pairs if pair[0] in _SUBRESOURCES), key=itemgetter(0))
    if not pairs:
        yield b""
        return
    yield b"?" + b"&".join(name + equals + _decoded(value) for name, _, equals, value in pairs)
    yield b"?" + b"&".join(name + equals + value for name, _, equals, value in pairs)
    yield b"?" + b"&".join(name + (equals + _decoded(value) if value else b"") for name, _, equals, value in pairs)


def _decoded(raw: bytes) -> bytes:
    return unquote_to_bytes(raw.replace(b"+", b" "))
