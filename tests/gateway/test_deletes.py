"""DeleteObjects."""

from typing import Any

import pytest

from lsmfs.auth.permissions import read_repo, write_repo
from lsmfs.repository import Repository
from tests.gateway.raw import ask
from tests.gateway.running import Running
from tests.gateway.test_listing import keys
from tests.gateway.test_objects import code_of


def delete(s3: Any, bucket: str, *names: str, quiet: bool = False) -> dict[str, Any]:
    wanted = {"Objects": [{"Key": name} for name in names], "Quiet": quiet}
    answer: dict[str, Any] = s3.delete_objects(Bucket=bucket, Delete=wanted)
    return answer


def test_many_keys_at_once(either: Running) -> None:
    s3, bucket = either.client(), either.create(f"deletes-{either.port}")
    for number in range(5):
        s3.put_object(Bucket=bucket, Key=f"main/{number}", Body=b"x")
    names = [f"main/{number}" for number in range(1000)]
    answer = delete(s3, bucket, *names)
    assert [each["Key"] for each in answer["Deleted"]] == names
    assert keys(s3.list_objects_v2(Bucket=bucket, Prefix="main/")) == []


def test_quiet_tells_only_errors(gateway: Running, s3: Any, bucket: str) -> None:
    gateway.on(bucket, _protect_other)
    s3.put_object(Bucket=bucket, Key="main/a", Body=b"x")
    answer = delete(s3, bucket, "main/a", "other/a", "none/a", "main/", "main", quiet=True)
    assert "Deleted" not in answer
    assert [(each["Key"], each["Code"]) for each in answer["Errors"]] == [
        ("other/a", "AccessDenied"),
        ("none/a", "NoSuchKey"),
    ]
    assert code_of(s3.head_object, Bucket=bucket, Key="main/a") == (404, "404")


async def _protect_other(repository: Repository) -> None:
    await repository.create_branch("other", "main")
    await repository.protect("other")


def test_each_key_is_authorised_by_itself(gateway: Running, s3: Any, bucket: str) -> None:
    for name in ("main/mine/a", "main/yours/a"):
        s3.put_object(Bucket=bucket, Key=name, Body=b"x")
    pair = gateway.user(f"deleter-{bucket}", read_repo(bucket), write_repo(bucket, paths="mine/*"))
    answer = delete(gateway.client(pair), bucket, "main/mine/a", "main/yours/a")
    assert [each["Key"] for each in answer["Deleted"]] == ["main/mine/a"]
    assert [(each["Key"], each["Code"]) for each in answer["Errors"]] == [("main/yours/a", "AccessDenied")]
    assert keys(s3.list_objects_v2(Bucket=bucket, Prefix="main/")) == ["main/yours/a"]


def test_a_key_with_an_etag_is_deleted_only_if_it_has_it(s3: Any, bucket: str) -> None:
    etag = s3.put_object(Bucket=bucket, Key="main/a", Body=b"x")["ETag"]
    wrong = s3.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": "main/a", "ETag": "no"}]})
    assert wrong["Errors"][0]["Code"] == "PreconditionFailed"
    right = s3.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": "main/a", "ETag": etag}]})
    assert [each["Key"] for each in right["Deleted"]] == ["main/a"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<Delete/>",
        b"<Delete><Object/></Delete>",
        b"<Other><Object><Key>main/a</Key></Object></Other>",
        b"<Delete><Object><Key>main/a</Key></Object>",
        b'<!DOCTYPE x [<!ENTITY e "main/a">]><Delete><Object><Key>&e;</Key></Object></Delete>',
        b"<Delete>" + b"<Object><Key>main/a</Key></Object>" * 1001 + b"</Delete>",
    ],
)
def test_malformed_bodies(gateway: Running, s3: Any, bucket: str, body: bytes) -> None:
    s3.put_object(Bucket=bucket, Key="main/a", Body=b"x")
    answer = ask(gateway, "POST", f"/{bucket}?delete", {}, body)
    assert (answer.status, answer.code) == (400, "MalformedXML")
    assert s3.head_object(Bucket=bucket, Key="main/a")["ContentLength"] == 1


def test_bodies_without_a_namespace_and_with_a_slash_after_the_bucket(gateway: Running, s3: Any, bucket: str) -> None:
    s3.put_object(Bucket=bucket, Key="main/a&b", Body=b"x")
    body = b"<Delete><Quiet>true</Quiet><Object><Key>main/a&amp;b</Key></Object></Delete>"
    answer = ask(gateway, "POST", f"/{bucket}/?delete=", {}, body)
    assert (answer.status, b"Error" in answer.body) == (200, False)
    assert code_of(s3.head_object, Bucket=bucket, Key="main/a&b") == (404, "404")
    large = ask(gateway, "POST", f"/{bucket}?delete", {}, b"<Delete>" + b" " * (5 << 20) + b"</Delete>")
    assert (large.status, large.code) == (400, "MaxMessageLengthExceeded")
