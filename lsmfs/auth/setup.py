"""The first start: preconfigured roles and groups, and the first administrator with a key. It works once.

1. One conditional write of the record `setup`, with everything in it, decides who is first: others get `AlreadyExists`.
2. What the record names is written: roles, groups, user, key, membership. Each step can be repeated.
3. The record is marked done, and the sealed secret taken out of it.

A process that ends between 1 and 3 leaves a record that is not done: whoever reads it next does 2 and 3. Who has lost a
generated secret this way, or by losing the answer, makes another with `Directory.create_key` on the store; who must not
lose it chooses the pair before (`new_pair`), keeps it, and gives it.
"""

from contextlib import suppress

import msgspec

from lsmfs.auth.directory import Directory
from lsmfs.auth.keys import Key, Pair, check_pair, new_pair
from lsmfs.auth.permissions import PRECONFIGURED_GROUPS, PRECONFIGURED_ROLES
from lsmfs.auth.records import PARTITION, SETUP, Edge, Group, Identity, KeyRecord, Role, Setup, User, check_name, decode
from lsmfs.auth.tables import GROUP_ROLES, MEMBERS, R, Tables
from refstore.errors import AlreadyExists, Conflict
from refstore.store import ABSENT

_LIFE = "preconfigured"  # they are made once and never deleted, so one life does for all
ADMINISTRATORS = "Admins"


async def is_set_up(directory: Directory) -> bool:
    data = await directory.tables.store.get(PARTITION, SETUP)
    if data is not None:
        await _finish(directory, data)
    return data is not None


async def set_up(directory: Directory, name: str, pair: Pair | None) -> Key:
    tables = directory.tables
    pair = check_pair(pair) if pair is not None else new_pair()
    if await is_set_up(directory):
        raise AlreadyExists("it is set up already: log in with a key that you have")
    user = User(check_name("user", name), tables.clock.new_id(), tables.clock.now_us())
    if await tables.find(User, name) is not None or await tables.find(KeyRecord, pair.access_key_id) is not None:
        raise AlreadyExists(f"user {name!r} or key {pair.access_key_id!r} exists already: choose another name")
    data = msgspec.json.encode(Setup(user, directory.keyring.prepared(user, pair), tables.clock.new_id()))
    try:
        await tables.store.set_if(PARTITION, SETUP, data, ABSENT)
    except Conflict:
        raise AlreadyExists("somebody else has set it up at the same time") from None
    await _finish(directory, data)
    return Key(pair.access_key_id, pair.secret, Identity(user.name, user.life, pair.access_key_id))


async def _finish(directory: Directory, data: bytes) -> None:
    setup = decode(data, Setup, SETUP)
    if setup.done or setup.key is None:
        return
    tables, now = directory.tables, setup.user.created_us
    for role, permissions in PRECONFIGURED_ROLES.items():
        await _ensure(tables, role, Role(role, _LIFE, now, permissions))
    for group, role in PRECONFIGURED_GROUPS.items():
        await _ensure(tables, group, Group(group, _LIFE, now))
        await tables.write_edge(GROUP_ROLES, group, role, _LIFE, Edge(_LIFE, _LIFE, now))
    await _ensure(tables, setup.user.name, setup.user)
    await directory.keyring.write_index(setup.key)
    await _ensure(tables, setup.key.access_key_id, setup.key)
    edge = Edge(setup.user.life, _LIFE, now)
    await tables.write_edge(MEMBERS, setup.user.name, ADMINISTRATORS, setup.edge, edge)
    done = msgspec.structs.replace(setup, key=None, done=True)
    with suppress(Conflict):  # somebody else has finished it
        await tables.store.set_if(PARTITION, SETUP, msgspec.json.encode(done), data)


async def _ensure(tables: Tables, name: str, record: R) -> None:
    with suppress(AlreadyExists):  # by whoever began
        await tables.create(name, record)
