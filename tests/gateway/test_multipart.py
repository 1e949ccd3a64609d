"""Multipart uploads."""

import asyncio
import base64
import hashlib
import zlib
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from botocore.exceptions import ClientError

from lsmfs.gateway.uploads import KEPT_US, Part, Upload, Uploads
from lsmfs.repository import Repository
from tests.gateway.conftest import new_bucket
from tests.gateway.raw import ask
from tests.gateway.running import Running
from tests.gateway.test_objects import code_of

MIB = 1024 * 1024
BIG = hashlib.sha256(b"seed").digest() * (5 * MIB // 32)  # the least that a part may have
KEY = "main/big file"


def uploaded(
    s3: Any, bucket: str, *bodies: bytes, key: str = KEY, **arguments: Any
) -> tuple[str, list[dict[str, Any]]]:
    identity = s3.create_multipart_upload(Bucket=bucket, Key=key, **arguments)["UploadId"]
    parts = []
    for number, body in enumerate(bodies, 1):
        part = s3.upload_part(Bucket=bucket, Key=key, UploadId=identity, PartNumber=number, Body=body)
        parts.append({"PartNumber": number, "ETag": part["ETag"]})
    return identity, parts


def etag_of(*bodies: bytes) -> str:
    digests = b"".join(hashlib.md5(body).digest() for body in bodies)
    return f'"{hashlib.md5(digests).hexdigest()}-{len(bodies)}"'


def test_parts_become_one_object(either: Running) -> None:
    s3, bucket = either.client(), new_bucket(either)
    bodies = [BIG, BIG[::-1], b"the end"]
    properties: dict[str, Any] = {"ContentType": "text/x", "Metadata": {"a": "b"}, "CacheControl": "no-cache"}
    identity, parts = uploaded(s3, bucket, *bodies, **properties)
    assert code_of(s3.head_object, Bucket=bucket, Key=KEY) == (404, "404")
    named = {"Bucket": bucket, "Key": KEY, "UploadId": identity, "MultipartUpload": {"Parts": parts}}
    done = s3.complete_multipart_upload(**named)
    assert (done["ETag"], done["Bucket"], done["Key"]) == (etag_of(*bodies), bucket, KEY)
    got = s3.get_object(Bucket=bucket, Key=KEY)
    assert got["Body"].read() == b"".join(bodies)
    assert got["ETag"] == done["ETag"]
    assert {name: got[name] for name in properties} == properties
    assert s3.list_objects_v2(Bucket=bucket, Prefix="main/")["Contents"][0]["ETag"] == done["ETag"]
    assert s3.complete_multipart_upload(**named)["ETag"] == done["ETag"]  # repeated, it answers the same


def test_a_repeated_complete_does_not_bring_back_what_was_replaced(s3: Any, bucket: str) -> None:
    identity, parts = uploaded(s3, bucket, b"old")
    named = {"Bucket": bucket, "Key": KEY, "UploadId": identity, "MultipartUpload": {"Parts": parts}}
    s3.complete_multipart_upload(**named)
    s3.put_object(Bucket=bucket, Key=KEY, Body=b"new")
    s3.complete_multipart_upload(**named)
    assert s3.get_object(Bucket=bucket, Key=KEY)["Body"].read() == b"new"
    assert code_of(s3.upload_part, Bucket=bucket, Key=KEY, UploadId=identity, PartNumber=1) == (404, "NoSuchUpload")
    assert code_of(s3.list_parts, Bucket=bucket, Key=KEY, UploadId=identity) == (404, "NoSuchUpload")


def test_parts_are_read_by_their_number(s3: Any, bucket: str) -> None:
    identity, parts = uploaded(s3, bucket, BIG, b"the end")
    s3.complete_multipart_upload(Bucket=bucket, Key=KEY, UploadId=identity, MultipartUpload={"Parts": parts})
    second = s3.get_object(Bucket=bucket, Key=KEY, PartNumber=2)
    assert (second["Body"].read(), second["PartsCount"]) == (b"the end", 2)
    assert second["ContentRange"] == f"bytes {5 * MIB}-{5 * MIB + 6}/{5 * MIB + 7}"
    head = s3.head_object(Bucket=bucket, Key=KEY, PartNumber=1)
    assert (head["ContentLength"], head["PartsCount"]) == (5 * MIB, 2)
    assert code_of(s3.get_object, Bucket=bucket, Key=KEY, PartNumber=3)[0] == 416
    attributes = s3.get_object_attributes(Bucket=bucket, Key=KEY, ObjectAttributes=["ObjectParts", "ObjectSize"])
    assert (attributes["ObjectParts"]["TotalPartsCount"], attributes["ObjectSize"]) == (2, 5 * MIB + 7)
    across = s3.get_object(Bucket=bucket, Key=KEY, Range=f"bytes={5 * MIB - 2}-{5 * MIB + 2}")
    assert across["Body"].read() == BIG[-2:] + b"the"


def test_a_part_that_comes_again_replaces_the_first(s3: Any, bucket: str) -> None:
    identity, parts = uploaded(s3, bucket, b"first")
    again = s3.upload_part(Bucket=bucket, Key=KEY, UploadId=identity, PartNumber=1, Body=b"second")["ETag"]
    named = {"Bucket": bucket, "Key": KEY, "UploadId": identity}
    refused = code_of(s3.complete_multipart_upload, **named, MultipartUpload={"Parts": parts})
    assert refused == (400, "InvalidPart")
    s3.complete_multipart_upload(**named, MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": again}]})
    assert s3.get_object(Bucket=bucket, Key=KEY)["Body"].read() == b"second"


def test_completes_that_cannot_be(gateway: Running, s3: Any, bucket: str) -> None:
    identity, parts = uploaded(s3, bucket, b"too small", b"b")
    named = {"Bucket": bucket, "Key": KEY, "UploadId": identity}

    def refused(parts: list[dict[str, Any]], **other: Any) -> tuple[int, str]:
        return code_of(s3.complete_multipart_upload, **{**named, **other}, MultipartUpload={"Parts": parts})

    assert refused(parts) == (400, "EntityTooSmall")
    assert refused(parts[::-1]) == (400, "InvalidPartOrder")
    assert refused([parts[0], parts[0]]) == (400, "InvalidPartOrder")
    assert refused([{"PartNumber": 7, "ETag": parts[0]["ETag"]}]) == (400, "InvalidPart")
    assert refused([{"PartNumber": 1, "ETag": parts[1]["ETag"]}]) == (400, "InvalidPart")
    assert refused([]) == (400, "MalformedXML")
    assert refused(parts, Key="main/other") == (404, "NoSuchUpload")
    assert refused(parts, UploadId="none") == (404, "NoSuchUpload")
    for body in (
        b"",
        b"<x/>",
        b"<CompleteMultipartUpload>",
        b"\xff",
        b"<CompleteMultipartUpload><Part/></CompleteMultipartUpload>",
    ):
        answer = ask(gateway, "POST", f"/{bucket}/main/big%20file?uploadId={identity}", {}, body)
        assert (answer.status, answer.code) == (400, "MalformedXML")
    for number in (0, 10_001):
        refusal = code_of(s3.upload_part, Bucket=bucket, Key=KEY, UploadId=identity, PartNumber=number, Body=b"")
        assert refusal == (400, "InvalidArgument")
    assert code_of(s3.head_object, Bucket=bucket, Key=KEY) == (404, "404")


def test_an_empty_object_in_one_empty_part(s3: Any, bucket: str) -> None:
    identity, parts = uploaded(s3, bucket, b"")
    s3.complete_multipart_upload(Bucket=bucket, Key=KEY, UploadId=identity, MultipartUpload={"Parts": parts})
    assert s3.get_object(Bucket=bucket, Key=KEY)["Body"].read() == b""


def test_a_conditional_complete(s3: Any, bucket: str) -> None:
    identity, parts = uploaded(s3, bucket, b"mine")
    s3.put_object(Bucket=bucket, Key=KEY, Body=b"there")
    named = {"Bucket": bucket, "Key": KEY, "UploadId": identity, "MultipartUpload": {"Parts": parts}}
    assert code_of(s3.complete_multipart_upload, **named, IfNoneMatch="*") == (412, "PreconditionFailed")
    s3.delete_object(Bucket=bucket, Key=KEY)
    s3.complete_multipart_upload(**named, IfNoneMatch="*")
    assert s3.get_object(Bucket=bucket, Key=KEY)["Body"].read() == b"mine"


def test_of_ten_conditional_completes_one_wins(gateway: Running, bucket: str) -> None:
    s3 = gateway.client(max_pool_connections=10)
    uploads = [uploaded(s3, bucket, b"%d" % number) for number in range(10)]

    def complete(number: int) -> str:
        identity, parts = uploads[number]
        named = {"Bucket": bucket, "Key": KEY, "UploadId": identity, "MultipartUpload": {"Parts": parts}}
        try:
            s3.complete_multipart_upload(**named, IfNoneMatch="*")
            return str(number)
        except ClientError as error:
            return str(error.response["Error"]["Code"])

    with ThreadPoolExecutor(10) as pool:
        answers = list(pool.map(complete, range(10)))
    [winner] = [answer for answer in answers if answer.isdigit()]
    assert set(answers) - {winner} == {"PreconditionFailed"}
    assert s3.get_object(Bucket=bucket, Key=KEY)["Body"].read() == winner.encode()


def test_completes_of_one_upload_at_the_same_time_answer_alike(gateway: Running, bucket: str) -> None:
    s3 = gateway.client(max_pool_connections=8)
    identity, parts = uploaded(s3, bucket, BIG, b"end")
    named = {"Bucket": bucket, "Key": KEY, "UploadId": identity, "MultipartUpload": {"Parts": parts}}
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: s3.complete_multipart_upload(**named)["ETag"], range(8)))
    assert set(answers) == {etag_of(BIG, b"end")}
    assert s3.get_object(Bucket=bucket, Key=KEY)["Body"].read() == BIG + b"end"


