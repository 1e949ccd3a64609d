"""An installation: the folder that says where objects and refs are, and the stores it opens.

    <folder>/lsmfs.json    {"version": 1, "store": url, "refs": url, "cache_bytes_max": n}
    <folder>/objects/      the embedded default's object store
    <folder>/refs.db       the embedded default's ref store
    <folder>/cache/        decoded tables, bounded; losing it loses nothing

In a URL, `{folder}` stands for the folder's absolute path, so an embedded installation can be moved as a whole.
`refs` is a ref store's URL, or the word "bucket": then the object store is its own ref store.

Promises: opening contacts nobody but a local database; a store in the cloud is retried; closing waits for what is
under way, also after a cancellation. It never reads the process's environment: whoever opens it hands that in.
"""

import errno
import os
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from types import TracebackType
from urllib.parse import quote, urlsplit

import msgspec

from lsmfs import borrowers, paths
from lsmfs.clock import Clock, SystemClock
from lsmfs.lsm.cache import DiskCache
from lsmfs.model import check_repository_name
from lsmfs.objectstore.open import open_store
from lsmfs.objectstore.retrying import RetryingStore
from lsmfs.objectstore.store import ObjectStore
from lsmfs.policy import REPOSITORIES, Policy, RepositoryRecord, decode_record, read_record
from lsmfs.reader import RefStore
from lsmfs.removal import delete_repository
from lsmfs.repository import Repository
from lsmfs.settings import Settings
from refstore.drivers.bucket import BucketRefStore
from refstore.errors import AlreadyExists, Denied, Error, Invalid, NotFound, Unavailable
from refstore.open import open_refstore

FILE = "lsmfs.json"
VERSION = 1
BUCKET_REFS = "bucket"
PROBE = "probe"  # the data file that a repository's own storage is tried with
CLOUD_SCHEMES = ("s3", "gs", "az")


