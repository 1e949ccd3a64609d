"""A bucket as its own ref store, by conditional writes: nothing else to run, for few writers.

    <prefix>kv/<partition>/<key>                      an id that no other write has, a newline, the value
    <prefix>refs/<repository>/<branch>                a Kept (see `kept`) as JSON
    <prefix>journal/<repository>/<branch>/<chain>/<first>-<last>     its events that had to make room

Names are encoded so that the order of names is the order of keys. Every write has bytes of its own, so a tag never
comes back, whatever the store derives it from. It works only where the store honours `If-None-Match` and `If-Match`;
one that ignores them must be found out before (`lsmfs doctor`).

A deleted branch leaves a small object behind, because a bucket cannot delete under a condition. A change costs a get
and a put, and S3 takes about 15 a second on one object: enough with group commit, not for many busy writers.
Encoded, a key or branch name has at most 255 bytes: letters and digits count 1, all other bytes 3.
"""

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from typing import Any, Protocol, TypeVar

import msgspec

from refstore.drivers.kept import Kept, KeptRefs, Span
from refstore.drivers.keys import check_key, check_value
from refstore.errors import AlreadyExists, Conflict, Corrupt, Invalid, NotFound, OutcomeUnknown, Unavailable
from refstore.records import Event, encode
from refstore.store import ABSENT, Absent, Item

SEGMENT_BYTES_MAX = 255  # of a name: the common limit of file systems and so of object stores on them
FETCHES_MAX = 16  # objects of a listing that are fetched at once
KEPT_CACHED_MAX = 4096  # records of a few KB at most in common use: 20 MB

T = TypeVar("T")


class Listed(Protocol):
    """What a listing says of an object."""

    @property
    def name(self) -> str: ...
    @property
    def tag(self) -> Any: ...


class Blobs(Protocol):
    """What is needed of an object store; `lsmfs.objectstore.store.ObjectStore` has it."""

    async def get_tagged(self, name: str) -> tuple[bytes, Any]: ...
    async def put(self, name: str, body: bytes, expected: Any = ...) -> Any: ...
    async def delete(self, name: str) -> None: ...
    def list(self, prefix: str = "", after: str = "") -> AsyncIterator[Listed]: ...


