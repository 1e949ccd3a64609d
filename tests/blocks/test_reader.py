"""Bodies go into the store and come back as they were, or not at all."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from lsmfs import blocks
from lsmfs.blocks import HELD_BYTES_MAX, SMALL_AT_ONCE, SMALL_BYTES_MAX, locate, read_body, store_body
from lsmfs.clock import SystemClock
from lsmfs.lsm.appends import of_extents
from lsmfs.model import Entry, Extent
from lsmfs.objectstore.counting import CountingStore
from lsmfs.objectstore.local import LocalStore
from lsmfs.objectstore.memory import MemoryStore
from lsmfs.objectstore.store import ObjectStore, Span
from lsmfs.objectstore.wrapper import WrapperStore
from refstore.errors import Corrupt, Invalid, NotFound
from tests.aio import aio

CLOCK = SystemClock()


async def pieces(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


def nobody(url: str) -> ObjectStore:
    raise AssertionError(f"nothing here is stored at {url}")


async def body_of(entry: Entry, store: ObjectStore) -> bytes:
    return b"".join([piece async for piece in read_body(entry, store, nobody)])


@pytest.mark.parametrize(
    "parts", [(), (b"",), (b"hello",), (b"he", b"", b"llo"), (bytes(HELD_BYTES_MAX),), (bytes(HELD_BYTES_MAX), b"")]
)
@aio
async def test_a_small_body_is_one_put_and_comes_back(parts: tuple[bytes, ...]) -> None:
    store = CountingStore(MemoryStore())
    entry = await store_body(store, "lake", pieces(*parts), CLOCK, "text/plain", {"a": "b"})
    whole = b"".join(parts)
    assert (entry.size_bytes, entry.etag) == (len(whole), hashlib.md5(whole).hexdigest())
    assert (entry.content_type, entry.metadata) == ("text/plain", {"a": "b"})
    assert entry.address.startswith("lake/data/")
    assert await body_of(entry, store) == whole
    assert (store.calls("put"), store.calls("put_stream")) == (1, 0)


@pytest.mark.parametrize("first", [HELD_BYTES_MAX, HELD_BYTES_MAX - 1, HELD_BYTES_MAX + 1, 1])
@aio
async def test_a_large_body_is_streamed_and_comes_back(first: int) -> None:
    store = CountingStore(MemoryStore())
    whole = b"0123456789abcdef" * (HELD_BYTES_MAX // 8)
    entry = await store_body(store, "lake", pieces(whole[:first], whole[first:]), CLOCK)
    assert (entry.size_bytes, entry.etag) == (len(whole), hashlib.md5(whole).hexdigest())
    assert await body_of(entry, store) == whole
    assert (store.calls("put"), store.calls("put_stream")) == (0, 1)


@aio
async def test_a_body_that_breaks_off_leaves_no_object(tmp_path: Path) -> None:
    async def broken(size: int) -> AsyncIterator[bytes]:
        yield bytes(size)
        raise ConnectionResetError("gone")

    for store in (MemoryStore(), LocalStore(tmp_path)):
        for size in (10, HELD_BYTES_MAX + 1):
            with pytest.raises(ConnectionResetError):
                await store_body(store, "lake", broken(size), CLOCK)
        assert [info async for info in store.list()] == []


@aio
async def test_equal_bodies_get_names_of_their_own() -> None:
    store = MemoryStore()
    one, other = [await store_body(store, "lake", pieces(b"same"), CLOCK) for _ in range(2)]
    assert one.address != other.address
    assert one.etag == other.etag


@pytest.mark.parametrize("damage", [b"hellO", b"hell", b"hello!", b""])
@aio
async def test_a_body_that_is_not_what_was_written_is_corrupt(damage: bytes) -> None:
    store = MemoryStore()
    entry = await store_body(store, "lake", pieces(b"hello"), CLOCK)
    await store.put(entry.address, damage)
    if damage == b"hello!":  # what lies beyond the entry's bytes is not the entry's
        assert await body_of(entry, store) == b"hello"
        return
    with pytest.raises(Corrupt):
        await body_of(entry, store)


@aio
async def test_a_body_of_ours_that_is_gone_is_corrupt() -> None:
    store = MemoryStore()
    entry = await store_body(store, "lake", pieces(b"hello"), CLOCK)
    await store.delete(entry.address)
    with pytest.raises(Corrupt, match="gone, though an entry refers to them"):
        await body_of(entry, store)


@aio
async def test_a_body_of_several_extents_is_read_in_order() -> None:
    store = MemoryStore()
    await store.put("lake/data/a", b"--one--")
    await store.put("lake/data/b", b"two|three")
    rest = (Extent("lake/data/b", 4, 5), Extent("nowhere", 0, 0), Extent("lake/data/b", 0, 3))
    entry = Entry("lake/data/a", 11, hashlib.md5(b"onethreetwo").hexdigest(), offset=2, rest=rest)
    assert await body_of(entry, store) == b"onethreetwo"
    with pytest.raises(Corrupt, match="MD5"):
        await body_of(msgspec.structs.replace(entry, rest=(rest[2], rest[0])), store)


@pytest.mark.parametrize("wrong", [{"size_bytes": 9}, {"offset": 3}, {"offset": 99}])
@aio
async def test_an_entry_that_does_not_match_what_is_stored_is_corrupt(wrong: dict[str, int]) -> None:
    store = MemoryStore()
    entry = await store_body(store, "lake", pieces(b"hello"), CLOCK)
    with pytest.raises(Corrupt):
        await body_of(msgspec.structs.replace(entry, **wrong), store)


@aio
async def test_an_etag_that_is_no_md5_is_not_compared() -> None:
    store = MemoryStore()
    await store.put("x", b"hello")
    assert await body_of(Entry("x", 5, '"multipart-3"'), store) == b"hello"


@aio
async def test_a_foreign_object_is_read_from_its_store_and_its_etag_is_not_compared(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").write_bytes(b"1,2,3")
    asked = []

    def foreign(url: str) -> ObjectStore:
        asked.append(url)
        return LocalStore(tmp_path / "in")

    entry = Entry(f"file://{tmp_path}/in/a.csv", 5, "0" * 32)
    assert b"".join([piece async for piece in read_body(entry, MemoryStore(), foreign)]) == b"1,2,3"
    assert asked == [f"file://{tmp_path}/in"]


@aio
async def test_a_foreign_object_that_is_gone_or_shorter_says_so() -> None:
    elsewhere = MemoryStore()
    await elsewhere.put("a", b"123")
    gone, short = Entry("s3://bucket/b", 3), Entry("s3://bucket/a", 5)
    with pytest.raises(NotFound, match="s3://bucket/b"):
        async for _ in read_body(gone, MemoryStore(), lambda _: elsewhere):
            pass
    with pytest.raises(Corrupt):
        async for _ in read_body(short, MemoryStore(), lambda _: elsewhere):
            pass


@pytest.mark.parametrize(
    ("address", "own", "expected"),
    [
        ("s3://bucket/a/b.csv", "", ("s3://bucket", "a/b.csv")),
        (
            "s3://bucket/a",
            "s3://own/prefix?endpoint=http://x&region=r",
            ("s3://bucket?endpoint=http://x&region=r", "a"),
        ),
        ("gs://bucket/a", "s3://own?endpoint=http://x", ("gs://bucket", "a")),
        ("file:///data/a.csv", "", ("file:///data", "a.csv")),
        ("file:///a.csv", "", ("file:///", "a.csv")),
    ],
)
def test_where_a_foreign_object_is(address: str, own: str, expected: tuple[str, str]) -> None:
    assert locate(address, own) == expected


@pytest.mark.parametrize("address", ["s3://bucket", "s3://bucket/", "file:///data/", "s3://"])
def test_an_address_that_names_no_object_is_invalid(address: str) -> None:
    with pytest.raises(Invalid, match="names no object"):
        locate(address)


def test_a_held_body_is_no_larger_than_a_part_of_a_multipart_upload() -> None:
    assert blocks.HELD_BYTES_MAX == 8 * 1024 * 1024


async def appended(store: ObjectStore, *bodies: bytes) -> Entry:
    """An object of several bodies, each with its MD5, as appends leave it."""
    parts = [await store_body(store, "lake", pieces(body), CLOCK) for body in bodies]
    return of_extents([extent for part in parts for extent in part.extents], 1)


@pytest.mark.parametrize("count", [2, SMALL_AT_ONCE, SMALL_AT_ONCE + 1, 3 * SMALL_AT_ONCE])
@aio
async def test_many_small_extents_are_read_in_order_some_at_once(count: int) -> None:
    at_once = most = 0

    class Slow(WrapperStore):
        async def stream(self, name: str, span: Span | None = None) -> AsyncIterator[bytes]:
            nonlocal at_once, most
            at_once += 1
            most = max(most, at_once)
            await asyncio.sleep(0.001)
            async for piece in self.inner.stream(name, span):
                yield piece
            at_once -= 1

    store = Slow(MemoryStore())
    bodies = [f"{number},".encode() for number in range(count)]
    assert await body_of(await appended(store, *bodies), store) == b"".join(bodies)
    assert most == min(count, SMALL_AT_ONCE)


@aio
async def test_large_extents_among_small_ones_are_streamed_in_their_place() -> None:
    store = MemoryStore()
    large = bytes(range(256)) * (SMALL_BYTES_MAX // 256) + b"!"
    bodies = [b"a", b"b", large, large, b"c", b"", b"d", large]
    assert await body_of(await appended(store, *bodies), store) == b"".join(bodies)


@pytest.mark.parametrize("damaged", range(5))
@pytest.mark.parametrize("size", [3, SMALL_BYTES_MAX + 1])
@aio
async def test_damage_in_any_extent_of_an_object_that_was_appended_to_is_corrupt(damaged: int, size: int) -> None:
    store = MemoryStore()
    entry = await appended(store, *(bytes([number]) * size for number in range(5)))
    assert len(await body_of(entry, store)) == 5 * size
    await store.put(entry.extents[damaged].address, b"x" * size)
    with pytest.raises(Corrupt, match="MD5"):
        await body_of(entry, store)
    await store.delete(entry.extents[damaged].address)
    with pytest.raises(Corrupt, match="gone"):
        await body_of(entry, store)
