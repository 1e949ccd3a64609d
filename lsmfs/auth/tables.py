"""Records, and the edges between them with their indices: what makes many keys of the KV behave as one directory.

The KV changes one key at a time, so a process can end between any two writes. The order of writes makes what it leaves
behind harmless, and the next read that meets it prunes it:

- `link` writes the index entry, then the edge. An index entry without its edge says nothing: lists by the index look at
  the edge. It is pruned when it is older than `PRUNE_AFTER_SECONDS`, since younger ones may be about to get it.
- `unlink` deletes the edge, which ends the right, then the index entry.
- Deletion of a record deletes its edges first and the record last, so that a deletion that was interrupted is finished
  by repeating it. An edge holds only while records with the lives that it names are there, so one made meanwhile gives
  nothing, now or to a record made later under the name: that has another life.

Every edge has a key of its own, written once: pruning one cannot hit another that is being made between the same two
names. So there is never an edge without its index entry, and every verb can be repeated until it ends.
"""

from collections.abc import AsyncIterator, Callable
from typing import Final, Generic, NamedTuple, TypeVar

import msgspec

from lsmfs.auth.records import PARTITION, Edge, Group, Indexed, KeyRecord, Role, User, decode, may_exist
from lsmfs.clock import Clock
from refstore.errors import AlreadyExists, Conflict, Corrupt, Invalid, NotFound
from refstore.store import ABSENT, Store

PRUNE_AFTER_SECONDS = 600  # no verb takes nearly as long between two writes: drivers give up after seconds
CHANGE_TRIES_MAX = 20
AMOUNT_MAX = 1000  # items in a page, as the REST API allows
EDGES_MAX = 100  # groups or roles of one: a check reads them all when its cache is old

R = TypeVar("R", bound=User | Group | Role | KeyRecord)
T = TypeVar("T")
Named = User | Group | Role


class Page(NamedTuple, Generic[T]):
    items: list[T]
    more: bool


class Relation(NamedTuple):
    """`left` has `right`: the truth is under `edges`, the way back under `back`."""

    edges: str
    back: str
    left: type[User] | type[Group]
    right: type[Group] | type[Role]


MEMBERS: Final = Relation("user-groups", "group-users", User, Group)
USER_ROLES: Final = Relation("user-roles", "role-users", User, Role)
GROUP_ROLES: Final = Relation("group-roles", "role-groups", Group, Role)
RELATIONS: Final = (MEMBERS, USER_ROLES, GROUP_ROLES)
_FOLDERS: Final[dict[type, str]] = {User: "users", Group: "groups", Role: "roles", KeyRecord: "keys"}
_WORDS: Final[dict[type, str]] = {User: "user", Group: "group", Role: "policy", KeyRecord: "key"}


def record_key(kind: type, name: str) -> bytes:
    return f"{_FOLDERS[kind]}/{name}".encode(errors="replace")


def pair_key(folder: str, first: str, second: str, life: str) -> bytes:
    return f"{folder}/{first}/{second}!{life}".encode()


def parse_pair(key: bytes) -> tuple[str, str, str]:
    """Both names and the life, of an edge or an index entry."""
    _, first, rest = key.decode().split("/")
    second, _, life = rest.partition("!")
    return first, second, life


def decode_record(data: bytes, kind: type[R], key: bytes) -> R:
    """The record; `Corrupt` if it is that of another key: one who can write to the store could copy it here."""
    record = decode(data, kind, key)
    if record_key(kind, record.name) != key:
        raise Corrupt(f"the record under {key.decode(errors='replace')!r} is that of {record.name!r}: delete it")
    return record


