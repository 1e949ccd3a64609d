"""Bodies go into the store in bounded memory, equal ones once, and whole or not at all."""

import asyncio
import hashlib
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from lsmfs import paths
from lsmfs.blocks import ALONE, Layout
from lsmfs.blocks import bodies as bodies_module
from lsmfs.blocks.bodies import BLOCK_BYTES_MIN, HELD_BYTES_MAX, PACKED_BYTES_MAX
from lsmfs.objectstore.counting import CountingStore
from lsmfs.objectstore.faulting import Fault, FaultingStore, Kind
from lsmfs.objectstore.local import LocalStore
from lsmfs.objectstore.memory import MemoryStore
from lsmfs.objectstore.store import ANYTHING, Body, LateName, Precondition, Tag
from lsmfs.objectstore.wrapper import WrapperStore
from refstore.errors import Error, Invalid
from tests.aio import aio
from tests.blocks.support import MIB, SMALL_BLOCKS, WHOLE, bodies, body_of, names, noise, pieces, saved

LARGE_BLOCKS = Layout(block_bytes=12 * MIB, packed_bytes_max=0)


def temporary(root: Path) -> list[Path]:
    return [path for path in (root / ".lsmfs" / "temporary").glob("*") if path.is_file()]


@pytest.mark.parametrize("parts", [(b"hello",), (b"he", b"", b"llo"), (bytes(HELD_BYTES_MAX),), (bytes(MIB), b"")])
@pytest.mark.parametrize("layout", [ALONE, WHOLE])
@aio
async def test_a_small_body_is_one_put_and_comes_back(parts: tuple[bytes, ...], layout: Layout) -> None:
    store = CountingStore(MemoryStore())
    entry = await bodies(store, layout).save(pieces(*parts), 5, "text/plain", {"a": "b"})
    whole = b"".join(parts)
    assert (entry.size_bytes, entry.etag) == (len(whole), hashlib.md5(whole).hexdigest())
    assert (entry.content_type, entry.metadata) == ("text/plain", {"a": "b"})
    assert entry.address.startswith("lake/data/")
    assert paths.data_generation(entry.address) == 5
    assert await body_of(entry, store) == whole
    assert (store.calls("put"), store.calls("put_stream")) == (1, 0)


@pytest.mark.parametrize("layout", [ALONE, WHOLE, Layout(), SMALL_BLOCKS])
@pytest.mark.parametrize("parts", [(), (b"",), (b"", b"")])
@aio
async def test_an_empty_body_is_not_stored(layout: Layout, parts: tuple[bytes, ...]) -> None:
    store = MemoryStore()
    entry = await saved(store, *parts, layout=layout)
    assert (entry.size_bytes, entry.etag) == (0, hashlib.md5(b"").hexdigest())
    assert (await names(store), await body_of(entry, store)) == ([], b"")


@pytest.mark.parametrize("first", [HELD_BYTES_MAX, HELD_BYTES_MAX - 1, HELD_BYTES_MAX + 1, 1])
@pytest.mark.parametrize("layout", [ALONE, WHOLE])
@aio
async def test_a_large_body_is_streamed_and_comes_back(first: int, layout: Layout) -> None:
    store = CountingStore(MemoryStore())
    whole = noise(2 * HELD_BYTES_MAX)
    entry = await saved(store, whole[:first], whole[first:], layout=layout)
    assert (entry.size_bytes, entry.etag, entry.rest) == (len(whole), hashlib.md5(whole).hexdigest(), ())
    assert await body_of(entry, store) == whole
    assert (store.calls("put"), store.calls("put_stream")) == (0, 1)


@pytest.mark.parametrize("size", [MIB - 1, MIB, MIB + 1, 2 * MIB, 3 * MIB + 7])
@aio
async def test_a_body_becomes_blocks_named_by_their_content(size: int) -> None:
    store, body = MemoryStore(), noise(size)
    entry = await bodies(store, SMALL_BLOCKS).save(pieces(body), 31)
    cut = [body[start : start + MIB] for start in range(0, size, MIB)]
    expected = [f"lake/data/b1f-{hashlib.sha256(part).hexdigest()}-{len(part):x}" for part in cut]
    assert [extent.address for extent in entry.extents] == expected
    assert [extent.length for extent in entry.extents] == [len(part) for part in cut]
    assert sorted(await names(store)) == sorted(expected)
    assert [await store.get(name) for name in expected] == cut


@aio
async def test_large_blocks_are_streamed_and_the_last_one_is_held() -> None:
    store, body = CountingStore(MemoryStore()), noise(25 * MIB)
    entry = await saved(store, body, layout=LARGE_BLOCKS)
    assert [extent.length for extent in entry.extents] == [12 * MIB, 12 * MIB, MIB]
    assert (store.calls("put_stream"), store.calls("put")) == (2, 1)
    assert await body_of(entry, store) == body


