"""Login tokens (JWT, HS256), the session cookie, and the CSRF token that goes with it: pure, given key and time.

A token names the user, the user's life and the access key of the login; `Authority.identify_token` asks the directory
whether these are still good, so disabling a key or user ends its sessions. Only HS256 is ever accepted.

A browser sends its cookies with requests that other sites make. So a request that is authenticated by the cookie and
changes something must repeat, in a header, a token that other sites cannot read: `csrf_token(key, session)`, bound to
the session by HMAC, so that a cookie planted by a sibling domain does not pass either.
"""

import hashlib
import hmac
import secrets

import jwt

from lsmfs.auth.records import Identity
from refstore.errors import Denied, Invalid

ALGORITHM = "HS256"
AUDIENCE = "lsmfs-login"
TTL_SECONDS_MAX = 30 * 24 * 3600  # a stolen token is good for no longer
TTL_SECONDS = 7 * 24 * 3600
TOKEN_CHARACTERS_MAX = 4096  # ours have some 400; longer ones are not parsed
_CLAIMS = ["sub", "life", "key", "iat", "exp", "aud"]

SESSION_COOKIE = "lsmfs_session"
CSRF_COOKIE = "lsmfs_csrf"
CSRF_HEADER = "x-csrf-token"
_NONCE_BYTES = 16


def issue(signing: bytes, identity: Identity, ttl_seconds: int, now_us: int) -> str:
    if not 0 < ttl_seconds <= TTL_SECONDS_MAX:
        raise Invalid(f"a token lives for 1 to {TTL_SECONDS_MAX} seconds, not {ttl_seconds}")
    issued = now_us // 1_000_000
    claims = {
        "sub": identity.user,
        "life": identity.user_life,
        "key": identity.access_key_id,
        "iat": issued,
        "exp": issued + ttl_seconds,
        "aud": AUDIENCE,
    }
    return jwt.encode(claims, signing, algorithm=ALGORITHM)


def verify(signing: bytes, token: str, now_us: int) -> Identity:
    """Whom the token names; `Denied` if it is not ours, was changed, or has expired."""
    if len(token) > TOKEN_CHARACTERS_MAX:
        raise Denied("the token is not valid: log in again")
    try:
        # Time is the caller's clock, so `exp` is compared here and not by the library.
        options: jwt.types.Options = {"require": _CLAIMS, "verify_exp": False, "verify_iat": False}
        claims = jwt.decode(token, signing, algorithms=[ALGORITHM], audience=AUDIENCE, options=options)
        identity = Identity(claims["sub"], claims["life"], claims["key"])
        expires = claims["exp"]
    except (jwt.InvalidTokenError, ValueError, RecursionError):
        raise Denied("the token is not valid: log in again") from None
    if not isinstance(expires, int) or not all(isinstance(part, str) for part in identity):
        raise Denied("the token is not valid: log in again")
    if now_us >= expires * 1_000_000:
        raise Denied("the token has expired: log in again")
    return identity


def session_cookie(token: str, ttl_seconds: int, secure: bool) -> str:
    """The value of Set-Cookie: scripts cannot read it, other sites do not send it. Empty token: forget it."""
    return _cookie(SESSION_COOKIE, token, ttl_seconds, secure) + "; HttpOnly"


def csrf_cookie(token: str, ttl_seconds: int, secure: bool) -> str:
    """The value of Set-Cookie for the CSRF token: our page reads it and repeats it in `CSRF_HEADER`."""
    return _cookie(CSRF_COOKIE, token, ttl_seconds, secure)


def _cookie(name: str, value: str, ttl_seconds: int, secure: bool) -> str:
    ttl = ttl_seconds if value else 0
    return f"{name}={value}; Path=/; Max-Age={ttl}; SameSite=Strict" + ("; Secure" if secure else "")


def csrf_token(key: bytes, session: str) -> str:
    """A token for this session; each call gives another one."""
    nonce = secrets.token_hex(_NONCE_BYTES)
    return f"{nonce}.{_bound(key, session, nonce)}"


def check_csrf(key: bytes, session: str, token: str) -> None:
    """`Denied` if the token was not made for this session."""
    nonce, _, mac = token.partition(".")
    if not token.isascii() or not hmac.compare_digest(mac, _bound(key, session, nonce)):
        raise Denied(
            f"the request has no valid CSRF token: repeat the cookie {CSRF_COOKIE} in the header {CSRF_HEADER}"
        )


def _bound(key: bytes, session: str, nonce: str) -> str:
    # The session is hashed first, so that no session and nonce run together to the same bytes as another two.
    message = hashlib.sha256(session.encode(errors="replace")).digest() + nonce.encode(errors="replace")
    return hmac.new(key, message, hashlib.sha256).hexdigest()
