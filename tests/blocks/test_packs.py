"""Small bodies that come together are stored together; one that fails or gives up does no harm to the others."""

import asyncio
import gc
import hashlib

import pytest

from lsmfs import paths
from lsmfs.blocks import Bodies, Layout
from lsmfs.blocks import packs as packs_module
from lsmfs.blocks.packs import PACK_BYTES_MAX, Packs
from lsmfs.clock import SystemClock
from lsmfs.model import Entry
from lsmfs.objectstore.counting import CountingStore
from lsmfs.objectstore.memory import MemoryStore
from lsmfs.objectstore.store import ANYTHING, Body, ObjectStore, Precondition, Tag
from lsmfs.objectstore.wrapper import WrapperStore
from refstore.errors import Denied, Unavailable
from tests.aio import aio
from tests.blocks.support import bodies, body_of, names, pieces

PACKED = Layout()


class Gated(WrapperStore):
    """Puts wait until they are let go; each may fail."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.begun = 0
        self.gate = asyncio.Event()
        self.failures: list[Exception] = []

    async def put(self, name: str, body: Body, expected: Precondition = ANYTHING) -> Tag:
        self.begun += 1
        await self.gate.wait()
        if self.failures:
            raise self.failures.pop(0)
        return await self.inner.put(name, body, expected)


def counted() -> tuple[CountingStore, Gated]:
    gated = Gated(MemoryStore())
    return CountingStore(gated), gated


def begin(saver: Bodies, *contents: bytes, generation: int = 0) -> list["asyncio.Task[Entry]"]:
    return [asyncio.create_task(saver.save(pieces(content), generation)) for content in contents]


async def turns() -> None:
    """Let everything go on that can."""
    for _ in range(20):
        await asyncio.sleep(0)


@aio
async def test_bodies_that_come_while_a_pack_is_put_share_the_next_one() -> None:
    store, gated = counted()
    saver = bodies(store, PACKED)
    contents = [b"body %d" % number for number in range(500)]
    saving = begin(saver, contents[0])
    await turns()
    saving += begin(saver, *contents[1:])
    await turns()
    gated.gate.set()
    entries = await asyncio.gather(*saving)
    assert store.calls("put") == 2
    assert len({entry.address for entry in entries}) == 2
    assert [await body_of(entry, store) for entry in entries] == contents
    assert [entry.etag for entry in entries] == [hashlib.md5(content).hexdigest() for content in contents]


@aio
async def test_a_body_alone_is_stored_at_once_and_alone() -> None:
    store = CountingStore(MemoryStore())
    saver = bodies(store, PACKED)
    one, other = [await saver.save(pieces(content)) for content in (b"one", b"other")]
    assert (one.offset, other.offset, store.calls("put")) == (0, 0, 2)
    assert one.address != other.address


@aio
async def test_equal_bodies_are_stored_once_also_while_they_are_on_their_way() -> None:
    store, gated = counted()
    saver = bodies(store, PACKED)
    saving = begin(saver, *[b"same"] * 5)
    await turns()
    saving += begin(saver, *[b"same"] * 5)
    gated.gate.set()
    entries = await asyncio.gather(*saving)
    entries.append(await saver.save(pieces(b"same")))
    assert len({(entry.address, entry.offset) for entry in entries}) == 1
    assert (store.calls("put"), await store.get(entries[0].address)) == (1, b"same")


@aio
async def test_places_are_remembered_of_so_many_bodies_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packs_module, "KNOWN_MAX", 2)
    store = CountingStore(MemoryStore())
    saver = bodies(store, PACKED)
    for content, puts in ((b"a", 1), (b"b", 2), (b"c", 3), (b"b", 3), (b"a", 4)):
        await saver.save(pieces(content))
        assert store.calls("put") == puts


@aio
async def test_a_pack_that_fails_fails_those_who_wait_for_it_and_the_next_one_works() -> None:
    store = Gated(MemoryStore())
    saver = bodies(store, PACKED)
    store.failures = [Denied("no"), Unavailable("not now")]
    first = begin(saver, b"a")
    await turns()
    second = begin(saver, b"b", b"c", b"d", b"a")
    await turns()
    store.gate.set()
    answers = await asyncio.gather(*first, *second, return_exceptions=True)
    assert [type(answer) for answer in answers] == [Denied, Unavailable, Unavailable, Unavailable, Denied]
    assert await names(store) == []
    entries = await asyncio.gather(*begin(saver, b"a", b"b"))
    assert [await body_of(entry, store) for entry in entries] == [b"a", b"b"]


@aio
async def test_who_is_cancelled_leaves_the_others_their_pack() -> None:
    store = Gated(MemoryStore())
    saver = bodies(store, PACKED)
    first = begin(saver, b"a")
    await turns()
    second = begin(saver, b"b", b"c", b"d")
    await turns()
    first[0].cancel()
    second[1].cancel()
    await turns()
    store.gate.set()
    answers = await asyncio.gather(*first, *second, return_exceptions=True)
    assert [isinstance(answer, asyncio.CancelledError) for answer in answers] == [True, False, True, False]
    assert [await body_of(entry, store) for entry in answers if isinstance(entry, Entry)] == [b"b", b"d"]
    assert await body_of(await saver.save(pieces(b"c")), store) == b"c"


@aio
async def test_a_failure_that_nobody_waits_for_any_more_is_no_trouble() -> None:
    troubles: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: troubles.append(context))
    store = Gated(MemoryStore())
    saver = bodies(store, PACKED)
    store.failures = [Unavailable("not now")]
    (task,) = begin(saver, b"a")
    await turns()
    task.cancel()
    await turns()
    store.gate.set()
    await turns()
    assert (task.cancelled(), store.failures) == (True, [])
    del saver, task
    gc.collect()  # only then would the loop tell of an error that nobody has heard
    assert troubles == []


@aio
async def test_another_generation_begins_another_pack_and_knows_nothing_of_the_one_before() -> None:
    store, gated = counted()
    saver = bodies(store, PACKED)
    saving = begin(saver, b"0")
    await turns()
    saving += begin(saver, b"a", b"b") + begin(saver, b"a", b"c", generation=31)
    await turns()
    gated.gate.set()
    entries = await asyncio.gather(*saving)
    assert [paths.data_generation(entry.address) for entry in entries] == [0, 0, 0, 31, 31]
    assert (store.calls("put"), len({entry.address for entry in entries})) == (3, 3)
    assert [await body_of(entry, store) for entry in entries] == [b"0", b"a", b"b", b"a", b"c"]


@aio
async def test_a_pack_is_no_larger_than_one_retried_put() -> None:
    store, gated = counted()
    saver = bodies(store, PACKED)
    count = PACK_BYTES_MAX // PACKED.packed_bytes_max
    contents = [number.to_bytes(4, "big") * (PACKED.packed_bytes_max // 4) for number in range(count + 2)]
    saving = begin(saver, contents[0])
    await turns()
    saving += begin(saver, *contents[1:])
    await turns()
    gated.gate.set()
    entries = await asyncio.gather(*saving)
    assert store.calls("put") == 3
    assert max([info.size_bytes async for info in store.list()]) == PACK_BYTES_MAX
    assert [await body_of(entry, store) for entry in entries] == contents


def test_packs_outlive_an_event_loop_that_ended_while_they_were_put() -> None:
    store = Gated(MemoryStore())
    packs = Packs(store, "lake", SystemClock())
    before: list[asyncio.Task[tuple[str, int]]] = []

    async def interrupted() -> None:
        store.gate = asyncio.Event()
        before.append(asyncio.create_task(packs.add(b"a", "a", 0)))
        await turns()
        before.append(asyncio.create_task(packs.add(b"b", "b", 0)))
        await turns()
        assert store.begun == 1

    async def afterwards() -> list[bytes]:
        store.gate = asyncio.Event()
        store.gate.set()
        places = [await packs.add(content, content.decode(), 0) for content in (b"a", b"b", b"c")]
        return [(await store.get(address))[offset : offset + 1] for address, offset in places]

    asyncio.run(interrupted())
    assert [task.cancelled() for task in before] == [True, True]
    assert asyncio.run(afterwards()) == [b"a", b"b", b"c"]


@aio
async def test_who_waits_is_told_when_the_task_that_puts_is_cancelled() -> None:
    store = Gated(MemoryStore())
    saver = bodies(store, PACKED)
    mine = asyncio.all_tasks()
    saving = begin(saver, b"a")
    await turns()
    saving += begin(saver, b"b")
    await turns()
    (putting,) = asyncio.all_tasks() - mine - set(saving)
    putting.cancel()
    answers = await asyncio.gather(*saving, return_exceptions=True)
    assert [type(answer) for answer in answers] == [Unavailable, Unavailable]
    store.gate.set()
    assert await body_of(await saver.save(pieces(b"b")), store) == b"b"
