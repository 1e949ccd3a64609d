"""A transaction: many writes that become visible on a branch at once, as a merge, or not at all.

    async with repo.transaction("main", "load of today") as tx:
        await tx.put("a", entry)
        assert await tx.get("a") == entry

It is a hidden branch that begins at the branch's newest commit. At the end it is committed, merged and deleted; if the
block raises, it is deleted. What a process that died leaves behind is that hidden branch and nothing else.
"""

from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING

import pyarrow as pa

from lsmfs.lsm.listing import PAGE_MAX, Page
from lsmfs.lsm.writer import Writer
from lsmfs.model import Entry
from refstore.errors import NoChanges, Unavailable
from refstore.records import CommitId

if TYPE_CHECKING:
    from lsmfs.repository import Repository

PREFIX = "tx-"


class Transaction:
    def __init__(
        self,
        repository: "Repository",
        branch: str,
        message: str,
        committer: str,
        metadata: dict[str, str],
        strategy: str | dict[str, str] | None,
        squash: bool,
    ) -> None:
        self._repository = repository
        self._into = branch
        self._words = message or f"Transaction on {branch!r}", committer, metadata
        self._strategy = strategy
        self._squash = squash
        self.branch = PREFIX + repository.clock.new_id()
        self.commit: CommitId | None = None  # the merge, when it is done
        self._writer: Writer | None = None

    async def __aenter__(self) -> "Transaction":
        await self._repository.create_branch(self.branch, f"{self._into}@", hidden=True)
        try:
            self._writer = await self._repository.writer(self.branch, self._words[1]).__aenter__()
        except BaseException:
            await self._repository.delete_branch(self.branch)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.writer.aclose()
            if error is None:
                await self._publish()
        finally:
            with suppress(Unavailable):  # it stays behind, hidden: what was published is not to be called a failure
                await self._repository.delete_branch(self.branch)

    async def _publish(self) -> None:
        try:
            await self._repository.commit(self.branch, *self._words)
        except NoChanges:
            return
        self.commit, _ = await self._repository.merge(
            self.branch, self._into, *self._words, strategy=self._strategy, squash=self._squash
        )

    @property
    def writer(self) -> Writer:
        """For what the short methods do not have: conditions, units."""
        assert self._writer is not None, "use it in `async with`"
        return self._writer

    async def put(self, path: str, entry: Entry) -> None:
        await self.writer.put(path, entry)

    async def delete(self, path: str) -> None:
        await self.writer.delete(path)

    async def stage(self, table: pa.Table) -> None:
        await self.writer.stage(table)

    async def get(self, path: str) -> Entry:
        return await self._repository.get(self.branch, path)

    async def list(self, prefix: str = "", delimiter: str = "", after: str = "", limit: int = PAGE_MAX) -> Page:
        return await self._repository.list(self.branch, prefix, delimiter, after, limit)
