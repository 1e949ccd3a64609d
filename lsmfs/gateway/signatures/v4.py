"""AWS Signature Version 4, in the Authorization header or in the query of a presigned URL.

    canonical request = method, path, query sorted, signed headers, their names, payload     each on its line
    string to sign    = AWS4-HMAC-SHA256, timestamp, date/region/s3/aws4_request, sha256(canonical request)
    signature         = hmac(signing key of secret, date, region; string to sign), in hex

The path and query are taken as they were sent. Some clients sign another encoding than they send, so the decoded
form, encoded again by AWS's rules, is tried too: operations see the decoded form, so what they do is covered by the
signature either way.
"""

import hashlib
import hmac
import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from urllib.parse import quote, unquote_to_bytes

from lsmfs.gateway.errors import S3Error
from lsmfs.gateway.request import Request
from lsmfs.gateway.signatures import times
from lsmfs.gateway.signatures.claim import Claim, Kind
from lsmfs.gateway.signatures.payload import ChunkSigning, Mode, Verified, payload_of

ALGORITHM = "AWS4-HMAC-SHA256"
EXPIRES_SECONDS_MAX = 604_800  # seven days, as AWS has it
SIGNING_KEYS_MAX = 4096  # about 200 bytes each; one per key in use, day and region
SIGNED_HEADERS_TEXT_MAX = 4096  # metadata is at most 2 KB, so its names are less
SIGNED_HEADERS_KEPT = 512  # a client signs few sets of headers: this many are remembered, 2 MB at the most

_SCOPE = re.compile(r"([!-.0-~]{1,128})/([0-9]{8})/([!-.0-~]{1,64})/([!-.0-~]{1,64})/aws4_request\Z")
_NAME = re.compile(r"[!#-+\-.0-9^-z|~]{1,256}\Z")  # a header name in lower case
_Refusal = Callable[[str], S3Error]
_WRONG_NAMES = "SignedHeaders must be names in lower case, once each, separated by semicolons."
_UNSIGNED = Mode.UNSIGNED.value
# Both are lines of what is signed in the header form, whether they are named as signed headers or not.
_COVERED = frozenset((b"x-amz-content-sha256", b"x-amz-date"))


def from_header(parameters: str, request: Request) -> Claim:
    """`parameters` is the Authorization header without the algorithm."""
    parts = dict(_partition(part) for part in parameters.split(","))
    if parts.keys() != {"Credential", "SignedHeaders", "Signature"} or parameters.count(",") != 2:
        raise _malformed("It needs Credential, SignedHeaders and Signature, once each, separated by commas.")
    signed_at = _date_of(request)
    access_key_id, date, region = _scope(parts["Credential"], signed_at, _malformed)
    names = _signed_headers(parts["SignedHeaders"])
    if names is None:
        raise _malformed(_WRONG_NAMES)
    return Claim(Kind.V4_HEADER, access_key_id, parts["Signature"], signed_at, None, date, region, names)


def from_query(request: Request) -> Claim:
    query = request.query
    missing = [name for name in _QUERY if not query.get(name)]
    if missing:
        raise _bad_query(f"{', '.join(missing)} is missing: all of {', '.join(_QUERY)} are needed.")
    if query["X-Amz-Algorithm"] != ALGORITHM:
        raise _bad_query(f"X-Amz-Algorithm only supports {ALGORITHM}.")
    signed_at = times.basic(query["X-Amz-Date"])
    if signed_at is None:
        raise _bad_query("X-Amz-Date must be in the ISO8601 Long Format yyyyMMdd'T'HHmmss'Z'.")
    access_key_id, date, region = _scope(query["X-Amz-Credential"], signed_at, _bad_query)
    names = _signed_headers(query["X-Amz-SignedHeaders"])
    if names is None:
        raise _bad_query(_WRONG_NAMES)
    expires_at = signed_at + _expires(query["X-Amz-Expires"])
    return Claim(Kind.V4_QUERY, access_key_id, query["X-Amz-Signature"], signed_at, expires_at, date, region, names)


_QUERY = (
    "X-Amz-Algorithm",
    "X-Amz-Credential",
    "X-Amz-Date",
    "X-Amz-Expires",
    "X-Amz-SignedHeaders",
    "X-Amz-Signature",
)


def verify(claim: Claim, request: Request, secret: str, now: float) -> Verified:
    assert claim.signed_at is not None
    if claim.expires_at is None:
        times.check_skew(claim.signed_at, now)
    else:
        times.check_window(claim.signed_at, claim.expires_at, now)
    _check_signed(claim, request)
    timestamp, scope = times.as_basic(claim.signed_at), f"{claim.date}/{claim.region}/s3/aws4_request"
    key = signing_key(secret, claim.date, claim.region)
    said = _payload_said(claim, request)
    prefix = f"{ALGORITHM}\n{timestamp}\n{scope}\n"
    for canonical in _canonical_requests(claim, request, said):
        signed = hmac.digest(key, (prefix + hashlib.sha256(canonical).hexdigest()).encode(), "sha256").hex()
        if hmac.compare_digest(signed.encode(), claim.signature.encode()):
            signing = ChunkSigning(key, timestamp, scope, claim.signature)
            return Verified(claim.access_key_id, claim.kind, payload_of(request, said, signing))
    raise S3Error("SignatureDoesNotMatch", extra={"AWSAccessKeyId": claim.access_key_id})


