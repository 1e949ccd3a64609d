"""What the engine's tests share: small shapes, entries, a repository in memory, and ref stores that lose answers."""

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass

import msgspec
import pyarrow as pa

from lsmfs.lsm import records
from lsmfs.lsm.appends import of_extents
from lsmfs.lsm.build import Shape
from lsmfs.lsm.run import Run
from lsmfs.lsm.tables import Tables
from lsmfs.model import Entry, Extent
from lsmfs.objectstore.memory import MemoryStore
from lsmfs.objectstore.store import ObjectStore
from lsmfs.reader import RefStore
from lsmfs.repository import Repository
from lsmfs.settings import Settings, WriterSettings
from refstore.drivers.memory import MemoryRefStore
from refstore.records import Branch, BranchChange, Event
from refstore.store import Absent, Item

SHAPE = Shape(rows_mean=16, weight_max=4096)  # a hundred keys make some ten ranges, some of them cut by weight
SETTINGS = Settings(writer=WriterSettings(deadline_seconds=0.2), shape=SHAPE, retry_seconds=0.3)


def entry(number: int, etag: str = "") -> Entry:
    return Entry(f"mem://bucket/{number}", number, etag or f"e{number}", number)


@dataclass(frozen=True)
class Added:
    """An append in a dict of changes."""

    extents: tuple[Extent, ...]
    mtime_us: int = 0

    def over(self, below: Entry | None) -> Entry:
        """What the object is then, said in the plainest way."""
        if below is not None and not sum(extent.length for extent in self.extents):
            return msgspec.structs.replace(below, mtime_us=self.mtime_us)
        if below is None:
            return of_extents(self.extents, self.mtime_us)
        return of_extents([*below.extents, *self.extents], self.mtime_us, below.content_type, below.metadata)


def added(number: int) -> Added:
    """Some bytes of an object of their own; none if the number is 0."""
    return Added((Extent(f"repo/data/{number}", number % 3, number, "0123456789abcdef" * 2),), 100 + number)


Changes = Mapping[bytes, Entry | Added | None]


def after(content: Mapping[bytes, Entry | None], changes: Changes) -> dict[bytes, Entry | None]:
    """The content with the changes applied: what any stack of layers stands for. None is a tombstone."""
    result = dict(content)
    for key, value in changes.items():
        result[key] = value.over(result.get(key)) if isinstance(value, Added) else value
    return result


def rows_of(content: Changes) -> pa.Table:
    """A dict as a sorted table; None is a tombstone."""
    kinds = [
        records.APPEND if isinstance(content[key], Added) else records.PUT if content[key] else records.TOMBSTONE
        for key in sorted(content)
    ]
    entries = {key: value.over(None) if isinstance(value, Added) else value for key, value in content.items()}
    return records.from_entries([(key, entries[key]) for key in sorted(content)], kinds)


def content_of(rows: pa.Table) -> dict[bytes, Entry | None]:
    """A table as a dict."""
    return {key.encode(): records.entry_at(rows, at) for at, key in enumerate(rows["key"].to_pylist())}


async def run_content(tables: Tables, run: Run) -> dict[bytes, Entry | None]:
    content: dict[bytes, Entry | None] = {}
    for file in run.files:
        content.update(content_of(await tables.read(file)))
    return content


def memory_tables(store: ObjectStore | None = None) -> Tables:
    return Tables(store or MemoryStore(), "repo", threads=False)


async def memory_repository(
    store: ObjectStore | None = None, refs: RefStore | None = None, settings: Settings = SETTINGS
) -> Repository:
    return await Repository.create(
        store or MemoryStore(), refs or MemoryRefStore(), "repo", settings=settings, threads=False
    )


async def another_client(repository: Repository, refs: RefStore | None = None) -> Repository:
    """A second client of the same stores, with caches of its own."""
    settings = repository.settings
    return await Repository.open(repository.store, refs or repository.refs, "repo", settings=settings, threads=False)


async def put_all(repository: Repository, content: Changes, branch: str = "main") -> None:
    """All of it in one table."""
    async with repository.writer(branch) as writer:
        if content:
            await writer.stage(rows_of(content))


async def visible(repository: Repository, branch: str = "main") -> dict[bytes, Entry]:
    """Everything a reader sees, by listing pages."""
    found: dict[bytes, Entry] = {}
    after: bytes | None = b""
    while after is not None:
        page = await repository.list(branch, after=after.decode())
        for key, value in page.items:
            assert value is not None
            found[key] = value
        after = page.after
    return found


async def scanned(batches: AsyncIterator[pa.Table]) -> list[tuple[bytes, Entry | None]]:
    return [item async for rows in batches for item in content_of(rows).items()]


class RefWrapper:
    """A ref store that hands everything to another; tests override what they disturb. Counts calls by verb."""

    def __init__(self, inner: RefStore) -> None:
        self.inner = inner
        self.calls: Counter[str] = Counter()

    async def get(self, partition: str, key: bytes) -> bytes | None:
        self.calls["get"] += 1
        return await self.inner.get(partition, key)

    def scan(self, partition: str, start: bytes = b"", prefix: bytes = b"") -> AsyncIterator[Item]:
        self.calls["scan"] += 1
        return self.inner.scan(partition, start, prefix)

    async def set(self, partition: str, key: bytes, value: bytes) -> None:
        self.calls["set"] += 1
        await self.inner.set(partition, key, value)

    async def delete(self, partition: str, key: bytes) -> None:
        self.calls["delete"] += 1
        await self.inner.delete(partition, key)

    async def set_if(self, partition: str, key: bytes, value: bytes, expected: bytes | Absent) -> None:
        self.calls["set_if"] += 1
        await self.inner.set_if(partition, key, value, expected)

    async def read(self, repository: str, name: str) -> Branch:
        self.calls["read"] += 1
        return await self.inner.read(repository, name)

    def branches(self, repository: str, after: str = "", prefix: str = "") -> AsyncIterator[Branch]:
        self.calls["branches"] += 1
        return self.inner.branches(repository, after, prefix)

    async def change(self, repository: str, name: str, change: BranchChange) -> Branch:
        self.calls[type(change).__name__.lower()] += 1
        return await self.inner.change(repository, name, change)

    async def events(self, repository: str, limit: int = 1000) -> list[Event]:
        return await self.inner.events(repository, limit)

    async def trim(self, repository: str, events: list[Event]) -> None:
        await self.inner.trim(repository, events)

    async def aclose(self) -> None:
        await self.inner.aclose()


Disturb = Callable[[BranchChange, Callable[[], Awaitable[Branch]]], Awaitable[Branch]]


class DisturbedRefs(RefWrapper):
    """Every change goes through `disturb(change, do)`, which may do it, not do it, do it twice, and raise."""

    def __init__(self, inner: RefStore, disturb: Disturb | None = None) -> None:
        super().__init__(inner)
        self.disturb = disturb

    async def change(self, repository: str, name: str, change: BranchChange) -> Branch:
        self.calls[type(change).__name__.lower()] += 1
        if self.disturb is None:
            return await self.inner.change(repository, name, change)
        return await self.disturb(change, lambda: self.inner.change(repository, name, change))


def keys(numbers: Iterable[int]) -> list[bytes]:
    return [f"k{number:05}".encode() for number in numbers]
