"""What commits and merges share: changing a branch record until there is an answer, and looking whether it was done.

A change whose answer is lost is repeated: advance and move are answered as done if they were. If others came on top
since, the repeated one is refused; then the history of the branch tells. Where not even that can be read, the caller is
told that nobody knows (`OutcomeUnknown`), never that nothing was done.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from lsmfs.clock import Clock
from lsmfs.lsm.branches import BranchReader
from lsmfs.lsm.tables import Tables
from lsmfs.settings import Settings
from lsmfs.tree.commits import Commits
from lsmfs.tree.log import between
from refstore.errors import OutcomeUnknown, Unavailable
from refstore.records import Branch, BranchChange, CommitId
from refstore.refs import Refs

T = TypeVar("T")


class BranchChanger:
    def __init__(
        self, tables: Tables, commits: Commits, refs: Refs, branches: BranchReader, clock: Clock, settings: Settings
    ) -> None:
        self._tables = tables
        self._commits = commits
        self._refs = refs
        self._branches = branches
        self._clock = clock
        self._settings = settings

    async def _is_ancestor(self, name: str, commit: CommitId) -> bool:
        """Whether the branch has the commit, after a change that was refused: an answer to it may have been lost and
        others may have come on top since. `OutcomeUnknown` if that cannot be found out."""
        try:
            return await self.retrying(lambda: self._look(name, commit))
        except Unavailable as error:
            raise OutcomeUnknown(
                f"branch {name!r}: commit {commit[:12]} may be on it or not, it cannot be read ({error}): look later"
            ) from error

    async def _look(self, name: str, commit: CommitId) -> bool:
        base = (await self._branches.read(name)).base_commit
        return await between(self._commits, commit, base) is not None

    async def change(self, name: str, change: BranchChange) -> Branch:
        """Do a change that may be repeated, until it is answered."""
        branch = await self.retrying(lambda: self._refs.change(self._tables.repository, name, change))
        return self._branches.observe(branch)

    async def retrying(self, call: Callable[[], Awaitable[T]]) -> T:
        """Repeat what is idempotent until it is answered, up to the deadline. If it was sent once and its answer was
        lost, that is what the caller is told, also if the store cannot even be reached any more."""
        deadline = self._clock.monotonic() + self._settings.retry_seconds
        delay, lost = 0.005, None
        while True:
            try:
                return await call()
            except Unavailable as error:
                lost = error if isinstance(error, OutcomeUnknown) else lost
                if self._clock.monotonic() > deadline:
                    raise lost or error from None
            await asyncio.sleep(delay * (0.5 + self._clock.jitter() / 2))
            delay = min(1.0, delay * 2)