class Configuration(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What lsmfs.json says."""

    version: int = VERSION
    store: str = "file://{folder}/objects"
    refs: str = "sqlite://{folder}/refs.db"
    cache_bytes_max: int = 2 * 1024**3
    """A tenth of a small machine's disk; about ten million decoded entries."""


class Installation:
    """Opened stores. Use it as an async context manager."""

    def __init__(self, folder: Path, configuration: Configuration, environment: Mapping[str, str]) -> None:
        self.folder = folder.absolute()
        self.configuration = configuration
        self.store_url = _filled(configuration.store, self.folder)
        self.refs_url = _filled(configuration.refs, self.folder)
        self.clock: Clock = SystemClock()
        self._environment = environment
        self._foreign: dict[str, ObjectStore] = {}
        self.store = self._open_store(self.store_url)
        self.refs: RefStore = self._open_refs()
        self.disk = _open_cache(self.folder / "cache", configuration.cache_bytes_max)

    async def __aenter__(self) -> "Installation":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        try:
            await self.refs.aclose()
        finally:
            for store in (self.store, *self._foreign.values()):
                await store.aclose()

    async def create(
        self, name: str, default_branch: str = "main", settings: Settings | None = None, storage: str = ""
    ) -> Repository:
        """A new repository, with everything it stores at the URL `storage` if there is one; `AlreadyExists`."""
        if storage:
            _check_lasting(storage)
            _check_apart(_filled(storage, self.folder), self.store_url)
        store = self._store_at(storage)
        if storage and await self.refs.get(REPOSITORIES, name.encode()) is None:
            await _check_usable(store, check_repository_name(name), storage)
        return await Repository.create(
            store, self.refs, name, default_branch, self.clock, settings, self.disk, storage=storage
        )

    async def repository(self, name: str, settings: Settings | None = None) -> Repository:
        """The repository of that name; `NotFound`."""
        store = await self._store_of(name)
        return await Repository.open(store, self.refs, name, self.clock, settings, self.disk)

    async def names(self) -> AsyncIterator[str]:
        """The names of all repositories, ascending."""
        async for item in self.refs.scan(REPOSITORIES):
            yield item.key.decode()

    async def records(self) -> AsyncIterator[RepositoryRecord]:
        """What is known of all repositories, in ascending order of their names; also of those being deleted."""
        async for item in self.refs.scan(REPOSITORIES):
            yield decode_record(item.key.decode(), item.value)

    async def delete(self, name: str, tell: Callable[[int], None] | None = None) -> int:
        """Delete a repository with everything in it, or go on with that; how many objects went. `NotFound`, `Denied` if
        objects of others refer to its bytes."""
        record, _ = await read_record(self.refs, name)
        if not record.deleting:
            await self._begin_deletion(record)
        await borrowers.forget(self.refs, name)
        return await delete_repository(self._store_at(record.storage), self.refs, self.refs, name, self.clock, tell)

    async def _begin_deletion(self, record: RepositoryRecord) -> None:
        """Mark it, so that nobody opens it or borrows from it; somebody may have done so just before."""
        await borrowers.check_unborrowed(self.refs, record.name)
        policy = Policy(self.refs, record, self.clock)
        await policy.change(lambda known: msgspec.structs.replace(known, deleting=True))
        try:
            await borrowers.check_unborrowed(self.refs, record.name)
        except Denied:
            await policy.change(lambda known: msgspec.structs.replace(known, deleting=False))
            raise

    async def lend(self, lender: RepositoryRecord, borrower: RepositoryRecord) -> None:
        """Entries of the borrower may refer to bytes of the lender from now on, which is not deleted before it."""
        await borrowers.lend(self.refs, lender, borrower)

    def storage_url(self, record: RepositoryRecord) -> str:
        """Where a repository's objects are."""
        return _filled(record.storage, self.folder) if record.storage else self.store_url

    async def _store_of(self, name: str) -> ObjectStore:
        record, _ = await read_record(self.refs, name)
        return self._store_at(record.storage)

    def _store_at(self, storage: str) -> ObjectStore:
        return self.foreign(_filled(storage, self.folder)) if storage else self.store

    def foreign(self, url: str) -> ObjectStore:
        """Another store than the installation's own, opened once: what a repository has for itself, or what entries
        refer to; closed with the installation."""
        if url not in self._foreign:
            self._foreign[url] = self._open_store(url)
        return self._foreign[url]

    def _open_store(self, url: str) -> ObjectStore:
        store = open_store(url, self._environment)
        # What a local disk refuses, it refuses again a second later.
        return RetryingStore(store, self.clock) if url.partition("://")[0] in CLOUD_SCHEMES else store

    def _open_refs(self) -> RefStore:
        if self.refs_url == BUCKET_REFS:
            return BucketRefStore(self.store)
        return open_refstore(self.refs_url, self._environment)


def create_installation(folder: Path, configuration: Configuration) -> None:
    """Write lsmfs.json, whole or not at all; `AlreadyExists` if there is one."""
    for url in (configuration.store, configuration.refs):
        _check_lasting(url)
    text = msgspec.json.format(msgspec.json.encode(configuration), indent=2) + b"\n"
    path, temporary = folder / FILE, folder / f".{FILE}.{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(text)
        if any(urlsplit(url).password for url in (configuration.store, configuration.refs)):
            temporary.chmod(0o600)
        try:
            os.link(temporary, path)
        finally:
            temporary.unlink()
    except FileExistsError as error:
        if path.exists():
            raise AlreadyExists(f"{folder} is an installation already: use it, or choose another --data") from None
        raise Invalid(f"{folder} cannot be a folder: {error.strerror}") from None
    except OSError as error:
        raise _translated(error, folder) from error


def read_configuration(folder: Path) -> Configuration:
    """What the folder's lsmfs.json says; `NotFound` if there is none."""
    path = folder / FILE
    try:
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise NotFound(f"{folder} holds no installation: run `lsmfs init` first, or say --data FOLDER") from None
    except OSError as error:
        raise _translated(error, path) from error
    try:
        configuration = msgspec.json.decode(data, type=Configuration)
    except msgspec.DecodeError as error:
        raise Invalid(f"{path}: {error}: correct the file") from None
    if configuration.version != VERSION:
        raise Invalid(f"{path} has version {configuration.version}, this program knows {VERSION}: use a newer lsmfs")
    return configuration


def open_installation(folder: Path, environment: Mapping[str, str]) -> Installation:
    """The installation in the folder, opened."""
    return Installation(folder, read_configuration(folder), environment)


def without_password(url: str) -> str:
    """The URL as it may be shown."""
    password = urlsplit(url).password
    return url.replace(f":{password}@", ":***@") if password else url


def _check_lasting(url: str) -> None:
    if urlsplit(url).scheme == "mem":
        raise Invalid("mem:// is gone when the command ends: use file://, s3://, gs:// or az://")


def _check_apart(storage: str, store: str) -> None:
    """One store within another would have the names of some other repository."""
    here, there = urlsplit(storage), urlsplit(store)
    one, other = (f"{url.path.rstrip('/')}/" for url in (here, there))
    is_within = one != other and (one.startswith(other) or other.startswith(one))
    if (here.scheme, here.netloc) == (there.scheme, there.netloc) and is_within:
        raise Invalid(f"{storage} and {store}, which the installation has, are one within the other: choose another")


async def _check_usable(store: ObjectStore, name: str, storage: str) -> None:
    """Before there is a record: what we cannot write to is told now, and no objects of others are taken over."""
    async for info in store.list(f"{name}/"):
        raise AlreadyExists(f"{without_password(storage)} has objects of a repository {name!r} already: {info.name}")
    await store.put(paths.data_path(name, PROBE), b"")
    await store.delete(paths.data_path(name, PROBE))


def _filled(url: str, folder: Path) -> str:
    return url.replace("{folder}", quote(str(folder)))


def _open_cache(folder: Path, bytes_max: int) -> DiskCache | None:
    """A cache that cannot be made is done without: a read-only folder may still be read."""
    try:
        return DiskCache(folder, bytes_max)
    except OSError:
        return None


def _translated(error: OSError, path: Path) -> Error:
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return Denied(f"{path}: {error.strerror}: choose another --data, or change its rights")
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return Unavailable(f"{path}: the disk is full: free some space, then try again")
    return Unavailable(f"{path}: {error.strerror}")
