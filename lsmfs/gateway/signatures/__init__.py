"""AWS signatures: who claims to have sent a request, and whether it is true.

    find_credentials(request) -> Claim | None          None: anonymous
    verify(claim, request, secret, now, *, bucket=None) -> Verified      `now` in seconds since 1970

`bucket` is the bucket that the host names in virtual-host style; None in path style. Only SigV2 needs it: it signs
the path with the bucket in front. Nothing of the body is read: what it must be is in `Verified.payload`, for
`chunked.decode_body`.

Both raise S3Error, before the body is read, with the codes that AWS uses:

AuthorizationHeaderMalformed, AuthorizationQueryParametersError, InvalidArgument, InvalidRequest: cannot be read
SignatureDoesNotMatch       other secret, or something signed was changed
RequestTimeTooSkewed        signed more than 15 minutes from our clock
AccessDenied                expired, not valid yet, without a date, or with x-amz-* headers that are not signed
InvalidToken                temporary credentials: there are none here
NotImplemented              asymmetric signatures, and payload modes that we do not know

Any region is taken, as long as the signature was made for the region that the claim names: clients are often
misconfigured.
"""

from lsmfs.gateway.errors import S3Error
from lsmfs.gateway.request import Request
from lsmfs.gateway.signatures import v2, v4
from lsmfs.gateway.signatures.claim import Claim, Kind
from lsmfs.gateway.signatures.payload import ChunkSigning, Mode, Payload, Verified

__all__ = ["ChunkSigning", "Claim", "Kind", "Mode", "Payload", "Verified", "find_credentials", "verify"]


_TOKEN = "x-amz-security-token"


def find_credentials(request: Request) -> Claim | None:
    """The one claim that the request makes; two are refused, since two readers might take different ones."""
    authorization = request.header("authorization")
    in_v4 = "X-Amz-Signature" in request.query or "X-Amz-Algorithm" in request.query
    in_v2 = "Signature" in request.query or "AWSAccessKeyId" in request.query
    claims = (authorization is not None) + in_v4 + in_v2
    if claims == 0:
        return None
    if claims > 1:
        raise S3Error("InvalidArgument", "Only one auth mechanism allowed: a header or one kind of query parameters.")
    if request.values(_TOKEN.encode()) or any(name.lower() == _TOKEN for name in request.query):
        raise S3Error("InvalidToken", "Temporary credentials are not known here: sign without a session token.")
    if authorization is not None:
        return _from_header(authorization, request)
    return v4.from_query(request) if in_v4 else v2.from_query(request)


def _from_header(authorization: str, request: Request) -> Claim:
    algorithm, _, parameters = authorization.partition(" ")
    if algorithm == v4.ALGORITHM:
        return v4.from_header(parameters, request)
    if algorithm == "AWS":
        return v2.from_header(parameters, request)
    if algorithm.startswith("AWS4-"):
        raise S3Error("NotImplemented", f"Only {v4.ALGORITHM} and SigV2 are known here.")
    raise S3Error("InvalidArgument", "Unsupported Authorization Type")


def verify(claim: Claim, request: Request, secret: str, now: float, *, bucket: str | None = None) -> Verified:
    """The claim is true, made in time, and covers all that must be covered."""
    if claim.kind in (Kind.V4_HEADER, Kind.V4_QUERY):
        return v4.verify(claim, request, secret, now)
    return v2.verify(claim, request, secret, now, bucket)
