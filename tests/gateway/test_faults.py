"""Stores that fail, bytes that were damaged, and what nobody foresaw."""

import http.client
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError, IncompleteReadError, ResponseStreamingError

from lsmfs.objectstore.faulting import Fault, Kind
from lsmfs.repository import Repository
from tests.gateway.raw import ask
from tests.gateway.running import Running
from tests.gateway.test_objects import code_of

BIG = bytes(range(256)) * 20_000  # several pieces


def test_a_store_that_is_down_is_503_and_comes_back(gateway: Running, s3: Any, bucket: str) -> None:
    s3.put_object(Bucket=bucket, Key="main/a", Body=b"x")

    def down(verb: str, name: str, _: int) -> Fault | None:
        return Fault(Kind.BEFORE) if "/data/" in name else None

    with gateway.failing(down):
        for method, body in (("GET", b""), ("PUT", b"other")):
            answer = ask(gateway, method, f"/{bucket}/main/a", {}, body)
            assert (answer.status, answer.code) == (503, "ServiceUnavailable")
            assert int(answer.headers["retry-after"]) > 0
            assert b"planned fault" not in answer.body
        assert ask(gateway, "HEAD", f"/{bucket}/main/a").status == 200
    assert s3.get_object(Bucket=bucket, Key="main/a")["Body"].read() == b"x"
    s3.put_object(Bucket=bucket, Key="main/a", Body=b"other")


def test_what_nobody_foresaw_is_500_and_tells_nothing(gateway: Running, bucket: str) -> None:
    def broken(verb: str, name: str, _: int) -> Fault | None:
        if "/data/" in name:
            raise ZeroDivisionError("a secret of the server")
        return None

    with gateway.failing(broken):
        answer = ask(gateway, "PUT", f"/{bucket}/main/a", {}, b"x")
    assert (answer.status, answer.code) == (500, "InternalError")
    assert b"secret" not in answer.body
    assert b"Traceback" not in answer.body
    assert ask(gateway, "PUT", f"/{bucket}/main/a", {}, b"x").status == 200


def test_a_stream_that_breaks_off_breaks_the_connection(gateway: Running, s3: Any, bucket: str) -> None:
    s3.put_object(Bucket=bucket, Key="main/a", Body=BIG)
    with (
        gateway.failing(lambda verb, *_: Fault(Kind.AFTER) if verb == "stream" else None),
        pytest.raises((IncompleteReadError, ResponseStreamingError, http.client.IncompleteRead)),
    ):
        s3.get_object(Bucket=bucket, Key="main/a")["Body"].read()
    assert s3.get_object(Bucket=bucket, Key="main/a")["Body"].read() == BIG


@pytest.mark.parametrize("size", [1000, 100_000])
def test_damaged_bytes_are_not_sent(gateway: Running, s3: Any, bucket: str, size: int) -> None:
    s3.put_object(Bucket=bucket, Key="main/a", Body=b"x" * size)
    entry = gateway.on(bucket, lambda repository: repository.get("main", "a"))
    [file] = [path for path in (gateway.folder / "objects").rglob("*") if path.name == Path(entry.address).name]
    file.chmod(0o644)
    file.write_bytes(b"y" + file.read_bytes()[1:])
    assert code_of(s3.get_object, Bucket=bucket, Key="main/a") == (500, "InternalError")


def test_a_put_whose_answer_is_lost_is_not_acknowledged(gateway: Running, bucket: str) -> None:
    def lost(verb: str, name: str, _: int) -> Fault | None:
        return Fault(Kind.AFTER) if verb == "put" and "/data/" in name else None

    with gateway.failing(lost):
        answer = ask(gateway, "PUT", f"/{bucket}/main/a", {}, b"x")
    assert answer.status == 503
    assert ask(gateway, "HEAD", f"/{bucket}/main/a").status == 404


def test_a_deleted_branch_and_a_deleted_repository(gateway: Running, s3: Any, bucket: str) -> None:
    async def branch(repository: Repository) -> None:
        await repository.create_branch("other", "main")

    gateway.on(bucket, branch)
    s3.put_object(Bucket=bucket, Key="other/a", Body=b"x")
    gateway.on(bucket, lambda repository: repository.delete_branch("other"))
    assert code_of(s3.put_object, Bucket=bucket, Key="other/a", Body=b"x") == (404, "NoSuchKey")
    assert code_of(s3.get_object, Bucket=bucket, Key="other/a") == (404, "NoSuchKey")
    gateway.on(bucket, branch)
    s3.put_object(Bucket=bucket, Key="other/a", Body=b"again")
    assert s3.get_object(Bucket=bucket, Key="other/a")["Body"].read() == b"again"


def test_a_read_only_repository(gateway: Running, s3: Any, bucket: str) -> None:
    s3.put_object(Bucket=bucket, Key="main/a", Body=b"x")
    gateway.on(bucket, lambda repository: repository.set_read_only(True))
    with pytest.raises(ClientError, match="read-only"):
        s3.put_object(Bucket=bucket, Key="main/a", Body=b"y")
    assert code_of(s3.create_multipart_upload, Bucket=bucket, Key="main/a") == (403, "AccessDenied")
    assert s3.get_object(Bucket=bucket, Key="main/a")["Body"].read() == b"x"
