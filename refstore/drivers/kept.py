"""Branch records for stores that change one object at a time: the record carries its newest events with it.

    Kept { name, branch | none, chain, position, trimmed, pending: [event], write }
    Chunk (name, chain, first..last): events that were pending and had to make room

A change replaces the Kept as a whole if nobody else has, so the record and its event are one atomic step. Every event
of a name has a position, 1, 2, 3, ...; the journal of the name is

    trimmed < position <= spilled: in chunks     spilled < position: pending     (spilled = position - len(pending))

1. A swap that finds `pending` full first writes those events as a chunk, then swaps a Kept without them. Only events
   that are in the stored Kept are written, so equal positions are equal events whoever writes the chunk, and a chunk
   without its swap, or one written again after it was trimmed, lies outside these bounds and is not seen.
2. A deleted branch leaves a Kept without a branch, so its events and positions survive it; where the store can delete
   conditionally it goes with its last event. A name that begins anew then has another chain, for its chunks.
3. A trim raises `trimmed` by a swap, then deletes the chunks below it.
4. An answer that was lost is looked for: each swap has a `write` id of its own.
"""

import asyncio
import random
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from typing import NamedTuple

import msgspec

from refstore.drivers.keys import EventId, event_id
from refstore.errors import Conflict, Corrupt, NotFound, OutcomeUnknown, Unavailable
from refstore.records import Branch, BranchChange, Event, encode
from refstore.refs import SWAP_TRIES_MAX, change_by_swap

PENDING_EVENTS_MAX = 32  # of an append about 300 bytes each: 10 KB more to write with every change
PENDING_BYTES_MAX = 64 * 1024  # a compaction's event may name 256 tables, 16 KB; DynamoDB's item holds 400 KB


class Kept(msgspec.Struct, frozen=True):
    """What is stored under a branch's name."""

    name: str
    branch: Branch | None
    chain: str
    position: int
    trimmed: int
    pending: tuple[Event, ...]
    write: str

    @property
    def spilled(self) -> int:
        """The position of the last event that is not pending."""
        return self.position - len(self.pending)

    @property
    def is_full(self) -> bool:
        if len(self.pending) >= PENDING_EVENTS_MAX:
            return True
        return sum(len(encode(event)) for event in self.pending) > PENDING_BYTES_MAX


class Span(NamedTuple):
    """The positions of a chunk's events, both included."""

    first: int
    last: int


def following(kept: Kept | None, branch: Branch | None, event: Event, write: str) -> Kept:
    """What is stored after this event."""
    if kept is None:
        return Kept(event.branch, branch, event.change.incarnation, 1, 0, (event,), write)
    pending = (event,) if kept.is_full else (*kept.pending, event)
    return msgspec.structs.replace(kept, branch=branch, position=kept.position + 1, pending=pending, write=write)


def without(kept: Kept, count: int, write: str) -> Kept:
    """What is stored after its `count` oldest events were trimmed."""
    trimmed = kept.trimmed + count
    pending = kept.pending[max(0, trimmed - kept.spilled) :]
    return msgspec.structs.replace(kept, trimmed=trimmed, pending=pending, write=write)


