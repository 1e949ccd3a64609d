"""Which operation a request is, who may do it, and what is answered to those that there are not."""

from typing import Any

import pytest
from structlog.testing import capture_logs

from lsmfs.auth import Action, Permission
from lsmfs.auth.permissions import read_repo, write_repo
from lsmfs.gateway.operations import SUBRESOURCES
from tests.gateway.conftest import new_bucket
from tests.gateway.raw import ask
from tests.gateway.running import DOMAIN, Running
from tests.gateway.test_listing import keys
from tests.gateway.test_objects import code_of

PARAMETERS = {"partNumber", "uploadId", "list-type", "versionId"}  # they have values and are tested elsewhere


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "POST", "DELETE"])
def test_a_sub_resource_that_there_is_not_is_never_the_plain_verb(
    gateway: Running, s3: Any, bucket: str, method: str
) -> None:
    s3.put_object(Bucket=bucket, Key="main/a", Body=b"x")
    known = {"GET": {"location", "uploads", "attributes"}, "POST": {"delete", "uploads"}}.get(method, set())
    for name in sorted(SUBRESOURCES - PARAMETERS - known):
        for target in (f"/{bucket}?{name}", f"/{bucket}/main/a?{name}", f"/{bucket}/main/a?x-id=1&{name}="):
            answer = ask(gateway, method, target, {}, b"" if method != "PUT" else b"<x/>")
            assert (target, answer.status) == (target, 501)
            assert method == "HEAD" or answer.code == "NotImplemented"
    assert s3.get_object(Bucket=bucket, Key="main/a")["Body"].read() == b"x"
    assert keys(s3.list_objects_v2(Bucket=bucket, Prefix="main/")) == ["main/a"]


def test_known_sub_resources_at_the_wrong_place_or_together(gateway: Running, s3: Any, bucket: str) -> None:
    s3.put_object(Bucket=bucket, Key="main/a", Body=b"x")
    for method, target in [
        ("DELETE", "main/a?uploads"),
        ("DELETE", "main/a?attributes"),
        ("GET", "main/a?location"),
        ("GET", "?location&uploads"),
        ("PUT", "main/a?partNumber=1"),
        ("DELETE", "main/a?partNumber=1"),
        ("PUT", "main/a?uploadId=x"),
        ("POST", "main/a?delete"),
        ("GET", "main/a?list-type=2"),
    ]:
        answer = ask(gateway, method, f"/{bucket}/{target}")
        assert (target, answer.status, answer.code) == (target, 501, "NotImplemented")
    for method, target in [
        ("PATCH", f"/{bucket}/main/a"),
        ("POST", f"/{bucket}/main/a"),
        ("PUT", "/"),
        ("DELETE", "/"),
    ]:
        assert ask(gateway, method, target).status in (405, 501)
    assert s3.head_object(Bucket=bucket, Key="main/a")["ContentLength"] == 1


def test_unknown_parameters_are_tolerated(gateway: Running, s3: Any, bucket: str) -> None:
    s3.put_object(Bucket=bucket, Key="main/a", Body=b"x")
    assert ask(gateway, "GET", f"/{bucket}/main/a?x-id=GetObject&foo&versionId=null").body == b"x"
    answer = ask(gateway, "DELETE", f"/{bucket}/main/a?versionId=7")
    assert (answer.status, answer.code) == (404, "NoSuchVersion")
    assert s3.head_object(Bucket=bucket, Key="main/a")["ContentLength"] == 1


def test_buckets(gateway: Running, s3: Any, bucket: str) -> None:
    names = [each["Name"] for each in s3.list_buckets()["Buckets"]]
    assert bucket in names
    assert names == sorted(names)
    assert s3.head_bucket(Bucket=bucket)["BucketRegion"] == "us-east-1"
    assert s3.get_bucket_location(Bucket=bucket)["LocationConstraint"] is None
    assert code_of(s3.create_bucket, Bucket=bucket) == (409, "BucketAlreadyOwnedByYou")
    assert code_of(s3.create_bucket, Bucket="new-bucket") == (501, "NotImplemented")
    assert code_of(s3.delete_bucket, Bucket=bucket) == (501, "NotImplemented")
    assert code_of(s3.delete_bucket, Bucket="new-bucket") == (404, "NoSuchBucket")


