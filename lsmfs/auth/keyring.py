"""The stored keys of users. The record under `keys/` is the truth; `user-keys/` is the index, and holds the last use.

Creation writes the index entry, then the record; deletion the record, then the entry. A key works only while a user of
the name and life in it is there.
"""

from collections.abc import AsyncIterator

import msgspec

from lsmfs.auth.keys import Key, Pair, ServerKey, check_pair, new_pair, open_secret
from lsmfs.auth.records import PARTITION, Identity, Indexed, KeyInfo, KeyRecord, User, decode
from lsmfs.auth.tables import Tables, pair_key, parse_pair
from refstore.errors import AlreadyExists, Invalid, NotFound

KEYS_PER_USER_MAX = 100  # a list of them reads each
INDEX = "user-keys"


def index_key(record: KeyRecord) -> bytes:
    return pair_key(INDEX, record.user, record.access_key_id, record.life)


class Keyring:
    def __init__(self, tables: Tables, server_keys: tuple[ServerKey, ...]) -> None:
        self._tables = tables
        self._store = tables.store
        self._server_keys = server_keys

    def prepared(self, user: User, pair: Pair, description: str = "") -> KeyRecord:
        """The record of a key to be, with the secret sealed."""
        clock = self._tables.clock
        life, now = clock.new_id(), clock.now_us()
        record = KeyRecord(pair.access_key_id, life, user.name, user.life, now, b"", "", description=description)
        return self._server_keys[0].sealed(record, pair.secret)

    async def create(self, user: User, pair: Pair | None, description: str = "") -> tuple[KeyInfo, str]:
        if len([key async for key in self.of_user(user)]) >= KEYS_PER_USER_MAX:
            raise Invalid(f"user {user.name!r} has {KEYS_PER_USER_MAX} keys already: delete one first")
        pair = check_pair(pair) if pair is not None else new_pair()
        other = await self._tables.find(KeyRecord, pair.access_key_id)
        if other is not None:
            owner = await self._tables.find(User, other.user)
            if owner is not None and owner.life == other.user_life:
                raise AlreadyExists(f"key {pair.access_key_id!r} exists already: choose another id")
            await self._delete(other)  # left by a user that was deleted
        record = self.prepared(user, pair, description)
        await self.write_index(record)
        await self._tables.create(pair.access_key_id, record)
        return _info(record, 0), pair.secret

    async def write_index(self, record: KeyRecord, used_us: int = 0) -> None:
        entry = msgspec.json.encode(Indexed(record.created_us, used_us))
        await self._store.set(PARTITION, index_key(record), entry)

    async def usable(self, access_key_id: str) -> Key:
        """The key with its secret; `NotFound` if it is not there, or it or its user is disabled or gone."""
        record = await self._tables.find(KeyRecord, access_key_id)
        user = None if record is None else await self._tables.find(User, record.user)
        if record is None or user is None or user.life != record.user_life:
            raise NotFound(f"key {access_key_id[:128]!r} does not exist")
        if record.disabled or user.disabled:
            what = f"key {access_key_id!r}" if record.disabled else f"user {user.name!r}"
            raise NotFound(f"{what} is disabled: an administrator can enable it")
        secret = open_secret(self._server_keys, record)
        return Key(access_key_id, secret, Identity(user.name, user.life, access_key_id))

    async def info(self, access_key_id: str) -> KeyInfo:
        record = await self._tables.read(KeyRecord, access_key_id)
        user = await self._tables.find(User, record.user)
        if user is None or user.life != record.user_life:
            raise NotFound(f"key {access_key_id!r} does not exist")
        data = await self._store.get(PARTITION, index_key(record))
        return _info(record, 0 if data is None else decode(data, Indexed, index_key(record)).used_us)

    async def of_user(self, user: User, prefix: str = "", after: str = "") -> AsyncIterator[KeyInfo]:
        """The user's keys in order of their ids; what an interrupted verb left is pruned."""
        folder = f"{INDEX}/{user.name}/".encode()
        start = folder + after.encode(errors="replace") + b'"' if after else b""
        async for item in self._store.scan(PARTITION, start, folder + prefix.encode(errors="replace")):
            entry = decode(item.value, Indexed, item.key)
            _, access_key_id, life = parse_pair(item.key)
            record = await self._tables.find(KeyRecord, access_key_id)
            if record is None or record.life != life:
                await self._tables.prune_index(item.key, entry)
            elif record.user_life == user.life:
                yield _info(record, entry.used_us)
            elif await self._is_current(user):
                await self._delete(record)  # of an earlier user of this name

    async def set_disabled(self, access_key_id: str, disabled: bool) -> KeyInfo:
        await self.info(access_key_id)
        await self._tables.change(KeyRecord, access_key_id, lambda key: msgspec.structs.replace(key, disabled=disabled))
        return await self.info(access_key_id)

    async def delete(self, access_key_id: str) -> None:
        await self._delete(await self._tables.read(KeyRecord, access_key_id))

    async def sweep(self, user: User) -> None:
        """Delete the keys of a user that is being deleted."""
        async for item in self._store.scan(PARTITION, prefix=f"{INDEX}/{user.name}/".encode()):
            _, access_key_id, life = parse_pair(item.key)
            record = await self._tables.find(KeyRecord, access_key_id)
            if record is not None and record.life == life and record.user_life == user.life:
                await self._delete(record)

    async def used(self, access_key_id: str, now_us: int) -> None:
        """Remember the last use. If the key is deleted meanwhile, the entry is one without a key, and is pruned."""
        record = await self._tables.find(KeyRecord, access_key_id)
        if record is not None:
            await self.write_index(record, now_us)

    async def rotate_server_key(self, old: ServerKey, new: ServerKey) -> int:
        """Seal all secrets again; how many. It can be repeated until it ends: what is done is left alone."""
        count = 0

        def again(record: KeyRecord) -> KeyRecord:
            return record if record.server_key_id == new.id else new.sealed(record, open_secret((old,), record))

        async for item in self._store.scan(PARTITION, prefix=b"keys/"):
            record = decode(item.value, KeyRecord, item.key)
            if record.server_key_id != new.id:
                try:
                    await self._tables.change(KeyRecord, record.access_key_id, again)
                    count += 1
                except NotFound:
                    continue  # deleted meanwhile
        return count

    async def _delete(self, record: KeyRecord) -> None:
        await self._tables.delete(KeyRecord, record.access_key_id)
        await self._store.delete(PARTITION, index_key(record))

    async def _is_current(self, user: User) -> bool:
        now = await self._tables.find(User, user.name)
        return now is not None and now.life == user.life


def _info(record: KeyRecord, used_us: int) -> KeyInfo:
    r = record
    return KeyInfo(r.access_key_id, r.user, r.created_us, r.disabled, r.description, used_us or None)
