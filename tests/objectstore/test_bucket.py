"""BucketStore beyond the suite: foreign errors, lost answers, retries that must not happen, listings out of order."""

import random
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import obstore.exceptions
import pytest

from lsmfs.objectstore import bucket as bucket_module
from lsmfs.objectstore.bucket import BucketStore
from lsmfs.objectstore.bucket_errors import CATEGORIES
from lsmfs.objectstore.bucket_url import open_bucket
from lsmfs.objectstore.store import ABSENT, ANYTHING, ObjectStore, Tag
from refstore.errors import (
    AlreadyExists,
    Conflict,
    Denied,
    Error,
    Invalid,
    NotFound,
    OutcomeUnknown,
    Unavailable,
)
from tests.aio import aio
from tests.objectstore.stub_server import Answer, Request, Stub, stub_server
from tests.servers.process import free_port

KEYS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
TAG = Tag("0123")


def open_s3(port: int, parameters: str = "") -> BucketStore:
    return BucketStore(open_bucket(f"s3://bucket/prefix?endpoint=http://127.0.0.1:{port}{parameters}", KEYS))


def test_every_error_of_obstore_has_a_category() -> None:
    there = {
        name for name, value in vars(obstore.exceptions).items() if isinstance(value, type) and not name.startswith("_")
    }
    assert there == set(CATEGORIES)


VERBS: dict[str, Callable[[ObjectStore], Awaitable[object]]] = {
    "get": lambda store: store.get("name"),
    "get_tagged": lambda store: store.get_tagged("name"),
    "head": lambda store: store.head("name"),
    "stream": lambda store: anext(store.stream("name")),
    "list": lambda store: anext(store.list()),
    "put": lambda store: store.put("name", b"body"),
    "create": lambda store: store.put("name", b"body", ABSENT),
    "update": lambda store: store.put("name", b"body", TAG),
    "delete": lambda store: store.delete("name"),
}
READS = ("get", "get_tagged", "head", "stream", "list")
WRITES = ("put", "create", "update", "delete")


@pytest.mark.parametrize(
    ("verbs", "answer", "category"),
    [
        (READS, Answer(lost=True), Unavailable),
        (WRITES, Answer(lost=True), OutcomeUnknown),
        (READS, Answer(500), Unavailable),
        (WRITES, Answer(500), OutcomeUnknown),
        (WRITES, Answer(503), OutcomeUnknown),
        (READS + WRITES, Answer(429), Unavailable),
        (READS + WRITES, Answer(400), Invalid),
        (WRITES, Answer(400, b"<Error><Code>RequestTimeout</Code></Error>"), Unavailable),
        (WRITES, Answer(400, b"<Error><Code>ExpiredToken</Code></Error>"), Denied),
        (READS + WRITES, Answer(401), Denied),
        (READS + WRITES, Answer(403), Denied),
        ((*READS, "put", "create"), Answer(404), NotFound),
        (("update",), Answer(404), Conflict),
        (("create",), Answer(412), AlreadyExists),
        (("update",), Answer(412), Conflict),
        (("create",), Answer(409), Unavailable),
        (("update",), Answer(409), Conflict),
    ],
)
@aio
async def test_an_answer_gets_its_category_and_is_asked_for_once(
    verbs: tuple[str, ...], answer: Answer, category: type[Error]
) -> None:
    for verb in verbs:
        async with stub_server(lambda _: answer) as stub:
            with pytest.raises(category, match=r"s3://bucket/prefix/") as caught:
                await VERBS[verb](open_s3(stub.port))
            assert type(caught.value) is category, verb
            assert len(stub.requests) == 1, verb


@aio
async def test_a_server_that_is_not_there_has_done_nothing() -> None:
    store = open_s3(free_port())
    for verb in READS + WRITES:
        with pytest.raises(Unavailable) as caught:
            await VERBS[verb](store)
        assert type(caught.value) is Unavailable, verb


@aio
async def test_the_process_environment_does_not_choose_the_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{free_port()}")
    async with stub_server(lambda _: Answer(200, headers={"etag": '"1"'})) as stub:
        assert await open_s3(stub.port).put("name", b"body") == "1"


@aio
async def test_conditions_are_sent_as_headers() -> None:
    async with stub_server(lambda _: Answer(200, headers={"etag": '"1"'})) as stub:
        store = open_s3(stub.port)
        for expected in (ANYTHING, ABSENT, TAG):
            await store.put("name", b"body", expected)
    conditions = [(request.headers.get("if-none-match"), request.headers.get("if-match")) for request in stub.requests]
    assert conditions == [(None, None), ("*", None), (None, f'"{TAG}"')]