def test_an_aborted_upload_is_gone(s3: Any, bucket: str) -> None:
    identity, parts = uploaded(s3, bucket, b"x")
    named = {"Bucket": bucket, "Key": KEY, "UploadId": identity}
    s3.abort_multipart_upload(**named)
    assert code_of(s3.abort_multipart_upload, **named) == (404, "NoSuchUpload")
    assert code_of(s3.upload_part, **named, PartNumber=1, Body=b"") == (404, "NoSuchUpload")
    refused = code_of(s3.complete_multipart_upload, **named, MultipartUpload={"Parts": parts})
    assert refused == (404, "NoSuchUpload")
    assert "Uploads" not in s3.list_multipart_uploads(Bucket=bucket)


def test_parts_are_listed_in_pages(s3: Any, bucket: str) -> None:
    identity, parts = uploaded(s3, bucket, b"a", b"bb", b"ccc", b"dddd", b"eeeee")
    named = {"Bucket": bucket, "Key": KEY, "UploadId": identity}
    pages = list(s3.get_paginator("list_parts").paginate(**named, PaginationConfig={"PageSize": 2}))
    listed = [part for page in pages for part in page["Parts"]]
    assert [(part["PartNumber"], part["Size"]) for part in listed] == [(1, 1), (2, 2), (3, 3), (4, 4), (5, 5)]
    assert [part["ETag"] for part in listed] == [part["ETag"] for part in parts]
    assert [page["IsTruncated"] for page in pages] == [True, True, False]


