"""A store whose changes are not made: it reads through to another, and keeps what was written in memory.

So a verb can be tried, and its outcome looked at, before it is done.
"""

from collections.abc import AsyncIterator

from refstore.errors import Conflict
from refstore.store import ABSENT, Absent, Item, Store


class TrialStore:
    """`Store` over another one, which it never changes."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._changes: dict[tuple[str, bytes], bytes | None] = {}

    async def get(self, partition: str, key: bytes) -> bytes | None:
        if (partition, key) in self._changes:
            return self._changes[partition, key]
        return await self._store.get(partition, key)

    async def scan(self, partition: str, start: bytes = b"", prefix: bytes = b"") -> AsyncIterator[Item]:
        items = {item.key: item.value async for item in self._store.scan(partition, start, prefix)}
        for (changed_in, key), value in self._changes.items():
            if changed_in == partition and key >= start and key.startswith(prefix):
                items.pop(key, None)
                if value is not None:
                    items[key] = value
        for key in sorted(items):
            yield Item(key, items[key])

    async def set(self, partition: str, key: bytes, value: bytes) -> None:
        self._changes[partition, key] = value

    async def delete(self, partition: str, key: bytes) -> None:
        self._changes[partition, key] = None

    async def set_if(self, partition: str, key: bytes, value: bytes, expected: bytes | Absent) -> None:
        found = await self.get(partition, key)
        if (ABSENT if found is None else found) != expected:
            raise Conflict(f"the value of {key!r} is not the expected one: read it again")
        self._changes[partition, key] = value

    async def aclose(self) -> None:
        """The other store stays open."""
