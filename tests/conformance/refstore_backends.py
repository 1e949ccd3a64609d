"""The ref stores under test: a name, and how a client of it is opened. The suite knows nothing else about a driver."""

import os
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlencode

import pytest

from lsmfs.objectstore.memory import MemoryStore
from lsmfs.objectstore.open import open_store
from lsmfs.objectstore.store import ObjectStore
from refstore.drivers.bucket import SEGMENT_BYTES_MAX, BucketRefStore
from refstore.drivers.memory import MemoryRefStore
from refstore.open import RefStore, open_refstore
from tests.servers.dynamodb import shared_dynamodb
from tests.servers.redis import shared_redis, shared_redis_cluster, shared_redis_pair
from tests.servers.seaweedfs import shared_s3


@dataclass(frozen=True)
class Backend:
    """One store that any number of clients, and processes if it has an address, use at the same time."""

    client: Callable[[], RefStore]
    address: str | None = None
    key_bytes_max: int = 1024

    @asynccontextmanager
    async def open(self) -> AsyncIterator[RefStore]:
        store = self.client()
        try:
            yield store
        finally:
            await store.aclose()


def open_address(address: str) -> RefStore:
    """A client of the store at this address, in this or another process."""
    scheme, _, rest = address.partition("+bucket:")
    if scheme == "refs":
        url, _, keys = rest.partition(" ")
        return _OwnBucket(open_store(url, dict(pair.split("=") for pair in keys.split())))
    return open_refstore(address, {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"})


class _OwnBucket(BucketRefStore):
    """A bucket store that closes its object store, as a server that opened both would."""

    def __init__(self, store: ObjectStore) -> None:
        super().__init__(store)
        self._store = store

    async def aclose(self) -> None:
        await self._store.aclose()


def memory(directory: Path) -> Backend:
    store = MemoryRefStore()
    return Backend(lambda: store)


def sqlite(directory: Path) -> Backend:
    return _at(f"sqlite://{directory / 'refs.db'}")


def redis(directory: Path) -> Backend:
    return _at(shared_redis())


def redis_cluster(directory: Path) -> Backend:
    """Where keys without a common hash tag are refused (CROSSSLOT)."""
    return _at(shared_redis_cluster())


def redis_wait(directory: Path) -> Backend:
    """Where every change waits for a replica; under load that may take longer than the default second."""
    return _at(f"{shared_redis_pair()}?wait_replicas=1&wait_timeout=30")


def dynamodb(directory: Path) -> Backend:
    query = urlencode({"region": "eu-west-1", "endpoint": shared_dynamodb(), "create": "true"})
    return _at(f"dynamodb://lsmfs-test?{query}")


def bucket_in_memory(directory: Path) -> Backend:
    store = MemoryStore()
    return Backend(lambda: BucketRefStore(store), key_bytes_max=SEGMENT_BYTES_MAX)


def bucket_of_files(directory: Path) -> Backend:
    return replace(_at(f"refs+bucket:file://{directory}"), key_bytes_max=SEGMENT_BYTES_MAX)


def bucket_on_s3(directory: Path) -> Backend:
    s3 = shared_s3()
    keys = " ".join(f"{name}={value}" for name, value in s3.environment.items() if name.startswith("AWS_"))
    return replace(_at(f"refs+bucket:{s3.url} {keys}"), key_bytes_max=SEGMENT_BYTES_MAX)


def _at(address: str) -> Backend:
    return Backend(lambda: open_address(address), address)


BACKENDS = {
    "memory": memory,
    "sqlite": sqlite,
    "redis": redis,
    "redis-cluster": redis_cluster,
    "redis-wait": redis_wait,
    "dynamodb": dynamodb,
    "bucket": bucket_in_memory,
    "bucket-files": bucket_of_files,
    "bucket-s3": bucket_on_s3,
}
# Tests of one server run in one process, so that it is started once.
GROUPS = {
    "redis": "redis",
    "redis-cluster": "redis",
    "redis-wait": "redis",
    "dynamodb": "dynamodb",
    "bucket-s3": "s3",
}
PARAMETERS = [
    pytest.param(name, marks=pytest.mark.xdist_group(GROUPS[name]) if name in GROUPS else ()) for name in BACKENDS
]


def fresh_name() -> str:
    """A repository or partition name that no other test has: the servers are shared, and may be somebody's own."""
    return f"test-{os.getpid()}-{uuid.uuid4().hex[:12]}"


__all__ = ["BACKENDS", "PARAMETERS", "Backend", "RefStore", "fresh_name", "open_address"]
