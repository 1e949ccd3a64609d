"""CopyObject and UploadPartCopy."""

import hashlib
from pathlib import Path
from typing import Any

import pytest

from lsmfs.auth.permissions import read_repo, write_repo
from lsmfs.objectstore.faulting import Fault, Kind
from lsmfs.repository import Repository
from refstore.errors import Denied
from tests.gateway.conftest import NUMBERS, new_bucket
from tests.gateway.raw import ask
from tests.gateway.running import Running
from tests.gateway.test_multipart import BIG, uploaded
from tests.gateway.test_objects import code_of

MIB = 1024 * 1024
BODY = hashlib.sha256(b"copied").digest() * (6 * MIB // 32)


@pytest.fixture
def source(s3: Any, bucket: str) -> str:
    s3.put_object(
        Bucket=bucket, Key="main/a b+c", Body=b"hello", ContentType="text/x", CacheControl="x", Metadata={"k": "v"}
    )
    return bucket


def test_a_copy_has_the_bytes_and_the_properties(gateway: Running, s3: Any, source: str) -> None:
    before = s3.head_object(Bucket=source, Key="main/a b+c")
    copied = s3.copy_object(Bucket=source, Key="main/copy", CopySource={"Bucket": source, "Key": "main/a b+c"})
    assert copied["CopyObjectResult"]["ETag"] == before["ETag"]
    got = s3.get_object(Bucket=source, Key="main/copy")
    assert got["Body"].read() == b"hello"
    assert (got["ContentType"], got["CacheControl"], got["Metadata"]) == ("text/x", "x", {"k": "v"})

    async def addresses(repository: Repository) -> set[str]:
        return {(await repository.get("main", path)).address for path in ("a b+c", "copy")}

    assert len(gateway.on(source, addresses)) == 1  # no byte was stored again


def test_replace_takes_the_properties_of_the_request(s3: Any, source: str) -> None:
    place = {"Bucket": source, "Key": "main/a b+c"}
    s3.copy_object(
        Bucket=source,
        Key="main/b",
        CopySource=place,
        MetadataDirective="REPLACE",
        Metadata={"n": "1"},
        ContentType="a/b",
    )
    got = s3.head_object(Bucket=source, Key="main/b", ChecksumMode="ENABLED")
    assert (got["ContentType"], got["Metadata"], "CacheControl" in got) == ("a/b", {"n": "1"}, False)
    assert got["ChecksumCRC32"] == s3.head_object(**place, ChecksumMode="ENABLED")["ChecksumCRC32"]


def test_onto_itself_only_with_replace(s3: Any, source: str) -> None:
    place = {"Bucket": source, "Key": "main/a b+c"}
    assert code_of(s3.copy_object, **place, CopySource=place) == (400, "InvalidRequest")
    s3.copy_object(**place, CopySource=place, MetadataDirective="REPLACE", Metadata={"new": "1"})
    assert s3.head_object(**place)["Metadata"] == {"new": "1"}
    assert code_of(s3.copy_object, **place, CopySource=place, MetadataDirective="MOVE") == (400, "InvalidArgument")


@pytest.mark.parametrize(
    "form", ["/{0}/main/a%20b%2Bc", "{0}/main/a%20b%2Bc", "{0}/main%2Fa%20b%2Bc", "%2F{0}/main/a b%2Bc"]
)
def test_sources_are_written_in_many_ways(gateway: Running, source: str, form: str) -> None:
    answer = ask(gateway, "PUT", f"/{source}/main/copy", {"x-amz-copy-source": form.format(source)})
    assert answer.status == 200


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("", (400, "InvalidArgument")),
        ("/", (400, "InvalidArgument")),
        ("{0}", (400, "InvalidArgument")),
        ("{0}/%FF", (400, "InvalidArgument")),
        ("{0}/main/none", (404, "NoSuchKey")),
        ("{0}/main/", (404, "NoSuchKey")),
        ("{0}/none/a", (404, "NoSuchKey")),
        ("no-such-bucket/main/a", (404, "NoSuchBucket")),
        ("../etc/passwd", (404, "NoSuchBucket")),
        ("{0}/main/a%00", (400, "InvalidArgument")),
        ("{0}/main/a?versionId=7", (501, "NotImplemented")),
    ],
)
def test_sources_that_are_none(gateway: Running, source: str, said: str, expected: tuple[int, str]) -> None:
    answer = ask(gateway, "PUT", f"/{source}/main/copy", {"x-amz-copy-source": said.format(source)})
    assert (answer.status, answer.code) == expected


