"""What the writer's tests share: settings, a look at the truth, and uploads that wait."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from lsmfs.model import Entry
from lsmfs.objectstore.store import ANYTHING, Body, ObjectStore, Precondition, Tag
from lsmfs.objectstore.wrapper import WrapperStore
from lsmfs.repository import Repository
from lsmfs.settings import Settings, WriterSettings
from refstore.drivers.memory import MemoryRefStore
from refstore.records import Branch
from tests.lsm.support import (
    SHAPE,
    DisturbedRefs,
    another_client,
    memory_repository,
    visible,
)

Do = Callable[[], Awaitable[Branch]]


def with_writer(**settings: Any) -> Settings:
    """The tests' settings with these of the writer's."""
    return Settings(WriterSettings(**{"deadline_seconds": 0.2, **settings}), SHAPE, retry_seconds=0.3)


async def disturbed(store: ObjectStore | None = None, **settings: Any) -> tuple[Repository, DisturbedRefs]:
    refs = DisturbedRefs(MemoryRefStore())
    return await memory_repository(store, refs, with_writer(**settings)), refs


async def truth(repository: Repository) -> dict[bytes, Entry]:
    """What a client that knows nothing sees over an undisturbed connection."""
    refs = repository.refs
    return await visible(await another_client(repository, refs.inner if isinstance(refs, DisturbedRefs) else refs))


async def l1(repository: Repository) -> tuple[str, ...]:
    return (await repository.refs.read("repo", "main")).l1


class Gate(WrapperStore):
    """Puts of tables wait until they are let through, each in its own time."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.is_shut = False
        self.waiting: list[asyncio.Future[None]] = []

    async def put(self, name: str, body: Body, expected: Precondition = ANYTHING) -> Tag:
        if self.is_shut and "/tables/" in name:
            waiter = asyncio.get_running_loop().create_future()
            self.waiting.append(waiter)
            await waiter
        return await self.inner.put(name, body, expected)

    def open(self) -> None:
        self.is_shut = False
        for waiter in self.waiting:
            if not waiter.done():
                waiter.set_result(None)


async def settle() -> None:
    """Let everything run that can run without waiting."""
    for _ in range(50):
        await asyncio.sleep(0)
