"""What the directory keeps on the ref store's KV, and the names of the keys.

    partition `auth`                             value
    setup                                        Setup
    guard                                        Guard: administrators that are about to leave
    users/<user>                                 User
    groups/<group>                               Group
    roles/<role>                                 Role
    keys/<access key id>                         KeyRecord
    user-groups/<user>/<group>!<edge>            Edge     the truth           group-users/<group>/<user>!<edge>
    user-roles/<user>/<role>!<edge>              Edge     and its index:      role-users/<role>/<user>!<edge>
    group-roles/<group>/<role>!<edge>            Edge                         role-groups/<role>/<group>!<edge>
    user-keys/<user>/<access key id>!<life>      Indexed  index of keys/; holds the last use too

A name has no `/` or `!`, and `!` sorts before all its characters, so keys sort as names do. Every record has a life: an
id that no other record ever has. An edge names the lives of both its ends, so it never comes to hold for a later user,
group or role of the same name.
"""

import re
from typing import Final, NamedTuple, TypeVar

import msgspec

from lsmfs.auth.permissions import Permission
from refstore.errors import Corrupt, Invalid

PARTITION: Final = "auth"
SETUP: Final = b"setup"
GUARD: Final = b"guard"

NAME_CHARACTERS_MAX = 127  # two names and an edge fit a key of the ref store with room
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@+,=-]*")
_STORED = re.compile(r"[A-Za-z0-9_.@+,=-]{1,128}")


class User(msgspec.Struct, frozen=True):
    name: str
    life: str
    created_us: int
    disabled: bool = False
    email: str = ""


class Group(msgspec.Struct, frozen=True):
    name: str
    life: str
    created_us: int
    description: str = ""


class Role(msgspec.Struct, frozen=True):
    """A named policy."""

    name: str
    life: str
    created_us: int
    permissions: tuple[Permission, ...] = ()


class KeyRecord(msgspec.Struct, frozen=True):
    """A key as it is stored: `sealed` is nonce and ciphertext of the secret, under the server key `server_key_id`."""

    access_key_id: str
    life: str
    user: str
    user_life: str
    created_us: int
    sealed: bytes
    server_key_id: str
    version: int = 1  # of the form of `sealed`
    disabled: bool = False
    description: str = ""

    @property
    def name(self) -> str:
        return self.access_key_id


class Edge(msgspec.Struct, frozen=True):
    """That `left` (a user or group) has `right` (a group or role): the lives of both, and when it was made."""

    left: str
    right: str
    created_us: int


class Indexed(msgspec.Struct, frozen=True):
    """An entry of an index; it counts only while the truth it points to is there."""

    created_us: int
    used_us: int = 0


class Setup(msgspec.Struct, frozen=True):
    """The first administrator. Until `done`, whoever reads it writes what it names: see `setup`."""

    user: User
    key: KeyRecord | None
    edge: str
    done: bool = False


class Guard(msgspec.Struct, frozen=True):
    """Lives of administrators that a change under way removes, and until when they count as gone."""

    departing: dict[str, int] = {}


class Identity(NamedTuple):
    """Who asks, proved by a signature, a secret or a token."""

    user: str
    user_life: str
    access_key_id: str = ""


class KeyInfo(msgspec.Struct, frozen=True):
    """A key without its secret, for lists."""

    access_key_id: str
    user: str
    created_us: int
    disabled: bool
    description: str
    used_us: int | None  # None: never, or not in this sampling interval


def check_name(kind: str, name: str) -> str:
    if len(name) > NAME_CHARACTERS_MAX or not _NAME.fullmatch(name):
        raise Invalid(
            f"{name[:80]!r} is no name of a {kind}: 1 to {NAME_CHARACTERS_MAX} of A-Z a-z 0-9 _ . @ + , = -, "
            "beginning with a letter, a digit or _"
        )
    return name


def may_exist(name: str) -> bool:
    """Whether anything can have this name or id. What a stranger sends may be of any length, and no text at all."""
    return _STORED.fullmatch(name) is not None


T = TypeVar("T")


def decode(data: bytes, kind: type[T], key: bytes) -> T:
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Corrupt(
            f"the value of {key.decode(errors='replace')!r} in {PARTITION!r} cannot be read: {error}"
        ) from None
