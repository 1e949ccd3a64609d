"""Buckets as sources, on a real S3 server, which lists in the order of directories; and on a stub for what S3 does."""

import uuid
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, urlsplit
from xml.sax.saxutils import escape

import pytest

from lsmfs.blocks import read_body
from lsmfs.imports import buckets, open_source, work
from lsmfs.imports.buckets import MARKER, UNREADABLE
from lsmfs.imports.source import Place, Skip, Source, added
from lsmfs.lsm.records import is_ascending
from lsmfs.model import Entry
from lsmfs.objectstore.bucket import LISTING_PAGE
from lsmfs.objectstore.faulting import Fault, FaultingStore, Kind
from lsmfs.objectstore.memory import MemoryStore
from lsmfs.objectstore.open import open_store
from refstore.errors import Denied, Invalid, NotFound, Unavailable
from tests.aio import aio
from tests.imports.support import only_state
from tests.lsm.support import content_of, memory_repository, visible
from tests.objectstore.stub_server import Answer, Request, stub_server
from tests.servers.bucket import BucketAddress, s3_client
from tests.servers.seaweedfs import shared_s3

pytestmark = pytest.mark.xdist_group("s3")
NAMES = ["a-b", "a.b/c", "a/b", "a/b-c", "a/d/e", "a!", "a0", "Z", "ä/ö", "z/z/z", "q?x#y%20 z+w"]


def bucket(*names: str) -> BucketAddress:
    """A prefix of its own with an object at each name; its body is the name."""
    address = shared_s3().below(uuid.uuid4().hex)
    client = s3_client(address)
    for name in names:
        body = b"" if name.endswith("/") else name.encode()
        client.put_object(Bucket=address.bucket, Key=address.prefix + name, Body=body)
    return address


def with_parameter(address: BucketAddress, parameter: str) -> str:
    return f"{address.url}&{parameter}"


async def entries(source: Source, prefix: str = "", place: Place | None = None) -> dict[str, Entry]:
    found: dict[str, Entry] = {}
    async for batch in source.batches(prefix, place or Place()):
        found |= {key.decode(): entry for key, entry in content_of(batch.rows).items() if entry is not None}
    return found


async def skipped(source: Source) -> dict[str, Skip]:
    total: dict[str, Skip] = {}
    async for batch in source.batches("", Place()):
        total = added(total, batch.skipped)
    return total


@aio
async def test_a_bucket_that_lists_in_any_order_is_imported_and_read_back() -> None:
    address = bucket(*NAMES)
    source = open_source(address.url, address.environment)
    assert not source.is_ordered
    repository = await memory_repository()
    imported = await repository.import_objects(source, "main", "raw/")
    assert imported.objects == len(NAMES)
    found = await visible(repository)
    assert set(found) == {f"raw/{name}".encode() for name in NAMES}
    for key, entry in found.items():
        pieces = read_body(entry, MemoryStore(), lambda url: open_store(url, address.environment))
        assert b"raw/" + b"".join([piece async for piece in pieces]) == key


@aio
async def test_the_parameters_of_the_lakes_own_store_do_not_stand_in_addresses() -> None:
    address = bucket("a")
    own = shared_s3().url
    (entry,) = (await entries(open_source(address.url, address.environment, own))).values()
    assert entry.address == f"s3://{address.bucket}/{address.prefix}a"
    pieces = read_body(entry, MemoryStore(), lambda url: open_store(url, address.environment), own)
    assert [piece async for piece in pieces] == [b"a"]
    assert (entry.size_bytes, entry.etag) == (1, "0cc175b9c0f1b6a831c399e269772661")
    assert entry.mtime_us > 1_700_000_000_000_000


@aio
async def test_a_bucket_that_lists_in_order_goes_on_after_any_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buckets, "BATCH_OBJECTS", 2)
    names = [f"f{number:02}" for number in range(9)]
    address = bucket(*names)
    source = open_source(with_parameter(address, "ordered=yes"), address.environment)
    assert source.is_ordered
    assert list(await entries(source)) == names
    async for batch in source.batches("", Place()):
        assert is_ascending(batch.rows["key"])
        assert len(batch.rows) <= 2
    for at, name in enumerate(names):
        assert list(await entries(source, "p/", Place(at, name))) == [f"p/{rest}" for rest in names[at + 1 :]]


@aio
async def test_a_bucket_that_breaks_the_order_it_was_said_to_keep_is_told() -> None:
    address = bucket("a-b", "a/b")
    with pytest.raises(Invalid, match="ordered=no"):
        await entries(open_source(with_parameter(address, "ordered=yes"), address.environment))


@aio
async def test_folder_markers_are_left_out_and_empty_objects_are_not() -> None:
    address = bucket("", "d/", "d/f", "d/e/", "d/e/g", "lonely")
    client = s3_client(address)
    client.put_object(Bucket=address.bucket, Key=address.prefix + "empty", Body=b"")
    client.put_object(Bucket=address.bucket, Key=address.prefix, Body=b"")
    source = open_source(address.url, address.environment)
    assert set(await entries(source)) == {"d/f", "d/e/g", "empty", "lonely"}
    assert await skipped(source) == {MARKER: Skip(2, "d/")}