def test_uploads_are_listed_in_pages(s3: Any, bucket: str) -> None:
    names = ["main/a", "main/b", "main/b", "main/dir/c", "main/dir/d", "main/e"]
    made = [(name, uploaded(s3, bucket, key=name)[0]) for name in names]
    for size in (1, 2, 4, 1000):
        pages = s3.get_paginator("list_multipart_uploads").paginate(Bucket=bucket, PaginationConfig={"PageSize": size})
        assert [(each["Key"], each["UploadId"]) for page in pages for each in page.get("Uploads", [])] == made
        pages = list(
            s3.get_paginator("list_multipart_uploads").paginate(
                Bucket=bucket, Delimiter="/", Prefix="main/", PaginationConfig={"PageSize": size}
            )
        )
        listed = [each["Key"] for page in pages for each in page.get("Uploads", [])]
        assert listed == ["main/a", "main/b", "main/b", "main/e"]
        assert [each["Prefix"] for page in pages for each in page.get("CommonPrefixes", [])] == ["main/dir/"]


def test_checksums_of_parts_make_that_of_the_object(either: Running) -> None:
    s3, bucket = either.client(), new_bucket(either)
    bodies = [BIG, b"the end"]
    for algorithm, kind in [
        ("CRC32", "COMPOSITE"),
        ("CRC32", "FULL_OBJECT"),
        ("CRC64NVME", "FULL_OBJECT"),
        ("SHA256", "COMPOSITE"),
    ]:
        create = {"ChecksumAlgorithm": algorithm, "ChecksumType": kind}
        identity = s3.create_multipart_upload(Bucket=bucket, Key=KEY, **create)["UploadId"]
        named, parts, name = {"Bucket": bucket, "Key": KEY, "UploadId": identity}, [], f"Checksum{algorithm}"
        for number, body in enumerate(bodies, 1):
            part = s3.upload_part(**named, PartNumber=number, Body=body, ChecksumAlgorithm=algorithm)
            parts.append({"PartNumber": number, "ETag": part["ETag"], name: part[name]})
        wrong = [{**parts[0], name: parts[1][name]}, parts[1]]
        refused = code_of(s3.complete_multipart_upload, **named, MultipartUpload={"Parts": wrong})
        assert refused == (400, "InvalidPart")
        done = s3.complete_multipart_upload(**named, MultipartUpload={"Parts": parts})
        assert done["ChecksumType"] == kind
        if kind == "COMPOSITE":
            assert done[name].endswith("-2")
        elif algorithm == "CRC32":
            assert base64.b64decode(done[name]) == zlib.crc32(b"".join(bodies)).to_bytes(4, "big")
        head = s3.head_object(Bucket=bucket, Key=KEY, ChecksumMode="ENABLED")
        assert (head[name], head["ChecksumType"]) == (done[name], kind)
        assert s3.get_object(Bucket=bucket, Key=KEY)["Body"].read() == b"".join(bodies)


