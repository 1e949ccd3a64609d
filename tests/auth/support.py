"""A clock that tests move, a store that fails at a chosen call, and what must hold of the directory at any time."""

from collections.abc import AsyncIterator

from lsmfs.auth import Authority
from lsmfs.auth.records import PARTITION, Edge, KeyRecord, User, decode
from lsmfs.auth.tables import RELATIONS, R, Tables, pair_key, parse_pair
from lsmfs.clock import SystemClock
from refstore.drivers.memory import MemoryRefStore
from refstore.errors import OutcomeUnknown, Unavailable
from refstore.store import Absent, Item, Store

SERVER_KEY = bytes(range(32))


class HandClock(SystemClock):
    """Time passes when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds = 1_000_000.0

    def now_us(self) -> int:
        return int(self.seconds * 1_000_000)

    def monotonic(self) -> float:
        return self.seconds


class FailingStore:
    """`Store` that ends, like its process, at the change of this number: before it is made, or after."""

    def __init__(self, store: Store, fail_at: int = -1, done: bool = False) -> None:
        self._store = store
        self.fail_at = fail_at
        self.done = done
        self.changes = 0

    async def get(self, partition: str, key: bytes) -> bytes | None:
        self._ended()
        return await self._store.get(partition, key)

    async def scan(self, partition: str, start: bytes = b"", prefix: bytes = b"") -> AsyncIterator[Item]:
        self._ended()
        async for item in self._store.scan(partition, start, prefix):
            yield item

    async def set(self, partition: str, key: bytes, value: bytes) -> None:
        self._before()
        await self._store.set(partition, key, value)
        self._after()

    async def delete(self, partition: str, key: bytes) -> None:
        self._before()
        await self._store.delete(partition, key)
        self._after()

    async def set_if(self, partition: str, key: bytes, value: bytes, expected: bytes | Absent) -> None:
        self._before()
        await self._store.set_if(partition, key, value, expected)
        self._after()

    async def aclose(self) -> None:
        """The other store stays open."""

    def _ended(self) -> None:
        if 0 <= self.fail_at < self.changes:
            raise Unavailable("the process has ended")

    def _before(self) -> None:
        self._ended()
        self.changes += 1
        if self.changes - 1 == self.fail_at and not self.done:
            raise Unavailable("the process ends before the change")

    def _after(self) -> None:
        if self.changes - 1 == self.fail_at:
            raise OutcomeUnknown("the process ends after the change")


async def set_up(store: Store | None = None, clock: HandClock | None = None) -> Authority:
    """An authority with the administrator `root`."""
    authority = Authority(store or MemoryRefStore(), SERVER_KEY, clock or HandClock())
    await authority.setup("root")
    return authority


async def dump(store: Store) -> dict[bytes, bytes]:
    return {item.key: item.value async for item in store.scan(PARTITION)}


async def assert_consistent(store: Store) -> None:
    """Both ways of reading every relation agree; each edge and key has its index entry; an administrator is there."""
    authority = Authority(store, SERVER_KEY, HandClock())
    tables = authority.directory.tables
    items = await dump(store)
    for relation in RELATIONS:
        forward = set()
        async for left in _all(tables, relation.left):
            forward |= {(left.name, right.name) for right in await tables.rights(relation, left)}
        backward = set()
        async for right in _all(tables, relation.right):
            backward |= {(left.name, right.name) async for left in tables.lefts(relation, right)}
        assert forward == backward
        for key in items:
            if key.startswith(f"{relation.edges}/".encode()):
                left_name, right_name, life = parse_pair(key)
                assert decode(items[key], Edge, key).left
                assert pair_key(relation.back, right_name, left_name, life) in items
    users = {user.life: user async for user in _all(tables, User)}
    for key, value in items.items():
        if key.startswith(b"keys/"):
            record = decode(value, KeyRecord, key)
            assert pair_key("user-keys", record.user, record.access_key_id, record.life) in items
            if record.user_life in users:
                listed = await authority.directory.keys_of_user(record.user)
                assert record.access_key_id in [each.access_key_id for each in listed.items]
    assert await authority.directory.administrators()


async def _all(tables: Tables, kind: type[R]) -> AsyncIterator[R]:
    for record in (await tables.page(kind, amount=1000)).items:
        yield record