class KeptRefs(ABC):
    """`Refs` over the primitives below, which a driver supplies."""

    def __init__(self, new_id: Callable[[], str], jitter: Callable[[], float] = random.random) -> None:
        self._new_id = new_id
        self._jitter = jitter

    @abstractmethod
    async def _load_kept(self, repository: str, name: str) -> tuple[Kept | None, object]:
        """What is stored, and its tag."""

    @abstractmethod
    async def _store_kept(self, repository: str, kept: Kept, tag: object) -> None:
        """Store it if the tag is still this one; `Conflict` if not."""

    @abstractmethod
    async def _remove_kept(self, repository: str, kept: Kept) -> None:
        """Remove it if it is still this one, `Conflict` if not; a store that cannot do so leaves it."""

    @abstractmethod
    def _all_kept(self, repository: str, after: str, prefix: str) -> AsyncIterator[Kept]:
        """All with name > after that begin with prefix, in ascending order of the name's bytes."""

    @abstractmethod
    def _chunks(self, repository: str, kept: Kept) -> AsyncIterator[Span]:
        """The chunks of this name and chain, in ascending order."""

    @abstractmethod
    async def _read_chunk(self, repository: str, kept: Kept, span: Span) -> list[Event] | None:
        """The events of a chunk; None if it is not there any more."""

    @abstractmethod
    async def _write_chunk(self, repository: str, kept: Kept, span: Span) -> None:
        """Write the pending events of this Kept as a chunk, durably."""

    @abstractmethod
    async def _delete_chunk(self, repository: str, kept: Kept, span: Span) -> None:
        """Delete a chunk; no error if it is not there."""

    async def read(self, repository: str, name: str) -> Branch:
        kept, _ = await self._load_kept(repository, name)
        if kept is None or kept.branch is None:
            raise NotFound(f"branch {name!r} does not exist")
        return kept.branch

    async def branches(self, repository: str, after: str = "", prefix: str = "") -> AsyncIterator[Branch]:
        async for kept in self._all_kept(repository, after, prefix):
            if kept.branch is not None:
                yield kept.branch

    async def change(self, repository: str, name: str, change: BranchChange) -> Branch:
        return await change_by_swap(self, repository, name, change, self._jitter)

    async def load(self, repository: str, name: str) -> tuple[Branch | None, object]:
        """For `change_by_swap`: the tag is what is stored, with the store's own tag of it."""
        kept, tag = await self._load_kept(repository, name)
        return kept.branch if kept else None, (kept, tag)

    async def swap(self, repository: str, name: str, tag: object, new: Branch | None, event: Event) -> None:
        assert isinstance(tag, tuple)
        kept, inner = tag
        if kept is not None and kept.is_full:
            await self._write_chunk(repository, kept, Span(kept.spilled + 1, kept.position))
        changed = following(kept, new, event, self._new_id())
        try:
            await self._store_kept(repository, changed, inner)
        except OutcomeUnknown:
            if not await self._stands(repository, changed):
                raise

    async def _stands(self, repository: str, changed: Kept) -> bool:
        try:
            found, _ = await self._load_kept(repository, changed.name)
        except Unavailable:
            return False
        return found is not None and found.write == changed.write

    async def events(self, repository: str, limit: int = 1000) -> list[Event]:
        """Branch by branch; a reader that trims what it got comes to every branch."""
        events: list[Event] = []
        async for kept in self._all_kept(repository, "", ""):
            if kept.trimmed < kept.position:
                events += await self._untrimmed(repository, kept, limit - len(events))
            if len(events) >= limit:
                break
        return events

    async def _untrimmed(self, repository: str, kept: Kept, limit: int) -> list[Event]:
        """The oldest events of one name."""
        events: list[Event] = []
        wanted = min(limit, kept.spilled - kept.trimmed)
        if wanted:
            async for span in self._chunks(repository, kept):
                position = kept.trimmed + len(events)
                if len(events) >= wanted or span.first > position + 1:
                    break
                if span.last > position:
                    chunk = await self._read_chunk(repository, kept, span) or []
                    events += chunk[position + 1 - span.first : kept.spilled + 1 - span.first]
        if len(events) < wanted:
            return await self._explain_gap(repository, kept, len(events))
        return [*events, *kept.pending][:limit]

    async def _explain_gap(self, repository: str, kept: Kept, found: int) -> list[Event]:
        """Another process trims just now, so it has these events; or the journal is damaged."""
        again, _ = await self._load_kept(repository, kept.name)
        if again is not None and (again.chain, again.trimmed) == (kept.chain, kept.trimmed):
            position = kept.trimmed + found + 1
            raise Corrupt(f"the journal of branch {kept.name!r} lacks event {position} of life {kept.chain}")
        return []

    async def trim(self, repository: str, events: list[Event]) -> None:
        gone: defaultdict[str, set[EventId]] = defaultdict(set)
        for event in events:
            gone[event.branch].add(event_id(event))
        for name, ids in gone.items():
            await self._trim(repository, name, ids)

    async def _trim(self, repository: str, name: str, gone: set[EventId]) -> None:
        for attempt in range(SWAP_TRIES_MAX):
            kept, tag = await self._load_kept(repository, name)
            if kept is None:
                return
            oldest = await self._untrimmed(repository, kept, len(gone))
            count = next((at for at, event in enumerate(oldest) if event_id(event) not in gone), len(oldest))
            try:
                await self._forget(repository, kept, tag, count)
            except Conflict:
                await asyncio.sleep(min(0.05, 0.002 * 2**attempt) * self._jitter())
                continue
            return
        raise Unavailable(f"branch {name!r} is too busy: its journal could not be trimmed; try again")

    async def _forget(self, repository: str, kept: Kept, tag: object, count: int) -> None:
        trimmed = without(kept, count, self._new_id())
        if count:
            await self._store_kept(repository, trimmed, tag)
            async for span in self._chunks(repository, kept):
                if span.last > trimmed.trimmed:
                    break
                await self._delete_chunk(repository, kept, span)
        if trimmed.branch is None and trimmed.trimmed == trimmed.position:
            await self._remove_kept(repository, trimmed)


__all__ = ["PENDING_EVENTS_MAX", "Kept", "KeptRefs", "Span", "following", "without"]