def test_buckets_in_pages_and_by_prefix(gateway: Running, s3: Any, bucket: str) -> None:
    new_bucket(gateway)
    everything = [each["Name"] for each in s3.list_buckets()["Buckets"]]
    pages = s3.get_paginator("list_buckets").paginate(PaginationConfig={"PageSize": 1})
    assert [each["Name"] for page in pages for each in page["Buckets"]] == everything
    assert s3.list_buckets(Prefix=bucket)["Buckets"][0]["Name"] == bucket
    assert code_of(s3.list_buckets, ContinuationToken="nonsense") == (400, "InvalidArgument")


def test_only_what_one_may_read_is_listed(gateway: Running, bucket: str) -> None:
    new_bucket(gateway)
    mine = gateway.client(gateway.user(f"reader-{bucket}", read_repo(bucket)))
    assert [each["Name"] for each in mine.list_buckets()["Buckets"]] == [bucket]


def test_virtual_hosts(gateway: Running, s3: Any, bucket: str) -> None:
    s3.put_object(Bucket=bucket, Key="main/a/b", Body=b"hello")
    for host in (f"{bucket}.{DOMAIN}", f"{bucket}.{DOMAIN}:8000"):
        assert ask(gateway, "GET", "/main/a/b", host=host).body == b"hello"
        assert b"<Key>main/a/b</Key>" in ask(gateway, "GET", "/?prefix=main%2F", host=host).body
    assert ask(gateway, "GET", f"/{bucket}/main/a/b", host=f"{DOMAIN}:8000").body == b"hello"
    assert bucket.encode() in ask(gateway, "GET", "/", host=DOMAIN).body
    assert ask(gateway, "HEAD", "/", host=f"none-such.{DOMAIN}").status == 404


# Every operation by every kind of user: what they may do, on their own repository and on another.
def _cases(bucket: str, upload: str) -> list[tuple[str, str, str, dict[str, str], bytes]]:
    copied = {"x-amz-copy-source": f"{bucket}/main/a"}
    complete = b"<CompleteMultipartUpload/>"
    return [
        ("read", "HEAD", f"/{bucket}", {}, b""),
        ("read", "GET", f"/{bucket}", {}, b""),
        ("read", "GET", f"/{bucket}?list-type=2&prefix=main%2F", {}, b""),
        ("read", "GET", f"/{bucket}?location", {}, b""),
        ("read", "PUT", f"/{bucket}", {}, b""),
        ("read", "GET", f"/{bucket}/main/a", {}, b""),
        ("read", "HEAD", f"/{bucket}/main/a", {}, b""),
        ("read", "GET", f"/{bucket}/main/a?attributes", {"x-amz-object-attributes": "ETag"}, b""),
        ("write", "PUT", f"/{bucket}/main/a", {}, b"x"),
        ("write", "PUT", f"/{bucket}/main/", {}, b""),
        ("write", "PUT", f"/{bucket}/main/b", copied, b""),
        ("write", "DELETE", f"/{bucket}/main/c", {}, b""),
        ("write", "POST", f"/{bucket}/main/a?uploads", {}, b""),
        ("write", "PUT", f"/{bucket}/main/a?partNumber=1&uploadId={upload}", {}, b"x"),
        ("write", "PUT", f"/{bucket}/main/a?partNumber=1&uploadId={upload}", copied, b""),
        ("write", "GET", f"/{bucket}/main/a?uploadId={upload}", {}, b""),
        ("write", "POST", f"/{bucket}/main/a?uploadId={upload}", {}, complete),
        ("write", "DELETE", f"/{bucket}/main/a?uploadId={upload}", {}, b""),
    ]


