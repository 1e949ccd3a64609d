"""Addresses of ref stores, good and bad, and that no error shows a secret."""

import traceback
from pathlib import Path

import pytest

from refstore.drivers.dynamodb import Credentials, DynamoRefStore
from refstore.drivers.memory import MemoryRefStore
from refstore.drivers.redis import RedisRefStore
from refstore.drivers.sqlite import SqliteRefStore
from refstore.errors import Error, Invalid
from refstore.open import open_refstore
from tests.aio import aio
from tests.conformance.refstore_histories import append, create
from tests.servers.process import free_port

SECRET = "hunter2"
KEYS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": SECRET}


@aio
async def test_mem_opens_a_store_of_its_own() -> None:
    one, other = open_refstore("mem://", {}), open_refstore("mem://", {})
    assert isinstance(one, MemoryRefStore)
    await one.change("r", "main", create())
    assert [branch async for branch in other.branches("r")] == []


@aio
async def test_sqlite_opens_the_file_of_the_path(tmp_path: Path) -> None:
    for url in (f"sqlite://{tmp_path}/a%20b.db", f"sqlite:///{tmp_path}/a b.db"):
        store = open_refstore(url, {})
        assert isinstance(store, SqliteRefStore)
        await store.set("p", b"k", url.encode())
        await store.aclose()
        assert (tmp_path / "a b.db").exists()


@pytest.mark.parametrize(
    "url",
    [
        "redis://host",
        "redis://host:6379/3",
        "redis://:word@host/0?wait_replicas=2&wait_timeout=0.5",
        "redis://user:word@host?db=2&client_name=lsmfs&socket_keepalive=true",
        "rediss://host:6380/0?ssl_cert_reqs=required&ssl_ca_certs=/etc/ca.pem",
        "redis+cluster://host:7000",
        "redis+cluster://user:word@host",
    ],
)
@aio
async def test_redis_addresses_open_redis_and_connect_to_nothing_yet(url: str) -> None:
    store = open_refstore(url, {})
    assert isinstance(store, RedisRefStore)
    await store.aclose()


@pytest.mark.parametrize(
    ("url", "environment"),
    [
        ("dynamodb://table?region=eu-west-1", KEYS),
        ("dynamodb://table", {**KEYS, "AWS_REGION": "eu-west-1"}),
        ("dynamodb://table", {**KEYS, "AWS_DEFAULT_REGION": "eu-west-1", "AWS_SESSION_TOKEN": SECRET}),
        ("dynamodb://table?region=eu-west-1&create=true", {}),
        ("dynamodb://My_Table.1?region=eu-west-1&create=false&endpoint=http%3A%2F%2F127.0.0.1%3A8000", KEYS),
    ],
)
@aio
async def test_dynamodb_addresses_open_a_table_and_connect_to_nothing_yet(
    url: str, environment: dict[str, str]
) -> None:
    store = open_refstore(url, environment)
    assert isinstance(store, DynamoRefStore)
    await store.aclose()


USES = "use mem://, sqlite:///absolute/path, redis://"
FILE = "write sqlite:///absolute/path"
REDIS = "write redis://user:password@host:6379/0"
WAIT = "wait_replicas="
TABLE = "write dynamodb://table?region="


