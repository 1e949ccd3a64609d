"""Bodies come back out of the store as they were written, or not at all."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lsmfs.blocks import ALONE, Layout, locate, read_body
from lsmfs.blocks.reader import SMALL_AT_ONCE, SMALL_BYTES_MAX
from lsmfs.lsm.appends import of_extents
from lsmfs.model import Entry, Extent
from lsmfs.objectstore.local import LocalStore
from lsmfs.objectstore.memory import MemoryStore
from lsmfs.objectstore.store import ObjectStore, Span
from lsmfs.objectstore.wrapper import WrapperStore
from refstore.errors import Corrupt, Invalid, NotFound
from tests.aio import aio
from tests.blocks.support import MIB, SMALL_BLOCKS, WHOLE, body_of, nobody, noise, saved


@pytest.mark.parametrize("damage", [b"hellO", b"hell", b"hello!", b""])
@aio
async def test_a_body_that_is_not_what_was_written_is_corrupt(damage: bytes) -> None:
    store = MemoryStore()
    entry = await saved(store, b"hello")
    await store.put(entry.address, damage)
    if damage == b"hello!":  # what lies beyond the entry's bytes is not the entry's
        assert await body_of(entry, store) == b"hello"
        return
    with pytest.raises(Corrupt):
        await body_of(entry, store)


@aio
async def test_a_body_of_ours_that_is_gone_is_corrupt() -> None:
    store = MemoryStore()
    entry = await saved(store, b"hello")
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
    entry = await saved(store, b"hello")
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


async def appended(store: ObjectStore, *bodies: bytes, layout: Layout = ALONE) -> Entry:
    """An object of several bodies, each with its digest, as appends leave it."""
    parts = [await saved(store, body, layout=layout) for body in bodies]
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
@pytest.mark.parametrize(("layout", "digest"), [(ALONE, "SHA256"), (WHOLE, "MD5")])
@aio
async def test_damage_in_any_extent_of_an_object_that_was_appended_to_is_corrupt(
    damaged: int, size: int, layout: Layout, digest: str
) -> None:
    store = MemoryStore()
    entry = await appended(store, *(bytes([number]) * size for number in range(5)), layout=layout)
    assert len(await body_of(entry, store)) == 5 * size
    await store.put(entry.extents[damaged].address, b"x" * size)
    with pytest.raises(Corrupt, match=digest):
        await body_of(entry, store)
    await store.delete(entry.extents[damaged].address)
    with pytest.raises(Corrupt, match="gone"):
        await body_of(entry, store)


@aio
async def test_an_object_of_extents_without_digests_is_not_compared_with_an_etag_that_is_no_md5() -> None:
    store = MemoryStore()
    await store.put("lake/data/a", b"onetwo")
    entry = of_extents([Extent("lake/data/a", 3, 3), Extent("lake/data/a", 0, 3)], 1)
    assert entry.etag.endswith("-2")
    assert await body_of(entry, store) == b"twoone"


@pytest.mark.parametrize("position", [0, 1, MIB - 1, MIB, 2 * MIB, 2 * MIB + 4])
@aio
async def test_a_flipped_bit_in_any_block_is_corrupt_also_in_a_span_that_has_the_block(position: int) -> None:
    store, body = MemoryStore(), noise(2 * MIB + 5)
    entry = await saved(store, body, layout=SMALL_BLOCKS)
    extent = entry.extents[position // MIB]
    damaged = bytearray(await store.get(extent.address))
    damaged[position % MIB] ^= 16
    await store.put(extent.address, damaged)
    begin = position // MIB * MIB
    for span in (None, Span(begin, begin + extent.length), Span(max(begin - 7, 0), begin + extent.length)):
        with pytest.raises(Corrupt, match="SHA256"):
            await body_of(entry, store, span)
    unverified = [piece async for piece in read_body(entry, store, nobody, verify=False)]
    assert len(b"".join(unverified)) == len(body)


BODY = noise(3 * MIB + 3)
EDGES = [at for edge in (0, MIB, 2 * MIB, 3 * MIB, len(BODY)) for at in (edge - 1, edge, edge + 1)]


@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_any_span_of_any_body_in_any_blocks_is_that_slice(data: st.DataObject) -> None:
    size = data.draw(st.sampled_from([0, 1, MIB - 1, MIB, MIB + 1, len(BODY)]) | st.integers(0, len(BODY)))
    block = data.draw(st.sampled_from([0, MIB, 2 * MIB]) | st.integers(MIB, 4 * MIB))
    packed = data.draw(st.sampled_from([0, 1024, MIB]))
    near = st.sampled_from(EDGES) | st.integers(0, size)
    cut = sorted(min(max(data.draw(near), 0), size) for _ in range(2))
    ends = [tuple(sorted(min(max(data.draw(near), 0), size) for _ in range(2))) for _ in range(4)]

    async def run() -> None:
        store, body = MemoryStore(), BODY[:size]
        parts = (body[: cut[0]], body[cut[0] : cut[1]], body[cut[1] :])
        entry = await saved(store, *parts, layout=Layout(block, packed))
        assert (entry.size_bytes, entry.etag) == (size, hashlib.md5(body).hexdigest())
        assert await body_of(entry, store) == body
        for start, stop in ends:
            assert await body_of(entry, store, Span(start, stop)) == body[start:stop]

    asyncio.run(run())


@pytest.mark.parametrize("span", [Span(0, 6), Span(-1, 2), Span(4, 3), Span(6, 6)])
@aio
async def test_a_span_that_the_object_has_not_is_invalid(span: Span) -> None:
    store = MemoryStore()
    with pytest.raises(Invalid, match="has 5 bytes"):
        await body_of(await saved(store, b"hello"), store, span)
