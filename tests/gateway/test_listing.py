"""ListObjects, versions 1 and 2."""

from typing import Any

import pytest

from lsmfs.repository import Repository
from tests.gateway.raw import ask
from tests.gateway.running import Running
from tests.gateway.test_objects import code_of

KEYS = ["main/a", "main/b/1", "main/b/2", "main/b/c/3", "main/d", "main/e f/ü&<x>"]


@pytest.fixture
def filled(gateway: Running, s3: Any, bucket: str) -> str:
    for key in KEYS:
        s3.put_object(Bucket=bucket, Key=key, Body=key.encode())
    return bucket


def keys(answer: dict[str, Any]) -> list[str]:
    return [each["Key"] for each in answer.get("Contents", [])]


def prefixes(answer: dict[str, Any]) -> list[str]:
    return [each["Prefix"] for each in answer.get("CommonPrefixes", [])]


def test_all_keys_in_order_with_their_facts(s3: Any, filled: str) -> None:
    answer = s3.list_objects_v2(Bucket=filled, Prefix="main/")
    assert keys(answer) == KEYS
    assert (answer["KeyCount"], answer["IsTruncated"], answer["MaxKeys"]) == (6, False, 1000)
    head = s3.head_object(Bucket=filled, Key="main/b/1")
    entry = answer["Contents"][1]
    assert (entry["Size"], entry["ETag"], entry["StorageClass"]) == (8, head["ETag"], "STANDARD")
    assert entry["LastModified"].replace(microsecond=0) == head["LastModified"]
    assert keys(s3.list_objects(Bucket=filled, Prefix="main/")) == KEYS


def test_a_delimiter_groups(s3: Any, filled: str) -> None:
    for call in (s3.list_objects, s3.list_objects_v2):
        answer = call(Bucket=filled, Prefix="main/", Delimiter="/")
        assert (keys(answer), prefixes(answer)) == (["main/a", "main/d"], ["main/b/", "main/e f/"])
        answer = call(Bucket=filled, Prefix="main/b/", Delimiter="/")
        assert (keys(answer), prefixes(answer)) == (["main/b/1", "main/b/2"], ["main/b/c/"])
        answer = call(Bucket=filled, Prefix="main/", Delimiter="/c")
        assert prefixes(answer) == ["main/b/c"]
        answer = call(Bucket=filled, Prefix="main/", Delimiter=" f")
        assert prefixes(answer) == ["main/e f"]
        assert answer["Delimiter"] == " f"
        answer = call(Bucket=filled, Prefix="main/", Delimiter="")
        assert keys(answer) == KEYS


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("delimiter", ["", "/"])
@pytest.mark.parametrize("operation", ["list_objects", "list_objects_v2"])
def test_pages_together_are_the_whole(s3: Any, filled: str, operation: str, delimiter: str, size: int) -> None:
    pages = list(
        s3.get_paginator(operation).paginate(
            Bucket=filled, Prefix="main/", Delimiter=delimiter, PaginationConfig={"PageSize": size}
        )
    )
    whole = getattr(s3, operation)(Bucket=filled, Prefix="main/", Delimiter=delimiter)
    assert [key for page in pages for key in keys(page)] == keys(whole)
    assert [prefix for page in pages for prefix in prefixes(page)] == prefixes(whole)
    assert all(len(keys(page)) + len(prefixes(page)) == size for page in pages[:-1])


def test_next_marker_only_with_a_delimiter(s3: Any, filled: str) -> None:
    answer = s3.list_objects(Bucket=filled, Prefix="main/", MaxKeys=2)
    assert answer["IsTruncated"]
    assert "NextMarker" not in answer
    answer = s3.list_objects(Bucket=filled, Prefix="main/", MaxKeys=2, Delimiter="/")
    assert answer["NextMarker"] == "main/b/"
    rest = s3.list_objects(Bucket=filled, Prefix="main/", Delimiter="/", Marker="main/b/")
    assert (keys(rest), prefixes(rest), rest["Marker"]) == (["main/d"], ["main/e f/"], "main/b/")


def test_start_after(s3: Any, filled: str) -> None:
    def after(start: str, delimiter: str = "") -> tuple[list[str], list[str]]:
        answer = s3.list_objects_v2(Bucket=filled, Prefix="main/", StartAfter=start, Delimiter=delimiter)
        assert answer["StartAfter"] == start
        return keys(answer), prefixes(answer)

    assert after("main/b/2") == (KEYS[3:], [])
    assert after("main/b/2", "/") == (["main/d"], ["main/e f/"])  # inside of a common prefix: it is passed over
    assert after("a") == (KEYS, [])
    assert after("main") == (KEYS, [])
    assert after("main/") == (KEYS, [])
    assert after("maio") == ([], [])


