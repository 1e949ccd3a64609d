"""boto3, over plain HTTP and over TLS, where it frames bodies differently."""

import io
from typing import Any

import pytest
from boto3.s3.transfer import TransferConfig
from botocore.exceptions import ClientError

from tests.compat.conftest import new_name
from tests.compat.support import LARGE, ODD_NAMES, PART_BYTES
from tests.server.live import Live

pytestmark = pytest.mark.xdist_group("compat")


@pytest.fixture(params=["server", "tls_server"])
def either(request: pytest.FixtureRequest) -> Live:
    live: Live = request.getfixturevalue(request.param)
    return live


@pytest.fixture
def bucket(request: pytest.FixtureRequest, either: Live) -> str:
    name = new_name(request)
    either.branch(either.repository(name), "dev")
    return name


def test_a_round_trip(either: Live, bucket: str) -> None:
    s3 = either.s3()
    made = s3.put_object(
        Bucket=bucket, Key="dev/a/small", Body=b"0123456789", ContentType="text/plain", Metadata={"who": "me"}
    )
    head = s3.head_object(Bucket=bucket, Key="dev/a/small")
    assert (head["ContentLength"], head["ETag"], head["ContentType"]) == (10, made["ETag"], "text/plain")
    assert head["Metadata"] == {"who": "me"}
    assert s3.get_object(Bucket=bucket, Key="dev/a/small", Range="bytes=2-4")["Body"].read() == b"234"
    assert s3.get_object(Bucket=bucket, Key="dev/a/small", Range="bytes=-3")["Body"].read() == b"789"

    transfer = TransferConfig(multipart_threshold=PART_BYTES, multipart_chunksize=PART_BYTES)
    s3.upload_fileobj(io.BytesIO(LARGE), bucket, "dev/a/large", Config=transfer)
    fetched = io.BytesIO()
    s3.download_fileobj(bucket, "dev/a/large", fetched, Config=transfer)
    assert fetched.getvalue() == LARGE
    assert s3.head_object(Bucket=bucket, Key="dev/a/large")["ETag"].endswith('-3"')

    s3.copy_object(Bucket=bucket, Key="dev/b/copy", CopySource={"Bucket": bucket, "Key": "dev/a/large"})
    s3.copy({"Bucket": bucket, "Key": "dev/a/large"}, bucket, "dev/b/copied in parts", Config=transfer)
    for name in ("copy", "copied in parts"):
        assert s3.get_object(Bucket=bucket, Key=f"dev/b/{name}")["Body"].read() == LARGE

    listed = s3.list_objects_v2(Bucket=bucket, Prefix="dev/", Delimiter="/")
    assert [each["Prefix"] for each in listed["CommonPrefixes"]] == ["dev/a/", "dev/b/"]
    listed = s3.list_objects_v2(Bucket=bucket, Prefix="dev/a/")
    assert [(each["Key"], each["Size"]) for each in listed["Contents"]] == [
        ("dev/a/large", len(LARGE)), ("dev/a/small", 10),
    ]  # fmt: skip

    s3.delete_object(Bucket=bucket, Key="dev/b/copy")
    gone = s3.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": "dev/b/copied in parts"}, {"Key": "dev/no"}]})
    assert {each["Key"] for each in gone["Deleted"]} == {"dev/b/copied in parts", "dev/no"}
    assert "Contents" not in s3.list_objects_v2(Bucket=bucket, Prefix="dev/b/")

    assert "Contents" not in s3.list_objects_v2(Bucket=bucket, Prefix="main/")
    commit = either.commit(bucket, "dev")
    either.merge(bucket, "dev")
    assert s3.get_object(Bucket=bucket, Key="main/a/large")["Body"].read() == LARGE
    assert s3.get_object(Bucket=bucket, Key=f"{commit}/a/small")["Body"].read() == b"0123456789"


def test_names_of_all_kinds_are_written_listed_read_copied_and_deleted(either: Live, bucket: str) -> None:
    s3 = either.s3()
    for name in ODD_NAMES:
        s3.put_object(Bucket=bucket, Key=f"dev/{name}", Body=name.encode())
        s3.copy_object(Bucket=bucket, Key=f"dev/copies/{name}", CopySource={"Bucket": bucket, "Key": f"dev/{name}"})
    listed = s3.list_objects(Bucket=bucket, Prefix="dev/copies/")
    assert {each["Key"].removeprefix("dev/copies/") for each in listed["Contents"]} == set(ODD_NAMES)
    for name in ODD_NAMES:
        assert s3.get_object(Bucket=bucket, Key=f"dev/copies/{name}")["Body"].read() == name.encode()
    keys = [{"Key": each["Key"]} for each in listed["Contents"]]
    assert "Errors" not in s3.delete_objects(Bucket=bucket, Delete={"Objects": keys})
    assert "Contents" not in s3.list_objects(Bucket=bucket, Prefix="dev/copies/")


@pytest.mark.parametrize("version", ["s3v4", "s3"])
def test_presigned_urls(either: Live, bucket: str, version: str) -> None:
    s3 = either.s3(signature_version=version)
    where = {"Bucket": bucket, "Key": "dev/presigned"}
    with either.client(None) as client:
        put = client.put(s3.generate_presigned_url("put_object", where), content=b"by anybody")
        assert put.status_code == 200, put.text
        url = s3.generate_presigned_url("get_object", where)
        assert client.get(url).content == b"by anybody"
        assert client.get(url.replace("presigned?", "other?")).status_code == 403


def test_refs_are_the_first_folders_and_errors_have_s3s_codes(either: Live, bucket: str) -> None:
    s3 = either.s3()
    listed = s3.list_objects_v2(Bucket=bucket, Delimiter="/")
    assert [each["Prefix"] for each in listed["CommonPrefixes"]] == ["dev/", "main/"]
    assert bucket in [each["Name"] for each in s3.list_buckets()["Buckets"]]

    def code(call: str, **arguments: Any) -> str:
        with pytest.raises(ClientError) as failed:
            getattr(s3, call)(**arguments)
        answered: str = failed.value.response["Error"]["Code"]
        return answered

    assert code("get_object", Bucket=bucket, Key="dev/none") == "NoSuchKey"
    assert code("get_object", Bucket="no-such-lake", Key="main/none") == "NoSuchBucket"
    assert code("put_object", Bucket=bucket, Key="dev/x", Body=b"", IfMatch='"0"') in ("NoSuchKey", "404")
    assert code("head_object", Bucket=bucket, Key="dev/none") == "404"
    assert code("get_object_tagging", Bucket=bucket, Key="dev/none") == "NotImplemented"