@pytest.mark.parametrize("layout", [ALONE, SMALL_BLOCKS, LARGE_BLOCKS])
@aio
async def test_equal_content_is_stored_once(tmp_path: Path, layout: Layout) -> None:
    store, body = LocalStore(tmp_path), noise(13 * MIB)
    one = await saved(store, body, layout=layout)
    once = await names(store)
    other = await saved(store, b"", body[:5], body[5:], layout=layout)
    assert (one.extents, one.etag) == (other.extents, other.etag)
    assert await names(store) == once
    assert sum([info.size_bytes async for info in store.list()]) == len(body)
    await store.aclose()


@aio
async def test_bodies_that_differ_at_their_end_share_the_blocks_before() -> None:
    store, body = MemoryStore(), noise(2 * MIB)
    one, other = [await saved(store, body, end, layout=SMALL_BLOCKS) for end in (b"1", b"2")]
    assert one.extents[:2] == other.extents[:2]
    assert one.extents[2] != other.extents[2]
    assert len(await names(store)) == 4


@aio
async def test_equal_content_of_another_generation_is_stored_again() -> None:
    store = MemoryStore()
    one, other = [await bodies(store).save(pieces(b"same"), generation) for generation in (0, 1)]
    assert one.address != other.address
    assert len(await names(store)) == 2


@aio
async def test_a_block_that_a_crash_left_torn_is_mended_by_the_next_who_stores_it() -> None:
    store, body = MemoryStore(), noise(13 * MIB)
    for layout in (ALONE, SMALL_BLOCKS):
        entry = await saved(store, body, layout=layout)
        await store.put(entry.address, body[:10])
        assert (await saved(store, body, layout=layout)).extents == entry.extents
        assert await body_of(entry, store) == body


@pytest.mark.parametrize("size", [5, MIB, 20 * MIB])
@aio
async def test_with_blocks_turned_off_a_body_is_one_object_of_its_own(size: int) -> None:
    store, body = MemoryStore(), noise(size)
    entries = [await saved(store, body, layout=WHOLE) for _ in range(2)]
    assert [entry.rest for entry in entries] == [(), ()]
    assert len(await names(store)) == 2
    assert await store.get(entries[0].address) == body


@pytest.mark.parametrize("layout", [ALONE, WHOLE, SMALL_BLOCKS, LARGE_BLOCKS, Layout()])
@pytest.mark.parametrize("size", [10, MIB + 1, 13 * MIB])
@aio
async def test_a_body_that_breaks_off_leaves_whole_blocks_at_most(tmp_path: Path, layout: Layout, size: int) -> None:
    failure = ConnectionResetError("gone")

    async def broken() -> AsyncIterator[bytes]:
        yield noise(size)
        raise failure

    store = LocalStore(tmp_path)
    with pytest.raises(ConnectionResetError) as caught:
        await bodies(store, layout).save(broken())
    assert caught.value is failure
    await store.aclose()
    assert temporary(tmp_path) == []
    await check_blocks(tmp_path, layout, size)


@pytest.mark.parametrize("layout", [ALONE, WHOLE, SMALL_BLOCKS, LARGE_BLOCKS])
@pytest.mark.parametrize("size", [10, MIB + 1, 13 * MIB])
@aio
async def test_a_body_that_is_cancelled_leaves_whole_blocks_at_most(tmp_path: Path, layout: Layout, size: int) -> None:
    waiting = asyncio.Event()

    async def endless() -> AsyncIterator[bytes]:
        yield noise(size)
        waiting.set()
        await asyncio.Event().wait()

    store, before = LocalStore(tmp_path), asyncio.all_tasks()
    saving = asyncio.create_task(bodies(store, layout).save(endless()))
    await waiting.wait()
    saving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await saving
    assert asyncio.all_tasks() == before  # nobody works on
    await store.aclose()
    assert temporary(tmp_path) == []
    await check_blocks(tmp_path, layout, size)


