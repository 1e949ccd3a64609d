"""A ref store in this process's memory: for tests, simulations and dry runs.

It is deterministic: no threads, no clock, no sleeping. Each verb gives the event loop one turn and then acts without
a break, so every interleaving of verbs is possible and no verb is ever half done. Nothing survives the object.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator

from refstore.drivers.keys import check_key, check_value, event_id, event_ids
from refstore.errors import Conflict, NotFound
from refstore.records import Branch, BranchChange, Event
from refstore.refs import apply, event_of
from refstore.store import ABSENT, Absent, Item


class MemoryRefStore:
    """`Store` and `Refs` over dictionaries and lists."""

    def __init__(self) -> None:
        self._items: defaultdict[str, dict[bytes, bytes]] = defaultdict(dict)
        self._branches: defaultdict[str, dict[str, Branch]] = defaultdict(dict)
        self._journal: defaultdict[str, list[Event]] = defaultdict(list)

    async def get(self, partition: str, key: bytes) -> bytes | None:
        await asyncio.sleep(0)
        check_key(key)
        return self._items[partition].get(key)

    async def scan(self, partition: str, start: bytes = b"", prefix: bytes = b"") -> AsyncIterator[Item]:
        await asyncio.sleep(0)
        items = self._items[partition]
        for key in sorted(items):
            if key >= start and key.startswith(prefix) and key in items:
                yield Item(key, items[key])

    async def set(self, partition: str, key: bytes, value: bytes) -> None:
        await asyncio.sleep(0)
        check_value(key, value)
        self._items[partition][key] = value

    async def delete(self, partition: str, key: bytes) -> None:
        await asyncio.sleep(0)
        check_key(key)
        self._items[partition].pop(key, None)

    async def set_if(self, partition: str, key: bytes, value: bytes, expected: bytes | Absent) -> None:
        await asyncio.sleep(0)
        check_value(key, value)
        if self._items[partition].get(key, ABSENT) != expected:
            raise Conflict(f"the value of {key!r} is not the expected one: read it again")
        self._items[partition][key] = value

    async def read(self, repository: str, name: str) -> Branch:
        await asyncio.sleep(0)
        branch = self._branches[repository].get(name)
        if branch is None:
            raise NotFound(f"branch {name!r} does not exist")
        return branch

    async def branches(self, repository: str, after: str = "", prefix: str = "") -> AsyncIterator[Branch]:
        await asyncio.sleep(0)
        branches = self._branches[repository]
        for name in sorted(branches):  # code points sort as their UTF-8 bytes do
            if name > after and name.startswith(prefix) and name in branches:
                yield branches[name]

    async def change(self, repository: str, name: str, change: BranchChange) -> Branch:
        await asyncio.sleep(0)
        branches = self._branches[repository]
        before = branches.get(name)
        after = apply(before, name, change)
        if after is not None and after is before:
            return after
        self._journal[repository].append(event_of(name, before, after, change))
        if after is None:
            return branches.pop(name)
        branches[name] = after
        return after

    async def events(self, repository: str, limit: int = 1000) -> list[Event]:
        await asyncio.sleep(0)
        return self._journal[repository][:limit]

    async def trim(self, repository: str, events: list[Event]) -> None:
        await asyncio.sleep(0)
        gone = event_ids(events)
        self._journal[repository] = [event for event in self._journal[repository] if event_id(event) not in gone]

    async def aclose(self) -> None:
        """Nothing to release."""


__all__ = ["MemoryRefStore"]