def open_google(stub: Stub) -> BucketStore:
    url = f"gs://bucket/prefix?endpoint=http://127.0.0.1:{stub.port}"
    return BucketStore(open_bucket(url, {"GOOGLE_OAUTH_ACCESS_TOKEN": "token"}))


@aio
async def test_google_compares_the_generation_that_has_the_tag() -> None:
    async with stub_server(lambda _: Answer(200, headers={"etag": f'"{TAG}"', "x-goog-generation": "42"})) as stub:
        store = open_google(stub)
        await store.put("name", b"body", ABSENT)
        await store.put("name", b"body", TAG)
        with pytest.raises(Conflict, match="has tag 0123, expected other"):
            await store.put("name", b"body", Tag("other"))
    sent = [(request.method, request.headers.get("x-goog-if-generation-match")) for request in stub.requests]
    assert sent == [("PUT", "0"), ("HEAD", None), ("PUT", "42"), ("HEAD", None)]


@aio
async def test_google_says_conflict_for_an_object_that_is_gone() -> None:
    async with stub_server(lambda _: Answer(404)) as stub:
        with pytest.raises(Conflict, match="is gone"):
            await open_google(stub).put("name", b"body", TAG)


def listing(*names: str) -> Callable[[Request], Answer]:
    contents = "".join(
        f"<Contents><Key>prefix/{name}</Key><Size>1</Size><LastModified>2024-01-01T00:00:00Z</LastModified>"
        f"<ETag>&quot;1&quot;</ETag></Contents>"
        for name in names
    )
    body = f"<ListBucketResult><IsTruncated>false</IsTruncated>{contents}</ListBucketResult>".encode()
    return lambda _: Answer(200, body)


@aio
async def test_a_listing_out_of_order_is_sorted_in_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket_module, "SORTED_NAMES", 3)
    names = [f"{number:02}" for number in range(11)]
    random.Random(3).shuffle(names)
    async with stub_server(listing(*names)) as stub:
        assert [info.name async for info in open_s3(stub.port).list(after="01")] == sorted(names)[2:]
    assert len(stub.requests) == 4  # nine names, three at a time, and once to see that there are no more


@aio
async def test_a_store_said_to_be_ordered_that_is_not_is_found_out() -> None:
    async with stub_server(listing("a/b", "a-b")) as stub:
        store = open_s3(stub.port, "&ordered=yes")
        with pytest.raises(Invalid, match=r"lists 'a-b' after 'a/b': say ordered=no"):
            _ = [info async for info in store.list()]


@pytest.mark.parametrize("ordered", ["yes", "no"])
@aio
async def test_the_folder_marker_of_the_prefix_is_no_object(ordered: str) -> None:
    """It was listed under the name of the prefix, and an ordered listing then seemed to be out of order."""
    async with stub_server(listing("", "a", "z")) as stub:
        assert [info.name async for info in open_s3(stub.port, f"&ordered={ordered}").list()] == ["a", "z"]


@aio
async def test_an_ordered_listing_ends_where_its_prefix_ends() -> None:
    async with stub_server(listing("a1", "b1", "b2", "c1", "c0")) as stub:
        store = open_s3(stub.port, "&ordered=yes")
        assert [info.name async for info in store.list("b")] == ["b1", "b2"]
        assert [info.name async for info in store.list("b", after="b1")] == ["b2"]
    assert "start-after=prefix%2Fb1" in stub.requests[1].target


ENDING = """
import asyncio, sys
from obstore.store import LocalStore
from lsmfs.objectstore.bucket import BucketStore
from lsmfs.objectstore.bucket_url import Bucket

async def main():
    store = BucketStore(Bucket("s3", LocalStore(sys.argv[1]), "", True, ""))
    await store.put("a", b"a")
    await asyncio.gather(*(store.get("a") for _ in range(30)))

asyncio.run(main())
"""


def test_a_process_that_ends_right_after_an_answer_is_not_aborted(tmp_path: Path) -> None:
    """At once, so that threads lose their turns: without the wait at the end a quarter of them died by SIGABRT."""
    processes = [subprocess.Popen([sys.executable, "-c", ENDING, str(tmp_path)]) for _ in range(12)]
    assert [process.wait(120) for process in processes] == [0] * 12
