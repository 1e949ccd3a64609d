"""Users and their keys. What the directory refuses it refuses for all: see `lsmfs.auth.directory`."""

from msgspec import Struct

from lsmfs.api.login import SECOND_US, CredentialsWithSecret
from lsmfs.api.operations import Call, Open, Operation, entity
from lsmfs.api.paging import Amount, Listed, PageQuery, limit_of, listed
from lsmfs.auth import Action, Group, KeyInfo, Page, Resource, User
from refstore.errors import NotFound


class WireUser(Struct, frozen=True):
    id: str
    creation_date: int
    friendly_name: str
    email: str


class UserCreation(Struct, frozen=True):
    id: str
    email: str = ""


class CurrentUser(Struct, frozen=True):
    user: WireUser


class Credentials(Struct, frozen=True):
    access_key_id: str
    creation_date: int
    disabled: bool = False


class WireGroup(Struct, frozen=True):
    id: str
    name: str
    description: str
    creation_date: int


class Disabled(Struct, frozen=True):
    disabled: bool


def user_of(user: User) -> WireUser:
    return WireUser(user.name, user.created_us // SECOND_US, user.name, user.email)


def group_of(group: Group) -> WireGroup:
    return WireGroup(group.name, group.name, group.description, group.created_us // SECOND_US)


def key_of(key: KeyInfo) -> Credentials:
    return Credentials(key.access_key_id, key.created_us // SECOND_US, key.disabled)


def users_page(page: Page[User]) -> Listed[WireUser]:
    return listed([user_of(user) for user in page.items], page.items[-1].name if page.more else None)


def groups_page(page: Page[Group]) -> Listed[WireGroup]:
    return listed([group_of(group) for group in page.items], page.items[-1].name if page.more else None)


def wanted(query: PageQuery) -> tuple[str, str, Amount]:
    return query.prefix, query.after, limit_of(query.amount)


async def current_user(call: Call) -> CurrentUser:
    return CurrentUser(user_of(await call.services.directory.user(call.identity.user)))


async def list_users(call: Call) -> Listed[WireUser]:
    return users_page(await call.services.directory.users(*wanted(call.query)))


async def create_user(call: Call) -> WireUser:
    return user_of(await call.services.directory.create_user(call.body.id, call.body.email))


async def get_user(call: Call) -> WireUser:
    return user_of(await call.services.directory.user(call.path["userId"]))


async def delete_user(call: Call) -> None:
    await call.services.directory.delete_user(call.path["userId"])


async def set_user_disabled(call: Call) -> None:
    await call.services.directory.set_user_disabled(call.path["userId"], call.body.disabled)


async def user_groups(call: Call) -> Listed[WireGroup]:
    return groups_page(await call.services.directory.groups_of_user(call.path["userId"], *wanted(call.query)))


async def list_keys(call: Call) -> Listed[Credentials]:
    page = await call.services.directory.keys_of_user(call.path["userId"], *wanted(call.query))
    return listed([key_of(key) for key in page.items], page.items[-1].access_key_id if page.more else None)


async def create_key(call: Call) -> CredentialsWithSecret:
    """The only answer that ever has the secret."""
    info, secret = await call.services.directory.create_key(call.path["userId"])
    return CredentialsWithSecret(info.access_key_id, secret, info.created_us // SECOND_US)


async def get_key(call: Call) -> Credentials:
    return key_of(await _key(call))


async def delete_key(call: Call) -> None:
    await _key(call)
    await call.services.directory.delete_key(call.path["accessKeyId"])


async def set_key_disabled(call: Call) -> None:
    await _key(call)
    await call.services.directory.set_key_disabled(call.path["accessKeyId"], call.body.disabled)


async def rotate_key(call: Call) -> CredentialsWithSecret:
    """A new key in place of this one."""
    await _key(call)
    await call.check(Action.DELETE_KEY, _user(call))
    info, secret = await call.services.directory.rotate_key(call.path["accessKeyId"])
    return CredentialsWithSecret(info.access_key_id, secret, info.created_us // SECOND_US)


async def _key(call: Call) -> KeyInfo:
    """The key, if it is this user's: the check before was about the user that the path names."""
    info = await call.services.directory.key_info(call.path["accessKeyId"])
    if info.user != call.path["userId"]:
        raise NotFound(f"user {call.path['userId']!r} has no key {call.path['accessKeyId']!r}")
    return info


USERS = "/auth/users"
USER = USERS + "/{userId}"
KEYS = USER + "/credentials"
KEY = KEYS + "/{accessKeyId}"
_user = entity("user", "userId")


def _created(call: Call) -> Resource:
    return Resource(entity=f"user/{call.body.id}")


def _row(
    name: str, method: str, path: str, action: Action, handler: object, answer: object = None, **more: object
) -> Operation:
    more.setdefault("resource", _user)
    more.setdefault("status", 204 if answer is None else 200)
    return Operation(name, method, path, action, handler, answer, **more)  # type: ignore[arg-type]


OPERATIONS = (
    Operation("getCurrentUser", "GET", "/user", Open.TO_USERS, current_user, CurrentUser),
    _row(
        "listUsers",
        "GET",
        USERS,
        Action.LIST_USERS,
        list_users,
        Listed[WireUser],
        query=PageQuery,
        resource=entity("user"),
    ),
    _row(
        "createUser",
        "POST",
        USERS,
        Action.CREATE_USER,
        create_user,
        WireUser,
        status=201,
        body=UserCreation,
        resource=_created,
    ),
    _row("getUser", "GET", USER, Action.READ_USER, get_user, WireUser),
    _row("deleteUser", "DELETE", USER, Action.DELETE_USER, delete_user),
    _row("setUserDisabled", "PUT", f"{USER}/disabled", Action.UPDATE_USER, set_user_disabled, body=Disabled),
    _row("listUserGroups", "GET", f"{USER}/groups", Action.READ_USER, user_groups, Listed[WireGroup], query=PageQuery),
    _row("listUserCredentials", "GET", KEYS, Action.LIST_KEYS, list_keys, Listed[Credentials], query=PageQuery),
    _row("createCredentials", "POST", KEYS, Action.CREATE_KEY, create_key, CredentialsWithSecret, status=201),
    _row("getCredentials", "GET", KEY, Action.READ_KEY, get_key, Credentials),
    _row("deleteCredentials", "DELETE", KEY, Action.DELETE_KEY, delete_key),
    _row("setCredentialsDisabled", "PUT", f"{KEY}/disabled", Action.UPDATE_KEY, set_key_disabled, body=Disabled),
    # A new key and the end of the old one: who may do only one of them may not do both.
    _row(
        "rotateCredentials", "POST", f"{KEY}/rotate", Action.CREATE_KEY, rotate_key, CredentialsWithSecret, status=201
    ),
)