def test_a_large_file_goes_up_and_comes_down_in_parts(either: Running, tmp_path: Any) -> None:
    s3, bucket = either.client(), new_bucket(either)
    file, back = tmp_path / "file", tmp_path / "back"
    file.write_bytes(BIG * 5 + b"end")
    s3.upload_file(str(file), bucket, KEY)
    s3.download_file(bucket, KEY, str(back))
    assert back.read_bytes() == file.read_bytes()


def test_ten_thousand_parts(gateway: Running, s3: Any, bucket: str) -> None:
    """The parts' records are put beside S3: ten thousand uploads of five mebibytes would take minutes."""
    s3.put_object(Bucket=bucket, Key="main/source", Body=BIG)
    identity = s3.create_multipart_upload(Bucket=bucket, Key=KEY)["UploadId"]
    etag = hashlib.md5(BIG).hexdigest()

    async def fill(repository: Repository) -> None:
        uploads = Uploads(repository.refs, repository.name, repository.clock)
        upload = Upload(identity, "main", "big file", "admin", 0)
        extent = (await repository.get("main", "source")).extents
        for start in range(1, 10_001, 500):
            parts = [Part(number, etag, 5 * MIB, 0, extent) for number in range(start, start + 500)]
            await asyncio.gather(*(uploads.put_part(upload, part) for part in parts))

    gateway.on(bucket, fill)
    listed = s3.list_parts(Bucket=bucket, Key=KEY, UploadId=identity)
    assert (len(listed["Parts"]), listed["IsTruncated"]) == (1000, True)
    parts = [{"PartNumber": number, "ETag": etag} for number in range(1, 10_001)]
    done = s3.complete_multipart_upload(Bucket=bucket, Key=KEY, UploadId=identity, MultipartUpload={"Parts": parts})
    assert done["ETag"].endswith('-10000"')
    assert s3.head_object(Bucket=bucket, Key=KEY)["ContentLength"] == 10_000 * 5 * MIB
    last = s3.get_object(Bucket=bucket, Key=KEY, PartNumber=10_000)
    assert last["Body"].read() == BIG
    assert last["PartsCount"] == 10_000


def test_a_sweep_forgets_what_has_ended(gateway: Running, s3: Any, bucket: str) -> None:
    alive, _ = uploaded(s3, bucket, b"x", key="main/alive")
    ended, parts = uploaded(s3, bucket, b"x", key="main/ended")
    s3.complete_multipart_upload(Bucket=bucket, Key="main/ended", UploadId=ended, MultipartUpload={"Parts": parts})

    async def sweep(repository: Repository) -> list[bytes]:
        class Later:
            """A clock that is a day ahead."""

            def __getattr__(self, name: str) -> Any:
                return getattr(repository.clock, name)

            def now_us(self) -> int:
                return repository.clock.now_us() + KEPT_US + 1_000_000

        uploads = Uploads(repository.refs, repository.name, Later())
        await repository.refs.set(f"{repository.name}/uploads", b"p/%s/00007" % ended.encode(), b"{}")
        await uploads.sweep()
        return [item.key async for item in repository.refs.scan(f"{repository.name}/uploads")]

    assert gateway.on(bucket, sweep) == [b"p/%s/00001" % alive.encode(), b"u/%s" % alive.encode()]


def test_an_upload_to_what_is_no_branch(s3: Any, bucket: str) -> None:
    assert code_of(s3.create_multipart_upload, Bucket=bucket, Key="none/a") == (404, "NoSuchKey")
    assert code_of(s3.create_multipart_upload, Bucket=bucket, Key="main/") == (400, "InvalidRequest")
    with pytest.raises(ClientError, match="checksum type"):
        s3.create_multipart_upload(Bucket=bucket, Key=KEY, ChecksumAlgorithm="SHA1", ChecksumType="FULL_OBJECT")
