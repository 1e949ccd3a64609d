"""The object stores under test: how one is opened, and the second route by which the suite looks behind it."""

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from azure.core.exceptions import ResourceNotFoundError

from lsmfs.objectstore.local import LocalStore
from lsmfs.objectstore.memory import MemoryStore
from lsmfs.objectstore.open import open_store
from lsmfs.objectstore.store import ObjectStore
from tests.servers.bucket import BucketAddress, azure_client, s3_client


class SecondRoute(Protocol):
    """The same objects, seen and changed without our driver."""

    def read(self, name: str) -> bytes | None: ...
    def write(self, name: str, body: bytes) -> None: ...
    def unfinished(self) -> int:
        """How many uploads were begun and neither finished nor removed."""
        ...


@dataclass(frozen=True)
class Backend:
    """One store, empty. `open` gives another client of it; memory has no other route than itself."""

    open: Callable[[], ObjectStore]
    route: SecondRoute | None = None


def memory() -> Backend:
    store = MemoryStore()
    return Backend(lambda: store)


def local(directory: Path) -> Backend:
    return Backend(lambda: LocalStore(directory), FileRoute(directory))


def bucket(address: BucketAddress, route: Callable[[BucketAddress], SecondRoute] | None = None) -> Backend:
    mine = address.below(uuid.uuid4().hex)
    return Backend(lambda: open_store(mine.url, mine.environment), route(mine) if route else None)


class FileRoute:
    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def read(self, name: str) -> bytes | None:
        path = self._directory / name
        return path.read_bytes() if path.is_file() else None

    def write(self, name: str, body: bytes) -> None:
        path = self._directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)

    def unfinished(self) -> int:
        return sum(1 for _ in (self._directory / ".lsmfs" / "temporary").iterdir())


class S3Route:
    def __init__(self, address: BucketAddress) -> None:
        self._client = s3_client(address)
        self._bucket, self._prefix = address.bucket, address.prefix

    def read(self, name: str) -> bytes | None:
        try:
            body: bytes = self._client.get_object(Bucket=self._bucket, Key=self._prefix + name)["Body"].read()
        except self._client.exceptions.NoSuchKey:
            return None
        return body

    def write(self, name: str, body: bytes) -> None:
        self._client.put_object(Bucket=self._bucket, Key=self._prefix + name, Body=body)

    def unfinished(self) -> int:
        uploads = self._client.list_multipart_uploads(Bucket=self._bucket, Prefix=self._prefix)
        return len(uploads.get("Uploads", ()))


class AzureRoute:
    def __init__(self, address: BucketAddress) -> None:
        self._client = azure_client(address)
        self._prefix = address.prefix

    def read(self, name: str) -> bytes | None:
        try:
            body: bytes = self._client.download_blob(self._prefix + name).readall()
        except ResourceNotFoundError:
            return None
        return body

    def write(self, name: str, body: bytes) -> None:
        self._client.upload_blob(self._prefix + name, body, overwrite=True)

    def unfinished(self) -> int:
        """Azure drops uncommitted blocks by itself after a week, and has no verb to do it sooner."""
        return 0