@pytest.mark.parametrize(
    ("url", "advice"),
    [
        ("", USES),
        ("refs.db", USES),
        ("/var/lib/refs.db", USES),
        ("postgres://host/db", USES),
        ("mem://name", USES),
        ("mem:///path", USES),
        ("mem://?size=1", USES),
        ("redis://[::1", "brackets"),
        ("sqlite://", FILE),
        ("sqlite:///", FILE),
        ("sqlite://refs.db", FILE),
        ("sqlite://host/refs.db", FILE),
        ("sqlite:///refs.db?mode=ro", FILE),
        ("redis://host:port", REDIS),
        ("redis://host:99999", REDIS),
        ("redis://host?db=one", REDIS),
        ("rediss://host?ssl_magic=1", REDIS),
        ("redis+cluster://host/3", REDIS),
        ("redis://host?frobnicate=1", "frobnicate"),
        ("redis://host?decode_responses=true", "decode_responses"),
        ("redis://host?wait_replicas=one", WAIT),
        ("redis://host?wait_replicas=1.5", WAIT),
        ("redis://host?wait_replicas=-1", WAIT),
        ("redis://host?wait_replicas=1&wait_timeout=0", WAIT),
        ("redis://host?wait_replicas=1&wait_timeout=soon", WAIT),
        ("redis://host?wait_replicas=1&wait_timeout=nan", WAIT),
        ("redis://host?wait_replicas=1&wait_timeout=inf", WAIT),
        ("redis+cluster://host?wait_replicas=1", "min-replicas-to-write"),
        ("dynamodb://table", TABLE),
        ("dynamodb://?region=eu-west-1", TABLE),
        ("dynamodb://table/path?region=eu-west-1", TABLE),
        ("dynamodb://table?region=eu-west-1&create=yes", TABLE),
        ("dynamodb://table?region=eu-west-1&frobnicate=1", TABLE),
    ],
)
def test_a_bad_address_is_invalid_and_says_what_to_write(url: str, advice: str) -> None:
    with pytest.raises(Invalid) as caught:
        open_refstore(url, {})
    assert advice in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        f"redsi://user:{SECRET}@host",
        f"postgres://user:{SECRET}@host/db?password={SECRET}",
        f"mem://user:{SECRET}@host",
        f"sqlite://user:{SECRET}@host/path",
        f"sqlite:///path?key={SECRET}",
        f"redis://user:{SECRET}@host:port",
        f"redis://:{SECRET}/more@host",
        f"redis://:{SECRET}#more@host",
        f"redis://user:{SECRET}@host?db=one",
        f"redis://host?password={SECRET}&wait_replicas=one",
        f"redis://user:{SECRET}@host?password={SECRET}&frobnicate={SECRET}",
        f"redis+cluster://user:{SECRET}@host/3",
        f"redis+cluster://user:{SECRET}@host?wait_replicas=1",
        f"redis://user:{SECRET}@[::1",
        f"dynamodb://key:{SECRET}@table?region=eu-west-1",
        f"dynamodb://table?region=eu-west-1&secret={SECRET}",
        f"dynamodb://table?region=eu-west-1&endpoint=http://key:{SECRET}@host",
    ],
)
def test_a_bad_address_with_a_secret_does_not_show_it(url: str) -> None:
    with pytest.raises(Invalid) as caught:
        open_refstore(url, KEYS)
    # The chain of causes too: it is what a log shows. Our own lines hold none, pytest's hold the parameter.
    causes = [error for error in (caught.value.__cause__, caught.value) if error is not None]
    shown = "".join(line for error in causes for line in traceback.format_exception_only(error))
    assert SECRET not in shown + repr(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        f"redis://user:{SECRET}@127.0.0.1:%d/0",
        f"redis://127.0.0.1:%d/0?password={SECRET}",
        f"redis+cluster://user:{SECRET}@127.0.0.1:%d",
        "dynamodb://table?region=eu-west-1&endpoint=http://127.0.0.1:%d",
    ],
)
@aio
async def test_a_store_that_cannot_be_reached_shows_no_secret(url: str) -> None:
    store = open_refstore(url % free_port(), KEYS)
    with pytest.raises(Error) as caught:
        await store.change("r", "main", append(1))
    await store.aclose()
    assert SECRET not in f"{caught.value} {caught.value!r} {caught.value.__cause__!r} {store!r}"


def test_credentials_do_not_show_their_secret() -> None:
    credentials = Credentials("key", SECRET, SECRET)
    assert SECRET not in f"{credentials} {credentials!r}"
    assert "key" in repr(credentials)
