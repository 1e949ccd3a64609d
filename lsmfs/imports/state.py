"""What is remembered of an import, in the ref store.

    partition <repository>/imports    import/<id>             an `ImportState`, as JSON
                                      chunk/<life><new id>    up to RANGES_PER_CHUNK ranges, never changed

A state names the chunks that count; others are left over and go when the import ends. It is changed by compare-and-swap
alone and says which process goes on with the import (`owner`): if a second one takes over, or somebody cancels, the
first is told at its next change, and cannot publish any more.

An import's id is made from what it imports and where to, so the same request finds the import that it began before, or
the result of the last one that has ended: there is one item for each. Its `life` is new with every beginning: whoever
still tidies up after an older one does not touch the newer.
"""

import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import msgspec

from lsmfs.clock import Clock
from lsmfs.imports.ranges import StoredRange
from lsmfs.imports.source import Skip
from refstore.errors import Conflict, Corrupt, NotFound
from refstore.store import ABSENT, Absent, Store

RANGES_PER_CHUNK = 64  # of 2 KB at most, two long keys: 150 KB of the 256 KB that a value may have

T = TypeVar("T")
Chunks = tuple[str, ...]
"""The keys of the chunks that hold the ranges of a run, in order."""


class TakenOver(Conflict):
    """Another process goes on with the import, or somebody has cancelled it."""


@dataclass
class Part:
    """The ranges of a run so far, and the chunks that hold the first `saved` of them."""

    ranges: list[StoredRange] = field(default_factory=list)
    chunks: Chunks = ()
    saved: int = 0


class Publication(msgspec.Struct, frozen=True):
    """The one append that publishes an import: whoever repeats it, it is done once. See `Importer.publish`."""

    unit: str
    writer: str
    opened_at: int


class ImportState(msgspec.Struct, frozen=True):
    id: str
    life: str
    source: str
    mark: str
    branch: str
    incarnation: str
    prefix: str
    owner: str
    began_us: int
    saved_us: int
    objects: int = 0
    size_bytes: int = 0
    skipped: dict[str, Skip] = {}
    counted: bytes = b""
    """The last name of the source up to which `skipped` is counted."""
    is_read: bool = False
    """Whether the source was read to its end."""
    spills: tuple[Chunks, ...] = ()
    written: Chunks = ()
    publication: Publication | None = None
    is_cancelled: bool = False
    is_done: bool = False
    """It has ended; what is left is its result."""


class Retrying(Protocol):
    """Repeats what may be repeated until it is answered: `BranchChanger.retrying`."""

    async def __call__(self, call: Callable[[], Awaitable[T]]) -> T: ...


def import_id(repository: str, source: str, branch: str, prefix: str) -> str:
    text = "\0".join((repository, source, branch, prefix))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


class States:
    """The imports of one repository."""

    def __init__(self, store: Store, repository: str, clock: Clock, retrying: Retrying) -> None:
        self._store = store
        self._partition = f"{repository}/imports"  # a repository's name has no slash
        self._clock = clock
        self._retrying = retrying

    async def all(self) -> AsyncIterator[ImportState]:
        async for item in self._store.scan(self._partition, prefix=_state_key("")):
            yield _decode(item.value)

    async def find(self, identity: str) -> ImportState | None:
        found = await self._retrying(lambda: self._store.get(self._partition, _state_key(identity)))
        return None if found is None else _decode(found)

    async def swap(self, old: ImportState | Absent, new: ImportState) -> ImportState:
        """Put the new state in the place of the old one; `TakenOver` if that is not there any more. A state has the id
        of its owner, so finding the new one there means that it was put, though the answer was lost."""
        expected = old if isinstance(old, Absent) else _encode(old)
        key, value = _state_key(new.id), _encode(new)
        try:
            await self._retrying(lambda: self._store.set_if(self._partition, key, value, expected))
        except Conflict:
            if await self._retrying(lambda: self._store.get(self._partition, key)) != value:
                raise TakenOver(
                    f"import {new.id} was taken over by another process, or cancelled: `lsmfs import --list` shows it"
                ) from None
        return new

    async def remove(self, state: ImportState) -> None:
        """Nothing of the import is remembered any more. The state goes last, so that this can be repeated."""
        await self.forget(state)
        await self._retrying(lambda: self._store.delete(self._partition, _state_key(state.id)))

    async def forget(self, state: ImportState) -> None:
        """Remove every chunk of this life of the import."""
        prefix = _chunk_key(state.life)
        scan = self._store.scan(self._partition, prefix, prefix)
        await self.drop_chunks([item.key.decode().removeprefix(_CHUNK) async for item in scan])

    async def save_part(self, state: ImportState, part: Part) -> None:
        """Store the ranges that are in no chunk yet; the last chunk is made again, if it was not full."""
        if part.saved == len(part.ranges):
            return
        chunks = list(part.chunks[: part.saved // RANGES_PER_CHUNK])
        for start in range(len(chunks) * RANGES_PER_CHUNK, len(part.ranges), RANGES_PER_CHUNK):
            key, value = state.life + self._clock.new_id(), part.ranges[start : start + RANGES_PER_CHUNK]
            await self._set_chunk(key, msgspec.msgpack.encode(value))
            chunks.append(key)
        part.chunks, part.saved = tuple(chunks), len(part.ranges)

    async def load_part(self, state: ImportState, chunks: Chunks) -> Part:
        ranges: list[StoredRange] = []
        for chunk in chunks:
            ranges += await self._get_chunk(state, chunk)
        return Part(ranges, chunks, len(ranges))

    async def drop_chunks(self, chunks: Iterable[str]) -> None:
        """Remove chunks that nothing refers to any more."""
        for chunk in chunks:
            await self._delete_chunk(chunk)

    async def _set_chunk(self, chunk: str, value: bytes) -> None:
        await self._retrying(lambda: self._store.set(self._partition, _chunk_key(chunk), value))

    async def _get_chunk(self, state: ImportState, chunk: str) -> list[StoredRange]:
        value = await self._retrying(lambda: self._store.get(self._partition, _chunk_key(chunk)))
        if value is None:
            raise Corrupt(f"import {state.id}: its chunk {chunk} is gone: `lsmfs import --cancel {state.id}`")
        return msgspec.msgpack.decode(value, type=list[StoredRange])

    async def _delete_chunk(self, chunk: str) -> None:
        await self._retrying(lambda: self._store.delete(self._partition, _chunk_key(chunk)))


_CHUNK = "chunk/"


def _state_key(identity: str) -> bytes:
    return f"import/{identity}".encode()


def _chunk_key(chunk: str) -> bytes:
    return f"{_CHUNK}{chunk}".encode()


def found(state: ImportState | None, identity: str) -> ImportState:
    """The state, if it is of an import that has not ended."""
    if state is None or state.is_done:
        raise NotFound(f"there is no unfinished import {identity!r}: it has ended or was cancelled")
    return state


_encode = msgspec.json.Encoder(order="deterministic").encode


def _decode(value: bytes) -> ImportState:
    try:
        return msgspec.json.decode(value, type=ImportState)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Corrupt(f"the state of an import cannot be read: {error}") from None


__all__ = ["ABSENT", "Chunks", "ImportState", "Part", "Publication", "States", "TakenOver", "found", "import_id"]