def test_from_a_commit_and_a_tag_to_a_branch(gateway: Running, s3: Any, source: str) -> None:
    async def commit(repository: Repository) -> str:
        await repository.commit("main", "first")
        await repository.create_branch("other", "main")
        return await repository.create_tag("v1", "main")

    identity = gateway.on(source, commit)
    s3.delete_object(Bucket=source, Key="main/a b+c")
    for ref in ("v1", identity, "other"):
        s3.copy_object(Bucket=source, Key="main/back", CopySource={"Bucket": source, "Key": f"{ref}/a b+c"})
        assert s3.get_object(Bucket=source, Key="main/back")["Body"].read() == b"hello"
    refused = code_of(s3.copy_object, Bucket=source, Key="v1/x", CopySource={"Bucket": source, "Key": "main/back"})
    assert refused == (405, "MethodNotAllowed")


def test_across_repositories(gateway: Running, s3: Any, source: str) -> None:
    target = new_bucket(gateway)
    s3.copy_object(Bucket=target, Key="main/copy", CopySource={"Bucket": source, "Key": "main/a b+c"})
    assert s3.get_object(Bucket=target, Key="main/copy")["Body"].read() == b"hello"


def test_a_copy_of_a_copy_outlives_the_one_between(gateway: Running, s3: Any, source: str) -> None:
    between, last = new_bucket(gateway), new_bucket(gateway)
    s3.copy_object(Bucket=between, Key="main/copy", CopySource={"Bucket": source, "Key": "main/a b+c"})
    s3.copy_object(Bucket=last, Key="main/copy", CopySource={"Bucket": between, "Key": "main/copy"})
    installation = gateway.lake.installation
    gateway.do(lambda: installation.delete(between))
    with pytest.raises(Denied, match=last):
        gateway.do(lambda: installation.delete(source))
    assert s3.get_object(Bucket=last, Key="main/copy")["Body"].read() == b"hello"


def test_across_stores_the_bytes_are_copied(gateway: Running, s3: Any, source: str, tmp_path: Path) -> None:
    target = gateway.create(f"elsewhere-{next(NUMBERS)}", storage=f"file://{tmp_path}/own")
    s3.copy_object(Bucket=target, Key="main/copy", CopySource={"Bucket": source, "Key": "main/a b+c"})
    got = s3.get_object(Bucket=target, Key="main/copy")
    assert (got["Body"].read(), got["Metadata"]) == (b"hello", {"k": "v"})
    identity = s3.create_multipart_upload(Bucket=target, Key="main/parts")["UploadId"]
    named = {"Bucket": target, "Key": "main/parts", "UploadId": identity}
    part = s3.upload_part_copy(
        **named, PartNumber=1, CopySource={"Bucket": source, "Key": "main/a b+c"}, CopySourceRange="bytes=1-3"
    )["CopyPartResult"]
    parts = [{"PartNumber": 1, "ETag": part["ETag"]}]
    s3.complete_multipart_upload(**named, MultipartUpload={"Parts": parts})
    assert s3.get_object(Bucket=target, Key="main/parts")["Body"].read() == b"ell"


def test_conditions_on_the_source(s3: Any, source: str) -> None:
    place = {"Bucket": source, "Key": "main/a b+c"}
    etag = s3.head_object(**place)["ETag"].strip('"')
    copy = {"Bucket": source, "Key": "main/copy", "CopySource": place}
    s3.copy_object(**copy, CopySourceIfMatch=etag)
    assert code_of(s3.copy_object, **copy, CopySourceIfMatch="no") == (412, "PreconditionFailed")
    assert code_of(s3.copy_object, **copy, CopySourceIfNoneMatch=etag) == (412, "PreconditionFailed")
    old, new = "Wed, 21 Oct 2015 07:28:00 GMT", "Wed, 21 Oct 2099 07:28:00 GMT"
    assert code_of(s3.copy_object, **copy, CopySourceIfUnmodifiedSince=old) == (412, "PreconditionFailed")
    assert code_of(s3.copy_object, **copy, CopySourceIfModifiedSince=new) == (412, "PreconditionFailed")
    s3.copy_object(**copy, CopySourceIfModifiedSince=old)


def test_a_copy_needs_permission_to_read_its_source(gateway: Running, s3: Any, source: str) -> None:
    target = new_bucket(gateway)
    pair = gateway.user(f"copier-{target}", read_repo(target), write_repo(target))
    mine = gateway.client(pair)
    place = {"Bucket": source, "Key": "main/a b+c"}
    assert code_of(mine.copy_object, Bucket=target, Key="main/x", CopySource=place) == (403, "AccessDenied")
    identity = mine.create_multipart_upload(Bucket=target, Key="main/x")["UploadId"]
    named = {"Bucket": target, "Key": "main/x", "UploadId": identity, "PartNumber": 1}
    assert code_of(mine.upload_part_copy, **named, CopySource=place) == (403, "AccessDenied")
    assert code_of(mine.copy_object, **place, CopySource={"Bucket": target, "Key": "main/x"}) == (403, "AccessDenied")
    assert code_of(s3.head_object, Bucket=target, Key="main/x") == (404, "404")


