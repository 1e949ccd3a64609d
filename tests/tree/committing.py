"""What the committer's tests share: looks at the truth, and commits that are stopped half way."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from lsmfs.model import Entry
from lsmfs.repository import Repository
from refstore.records import (
    Branch,
    BranchChange,
    CommitId,
    SealLayers,
)
from tests.lsm.support import (
    DisturbedRefs,
    RefWrapper,
    another_client,
    run_content,
    visible,
)

Do = Callable[[], Awaitable[Branch]]


async def committed(repository: Repository, identity: CommitId) -> dict[bytes, Entry | None]:
    """What a commit holds."""
    commit = await repository.commits.load(identity)
    return await run_content(repository.tables, await repository.tables.load_run(commit.metarange))


async def head(repository: Repository) -> Branch:
    return await repository.branches.read("main")


async def parents(repository: Repository) -> list[str]:
    """The messages of the branch's commits, newest first."""
    client = await another_client(repository, undisturbed(repository))
    return [commit.message async for _, commit in client.log("main")]


def undisturbed(repository: Repository) -> Any:
    return repository.refs.inner if isinstance(repository.refs, RefWrapper) else repository.refs


async def truth(repository: Repository) -> dict[bytes, Entry]:
    return await visible(await another_client(repository, undisturbed(repository)))


async def seal(repository: Repository) -> None:
    """A commit that has begun and then crashed."""
    branch = await undisturbed(repository).read("repo", "main")
    await undisturbed(repository).change("repo", "main", SealLayers(incarnation=branch.incarnation))


class Turnstile:
    """Stops a client's changes of one kind until it is opened."""

    def __init__(self, kind: type[BranchChange]) -> None:
        self._kind = kind
        self.reached = asyncio.Event()
        self.open = asyncio.Event()

    async def __call__(self, change: BranchChange, do: Do) -> Branch:
        if isinstance(change, self._kind):
            self.reached.set()
            await self.open.wait()
        return await do()


async def stopped(repository: Repository, kind: type[BranchChange], message: str) -> tuple[Turnstile, Any]:
    """Another client's commit, stopped before the change of this kind."""
    turnstile = Turnstile(kind)
    client = await another_client(repository, DisturbedRefs(undisturbed(repository), turnstile))
    task = asyncio.ensure_future(client.commit("main", message))
    await turnstile.reached.wait()
    return turnstile, task