@pytest.mark.parametrize("role", ["nobody", "analyst", "developer", "foreigner"])
def test_every_operation_by_every_role(gateway: Running, s3: Any, bucket: str, role: str) -> None:
    s3.put_object(Bucket=bucket, Key="main/a", Body=b"x")
    upload = s3.create_multipart_upload(Bucket=bucket, Key="main/a")["UploadId"]
    permissions: dict[str, list[Permission]] = {
        "nobody": [Permission("deny", ("*",))],
        "analyst": [read_repo(bucket)],
        "developer": [read_repo(bucket), write_repo(bucket)],
        "foreigner": [read_repo("another-one"), write_repo("another-one")],
    }
    pair = gateway.user(f"{role}-{bucket}", *permissions[role])
    may = {"nobody": set[str](), "analyst": {"read"}, "developer": {"read", "write"}, "foreigner": set[str]()}[role]
    for needs, method, target, headers, body in _cases(bucket, upload):
        answer = ask(gateway, method, target, headers, body, pair)
        assert (method, target, answer.status == 403) == (method, target, needs not in may)
        if answer.status == 403 and method != "HEAD":
            assert answer.code == "AccessDenied"
    listed = ask(gateway, "GET", f"/{bucket}?uploads", pair=pair)
    assert listed.status == 200
    assert b"<Key>" not in listed.body or "read" in may
    deleted = ask(
        gateway, "POST", f"/{bucket}?delete", {}, b"<Delete><Object><Key>main/z</Key></Object></Delete>", pair
    )
    assert (b"AccessDenied" in deleted.body) == ("write" not in may)
    assert ask(gateway, "GET", "/", pair=pair).status == (200 if role != "nobody" else 403)


def test_patterns_of_branches_and_paths(gateway: Running, s3: Any, bucket: str) -> None:
    s3.put_object(Bucket=bucket, Key="main/open/a", Body=b"x")
    s3.put_object(Bucket=bucket, Key="main/closed/a", Body=b"x")
    secret = Permission("deny", (Action.READ_OBJECT.value, Action.LIST_OBJECTS.value), bucket, "*", "closed/*")
    mine = gateway.client(gateway.user(f"limited-{bucket}", read_repo(bucket), secret))
    assert mine.get_object(Bucket=bucket, Key="main/open/a")["Body"].read() == b"x"
    assert code_of(mine.get_object, Bucket=bucket, Key="main/closed/a") == (403, "AccessDenied")
    assert code_of(mine.list_objects_v2, Bucket=bucket, Prefix="main/closed/") == (403, "AccessDenied")


def test_what_one_may_not_see_cannot_be_told_from_what_is_not_there(gateway: Running, bucket: str) -> None:
    pair = gateway.user(f"prober-{bucket}", read_repo("another-one"))
    there, missing = (ask(gateway, "GET", f"/{name}/main/a", pair=pair) for name in (bucket, "none-such"))
    assert (there.status, there.code) == (missing.status, missing.code) == (403, "AccessDenied")


def test_unknown_and_disabled_keys_and_wrong_secrets(gateway: Running, bucket: str) -> None:
    pair = gateway.user(f"disabled-{bucket}", read_repo(bucket))
    assert ask(gateway, "GET", f"/{bucket}", pair=pair).status == 200
    assert ask(gateway, "GET", f"/{bucket}", pair=pair._replace(secret="wrong")).code == "SignatureDoesNotMatch"
    unknown = ask(gateway, "GET", f"/{bucket}", pair=pair._replace(access_key_id="LSFSNOBODY"))
    assert (unknown.status, unknown.code) == (403, "InvalidAccessKeyId")
    gateway.do(lambda: gateway.authority.directory.set_key_disabled(pair.access_key_id, True))
    assert ask(gateway, "GET", f"/{bucket}", pair=pair).code == "InvalidAccessKeyId"


def test_refusals_are_in_the_audit_log_and_secrets_are_not(gateway: Running, bucket: str) -> None:
    pair = gateway.user(f"audited-{bucket}", read_repo("another-one"))
    with capture_logs() as lines:
        ask(gateway, "GET", f"/{bucket}/main/a", pair=pair)
        ask(gateway, "GET", f"/{bucket}/main/a", pair=pair._replace(secret="guessed-wrongly"))
        ask(gateway, "GET", f"/{bucket}/main/a", pair=pair._replace(access_key_id="LSFSNOBODY"))
    told = [(line["event"], line["access_key_id"], line.get("code")) for line in lines]
    assert told == [
        ("denied", pair.access_key_id, None),
        ("signature refused", pair.access_key_id, "SignatureDoesNotMatch"),
        ("signature refused", "LSFSNOBODY", "InvalidAccessKeyId"),
    ]
    assert pair.secret not in str(lines)
