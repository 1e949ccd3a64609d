"""GetObject, HeadObject, PutObject, DeleteObject and GetObjectAttributes, as boto3 speaks them."""

import hashlib
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest
from botocore.exceptions import ClientError

from lsmfs.repository import Repository
from tests.gateway.conftest import new_bucket
from tests.gateway.raw import ask, fetch, send, signed
from tests.gateway.running import Running


def code_of(call: Any, **arguments: Any) -> tuple[int, str]:
    """The status and code that an operation is refused with."""
    with pytest.raises(ClientError) as raised:
        call(**arguments)
    answer = raised.value.response
    return answer["ResponseMetadata"]["HTTPStatusCode"], answer["Error"]["Code"]


def test_what_is_put_is_read_back(either: Running) -> None:
    s3, bucket = either.client(), new_bucket(either)
    for size in (0, 1, 4096, 64 * 1024, 64 * 1024 + 1, 3_000_000):
        body = (bytes(range(256)) * (size // 256 + 1))[:size]
        put = s3.put_object(Bucket=bucket, Key=f"main/a/{size}", Body=body)
        assert put["ETag"] == f'"{hashlib.md5(body).hexdigest()}"'
        got = s3.get_object(Bucket=bucket, Key=f"main/a/{size}")
        assert got["Body"].read() == body
        assert (got["ETag"], got["ContentLength"], got["AcceptRanges"]) == (put["ETag"], size, "bytes")
        assert got["ContentType"] == "binary/octet-stream"
        assert s3.head_object(Bucket=bucket, Key=f"main/a/{size}")["ContentLength"] == size


def test_properties_are_kept_and_user_metadata_is_in_lower_case(s3: Any, bucket: str) -> None:
    properties = {
        "ContentType": "text/plain; charset=utf-8",
        "CacheControl": "no-cache",
        "ContentDisposition": 'attachment; filename="a b.txt"',
        "ContentEncoding": "gzip",
        "ContentLanguage": "de",
        "Metadata": {"Colour": "Red", "empty": ""},
    }
    s3.put_object(Bucket=bucket, Key="main/a", Body=b"x", Expires="Wed, 21 Oct 2026 07:28:00 GMT", **properties)
    for got in (s3.head_object(Bucket=bucket, Key="main/a"), s3.get_object(Bucket=bucket, Key="main/a")):
        assert {name: got[name] for name in properties} == {**properties, "Metadata": {"colour": "Red", "empty": ""}}
        assert got["ExpiresString"] == "Wed, 21 Oct 2026 07:28:00 GMT"


def test_the_framing_is_not_stored_as_an_encoding(either: Running) -> None:
    s3, bucket = either.client(), new_bucket(either)
    s3.put_object(Bucket=bucket, Key="main/a", Body=b"x", ChecksumAlgorithm="CRC32C")
    s3.put_object(Bucket=bucket, Key="main/b", Body=b"x", ContentEncoding="gzip", ChecksumAlgorithm="CRC32C")
    assert "ContentEncoding" not in s3.head_object(Bucket=bucket, Key="main/a")
    assert s3.head_object(Bucket=bucket, Key="main/b")["ContentEncoding"] == "gzip"


def test_two_kilobytes_of_metadata_are_the_most(gateway: Running, s3: Any, bucket: str) -> None:
    s3.put_object(Bucket=bucket, Key="main/a", Metadata={"a": "x" * 2047})
    assert code_of(s3.put_object, Bucket=bucket, Key="main/a", Metadata={"a": "x" * 2048}) == (400, "MetadataTooLarge")
    long = ask(gateway, "PUT", f"/{bucket}/main/b", {"cache-control": "x" * 8000})
    assert (long.status, long.code) == (400, "MetadataTooLarge")
    assert code_of(s3.put_object, Bucket=bucket, Key="main/a", Metadata={"lsmfs.parts": "1"}) == (
        400,
        "InvalidArgument",
    )


def test_metadata_in_utf8_comes_back_as_it_was_sent(gateway: Running, bucket: str) -> None:
    head = {"x-amz-meta-name": "Zoë".encode().decode("latin-1")}
    request = ask(gateway, "PUT", f"/{bucket}/main/a", {"x-amz-meta-plain": "1"})
    assert request.status == 200

    async def put(repository: Repository) -> None:
        entry = msgspec.structs.replace(await repository.get("main", "a"), metadata={"name": "Zoë"})
        async with repository.writer("main") as writer:
            await writer.put("a", entry)

    gateway.on(bucket, put)
    assert ask(gateway, "HEAD", f"/{bucket}/main/a").headers["x-amz-meta-name"] == head["x-amz-meta-name"]


def test_metadata_from_elsewhere_cannot_add_headers(gateway: Running, s3: Any, bucket: str) -> None:
    s3.put_object(Bucket=bucket, Key="main/a", Body=b"x")
    evil = {
        "a": "x\r\nx-evil: 1",
        "b: 1\r\nx-evil": "2",
        "lsmfs.header.cache-control": "no\nx-evil: 3",
        "lsmfs.parts": "9*",
    }

    async def put(repository: Repository) -> None:
        entry = await repository.get("main", "a")
        entry = msgspec.structs.replace(entry, metadata=evil, content_type="text/plain\r\nx-evil: 4")
        async with repository.writer("main") as writer:
            await writer.put("a", entry)

    gateway.on(bucket, put)
    answer = ask(gateway, "GET", f"/{bucket}/main/a")
    assert answer.status == 200
    assert answer.body == b"x"
    assert "x-evil" not in answer.headers
    assert answer.headers["x-amz-missing-meta"] == "1"


@pytest.mark.parametrize(
    ("ranged", "expected"),
    [
        ("bytes=0-0", (206, "bytes 0-0/10", b"0")),
        ("bytes=3-5", (206, "bytes 3-5/10", b"345")),
        ("bytes=7-", (206, "bytes 7-9/10", b"789")),
        ("bytes=7-100", (206, "bytes 7-9/10", b"789")),
        ("bytes=-3", (206, "bytes 7-9/10", b"789")),
        ("bytes=-100", (206, "bytes 0-9/10", b"0123456789")),
        ("bytes=0-1,3-4", (200, None, b"0123456789")),
        ("bytes=5-3", (200, None, b"0123456789")),
        ("bytes=a-b", (200, None, b"0123456789")),
        ("lines=1-2", (200, None, b"0123456789")),
        ("bytes=-", (200, None, b"0123456789")),
    ],
)
def test_ranges(s3: Any, bucket: str, ranged: str, expected: tuple[int, str | None, bytes]) -> None:
    s3.put_object(Bucket=bucket, Key="main/a", Body=b"0123456789")
    got = s3.get_object(Bucket=bucket, Key="main/a", Range=ranged)
    assert (got["ResponseMetadata"]["HTTPStatusCode"], got.get("ContentRange"), got["Body"].read()) == expected
    head = s3.head_object(Bucket=bucket, Key="main/a", Range=ranged)
    assert (head["ResponseMetadata"]["HTTPStatusCode"], head["ContentLength"]) == (expected[0], len(expected[2]))


def test_ranges_beyond_the_end_are_416(s3: Any, bucket: str) -> None:
    s3.put_object(Bucket=bucket, Key="main/a", Body=b"0123456789")
    s3.put_object(Bucket=bucket, Key="main/empty", Body=b"")
    for key, ranged in [
        ("a", "bytes=10-"),
        ("a", "bytes=10-20"),
        ("a", "bytes=-0"),
        ("empty", "bytes=0-"),
        ("empty", "bytes=-1"),
    ]:
        assert code_of(s3.get_object, Bucket=bucket, Key=f"main/{key}", Range=ranged) == (416, "InvalidRange")
    far = f"bytes={2**63}-"
    assert code_of(s3.get_object, Bucket=bucket, Key="main/a", Range=far) == (416, "InvalidRange")


def test_a_range_across_blocks(s3: Any, bucket: str) -> None:
    body = hashlib.sha256(b"").digest() * 300_000
    s3.put_object(Bucket=bucket, Key="main/a", Body=body)
    got = s3.get_object(Bucket=bucket, Key="main/a", Range="bytes=1048000-9000000")
    assert got["Body"].read() == body[1048000:9000001]


def test_conditional_reads(gateway: Running, s3: Any, bucket: str) -> None:
    etag = s3.put_object(Bucket=bucket, Key="main/a", Body=b"x")["ETag"].strip('"')
    old, new = "Wed, 21 Oct 2015 07:28:00 GMT", "Wed, 21 Oct 2099 07:28:00 GMT"
    cases = [
        ({"if-match": f'"{etag}"'}, 200),
        ({"if-match": etag}, 200),
        ({"if-match": f'"other", "{etag}"'}, 200),
        ({"if-match": "*"}, 200),
        ({"if-match": '"other"'}, 412),
        ({"if-none-match": f'"{etag}"'}, 304),
        ({"if-none-match": f'W/"{etag}"'}, 304),
        ({"if-none-match": etag}, 304),
        ({"if-none-match": "*"}, 304),
        ({"if-none-match": '"other"'}, 200),
        ({"if-modified-since": old}, 200),
        ({"if-modified-since": new}, 304),
        ({"if-modified-since": "nonsense"}, 200),
        ({"if-unmodified-since": old}, 412),
        ({"if-unmodified-since": new}, 200),
        ({"if-match": etag, "if-unmodified-since": old}, 200),
        ({"if-none-match": '"other"', "if-modified-since": new}, 200),
        ({"if-none-match": etag, "if-modified-since": old}, 304),
        ({"if-match": '"other"', "if-none-match": etag}, 412),
    ]
    for headers, status in cases:
        for method in ("GET", "HEAD"):
            answer = ask(gateway, method, f"/{bucket}/main/a", headers)
            assert (headers, method, answer.status) == (headers, method, status)
            if status == 304:
                assert answer.headers["etag"] == f'"{etag}"'
                assert "content-length" not in answer.headers
    kept = ask(gateway, "GET", f"/{bucket}/main/a", {"range": "bytes=0-0", "if-range": f'"{etag}"'})
    gone = ask(gateway, "GET", f"/{bucket}/main/a", {"range": "bytes=0-0", "if-range": '"other"'})
    assert (kept.status, gone.status) == (206, 200)


def test_last_modified_is_not_after_itself(gateway: Running, s3: Any, bucket: str) -> None:
    s3.put_object(Bucket=bucket, Key="main/a", Body=b"x")
    modified = ask(gateway, "HEAD", f"/{bucket}/main/a").headers["last-modified"]
    assert ask(gateway, "HEAD", f"/{bucket}/main/a", {"if-modified-since": modified}).status == 304
    assert ask(gateway, "HEAD", f"/{bucket}/main/a", {"if-unmodified-since": modified}).status == 200


def test_conditional_puts(s3: Any, bucket: str) -> None:
    first = s3.put_object(Bucket=bucket, Key="main/a", Body=b"1", IfNoneMatch="*")["ETag"]
    assert code_of(s3.put_object, Bucket=bucket, Key="main/a", Body=b"2", IfNoneMatch="*") == (
        412,
        "PreconditionFailed",
    )
    assert code_of(s3.put_object, Bucket=bucket, Key="main/a", Body=b"2", IfMatch='"no"') == (412, "PreconditionFailed")
    assert code_of(s3.put_object, Bucket=bucket, Key="main/b", Body=b"2", IfMatch=first) == (404, "NoSuchKey")
    second = s3.put_object(Bucket=bucket, Key="main/a", Body=b"2", IfMatch=first)["ETag"]
    assert s3.put_object(Bucket=bucket, Key="main/a", Body=b"3", IfMatch=second.strip('"'))["ETag"] != second
    assert s3.get_object(Bucket=bucket, Key="main/a")["Body"].read() == b"3"
    assert code_of(s3.put_object, Bucket=bucket, Key="main/a", IfNoneMatch=first) == (501, "NotImplemented")


def test_of_fifty_writers_of_one_new_key_one_wins(gateway: Running, bucket: str) -> None:
    s3 = gateway.client(max_pool_connections=50)

    def put(number: int) -> str:
        try:
            s3.put_object(Bucket=bucket, Key="main/_delta_log/0.json", Body=b"%d" % number, IfNoneMatch="*")
            return str(number)
        except ClientError as error:
            return str(error.response["Error"]["Code"])

    with ThreadPoolExecutor(50) as pool:
        answers = list(pool.map(put, range(50)))
    [winner] = [answer for answer in answers if answer.isdigit()]
    assert set(answers) - {winner} == {"PreconditionFailed"}
    assert s3.get_object(Bucket=bucket, Key="main/_delta_log/0.json")["Body"].read() == winner.encode()


def test_overrides_replace_what_is_stored(s3: Any, bucket: str) -> None:
    s3.put_object(Bucket=bucket, Key="main/a", Body=b"x", ContentType="text/plain", CacheControl="no-cache")
    got = s3.get_object(
        Bucket=bucket,
        Key="main/a",
        ResponseContentType="text/html",
        ResponseCacheControl="max-age=1",
        ResponseContentDisposition="inline",
        ResponseContentEncoding="x",
        ResponseContentLanguage="en",
    )
    names = ("ContentType", "CacheControl", "ContentDisposition", "ContentEncoding", "ContentLanguage")
    assert [got[name] for name in names] == ["text/html", "max-age=1", "inline", "x", "en"]
    injected = {"Bucket": bucket, "Key": "main/a", "ResponseContentType": "a\r\nx-evil: 1"}
    assert code_of(s3.get_object, **injected) == (400, "InvalidArgument")


@pytest.mark.parametrize("algorithm", ["CRC32", "CRC32C", "CRC64NVME", "SHA1", "SHA256"])
def test_checksums_are_verified_kept_and_told_if_asked(either: Running, algorithm: str) -> None:
    s3, bucket = either.client(response_checksum_validation="when_required"), new_bucket(either)
    put = s3.put_object(Bucket=bucket, Key="main/a", Body=b"hello", ChecksumAlgorithm=algorithm)
    name = f"Checksum{algorithm}"
    got = s3.get_object(Bucket=bucket, Key="main/a", ChecksumMode="ENABLED")
    assert (got[name], got["ChecksumType"]) == (put[name], "FULL_OBJECT")
    assert name not in s3.get_object(Bucket=bucket, Key="main/a")
    assert name not in s3.get_object(Bucket=bucket, Key="main/a", ChecksumMode="ENABLED", Range="bytes=0-1")
    attributes = s3.get_object_attributes(Bucket=bucket, Key="main/a", ObjectAttributes=["Checksum"])
    assert attributes["Checksum"] == {name: put[name], "ChecksumType": "FULL_OBJECT"}


def test_wrong_digests_are_refused_and_nothing_is_there(gateway: Running, s3: Any, bucket: str) -> None:
    cases = [
        ({"x-amz-checksum-crc32": "AAAAAA=="}, "BadDigest"),
        ({"x-amz-checksum-crc32": "nonsense"}, "InvalidRequest"),
        ({"content-md5": "1B2M2Y8AsgTpgAmY7PhCfg=="}, "BadDigest"),
        ({"content-md5": "short"}, "InvalidDigest"),
    ]
    for headers, code in cases:
        answer = ask(gateway, "PUT", f"/{bucket}/main/a", headers, b"hello")
        assert (answer.status, answer.code) == (400, code)
    head = signed(gateway, "PUT", f"/{bucket}/main/a", body=b"hello")
    answer = send(gateway, head + b"Content-Length: 5\r\n\r\njello", "PUT")
    assert (answer.status, answer.code) == (400, "XAmzContentSHA256Mismatch")
    assert code_of(s3.head_object, Bucket=bucket, Key="main/a") == (404, "404")


def test_attributes(s3: Any, bucket: str) -> None:
    put = s3.put_object(Bucket=bucket, Key="main/a", Body=b"hello")
    wanted = ["ETag", "ObjectSize", "StorageClass", "ObjectParts"]
    got = s3.get_object_attributes(Bucket=bucket, Key="main/a", ObjectAttributes=wanted)
    assert (got["ETag"], got["ObjectSize"], got["StorageClass"]) == (put["ETag"].strip('"'), 5, "STANDARD")
    assert "ObjectParts" not in got
    missing = {"Bucket": bucket, "Key": "main/b", "ObjectAttributes": wanted}
    assert code_of(s3.get_object_attributes, **missing) == (404, "NoSuchKey")


def test_delete_is_204_also_of_a_missing_key(s3: Any, bucket: str) -> None:
    s3.put_object(Bucket=bucket, Key="main/a", Body=b"x")
    for _ in range(2):
        assert s3.delete_object(Bucket=bucket, Key="main/a")["ResponseMetadata"]["HTTPStatusCode"] == 204
    assert code_of(s3.get_object, Bucket=bucket, Key="main/a") == (404, "NoSuchKey")


def test_conditional_delete(s3: Any, bucket: str) -> None:
    etag = s3.put_object(Bucket=bucket, Key="main/a", Body=b"x")["ETag"]
    assert code_of(s3.delete_object, Bucket=bucket, Key="main/a", IfMatch='"no"') == (412, "PreconditionFailed")
    s3.delete_object(Bucket=bucket, Key="main/a", IfMatch=etag)
    assert code_of(s3.head_object, Bucket=bucket, Key="main/a") == (404, "404")


def test_the_root_of_a_branch_is_a_folder_that_is_there(gateway: Running, s3: Any, bucket: str) -> None:
    s3.put_object(Bucket=bucket, Key="main/", Body=b"")
    assert s3.head_object(Bucket=bucket, Key="main/")["ContentLength"] == 0
    assert s3.get_object(Bucket=bucket, Key="main/")["Body"].read() == b""
    s3.delete_object(Bucket=bucket, Key="main/")
    assert "Contents" not in s3.list_objects_v2(Bucket=bucket, Prefix="main/")
    assert code_of(s3.head_object, Bucket=bucket, Key="none/") == (404, "404")
    assert code_of(s3.put_object, Bucket=bucket, Key="none/", Body=b"") == (404, "NoSuchKey")
    assert code_of(s3.head_object, Bucket=bucket, Key="main") == (404, "404")
    assert code_of(s3.put_object, Bucket=bucket, Key="main/", Body=b"x") == (400, "InvalidRequest")


def test_folders_have_markers_like_other_objects(s3: Any, bucket: str) -> None:
    s3.put_object(Bucket=bucket, Key="main/dir/", Body=b"")
    assert s3.head_object(Bucket=bucket, Key="main/dir/")["ContentLength"] == 0
    assert [each["Key"] for each in s3.list_objects_v2(Bucket=bucket, Prefix="main/")["Contents"]] == ["main/dir/"]


def test_tags_and_commits_are_read_but_not_written(gateway: Running, s3: Any, bucket: str) -> None:
    s3.put_object(Bucket=bucket, Key="main/a", Body=b"1")

    async def commit(repository: Repository) -> str:
        await repository.commit("main", "first")
        return await repository.create_tag("v1", "main")

    identity = gateway.on(bucket, commit)
    s3.put_object(Bucket=bucket, Key="main/a", Body=b"2")
    for ref in ("v1", identity, "main@", identity[:12]):
        assert s3.get_object(Bucket=bucket, Key=f"{ref}/a")["Body"].read() == b"1"
        for size in (1, 100_000):
            refused = code_of(s3.put_object, Bucket=bucket, Key=f"{ref}/a", Body=b"3" * size)
            assert refused == (405, "MethodNotAllowed")
        assert code_of(s3.delete_object, Bucket=bucket, Key=f"{ref}/a") == (405, "MethodNotAllowed")
    assert code_of(s3.put_object, Bucket=bucket, Key="none/a", Body=b"x") == (404, "NoSuchKey")
    assert code_of(s3.get_object, Bucket=bucket, Key="none/a") == (404, "NoSuchKey")
    assert code_of(s3.get_object, Bucket=bucket, Key="a b/c") == (404, "NoSuchKey")


def test_a_protected_branch_is_refused_before_the_body(gateway: Running, s3: Any, bucket: str) -> None:
    gateway.on(bucket, lambda repository: repository.protect("main"))
    with pytest.raises(ClientError, match="protected"):
        s3.put_object(Bucket=bucket, Key="main/a", Body=b"x")
    assert code_of(s3.delete_object, Bucket=bucket, Key="main/a") == (403, "AccessDenied")


def test_part_one_of_an_object_that_was_put_whole(s3: Any, bucket: str) -> None:
    s3.put_object(Bucket=bucket, Key="main/a", Body=b"hello")
    got = s3.get_object(Bucket=bucket, Key="main/a", PartNumber=1)
    assert (got["Body"].read(), got["ContentRange"]) == (b"hello", "bytes 0-4/5")
    assert code_of(s3.get_object, Bucket=bucket, Key="main/a", PartNumber=2)[0] == 416
    both = {"Bucket": bucket, "Key": "main/a", "PartNumber": 1, "Range": "bytes=0-1"}
    assert code_of(s3.get_object, **both) == (400, "InvalidRequest")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("x-amz-write-offset-bytes", "5"),
        ("x-amz-tagging", "a=b"),
        ("x-amz-object-lock-mode", "GOVERNANCE"),
        ("x-amz-server-side-encryption", "aws:kms"),
        ("x-amz-server-side-encryption-customer-algorithm", "AES256"),
        ("x-amz-website-redirect-location", "/x"),
    ],
)
def test_headers_that_ask_for_more_are_not_ignored(
    gateway: Running, s3: Any, bucket: str, name: str, value: str
) -> None:
    s3.put_object(Bucket=bucket, Key="main/a", Body=b"12345", ServerSideEncryption="AES256", ACL="private")
    answer = ask(gateway, "PUT", f"/{bucket}/main/a", {name: value}, b"more")
    assert (answer.status, answer.code) == (501, "NotImplemented")
    assert s3.get_object(Bucket=bucket, Key="main/a")["Body"].read() == b"12345"


def test_presigned_urls_read_and_write(gateway: Running, bucket: str) -> None:
    for version in ("s3v4", "s3"):
        s3 = gateway.client(signature_version=version)
        place = {"Bucket": bucket, "Key": "main/a b+c"}
        put = fetch("PUT", s3.generate_presigned_url("put_object", place), b"hello")
        assert put.status == 200
        got = fetch("GET", s3.generate_presigned_url("get_object", {**place, "ResponseContentType": "text/x"}))
        assert (got.status, got.body, got.headers["content-type"]) == (200, b"hello", "text/x")
        other = s3.generate_presigned_url("get_object", {"Bucket": bucket, "Key": "main/other"})
        assert fetch("GET", other.replace("/main/other", "/main/a%20b%2Bc")).code == "SignatureDoesNotMatch"
