"""Logging in from a browser, logging out, and the first administrator.

A login gives a token, as clients expect it, and the same as a cookie that scripts cannot read, beside a second one that
our page reads and repeats in a header.
"""

from msgspec import Struct

from lsmfs.api.answers import Answer, ApiError, encode
from lsmfs.api.identity import UNAUTHENTICATED
from lsmfs.api.operations import Call, Open, Operation
from lsmfs.auth.keys import Pair
from lsmfs.auth.records import check_name
from lsmfs.auth.tokens import TTL_SECONDS, csrf_cookie, session_cookie
from refstore.errors import Denied

SECOND_US = 1_000_000


class LoginInformation(Struct, frozen=True):
    access_key_id: str
    secret_access_key: str


class AuthenticationToken(Struct, frozen=True):
    token: str
    token_expiration: int


class Setup(Struct, frozen=True):
    username: str
    key: LoginInformation | None = None


class LoginConfig(Struct, frozen=True, rename={"rbac": "RBAC"}):
    login_url: str
    login_cookie_names: list[str]
    logout_url: str
    rbac: str = "internal"


class SetupState(Struct, frozen=True):
    state: str
    comm_prefs_missing: bool
    login_config: LoginConfig


class CredentialsWithSecret(Struct, frozen=True):
    access_key_id: str
    secret_access_key: str
    creation_date: int


async def login(call: Call) -> Answer:
    authority, given = call.services.authority, call.body
    try:
        identity = await authority.identify(given.access_key_id, given.secret_access_key)
    except Denied:
        raise ApiError(401, UNAUTHENTICATED) from None
    token = authority.issue_token(identity, TTL_SECONDS)
    expires = call.lake.clock.now_us() // SECOND_US + TTL_SECONDS
    answer = Answer(200, encode(AuthenticationToken(token, expires)))
    _set_cookies(call, answer, token, authority.csrf_token(token))
    return answer


async def logout(call: Call) -> Answer:
    answer = Answer(204)
    _set_cookies(call, answer, "", "")
    return answer


def _set_cookies(call: Call, answer: Answer, session: str, csrf: str) -> None:
    secure = call.services.options.secure_cookies
    cookies = session_cookie(session, TTL_SECONDS, secure), csrf_cookie(csrf, TTL_SECONDS, secure)
    answer.headers += [(b"set-cookie", cookie.encode()) for cookie in cookies]
    answer.headers.append((b"cache-control", b"no-store"))


async def setup_state(call: Call) -> SetupState:
    done = await call.services.authority.is_set_up()
    config = LoginConfig("/auth/login", ["lsmfs_session"], "/auth/logout")
    return SetupState("initialized" if done else "not_initialized", False, config)


async def setup(call: Call) -> CredentialsWithSecret:
    """The first administrator; 409 ever after."""
    given = call.body
    check_name("user", given.username)
    pair = None if given.key is None else Pair(given.key.access_key_id, given.key.secret_access_key)
    key, secret = await call.services.authority.setup(given.username, pair)
    return CredentialsWithSecret(key.access_key_id, secret, call.lake.clock.now_us() // SECOND_US)


OPERATIONS = (
    Operation("login", "POST", "/auth/login", Open.TO_ALL, login, AuthenticationToken, body=LoginInformation),
    # It ends nobody's session but the cookie's own, which other sites' requests do not carry.
    Operation("logout", "POST", "/auth/logout", Open.TO_ALL, logout, status=204),
    Operation("getSetupState", "GET", "/setup_lakefs", Open.TO_ALL, setup_state, SetupState),
    Operation("setup", "POST", "/setup_lakefs", Open.TO_ALL, setup, CredentialsWithSecret, body=Setup, also=(409,)),
)