def test_parts_are_copied_from_ranges(gateway: Running, s3: Any, bucket: str) -> None:
    s3.put_object(Bucket=bucket, Key="main/source", Body=BODY)
    place = {"Bucket": bucket, "Key": "main/source"}
    identity = s3.create_multipart_upload(Bucket=bucket, Key="main/target")["UploadId"]
    named = {"Bucket": bucket, "Key": "main/target", "UploadId": identity}
    ranges = [f"bytes=0-{5 * MIB - 1}", f"bytes={5 * MIB}-{6 * MIB - 1}"]
    parts = []
    for number, ranged in enumerate(ranges, 1):
        part = s3.upload_part_copy(**named, PartNumber=number, CopySource=place, CopySourceRange=ranged)
        parts.append({"PartNumber": number, "ETag": part["CopyPartResult"]["ETag"]})
    s3.complete_multipart_upload(**named, MultipartUpload={"Parts": parts})
    assert s3.get_object(Bucket=bucket, Key="main/target")["Body"].read() == BODY
    entries = gateway.on(bucket, lambda repository: repository.get_many("main", ["source", "target"]))
    assert entries[b"target"].extents[0].address == entries[b"source"].address
    assert len(entries[b"target"].extents) == 1  # neighbours in one object are one extent


def test_ranges_of_part_copies_must_be_there(s3: Any, source: str) -> None:
    identity = s3.create_multipart_upload(Bucket=source, Key="main/target")["UploadId"]
    named = {"Bucket": source, "Key": "main/target", "UploadId": identity, "PartNumber": 1}
    place = {"Bucket": source, "Key": "main/a b+c"}
    for ranged in ("bytes=0-", "bytes=-3", "0-1", "bytes=3-1", "bytes=a-b"):
        refused = code_of(s3.upload_part_copy, **named, CopySource=place, CopySourceRange=ranged)
        assert refused == (400, "InvalidArgument")
    refused = code_of(s3.upload_part_copy, **named, CopySource=place, CopySourceRange="bytes=0-5")
    assert refused == (416, "InvalidRange")


def test_a_large_copy_in_parts(s3: Any, bucket: str) -> None:
    from boto3.s3.transfer import TransferConfig

    s3.put_object(Bucket=bucket, Key="main/source", Body=BODY * 2)
    place = {"Bucket": bucket, "Key": "main/source"}
    s3.copy(place, bucket, "main/target", Config=TransferConfig(multipart_threshold=MIB, multipart_chunksize=5 * MIB))
    got = s3.get_object(Bucket=bucket, Key="main/target")
    assert got["Body"].read() == BODY * 2
    assert got["ETag"].endswith('-3"')


def test_a_slow_copy_keeps_the_connection_alive(
    gateway: Running, s3: Any, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = gateway.create(f"slow-{next(NUMBERS)}", storage=f"file://{tmp_path}/own")
    monkeypatch.setattr("lsmfs.gateway.answers.PATIENCE_SECONDS", 0.02)
    said = {"x-amz-copy-source": f"{source}/main/a%20b%2Bc"}
    with gateway.failing(lambda verb, *_: Fault(Kind.DELAY, 0.2) if verb == "stream" else None):
        answer = ask(gateway, "PUT", f"/{target}/main/copy", said)
    assert answer.status == 200
    assert answer.body.startswith(b'<?xml version="1.0" encoding="UTF-8"?>\n ')
    assert b"<CopyObjectResult" in answer.body
    identity, parts = uploaded(s3, source, BIG, b"end", key="main/two")
    s3.complete_multipart_upload(Bucket=source, Key="main/two", UploadId=identity, MultipartUpload={"Parts": parts})
    faults = iter([Fault(Kind.DELAY, 0.2), Fault(Kind.BEFORE)])
    with gateway.failing(lambda verb, *_: next(faults) if verb == "stream" else None):
        answer = ask(gateway, "PUT", f"/{target}/main/two", {"x-amz-copy-source": f"{source}/main/two"})
    assert (answer.status, answer.code) == (200, "ServiceUnavailable")
    assert code_of(s3.head_object, Bucket=target, Key="main/two") == (404, "404")
