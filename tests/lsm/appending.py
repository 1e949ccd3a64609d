"""What the tests of appends share: bodies as a reader gets them, and compactions."""

from collections.abc import AsyncIterator

from compactor.executor import compact
from compactor.planner import Plan
from lsmfs.blocks import ALONE, Bodies, read_body
from lsmfs.model import Entry
from lsmfs.objectstore.store import ObjectStore
from lsmfs.repository import Repository


async def pieces(data: bytes) -> AsyncIterator[bytes]:
    yield data


def nobody(url: str) -> ObjectStore:
    raise AssertionError(f"nothing here is stored at {url}")


async def body_of(repository: Repository, entry: Entry) -> bytes:
    return b"".join([piece async for piece in read_body(entry, repository.store, nobody)])


async def read(repository: Repository, key: str, ref: str = "main") -> bytes:
    return await body_of(repository, await repository.get(ref, key))


async def bodies(repository: Repository, content: dict[bytes, Entry]) -> dict[bytes, bytes]:
    return {key: await body_of(repository, entry) for key, entry in content.items()}


async def stored(repository: Repository, data: bytes) -> Entry:
    bodies = Bodies(repository.store, "repo", repository.clock, ALONE)
    return await bodies.save(pieces(data), content_type="text/plain", metadata={"a": "b"})


async def compact_all(repository: Repository, count: int | None = None) -> None:
    branch = await repository.branches.read("main")
    if tables := branch.l1[:count]:
        assert await compact(repository, Plan(branch, tables, branch.l2, "test"))