@lru_cache(SIGNING_KEYS_MAX)
def signing_key(secret: str, date: str, region: str) -> bytes:
    key = f"AWS4{secret}".encode()
    for part in (date, region, "s3", "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    return key


def _payload_said(claim: Claim, request: Request) -> str:
    said = request.header("x-amz-content-sha256")
    if claim.kind is Kind.V4_QUERY:
        return said or request.query.get("X-Amz-Content-Sha256") or _UNSIGNED
    if said is None:
        raise S3Error("InvalidRequest", "Missing required header for this request: x-amz-content-sha256")
    return said


def _check_signed(claim: Claim, request: Request) -> None:
    """`host` and each x-amz-* header that is there: else somebody on the way could add a copy source or metadata."""
    covered = _COVERED if claim.kind is Kind.V4_HEADER else frozenset()
    signed = set(map(str.encode, claim.signed_headers))
    left = [
        name for name in request.header_names if name[:6] == b"x-amz-" and name not in signed and name not in covered
    ]
    if b"host" not in signed:
        left.append(b"host")
    if left:
        names = b", ".join(sorted(left)).decode("latin-1")
        message = "There were headers present in the request which were not signed"
        raise S3Error("AccessDenied", message, extra={"HeadersNotSigned": names})


def _canonical_requests(claim: Claim, request: Request, said: str) -> Iterator[bytes]:
    """As it was sent, and then each way in which path and query may have been encoded by who signed."""
    lines = []
    for name in map(str.encode, claim.signed_headers):
        value = request.joined(name)
        if value is None:
            return  # signed, and lost on the way
        lines.append(b"%b:%b\n" % (name, value))
    headers = b"".join(lines) + b"\n" + ";".join(claim.signed_headers).encode()
    payloads = dict.fromkeys((said, _UNSIGNED) if claim.kind is Kind.V4_QUERY else (said,))
    for path in _paths(request):
        for query in _queries(request):
            for payload in payloads:
                yield b"\n".join((request.method.encode(), path, query, headers, payload.encode()))


def _paths(request: Request) -> Iterator[bytes]:
    sent = request.raw_path or b"/"
    yield sent
    encoded = quote(request.path or "/", safe="/~").encode()
    if encoded != sent:
        yield encoded


def _queries(request: Request) -> Iterator[bytes]:
    if not request.raw_query:
        yield b""
        return
    pairs = [(name, value) for name, _, value in (pair.partition(b"=") for pair in request.raw_query.split(b"&"))]
    pairs = [pair for pair in pairs if pair[0] != b"X-Amz-Signature"]
    sent = _sorted(pairs)
    yield sent
    encoded = _sorted([(_encoded(name), _encoded(value)) for name, value in pairs if name or value])
    if encoded != sent:
        yield encoded


def _sorted(pairs: list[tuple[bytes, bytes]]) -> bytes:
    return b"&".join([b"%s=%s" % pair for pair in sorted(pairs)])


def _encoded(raw: bytes) -> bytes:
    return quote(unquote_to_bytes(raw.replace(b"+", b" ")), safe="~").encode()


def _partition(part: str) -> tuple[str, str]:
    name, _, value = part.strip().partition("=")
    return name, value


def _date_of(request: Request) -> int:
    said = request.header("x-amz-date") or request.header("date")
    seconds = times.any_form(said) if said else None
    if seconds is None:
        raise S3Error("AccessDenied", "AWS authentication requires a valid Date or x-amz-date header")
    return seconds


def _scope(credential: str, signed_at: int, refused: _Refusal) -> tuple[str, str, str]:
    """Access key id, date and region, of a scope that is for S3 and for the day of the signature."""
    found = _SCOPE.match(credential)
    if found is None:
        raise refused("The Credential must be KEY/yyyymmdd/REGION/s3/aws4_request.")
    access_key_id, date, region, service = found.groups()
    if service != "s3":
        raise refused(f"The service of the Credential is {service}: sign for s3.")
    if times.as_basic(signed_at)[:8] != date:
        raise refused(f"The date of the Credential is {date}: it must be the day of the request's date.")
    return access_key_id, date, region


def _signed_headers(said: str) -> tuple[str, ...] | None:
    return _names(said) if len(said) <= SIGNED_HEADERS_TEXT_MAX else None


@lru_cache(SIGNED_HEADERS_KEPT)
def _names(said: str) -> tuple[str, ...] | None:
    names = tuple(said.split(";"))
    wrong = len(set(names)) != len(names) or not all(map(_NAME.match, names))
    return None if wrong else names


def _expires(said: str) -> int:
    seconds = int(said) if said.isascii() and said.isdigit() and len(said) <= 9 else 0
    if not 1 <= seconds <= EXPIRES_SECONDS_MAX:
        raise _bad_query(f"X-Amz-Expires must be a number from 1 to {EXPIRES_SECONDS_MAX} seconds.")
    return seconds


def _malformed(why: str) -> S3Error:
    return S3Error("AuthorizationHeaderMalformed", f"The authorization header is malformed. {why}")


def _bad_query(why: str) -> S3Error:
    return S3Error("AuthorizationQueryParametersError", why)