# One escape sign for each gap between the ranges of plain bytes, so that signs and plain bytes sort as the bytes do.
_PLAIN = frozenset(b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")
_SIGNS = ((b"0"[0], "-"), (b"A"[0], "="), (b"a"[0], "_"), (256, "~"))


def _encoded_byte(byte: int) -> str:
    return chr(byte) if byte in _PLAIN else next(sign for stop, sign in _SIGNS if byte < stop) + f"{byte:02x}"


_CODE = [_encoded_byte(byte) for byte in range(256)]


def to_segment(key: bytes | bytearray) -> str:
    """The key as one segment of a name: reversible, and in the same order."""
    return "".join([_CODE[byte] for byte in key])


def from_segment(segment: str) -> bytes:
    key = bytearray()
    at = 0
    try:
        while at < len(segment):
            plain = ord(segment[at]) in _PLAIN
            key.append(ord(segment[at]) if plain else int(segment[at + 1 : at + 3], 16))
            at += 1 if plain else 3
    except ValueError:
        raise Corrupt(f"{segment!r} is not the name of a key") from None
    if to_segment(key) != segment:  # another sign, or other digits, for the same byte
        raise Corrupt(f"{segment!r} is not the name of a key, which is {to_segment(key)!r}")
    return bytes(key)


def _checked(segment: str) -> str:
    if not 0 < len(segment) <= SEGMENT_BYTES_MAX:
        raise Invalid(f"a name in a bucket has 1 to {SEGMENT_BYTES_MAX} bytes when encoded: {segment[:40]!r}...")
    return segment


class BucketRefStore(KeptRefs):
    """`Store` and `Refs` over an object store, which stays the caller's to close."""

    def __init__(
        self, blobs: Blobs, prefix: str = "refstore/", new_id: Callable[[], str] = lambda: uuid.uuid4().hex
    ) -> None:
        super().__init__(new_id)
        self._blobs = blobs
        self._prefix = prefix
        self._fetched: dict[str, tuple[object, Kept]] = {}

    async def get(self, partition: str, key: bytes) -> bytes | None:
        found, _ = await self._find(self._item_name(partition, key))
        return None if found is None else _value(found)

    async def scan(self, partition: str, start: bytes = b"", prefix: bytes = b"") -> AsyncIterator[Item]:
        start = max(start, prefix)
        if start.startswith(prefix) and (value := await self._get_if_possible(partition, start)) is not None:
            yield Item(start, value)  # a listing begins after a name, not at it
        directory = self._directory("kv", partition)
        listing = self._blobs.list(directory + to_segment(prefix), directory + to_segment(start))
        async for infos in _batches(listing):
            bodies = await asyncio.gather(*(self._find(info.name) for info in infos))
            for info, (body, _) in zip(infos, bodies, strict=True):
                if body is not None:  # deleted since it was listed
                    yield Item(from_segment(info.name.removeprefix(directory)), _value(body))

    async def set(self, partition: str, key: bytes, value: bytes) -> None:
        check_value(key, value)
        await self._blobs.put(self._item_name(partition, key), self._framed(value))

    async def delete(self, partition: str, key: bytes) -> None:
        await self._blobs.delete(self._item_name(partition, key))

    async def set_if(self, partition: str, key: bytes, value: bytes, expected: bytes | Absent) -> None:
        check_value(key, value)
        name = self._item_name(partition, key)
        refused = Conflict(f"the value of {key!r} is not the expected one: read it again")
        found, tag = await self._find(name)
        if (ABSENT if found is None else _value(found)) != expected:
            raise refused
        body = self._framed(value)
        try:
            await self._blobs.put(name, body, tag)
        except (Conflict, AlreadyExists):
            raise refused from None
        except OutcomeUnknown:
            if not await self._is_stored(name, body):
                raise

    async def aclose(self) -> None:
        """Nothing to release: the object store is the caller's."""

    async def _load_kept(self, repository: str, name: str) -> tuple[Kept | None, object]:
        body, tag = await self._find(self._record_name(repository, name))
        return None if body is None else _decoded(body, Kept), tag

    async def _store_kept(self, repository: str, kept: Kept, tag: object) -> None:
        try:
            await self._blobs.put(self._record_name(repository, kept.name), encode(kept), tag)
        except AlreadyExists as error:
            raise Conflict(f"branch {kept.name!r} changed") from error

    async def _remove_kept(self, repository: str, kept: Kept) -> None:
        """It stays: a delete without a condition could take a branch that was just created."""

    async def _all_kept(self, repository: str, after: str, prefix: str) -> AsyncIterator[Kept]:
        directory = self._directory("refs", repository)
        listing = self._blobs.list(directory + to_segment(prefix.encode()), directory + to_segment(after.encode()))
        async for infos in _batches(listing):
            for kept in await asyncio.gather(*(self._listed(info) for info in infos)):
                if kept is not None:
                    yield kept

    async def _listed(self, info: Listed) -> Kept | None:
        """The record of a listed object: fetched only if its tag is not the one that was fetched last."""
        tag, kept = self._fetched.get(info.name, (None, None))
        if kept is not None and tag == info.tag:
            return kept
        body, tag = await self._find(info.name)
        if body is None:
            return None
        kept = _decoded(body, Kept)
        if len(self._fetched) >= KEPT_CACHED_MAX:
            self._fetched.pop(next(iter(self._fetched)))
        self._fetched[info.name] = tag, kept
        return kept

    async def _chunks(self, repository: str, kept: Kept) -> AsyncIterator[Span]:
        directory = self._chunk_directory(repository, kept)
        async for info in self._blobs.list(directory):
            first, _, last = info.name.removeprefix(directory).partition("-")
            yield Span(int(first, 16), int(last, 16))

    async def _read_chunk(self, repository: str, kept: Kept, span: Span) -> list[Event] | None:
        body, _ = await self._find(self._chunk_name(repository, kept, span))
        return None if body is None else _decoded(body, list[Event])

    async def _write_chunk(self, repository: str, kept: Kept, span: Span) -> None:
        await self._blobs.put(self._chunk_name(repository, kept, span), encode(kept.pending))

    async def _delete_chunk(self, repository: str, kept: Kept, span: Span) -> None:
        await self._blobs.delete(self._chunk_name(repository, kept, span))

    async def _find(self, name: str) -> tuple[bytes | None, Any]:
        """The bytes and what a put must expect to replace them."""
        try:
            return await self._blobs.get_tagged(name)
        except NotFound:
            return None, ABSENT

    async def _get_if_possible(self, partition: str, key: bytes) -> bytes | None:
        """The value of a key that may be empty or too long, and then has none."""
        try:
            return await self.get(partition, key)
        except Invalid:
            return None

    async def _is_stored(self, name: str, body: bytes) -> bool:
        try:
            return (await self._find(name))[0] == body
        except Unavailable:
            return False

    def _framed(self, value: bytes) -> bytes:
        return self._new_id().encode() + b"\n" + value

    def _directory(self, kind: str, partition: str) -> str:
        return f"{self._prefix}{kind}/{_checked(to_segment(partition.encode()))}/"

    def _item_name(self, partition: str, key: bytes) -> str:
        check_key(key)
        return self._directory("kv", partition) + _checked(to_segment(key))

    def _record_name(self, repository: str, name: str) -> str:
        return self._directory("refs", repository) + _checked(to_segment(name.encode()))

    def _chunk_directory(self, repository: str, kept: Kept) -> str:
        branch, chain = to_segment(kept.name.encode()), _checked(to_segment(kept.chain.encode()))
        return f"{self._directory('journal', repository)}{branch}/{chain}/"

    def _chunk_name(self, repository: str, kept: Kept, span: Span) -> str:
        return f"{self._chunk_directory(repository, kept)}{span.first:016x}-{span.last:016x}"


def _value(body: bytes) -> bytes:
    _, newline, value = body.partition(b"\n")
    if not newline:
        raise Corrupt(f"a stored value does not begin with the id of its write: {body[:40]!r}")
    return value


def _decoded(body: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Corrupt(f"a stored {kind} cannot be read: {error}") from error


async def _batches(listing: AsyncIterator[Listed]) -> AsyncIterator[list[Listed]]:
    batch: list[Listed] = []
    async for info in listing:
        batch.append(info)
        if len(batch) == FETCHES_MAX:
            yield batch
            batch = []
    if batch:
        yield batch


__all__ = ["Blobs", "BucketRefStore", "from_segment", "to_segment"]