async def check_blocks(root: Path, layout: Layout, size: int) -> None:
    """What is stored is whole blocks, as their names say, and no part of one."""
    store = LocalStore(root)
    infos = [info async for info in store.list()]
    assert len(infos) <= (size // layout.block_bytes if layout.block_bytes else 0)
    for info in infos:
        block = paths.parse_block(info.name)
        assert block is not None
        assert block.digest == hashlib.sha256(await store.get(info.name)).hexdigest()
        assert (block.size_bytes, info.size_bytes) == (layout.block_bytes, layout.block_bytes)
    await store.aclose()


@pytest.mark.parametrize("failing", [1, 2, 3])
@pytest.mark.parametrize("verb", ["put", "put_stream"])
@aio
async def test_a_store_that_fails_at_any_block_fails_the_body_and_nobody_works_on(failing: int, verb: str) -> None:
    called: list[str] = []

    def plan(each: str, name: str, number: int) -> Fault | None:
        called.append(each)
        return Fault(Kind.BEFORE) if each == verb and called.count(verb) == failing else None

    before = asyncio.all_tasks()
    layout = SMALL_BLOCKS if verb == "put" else LARGE_BLOCKS
    store = FaultingStore(MemoryStore(), plan)
    body = pieces(*[noise(MIB, number) for number in range(40)])
    with pytest.raises(Error, match="planned fault"):
        await bodies(store, layout).save(body)
    assert asyncio.all_tasks() == before
    assert len(await names(store)) <= failing


@aio
async def test_two_blocks_of_a_body_are_under_way_and_no_more() -> None:
    at_once = most = 0
    second = asyncio.Event()

    class Watched(WrapperStore):
        async def put(self, name: str, body: Body, expected: Precondition = ANYTHING) -> Tag:
            nonlocal at_once, most
            at_once += 1
            most = max(most, at_once)
            if at_once == 2:
                second.set()
            await second.wait()  # the first ends when there is another
            for _ in range(50):
                await asyncio.sleep(0)
            at_once -= 1
            return await self.inner.put(name, body, expected)

    store, body = Watched(MemoryStore()), noise(6 * MIB)
    entry = await saved(store, body, layout=SMALL_BLOCKS)
    assert most == bodies_module.BLOCKS_AT_ONCE == 2
    assert await body_of(entry, store) == body


@aio
async def test_a_body_of_more_blocks_than_an_entry_may_have_is_refused_before_it_is_all_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bodies_module, "EXTENTS_MAX", 2)
    store, given_out = MemoryStore(), 0

    async def body() -> AsyncIterator[bytes]:
        nonlocal given_out
        for given_out in range(1, 9):
            yield noise(MIB, given_out)

    with pytest.raises(Invalid, match="more than 2 blocks: store it with larger ones"):
        await bodies(store, SMALL_BLOCKS).save(body())
    assert given_out == 3
    assert len((await saved(store, noise(2 * MIB), layout=SMALL_BLOCKS)).extents) == 2


@pytest.mark.parametrize("layout", [{"block_bytes": BLOCK_BYTES_MIN - 1}, {"block_bytes": -1}])
def test_blocks_that_are_too_small_are_invalid(layout: dict[str, int]) -> None:
    with pytest.raises(Invalid, match="too small"):
        Layout(**layout)


@pytest.mark.parametrize("size", [-1, PACKED_BYTES_MAX + 1])
def test_bodies_that_are_too_large_are_not_packed(size: int) -> None:
    with pytest.raises(Invalid, match="cannot be packed"):
        Layout(packed_bytes_max=size)


def test_a_held_body_is_no_larger_than_a_part_of_a_multipart_upload() -> None:
    assert HELD_BYTES_MAX == 8 * 1024 * 1024


@aio
async def test_only_a_block_waits_for_its_name() -> None:
    asked: list[bool] = []

    class Watched(WrapperStore):
        async def put_stream(self, name: str | LateName, body: AsyncIterator[bytes]) -> Tag:
            asked.append(isinstance(name, str))
            return await self.inner.put_stream(name, body)

    for layout in (WHOLE, LARGE_BLOCKS):
        await saved(Watched(MemoryStore()), noise(10 * MIB), layout=layout)
    assert asked == [True, False]


MEASURED = """
import asyncio, resource, sys
from lsmfs.blocks import Layout, read_body
from lsmfs.objectstore.local import LocalStore
from tests.blocks.support import MIB, bodies, noise, nobody

async def body(size):
    for number in range(size // MIB):
        yield number.to_bytes(8, "big") * (MIB // 8)

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

async def main():
    store = LocalStore(sys.argv[1])
    saver = bodies(store, Layout(block_bytes=int(sys.argv[2])))
    await saver.save(body(40 * MIB))
    before = peak()
    entry = await saver.save(body(200 * MIB))
    size = 0
    async for piece in read_body(entry, store, nobody):
        size += len(piece)
    assert size == entry.size_bytes == 200 * MIB
    print(peak() - before)
    await store.aclose()

asyncio.run(main())
"""


@pytest.mark.parametrize("block_bytes", [0, MIB, 64 * MIB])
def test_a_body_of_200_mib_passes_in_bounded_memory(tmp_path: Path, block_bytes: int) -> None:
    command = [sys.executable, "-c", MEASURED, str(tmp_path), str(block_bytes)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 40 * MIB