@aio
async def test_what_is_no_source_is_told_before_anything_is_listed() -> None:
    address = bucket("one/object")
    url = urlsplit(address.url)

    def changed(**parts: str) -> str:
        return url._replace(**parts).geturl()

    cases: list[tuple[str, dict[str, str], type[Exception], str]] = [
        (changed(path=url.path + "/none"), dict(address.environment), NotFound, "there is nothing below"),
        (changed(path=url.path + "/one/object"), dict(address.environment), Invalid, "is a single object"),
        (changed(netloc="no-such-bucket"), dict(address.environment), NotFound, "404"),
        (address.url, {**address.environment, "AWS_SECRET_ACCESS_KEY": "wrong"}, Denied, "credentials"),
        ("s3://b?endpoint=http://127.0.0.1:1", dict(address.environment), Unavailable, "127.0.0.1:1"),
    ]
    for text, environment, kind, words in cases:
        with pytest.raises(kind, match=words):
            await open_source(text, environment).check()
    await open_source(changed(path=url.path + "/one"), address.environment).check()


# A stub


def page(names: list[str], more: bool = False, size: int = 1) -> Answer:
    """A page of a listing, as S3 writes it; a name that ends with a slash is empty."""
    objects = "".join(
        f"<Contents><Key>{escape(name)}</Key><LastModified>2024-01-01T00:00:00.000Z</LastModified><ETag>&quot;e&quot;"
        f"</ETag><Size>{0 if name.endswith('/') else size}</Size></Contents>"
        for name in names
    )
    token = "<NextContinuationToken>t</NextContinuationToken>" if more else ""
    text = f"<ListBucketResult><IsTruncated>{str(more).lower()}</IsTruncated>{token}{objects}</ListBucketResult>"
    return Answer(200, text.encode())


async def listed(answers: list[Answer], place: Place | None = None) -> tuple[list[str], dict[str, Skip], list[Any]]:
    """What an ordered source makes of a listing; and what it asked for."""
    left = iter(answers)

    def answer(request: Request) -> Answer:
        return next(left)

    async with stub_server(answer) as stub:
        url = f"s3://b/raw?endpoint=http://127.0.0.1:{stub.port}&ordered=yes"
        source = open_source(url, {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s"})
        names: list[str] = []
        total: dict[str, Skip] = {}
        async for batch in source.batches("", place or Place()):
            names += batch.rows["key"].to_pylist()
            total = added(total, batch.skipped)
        return names, total, [parse_qs(urlsplit(request.target).query) for request in stub.requests]


@aio
async def test_a_listing_that_breaks_off_goes_on_after_the_last_name() -> None:
    first = [f"raw/{number:04}" for number in range(LISTING_PAGE)]
    names, _, asked = await listed([page(first, more=True), Answer(503), page(["raw/last"])])
    assert names == [name.removeprefix("raw/") for name in (*first, "raw/last")]
    assert asked[0]["prefix"] == ["raw/"]
    assert asked[2]["start-after"] == [first[-1]]


@aio
async def test_an_import_that_goes_on_lists_from_where_it_was() -> None:
    names, _, asked = await listed([page(["raw/c"])], Place(2, "b"))
    assert (names, asked[0]["start-after"]) == (["c"], ["raw/b"])


@aio
async def test_folder_markers_out_of_place_are_left_out_whatever_is_around_them() -> None:
    """`sub/` is listed as `sub`, after `sub!x`, and beside an object `sub`: found by import of a console's bucket."""
    names, told, _ = await listed([page(["raw/", "raw/sub", "raw/sub!x", "raw/sub/", "raw/sub/x", "raw/t/", "raw/u"])])
    assert names == ["sub", "sub!x", "sub/x", "t", "u"]
    assert told == {MARKER: Skip(1, "sub/")}


@aio
async def test_names_that_cannot_be_read_back_are_left_out_and_told() -> None:
    names, told, _ = await listed([page(["raw/a", "raw/b\\c", "raw/d"])])
    assert (names, told) == (["a", "d"], {UNREADABLE: Skip(1, "b\\c")})


@aio
async def test_a_name_that_ends_every_listing_is_told_with_what_to_do() -> None:
    with pytest.raises(Invalid, match="import the folders beside it"):
        await listed([page(["raw/a", "raw//b"])])


# A lake in a bucket


def failing(at: int) -> Callable[[str, str, int], Fault | None]:
    """A store whose call of that number fails."""
    return lambda verb, name, number: Fault(Kind.BEFORE) if number == at else None


@aio
async def test_a_lake_in_the_same_server_imports_goes_on_and_reads_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buckets, "BATCH_OBJECTS", 20)
    monkeypatch.setattr(work, "SAVE_SECONDS", 0.0)
    names = [f"f{number:03}" for number in range(120)]
    address, home = bucket(*names), shared_s3().below(uuid.uuid4().hex)
    tries: list[int] = []
    for fail_at in (4, 6, 8):  # the first two make the repository
        store = FaultingStore(open_store(home.below(f"lake{fail_at}").url, home.environment), failing(fail_at))
        repository = await memory_repository(store)
        source = open_source(with_parameter(address, "ordered=yes"), address.environment, home.url)
        with pytest.raises(Unavailable):
            await repository.import_objects(source, "main")
        tries.append((await only_state(repository)).objects)
        imported = await repository.import_objects(source, "main")
        assert (imported.resumed, imported.objects) == (True, len(names))
    assert tries[-1] > 0
    entry = await repository.get("main", "f007")
    assert entry.address == f"s3://{address.bucket}/{address.prefix}f007"
    pieces = read_body(entry, store, lambda url: open_store(url, address.environment), home.url)
    assert [piece async for piece in pieces] == [b"f007"]
