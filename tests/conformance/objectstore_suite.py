"""What every object store must do. A driver's tests are this class with a `backend` fixture: an empty store."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest

from lsmfs.objectstore.conditions import honours_conditions
from lsmfs.objectstore.store import ABSENT, Body, ObjectStore, Span, Tag
from refstore.errors import AlreadyExists, Conflict, Invalid, NotFound
from tests.aio import aio
from tests.conformance.objectstore_backends import Backend, SecondRoute

HOSTILE = ["", "/", "/a", "a/", "a//b", ".", "..", "../a", "a/../b", "a/./b", "a/..", "a\0b", "a\nb", "a\\b", "\x7f"]
HOSTILE += ["\ud800", "a\uffff", ".lsmfs", ".lsmfs/locks/1", "x" * 256, "x/" * 500 + "x"]
ODD = ["sp ace", "plus+", "per%20cent", "q?a=b&c", "#", "q'\"<>", "é", "日本/語", "😀", "~tilde", "a=b,c;d", "...", "-"]
# In byte order; directories walked name by name would give another one.
ORDER = ["A", "a!/1", "a-b", "a.c", "a/b-c/d", "a/b.c", "a/b/c", "a/b0", "a0", "ab", "b", "z/z/z", "é", "￼", "😀"]
LARGE_BYTES = 20 << 20  # more than two parts of an upload
BLOCK = bytes(range(256)) * 4096  # 1 MiB


async def pieces(count: int, failing: Exception | None = None) -> AsyncIterator[bytes]:
    for _ in range(count):
        yield BLOCK
    if failing:
        raise failing


async def names(store: ObjectStore, prefix: str = "", after: str = "") -> list[str]:
    return [info.name async for info in store.list(prefix, after)]


class ObjectStoreSuite:
    @pytest.fixture
    def store(self, backend: Backend) -> Iterator[ObjectStore]:
        store = backend.open()
        yield store
        asyncio.run(store.aclose())

    @pytest.mark.parametrize("body", [b"", b"bytes", bytearray(b"array"), memoryview(b"a view")[2:]])
    @aio
    async def test_what_was_put_is_got(self, store: ObjectStore, body: Body) -> None:
        await store.put("dir/name", body)
        assert await store.get("dir/name") == bytes(body)
        assert [piece async for piece in store.stream("dir/name")] == ([bytes(body)] if body else [])
        assert (await store.head("dir/name")).size_bytes == len(body)

    @aio
    async def test_a_body_may_change_after_it_was_put(self, store: ObjectStore) -> None:
        body = bytearray(b"before")
        await store.put("name", body)
        body[:] = b"after!"
        assert await store.get("name") == b"before"

    @aio
    async def test_a_put_replaces_all_of_what_was_there(self, store: ObjectStore) -> None:
        await store.put("name", b"a long first body")
        await store.put("name", b"short")
        assert await store.get("name") == b"short"

    @aio
    async def test_a_missing_name_is_not_found(self, store: ObjectStore) -> None:
        await store.put("dir/name", b"1")
        for name in ("missing", "dir", "dir/missing", "other/name"):
            for call in (store.get, store.get_tagged, store.head):
                with pytest.raises(NotFound, match=name):
                    await call(name)
            with pytest.raises(NotFound):
                await anext(store.stream(name))
            with pytest.raises(NotFound):
                await store.get(name, Span(0, 0))

    @aio
    async def test_a_span_is_exactly_its_bytes(self, store: ObjectStore) -> None:
        await store.put("name", b"0123456789")
        for span in (Span(0, 10), Span(0, 1), Span(3, 7), Span(9, 10), Span(0, 0), Span(10, 10)):
            assert await store.get("name", span) == b"0123456789"[span.start : span.stop]
            assert b"".join([piece async for piece in store.stream("name", span)]) == await store.get("name", span)

    @pytest.mark.parametrize("span", [Span(0, 11), Span(9, 11), Span(10, 11), Span(50, 60), Span(5, 4), Span(-1, 4)])
    @aio
    async def test_a_span_beyond_the_object_is_invalid(self, store: ObjectStore, span: Span) -> None:
        await store.put("name", b"0123456789")
        with pytest.raises(Invalid):
            await store.get("name", span)
        with pytest.raises(Invalid):
            await anext(store.stream("name", span))

    @aio
    async def test_absent_is_refused_when_the_name_is_taken(self, store: ObjectStore) -> None:
        await store.put("name", b"first", ABSENT)
        for body in (b"second", b"first"):
            with pytest.raises(AlreadyExists, match="name"):
                await store.put("name", body, ABSENT)
        assert await store.get("name") == b"first"
        await store.delete("name")
        await store.put("name", b"third", ABSENT)
        assert await store.get("name") == b"third"

    @aio
    async def test_a_tag_is_good_for_one_change(self, store: ObjectStore) -> None:
        first = await store.put("name", b"first", ABSENT)
        second = await store.put("name", b"other", first)
        with pytest.raises(Conflict, match="name"):
            await store.put("name", b"third", first)
        assert await store.get_tagged("name") == (b"other", second)
        await store.put("name", b"fourth", second)
        assert await store.get("name") == b"fourth"

    @aio
    async def test_a_tag_is_no_good_for_an_object_that_is_gone(self, store: ObjectStore) -> None:
        tag = await store.put("name", b"first")
        await store.delete("name")
        with pytest.raises(Conflict):
            await store.put("name", b"second", tag)
        with pytest.raises(NotFound):
            await store.get("name")

    @aio
    async def test_every_verb_tells_the_same_tag(self, store: ObjectStore) -> None:
        tag = await store.put("name", b"body")
        [listed] = [info async for info in store.list()]
        assert listed.tag == tag
        assert (await store.get_tagged("name"))[1] == tag
        assert (await store.head("name")) == listed

    @aio
    async def test_tags_of_different_bodies_differ_however_fast_they_follow(self, store: ObjectStore) -> None:
        tags = [await store.put("name", b"%03d" % number) for number in range(40)]
        assert len(set(tags)) == len(tags)

    @aio
    async def test_a_deleted_name_is_gone_and_may_be_deleted_again(self, store: ObjectStore) -> None:
        await store.put("dir/name", b"1")
        await store.put("dir/other", b"2")
        await store.delete("dir/name")
        await store.delete("dir/name")
        await store.delete("never/there")
        await store.delete("dir")
        assert await names(store) == ["dir/other"]

    @pytest.mark.parametrize("name", HOSTILE)
    @aio
    async def test_a_hostile_name_is_invalid_for_every_verb(self, store: ObjectStore, name: str) -> None:
        calls: list[Callable[[], Awaitable[object]]] = [
            lambda: store.get(name),
            lambda: store.get_tagged(name),
            lambda: store.head(name),
            lambda: store.put(name, b"1"),
            lambda: store.put(name, b"1", ABSENT),
            lambda: store.put(name, b"1", Tag("tag")),
            lambda: store.put_stream(name, pieces(1)),
            lambda: store.delete(name),
            lambda: anext(store.stream(name)),
        ]
        for call in calls:
            with pytest.raises(Invalid):
                await call()

    @aio
    async def test_odd_characters_come_back_as_they_were(self, store: ObjectStore) -> None:
        for name in ODD:
            await store.put(f"odd/{name}", name.encode())
        for name in ODD:
            assert await store.get(f"odd/{name}") == name.encode()
            assert await names(store, f"odd/{name}") == [f"odd/{name}"]
        assert await names(store) == sorted(f"odd/{name}" for name in ODD)

    @aio
    async def test_listings_are_in_byte_order_below_any_prefix_and_after_any_name(self, store: ObjectStore) -> None:
        await asyncio.gather(*(store.put(name, b"1") for name in ORDER))
        assert sorted(ORDER, key=str.encode) == ORDER
        for prefix in ("", "a", "a/", "a/b", "a/b/", "ab", "é", "none", "../", "a//", "\ud800", ".lsmfs/"):
            for after in ("", "A", "a", "a-b", "a/", "a/b", "a/b!", "b/", "é", "\U0010ffff", "/", "\ud800"):
                expected = [name for name in ORDER if name.startswith(prefix) and name > after]
                assert await names(store, prefix, after) == expected, (prefix, after)

    @aio
    async def test_a_listing_goes_on_over_many_pages(self, store: ObjectStore) -> None:
        expected = [f"many/{number:04}" for number in range(1050)]  # a page of S3 has 1,000
        for start in range(0, len(expected), 50):
            await asyncio.gather(*(store.put(name, b"") for name in expected[start : start + 50]))
        assert await names(store) == expected
        assert await names(store, after="many/0998") == expected[999:]

    @aio
    async def test_a_name_below_another_works_or_is_refused(self, store: ObjectStore) -> None:
        await store.put("a", b"above")
        try:
            await store.put("a/b", b"below")
        except Invalid:
            assert await names(store) == ["a"]
        else:
            assert await names(store) == ["a", "a/b"]
            assert await store.get("a/b") == b"below"
        assert await store.get("a") == b"above"

    @aio
    async def test_a_large_body_is_streamed_both_ways(self, store: ObjectStore) -> None:
        tag = await store.put_stream("large", pieces(LARGE_BYTES // len(BLOCK)))
        info = await store.head("large")
        assert (info.size_bytes, info.tag) == (LARGE_BYTES, tag)
        size = 0
        async for piece in store.stream("large"):
            assert 0 < len(piece) <= 4 << 20
            assert piece == (BLOCK + BLOCK * 4)[size % len(BLOCK) :][: len(piece)]
            size += len(piece)
        assert size == LARGE_BYTES
        assert await store.get("large", Span(LARGE_BYTES - 3, LARGE_BYTES)) == BLOCK[-3:]

    @aio
    async def test_a_large_body_may_be_put_whole(self, store: ObjectStore) -> None:
        body = BLOCK * 9
        tag = await store.put("large", body)
        assert await store.get_tagged("large") == (body, tag)

    @pytest.mark.parametrize("count", [0, 1])
    @aio
    async def test_a_stream_may_be_short(self, store: ObjectStore, count: int) -> None:
        tag = await store.put_stream("short", pieces(count))
        assert await store.get_tagged("short") == (BLOCK * count, tag)

    @pytest.mark.parametrize("count", [0, 1, 12])
    @aio
    async def test_nothing_is_seen_of_a_body_that_raises(self, store: ObjectStore, count: int) -> None:
        await store.put("taken", b"was there")
        failure = ValueError("the body's own error")
        for name in ("taken", "new"):
            with pytest.raises(ValueError, match="own error") as caught:
                await store.put_stream(name, pieces(count, failure))
            assert caught.value is failure
        assert await names(store) == ["taken"]
        assert await store.get("taken") == b"was there"

    @pytest.mark.parametrize("count", [0, 1, 12])
    @aio
    async def test_a_late_name_is_asked_for_when_all_of_the_body_has_passed(
        self, store: ObjectStore, count: int
    ) -> None:
        passed: list[bytes] = []

        async def body() -> AsyncIterator[bytes]:
            async for piece in pieces(count):
                yield piece
                passed.append(piece)

        for _ in range(2):  # the second time the name is taken, by the same bytes
            passed.clear()
            tag = await store.put_stream(lambda: f"late/of-{len(passed)}", body())
            assert await names(store) == [f"late/of-{count}"]
            assert await store.get_tagged(f"late/of-{count}") == (BLOCK * count, tag)

    @aio
    async def test_a_late_name_that_holds_less_than_the_body_is_mended(self, store: ObjectStore) -> None:
        await store.put("late", b"torn")
        await store.put_stream(lambda: "late", pieces(9))
        assert await store.get("late") == BLOCK * 9

    @pytest.mark.parametrize("count", [0, 1, 12])
    @aio
    async def test_nothing_is_seen_of_a_body_that_raises_before_its_name_is_known(
        self, store: ObjectStore, count: int
    ) -> None:
        def name() -> str:
            raise AssertionError("nobody may ask: the body has not passed")

        failure = ConnectionResetError("the body's own error")
        with pytest.raises(ConnectionResetError) as caught:
            await store.put_stream(name, pieces(count, failure))
        assert caught.value is failure
        assert await names(store) == []

    @pytest.mark.parametrize("name", ["", "../a", ".lsmfs/locks/1"])
    @aio
    async def test_a_hostile_late_name_is_invalid(self, store: ObjectStore, name: str) -> None:
        with pytest.raises(Invalid):
            await store.put_stream(lambda: name, pieces(1))
        assert await names(store) == []

    @aio
    async def test_a_reader_sees_all_of_a_put_or_nothing(self, store: ObjectStore) -> None:
        bodies = [bytes([number]) * 100_000 for number in range(20)]
        await store.put("name", bodies[0])
        writing = asyncio.gather(*(store.put("name", body) for body in bodies))
        while not writing.done():
            assert await store.get("name") in bodies
            await asyncio.sleep(0)
        await writing
        assert await names(store) == ["name"]

    @aio
    async def test_conditions_hold_in_a_race(self, store: ObjectStore) -> None:
        report = await honours_conditions(store, "probe/")
        assert report.problems == ()
        assert await names(store) == []

    @aio
    async def test_increments_by_compare_and_swap_are_not_lost(self, backend: Backend, store: ObjectStore) -> None:
        await store.put("counter", b"0")
        others = [backend.open() for _ in range(3)]

        async def increment(client: ObjectStore) -> None:
            while True:
                body, tag = await client.get_tagged("counter")
                try:
                    await client.put("counter", b"%d" % (int(body) + 1), tag)
                    return
                except Conflict:
                    await asyncio.sleep(random.random() * 0.02)

        for _ in range(3):
            await asyncio.gather(*(increment(client) for client in others))
        assert await store.get("counter") == b"9"
        for client in others:
            if client is not store:
                await client.aclose()

    @aio
    async def test_another_client_sees_what_was_done_at_once(self, backend: Backend, store: ObjectStore) -> None:
        other = backend.open()
        for number in range(10):
            await store.put("name", b"%d" % number)
            assert await other.get("name") == b"%d" % number
            await other.delete("name")
            assert await names(store) == []
        if other is not store:
            await other.aclose()

    @aio
    async def test_random_histories_end_as_in_a_dict(self, store: ObjectStore) -> None:
        chance, model, tags = random.Random(7), dict[str, bytes](), dict[str, Tag]()
        for step in range(200):
            name, body = f"{chance.choice('abc')}/{chance.randrange(4)}", b"%d" % step
            verb = chance.choice(["put", "put", "create", "swap", "delete", "get"])
            if verb == "put":
                tags[name], model[name] = await store.put(name, body), body
            elif verb == "create" and name not in model:
                tags[name], model[name] = await store.put(name, body, ABSENT), body
            elif verb == "swap" and name in tags:
                try:
                    tags[name] = await store.put(name, body, tags[name])
                    assert name in model
                    model[name] = body
                except Conflict:
                    assert name not in model
            elif verb == "delete":
                await store.delete(name)
                model.pop(name, None)
            elif verb == "get" and name in model:
                assert await store.get(name) == model[name]
        assert {name: await store.get(name) for name in await names(store)} == model


class TwoRouteSuite(ObjectStoreSuite):
    """The suite for a store that can also be looked at without our driver."""

    @pytest.fixture
    def route(self, backend: Backend) -> SecondRoute:
        assert backend.route is not None
        return backend.route

    @aio
    async def test_the_second_route_reads_what_we_put(self, store: ObjectStore, route: SecondRoute) -> None:
        for name in ("dir/name", *(f"odd/{name}" for name in ODD)):
            await store.put(name, name.encode())
            assert route.read(name) == name.encode()
        await store.delete("dir/name")
        assert route.read("dir/name") is None

    @aio
    async def test_we_read_what_the_second_route_wrote(self, store: ObjectStore, route: SecondRoute) -> None:
        tag = await store.put("dir/name", b"ours")
        route.write("dir/name", b"theirs, of another size")
        assert await store.get("dir/name") == b"theirs, of another size"
        with pytest.raises(Conflict):
            await store.put("dir/name", b"ours again", tag)

    @aio
    async def test_a_body_that_raises_leaves_no_upload_behind(self, store: ObjectStore, route: SecondRoute) -> None:
        for name in ("new", lambda: "new"):
            with pytest.raises(ValueError, match="boom"):
                await store.put_stream(name, pieces(12, ValueError("boom")))
        assert route.read("new") is None
        assert route.unfinished() == 0