def test_max_keys(gateway: Running, s3: Any, filled: str) -> None:
    none = s3.list_objects_v2(Bucket=filled, Prefix="main/", MaxKeys=0)
    assert (keys(none), none["IsTruncated"], none["KeyCount"], none["MaxKeys"]) == ([], False, 0, 0)
    many = s3.list_objects_v2(Bucket=filled, Prefix="main/", MaxKeys=5000)
    assert (keys(many), many["MaxKeys"]) == (KEYS, 1000)
    for bad in ("x", "-1", "1.5", "9" * 30, "%D9%A3"):
        answer = ask(gateway, "GET", f"/{filled}?list-type=2&max-keys={bad}&prefix=main%2F")
        assert (answer.status, answer.code) == (400, "InvalidArgument")


def test_bad_tokens_are_refused(gateway: Running, s3: Any, filled: str) -> None:
    for bad in ("", "nonsense", "AQ==", "%00", "A" * 5000, "_w=="):
        answer = ask(gateway, "GET", f"/{filled}?continuation-token={bad}&list-type=2&prefix=main%2F")
        assert (answer.status, answer.code) == (400, "InvalidArgument")
    assert ask(gateway, "GET", f"/{filled}?list-type=3&prefix=main%2F").status == 400
    assert ask(gateway, "GET", f"/{filled}?encoding-type=hex&prefix=main%2F").status == 400


def test_encoding_type_url(gateway: Running, filled: str) -> None:
    answer = ask(gateway, "GET", f"/{filled}?delimiter=%20f&encoding-type=url&list-type=2&prefix=main%2Fe")
    assert b"<Prefix>main/e%20f</Prefix>" in answer.body
    assert b"<Delimiter>%20f</Delimiter>" in answer.body
    answer = ask(gateway, "GET", f"/{filled}?encoding-type=url&prefix=main%2Fe")
    assert b"<Key>main/e%20f/%C3%BC%26%3Cx%3E</Key>" in answer.body
    assert b"<EncodingType>url</EncodingType>" in answer.body
    answer = ask(gateway, "GET", f"/{filled}?prefix=main%2Fe")
    assert "<Key>main/e f/ü&amp;&lt;x&gt;</Key>".encode() in answer.body


def test_owners_are_told_if_asked(s3: Any, filled: str) -> None:
    assert "Owner" not in s3.list_objects_v2(Bucket=filled, Prefix="main/")["Contents"][0]
    asked = s3.list_objects_v2(Bucket=filled, Prefix="main/", FetchOwner=True)
    assert asked["Contents"][0]["Owner"] == {"ID": "admin", "DisplayName": "admin"}
    assert s3.list_objects(Bucket=filled, Prefix="main/")["Contents"][0]["Owner"]["ID"] == "admin"


def test_refs_are_the_top_level(gateway: Running, s3: Any, filled: str) -> None:
    async def branch(repository: Repository) -> None:
        await repository.commit("main", "first")
        for name in ("maintenance", "main-2", "other"):
            await repository.create_branch(name, "main")
        await repository.create_branch("hidden-one", "main", hidden=True)
        await repository.create_tag("made", "main")

    gateway.on(filled, branch)
    everything = ["made/", "main-2/", "main/", "maintenance/", "other/"]
    for call in (s3.list_objects, s3.list_objects_v2):
        assert prefixes(call(Bucket=filled)) == everything
        assert prefixes(call(Bucket=filled, Delimiter="/")) == everything
        assert prefixes(call(Bucket=filled, Prefix="ma", Delimiter="/")) == everything[:4]
        assert prefixes(call(Bucket=filled, Prefix="main", Delimiter="/")) == everything[1:4]
        assert prefixes(call(Bucket=filled, Prefix="x")) == []
    for operation in ("list_objects", "list_objects_v2"):
        pages = s3.get_paginator(operation).paginate(Bucket=filled, Delimiter="/", PaginationConfig={"PageSize": 2})
        assert [prefix for page in pages for prefix in prefixes(page)] == everything
    assert prefixes(s3.list_objects_v2(Bucket=filled, StartAfter="main/", Delimiter="/")) == everything[3:]
    assert keys(s3.list_objects_v2(Bucket=filled, Prefix="made/b/")) == ["made/b/1", "made/b/2", "made/b/c/3"]


def test_a_ref_that_is_not_there_lists_nothing(s3: Any, filled: str) -> None:
    for prefix in ("none/", "none/a", "a b/", "../", "/", "//"):
        answer = s3.list_objects_v2(Bucket=filled, Prefix=prefix)
        assert (answer["KeyCount"], answer["IsTruncated"]) == (0, False)


def test_a_bucket_that_is_not_there(s3: Any) -> None:
    for bucket in ("none-at-all", "Not-A-Name", "x.y.z"):
        assert code_of(s3.list_objects_v2, Bucket=bucket) == (404, "NoSuchBucket")
        assert code_of(s3.head_bucket, Bucket=bucket) == (404, "404")