class Tables:
    def __init__(self, store: Store, clock: Clock) -> None:
        self.store = store
        self.clock = clock

    async def find(self, kind: type[R], name: str) -> R | None:
        data = await self.store.get(PARTITION, record_key(kind, name)) if may_exist(name) else None
        return None if data is None else decode_record(data, kind, record_key(kind, name))

    async def read(self, kind: type[R], name: str) -> R:
        record = await self.find(kind, name)
        if record is None:
            raise NotFound(f"{_WORDS[kind]} {name[:128]!r} does not exist")
        return record

    async def create(self, name: str, record: R) -> R:
        key = record_key(type(record), name)
        try:
            await self.store.set_if(PARTITION, key, msgspec.json.encode(record), ABSENT)
        except Conflict:
            raise AlreadyExists(f"{_WORDS[type(record)]} {name!r} exists already: choose another name") from None
        return record

    async def change(self, kind: type[R], name: str, change: Callable[[R], R]) -> R:
        key = record_key(kind, name)
        for _ in range(CHANGE_TRIES_MAX):
            data = await self.store.get(PARTITION, key) if may_exist(name) else None
            if data is None:
                raise NotFound(f"{_WORDS[kind]} {name[:128]!r} does not exist")
            wanted = change(decode_record(data, kind, key))
            try:
                await self.store.set_if(PARTITION, key, msgspec.json.encode(wanted), data)
            except Conflict:
                continue
            return wanted
        raise Conflict(f"{_WORDS[kind]} {name!r}: {CHANGE_TRIES_MAX} others changed it first: try again")

    async def delete(self, kind: type, name: str) -> None:
        await self.store.delete(PARTITION, record_key(kind, name))

    async def page(self, kind: type[R], prefix: str = "", after: str = "", amount: int = 100) -> Page[R]:
        """Records in order of their names: those that begin with the prefix and come after `after`."""
        folder = record_key(kind, "")
        start = folder + after.encode(errors="replace") + b"\x00" if after else b""

        async def records() -> AsyncIterator[R]:
            async for item in self.store.scan(PARTITION, start, folder + prefix.encode(errors="replace")):
                yield decode_record(item.value, kind, item.key)

        return await page_of(records(), amount)

    async def link(self, relation: Relation, left: str, right: str) -> None:
        """`left` has `right`; nothing changes if it does already."""
        owner, owned = await self.read(relation.left, left), await self.read(relation.right, right)
        have = await self.rights(relation, owner)
        if any(each.name == right for each in have):
            return
        if len(have) >= EDGES_MAX:
            raise Invalid(f"{left!r} has {EDGES_MAX} of {relation.edges} already, which is the limit")
        now = self.clock.now_us()
        await self.write_edge(relation, left, right, self.clock.new_id(), Edge(owner.life, owned.life, now))

    async def write_edge(self, relation: Relation, left: str, right: str, life: str, edge: Edge) -> None:
        entry = msgspec.json.encode(Indexed(edge.created_us))
        await self.store.set(PARTITION, pair_key(relation.back, right, left, life), entry)
        await self.store.set(PARTITION, pair_key(relation.edges, left, right, life), msgspec.json.encode(edge))

    async def unlink(self, relation: Relation, left: str, right: str) -> None:
        """`left` does not have `right`; no error if it had not."""
        async for key, _ in self._edges(relation, left, f"{right}!"):
            await self._delete_edge(relation, key)

    async def rights(self, relation: Relation, left: User | Group) -> list[Named]:
        """What `left` has, in order of names; edges that have lost an end are pruned."""
        found: dict[str, Named] = {}
        for key, edge in [each async for each in self._edges(relation, left.name)]:
            _, name, _ = parse_pair(key)
            right = await self.find(relation.right, name)
            if right is None or right.life != edge.right or await self._is_past(left, edge.left):
                await self._delete_edge(relation, key)
            elif edge.left == left.life:
                found[name] = right
        return list(found.values())

    async def lefts(self, relation: Relation, right: Named, prefix: str = "", after: str = "") -> AsyncIterator[Named]:
        """What has `right`, in order of names; index entries that lead nowhere are pruned."""
        folder = f"{relation.back}/{right.name}/".encode()
        start = folder + after.encode(errors="replace") + b'"' if after else b""  # the character after `!`
        last = ""
        async for item in self.store.scan(PARTITION, start, folder + prefix.encode(errors="replace")):
            _, name, life = parse_pair(item.key)
            key = pair_key(relation.edges, name, right.name, life)
            data = await self.store.get(PARTITION, key)
            if data is None:
                await self.prune_index(item.key, decode(item.value, Indexed, item.key))
                continue
            edge = decode(data, Edge, key)
            left = await self.find(relation.left, name)
            if left is None or left.life != edge.left or await self._is_past(right, edge.right):
                await self._delete_edge(relation, key)
            elif edge.right == right.life and name != last:
                last = name
                yield left

    async def sweep(self, record: Named) -> None:
        """Delete all edges of a record that is to be deleted."""
        for relation in RELATIONS:
            if isinstance(record, relation.left):
                for key, edge in [each async for each in self._edges(relation, record.name)]:
                    if edge.left == record.life:
                        await self._delete_edge(relation, key)
            if isinstance(record, relation.right):
                for left in [each async for each in self.lefts(relation, record)]:
                    await self.unlink(relation, left.name, record.name)

    async def prune_index(self, key: bytes, entry: Indexed) -> None:
        """Delete an index entry without its truth, unless that may be about to be written."""
        if self.clock.now_us() - entry.created_us > PRUNE_AFTER_SECONDS * 1_000_000:
            await self.store.delete(PARTITION, key)

    async def _edges(self, relation: Relation, left: str, rest: str = "") -> AsyncIterator[tuple[bytes, Edge]]:
        async for item in self.store.scan(PARTITION, prefix=f"{relation.edges}/{left}/{rest}".encode()):
            yield item.key, decode(item.value, Edge, item.key)

    async def _is_past(self, record: Named, life: str) -> bool:
        """Whether the life is an earlier one of this name. The record in hand may be the earlier one."""
        if life == record.life:
            return False
        now = await self.find(type(record), record.name)
        return now is not None and now.life == record.life

    async def _delete_edge(self, relation: Relation, key: bytes) -> None:
        left, right, life = parse_pair(key)
        await self.store.delete(PARTITION, key)
        await self.store.delete(PARTITION, pair_key(relation.back, right, left, life))


async def page_of(items: AsyncIterator[T], amount: int) -> Page[T]:
    """The first `amount` of the items, and whether there are more."""
    if not 0 < amount <= AMOUNT_MAX:
        raise Invalid(f"a page has 1 to {AMOUNT_MAX} items, not {amount}")
    found: list[T] = []
    async for item in items:
        if len(found) == amount:
            return Page(found, True)
        found.append(item)
    return Page(found, False)
