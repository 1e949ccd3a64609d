"""Addresses of stores, good and bad."""

from pathlib import Path

import pytest

from lsmfs.objectstore.bucket import BucketStore
from lsmfs.objectstore.bucket_url import open_bucket
from lsmfs.objectstore.local import LocalStore
from lsmfs.objectstore.memory import MemoryStore
from lsmfs.objectstore.open import open_store
from refstore.errors import Invalid
from tests.aio import aio

KEYS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
AZURE = {"AZURE_STORAGE_ACCOUNT_NAME": "account", "AZURE_STORAGE_ACCOUNT_KEY": "a2V5"}
GOOGLE = {"GOOGLE_OAUTH_ACCESS_TOKEN": "token"}


@aio
async def test_paths_and_file_addresses_open_local_files(tmp_path: Path) -> None:
    for url in (str(tmp_path / "a b"), f"file://{tmp_path}/a%20b", f"file://localhost{tmp_path}/a%20b"):
        store = open_store(url, {})
        assert isinstance(store, LocalStore)
        await store.put("name", url.encode())
        assert (tmp_path / "a b" / "name").read_bytes() == url.encode()
        await store.aclose()


def test_opening_a_local_store_makes_nothing(tmp_path: Path) -> None:
    open_store(f"{tmp_path}/new", {})
    assert not (tmp_path / "new").exists()


def test_mem_opens_a_store_of_its_own() -> None:
    assert isinstance(open_store("mem://", {}), MemoryStore)
    assert open_store("mem://", {}) is not open_store("mem://", {})


@pytest.mark.parametrize(
    ("url", "environment"),
    [
        ("s3://bucket", KEYS),
        ("s3://bucket/a/b/?region=eu-west-1", KEYS),
        ("gs://bucket/prefix", GOOGLE),
        ("az://container?account=account", AZURE),
        ("az://container", AZURE),
    ],
)
def test_bucket_addresses_open_buckets(url: str, environment: dict[str, str]) -> None:
    assert isinstance(open_store(url, environment), BucketStore)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("", "no path"),
        ("file://", "no path"),
        ("file://host/path", "host 'host'"),
        ("file:///path?mode=1", "parameters"),
        ("mem://name", "has no path"),
        ("http://host/path", "no store's address"),
        ("s3://", "bucket's name"),
        ("s3:///prefix", "bucket's name"),
        ("s3://bucket/../up", "no object name"),
        ("s3://bucket?colour=red", "unknown parameters \\['colour'\\]"),
        ("s3://bucket?account=a", "unknown parameters"),
        ("s3://bucket?endpoint", "name=value"),
        ("s3://bucket?ordered=maybe", "yes or no"),
        ("s3://key:secret@bucket", "credentials"),
        ("az://container", "needs an account"),
    ],
)
def test_a_bad_address_says_what_is_wrong(url: str, says: str) -> None:
    with pytest.raises(Invalid, match=says):
        open_store(url, {})


def test_a_secret_in_an_address_is_not_repeated_in_the_error() -> None:
    with pytest.raises(Invalid) as caught:
        open_store("s3://key:hunter2@bucket", {})
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "environment", "ordered"),
    [
        ("s3://bucket", KEYS, True),
        ("s3://bucket--use1-az4--x-s3", KEYS, False),
        ("s3://bucket?endpoint=http://127.0.0.1:1", KEYS, False),
        ("s3://bucket?endpoint=http://127.0.0.1:1&ordered=yes", KEYS, True),
        ("s3://bucket", KEYS | {"AWS_ENDPOINT_URL": "http://127.0.0.1:1"}, False),
        ("gs://bucket", GOOGLE, True),
        ("az://container", AZURE, False),
    ],
)
def test_only_stores_known_to_list_in_order_are_believed(url: str, environment: dict[str, str], ordered: bool) -> None:
    assert open_bucket(url, environment).ordered is ordered
