"""Requests as botocore signs them: the oracle of the signature tests."""

import time
from collections.abc import Callable
from urllib.parse import urlsplit

from botocore.auth import HmacV1Auth, HmacV1QueryAuth, S3SigV4Auth, S3SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from lsmfs.gateway.request import Request
from lsmfs.gateway.signatures import Verified, find_credentials, verify

KEY, SECRET, REGION, HOST = (
    "AKIDEXAMPLE",
    "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY",
    "eu-central-1",
    "s3.example.test:8000",
)
CREDENTIALS = Credentials(KEY, SECRET)
Headers = list[tuple[str, str]]


def v4(method: str, path: str, headers: Headers | None = None, body: bytes = b"", region: str = REGION) -> Request:
    return _signed(S3SigV4Auth(CREDENTIALS, "s3", region), method, path, headers, body)


def v4_presigned(method: str, path: str, headers: Headers | None = None, expires: int = 3600) -> Request:
    return _signed(S3SigV4QueryAuth(CREDENTIALS, "s3", REGION, expires), method, path, headers)


def v2(method: str, path: str, headers: Headers | None = None, auth_path: str | None = None) -> Request:
    return _signed(HmacV1Auth(CREDENTIALS), method, path, headers, auth_path=auth_path)


def v2_presigned(method: str, path: str, headers: Headers | None = None, expires: int = 3600) -> Request:
    return _signed(HmacV1QueryAuth(CREDENTIALS, expires), method, path, headers, drop=("Date",))


Signer = Callable[..., Request]
SIGNERS: dict[str, Signer] = {"v4": v4, "v4 presigned": v4_presigned, "v2": v2, "v2 presigned": v2_presigned}


def _signed(
    signer: object,
    method: str,
    path: str,
    headers: Headers | None,
    body: bytes = b"",
    auth_path: str | None = None,
    drop: tuple[str, ...] = (),
) -> Request:
    asked = AWSRequest(method, f"http://{HOST}{path}", data=body, auth_path=auth_path)
    for name, value in headers or []:
        asked.headers.add_header(name, value)  # unlike item assignment it keeps what was there
    signer.add_auth(asked)  # type: ignore[attr-defined]
    url = urlsplit(str(asked.url))
    sent = [(name.lower().encode(), str(value).encode()) for name, value in asked.headers.items() if name not in drop]
    return Request.of(method, url.path.encode(), url.query.encode(), [(b"host", HOST.encode()), *sent])


def check(request: Request, secret: str = SECRET, later: float = 0, bucket: str | None = None) -> Verified:
    """Find and verify, as a server does."""
    claim = find_credentials(request)
    assert claim is not None
    if claim.access_key_id != KEY:
        secret = "of somebody else"  # a server finds the secret by the key id, so a changed id is another secret
    return verify(claim, request, secret, time.time() + later, bucket=bucket)


def changed(
    request: Request,
    *,
    method: str | None = None,
    path: bytes | None = None,
    query: bytes | None = None,
    headers: list[tuple[bytes, bytes]] | None = None,
) -> Request:
    """The same request after somebody on the way changed it."""
    return Request.of(
        method or request.method,
        request.raw_path if path is None else path,
        request.raw_query if query is None else query,
        list(request.headers) if headers is None else headers,
    )
