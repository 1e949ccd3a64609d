"""Who asks: HTTP Basic with an access key, a Bearer token, or the browser's session cookie.

A request that the cookie authenticates and that may change something must repeat the CSRF token in a header. Without
proof, or with a wrong one, the answer is 401 in the same words whatever was wrong.
"""

import base64
import binascii

from lsmfs.api.answers import ApiError
from lsmfs.auth import Authority, Identity
from lsmfs.auth.tokens import CSRF_HEADER, SESSION_COOKIE
from refstore.errors import Denied

UNAUTHENTICATED = "error authenticating request"
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
_CSRF = CSRF_HEADER.encode()

Headers = dict[bytes, bytes]


async def identify(authority: Authority, method: str, headers: Headers) -> Identity:
    """Who sent these headers; 401, or `Denied` if only the CSRF token is missing."""
    given = headers.get(b"authorization")
    session = "" if given is not None else cookie(headers, SESSION_COOKIE)
    try:
        if given is not None:
            return await _authorized(authority, given)
        if session:
            identity = await authority.identify_token(session)
        else:
            raise ApiError(401, UNAUTHENTICATED)
    except Denied:
        raise ApiError(401, UNAUTHENTICATED) from None
    if method not in SAFE_METHODS:
        authority.check_csrf(session, headers.get(_CSRF, b"").decode("latin-1"))
    return identity


async def _authorized(authority: Authority, given: bytes) -> Identity:
    scheme, _, value = given.partition(b" ")
    if scheme.lower() == b"bearer":
        return await authority.identify_token(value.strip().decode("latin-1"))
    if scheme.lower() != b"basic":
        raise ApiError(401, UNAUTHENTICATED)
    try:
        access_key_id, colon, secret = base64.b64decode(value.strip(), validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        raise ApiError(401, UNAUTHENTICATED) from None
    if not colon:
        raise ApiError(401, UNAUTHENTICATED)
    return await authority.identify(access_key_id, secret)


def cookie(headers: Headers, name: str) -> str:
    """The cookie's value, empty if there is none; of two of a name the first, which is the more specific one."""
    for part in headers.get(b"cookie", b"").decode("latin-1").split(";"):
        key, _, value = part.strip().partition("=")
        if key == name:
            return value
    return ""
