"""Counting, caching and faulting, each around a store in memory."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from lsmfs.objectstore.caching import CachingStore
from lsmfs.objectstore.counting import Count, CountingStore
from lsmfs.objectstore.faulting import Fault, FaultingStore, Kind
from lsmfs.objectstore.memory import MemoryStore
from lsmfs.objectstore.store import ABSENT, Span
from refstore.errors import Invalid, NotFound, OutcomeUnknown, Unavailable
from tests.aio import aio


async def body(*pieces: bytes) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


@aio
async def test_counting_tells_calls_failures_and_bytes_by_verb() -> None:
    store = CountingStore(MemoryStore())
    await store.put("a", b"12345")
    await store.put_stream("b", body(b"123", b"45"))
    await store.get("a", Span(1, 3))
    await store.get_tagged("a")
    with pytest.raises(NotFound):
        await store.get("missing")
    assert [piece async for piece in store.stream("b")] == [b"12345"]
    assert [info.name async for info in store.list()] == ["a", "b"]
    await store.head("a")
    before = store.snapshot()
    await store.delete("a")
    assert before == {
        "put": Count(1, 0, 5),
        "put_stream": Count(1, 0, 5),
        "get": Count(2, 1, 2),
        "get_tagged": Count(1, 0, 5),
        "stream": Count(1, 0, 5),
        "list": Count(1, 0, 0),
        "head": Count(1, 0, 0),
    }
    assert store.snapshot()["delete"] == Count(1)


def caching(size_bytes_max: int = 100, object_bytes_max: int = 40) -> tuple[CachingStore, CountingStore]:
    inner = CountingStore(MemoryStore())
    return CachingStore(inner, lambda name: name.startswith("i/"), size_bytes_max, object_bytes_max), inner


def gets(store: CountingStore) -> int:
    return store.snapshot().get("get", Count()).calls


@aio
async def test_an_immutable_object_is_fetched_once_and_spans_are_cut_from_it() -> None:
    store, inner = caching()
    await store.put("i/a", b"0123456789")
    assert await store.get("i/a", Span(2, 4)) == b"23"  # a span keeps nothing
    assert await store.get("i/a") == b"0123456789"
    assert gets(inner) == 2
    assert await store.get("i/a") == b"0123456789"
    assert await store.get("i/a", Span(2, 4)) == b"23"
    with pytest.raises(Invalid):
        await store.get("i/a", Span(5, 11))
    assert gets(inner) == 2


@aio
async def test_what_may_change_or_is_large_is_not_kept() -> None:
    store, inner = caching()
    await store.put("mutable", b"1")
    await store.put("i/large", bytes(41))
    for _ in range(2):
        await store.get("mutable")
        await store.get("i/large")
    assert gets(inner) == 4
    assert store.size_bytes == 0


@aio
async def test_the_least_recently_used_goes_first_and_the_bound_holds() -> None:
    store, inner = caching()
    for name in "abc":
        await store.put(f"i/{name}", bytes(40))
    await store.get("i/a")
    await store.get("i/b")
    await store.get("i/a")
    await store.get("i/c")
    assert store.size_bytes == 80
    before = gets(inner)
    await store.get("i/a")
    await store.get("i/c")
    assert gets(inner) == before
    await store.get("i/b")
    assert gets(inner) == before + 1


@aio
async def test_what_is_put_or_deleted_is_forgotten_also_while_it_is_fetched() -> None:
    memory = MemoryStore()
    slow = FaultingStore(memory, lambda verb, name, number: Fault(Kind.DELAY, 0.01) if verb == "get" else None)
    store = CachingStore(slow, lambda name: True)
    for change in (
        lambda: store.put("a", b"2"),
        lambda: store.put_stream("a", body(b"2")),
        lambda: store.put_stream(lambda: "a", body(b"2")),
        lambda: store.delete("a"),
    ):
        await memory.put("a", b"1")
        assert await store.get("a") == b"1"
        await change()
        assert store.size_bytes == 0
        await memory.put("a", b"3")
        fetching = asyncio.create_task(store.get("a"))
        await asyncio.sleep(0)
        await change()
        await asyncio.gather(fetching, return_exceptions=True)
        assert store.size_bytes == 0


@aio
async def test_a_body_that_fails_before_its_name_is_known_fails_with_its_own_error() -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield b"1"
        raise ConnectionResetError("gone")

    def name() -> str:
        raise AssertionError("nobody may ask: the body has not passed")

    store = CachingStore(CountingStore(MemoryStore()), lambda name: True)
    with pytest.raises(ConnectionResetError, match="gone"):
        await store.put_stream(name, broken())


def planned(fault: Fault, *verbs: str) -> tuple[FaultingStore, MemoryStore]:
    memory = MemoryStore()
    return FaultingStore(memory, lambda verb, name, number: fault if verb in verbs else None), memory


@aio
async def test_a_fault_before_has_no_effect_and_one_after_has() -> None:
    store, memory = planned(Fault(Kind.BEFORE), "put", "delete", "get")
    with pytest.raises(Unavailable) as caught:
        await store.put("a", b"1")
    assert not isinstance(caught.value, OutcomeUnknown)
    with pytest.raises(NotFound):
        await memory.get("a")
    store, memory = planned(Fault(Kind.AFTER), "put", "delete", "get", "put_stream")
    with pytest.raises(OutcomeUnknown):
        await store.put("a", b"1")
    assert await memory.get("a") == b"1"
    with pytest.raises(OutcomeUnknown):
        await store.delete("a")
    with pytest.raises(NotFound):
        await memory.get("a")
    with pytest.raises(OutcomeUnknown):
        await store.put_stream("a", body(b"2"))
    with pytest.raises(Unavailable):
        await store.get("a")


@aio
async def test_a_torn_put_stores_a_part() -> None:
    store, memory = planned(Fault(Kind.TORN, keep_bytes=3), "put")
    with pytest.raises(OutcomeUnknown):
        await store.put("a", b"123456")
    assert await memory.get("a") == b"123"


@aio
async def test_a_put_delivered_twice_is_answered_once() -> None:
    inner = CountingStore(MemoryStore())
    store = FaultingStore(inner, lambda verb, name, number: Fault(Kind.TWICE))
    tag = await store.put("a", b"1", ABSENT)
    assert inner.snapshot()["put"] == Count(2, 1, 1)
    assert await inner.get_tagged("a") == (b"1", tag)


@aio
async def test_a_listing_and_a_stream_break_off_after_their_first_item() -> None:
    store, memory = planned(Fault(Kind.AFTER), "list", "stream")
    for name in "abc":
        await memory.put(name, bytes(3 << 20))
    listing = store.list()
    assert (await anext(listing)).name == "a"
    with pytest.raises(Unavailable):
        await anext(listing)
    stream = store.stream("a")
    assert await anext(stream)
    with pytest.raises(Unavailable):
        await anext(stream)


@aio
async def test_the_plan_is_asked_once_a_call_with_verb_name_and_number() -> None:
    asked = []
    waits = []

    def plan(verb: str, name: str, number: int) -> Fault | None:
        asked.append((verb, name, number))
        return Fault(Kind.DELAY, 7.0) if number == 2 else None

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    store = FaultingStore(MemoryStore(), plan, sleep)
    await store.put("a", b"1")
    await store.get("a")
    assert [info.name async for info in store.list("a")] == ["a"]
    assert asked == [("put", "a", 1), ("get", "a", 2), ("list", "a", 3)]
    assert waits == [7.0]
