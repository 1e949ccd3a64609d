"""Fresh branch reads, shared. A read sees every write acknowledged before it began.

Requests of one turn of the event loop share a lookup. Those that arrive while it is under way share the *next* one,
never the one already sent: that may have looked before the write they must see. A branch never goes back in version: a
ref store that says so has lost writes, and is refused.
"""

import asyncio

from refstore.errors import Corrupt
from refstore.records import Branch
from refstore.refs import Refs

LATEST_MAX = 4096  # branches whose newest version is remembered; a record has some KB


class BranchReader:
    """The branches of one repository."""

    def __init__(self, refs: Refs, repository: str) -> None:
        self._refs = refs
        self._repository = repository
        self._busy: set[str] = set()
        self._waiting: dict[str, asyncio.Future[Branch]] = {}
        self._latest: dict[str, Branch] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def read(self, name: str) -> Branch:
        """The branch as of now."""
        waiting = self._waiting.get(name)
        if waiting is None:
            waiting = self._waiting[name] = asyncio.get_running_loop().create_future()
            if name not in self._busy:
                self._busy.add(name)
                task = asyncio.ensure_future(self._serve(name))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        return await asyncio.shield(waiting)

    def observe(self, branch: Branch) -> Branch:
        """Take note of a branch that a change has answered; the newest one known."""
        latest = self._latest.get(branch.name)
        if latest is not None and latest.incarnation == branch.incarnation and latest.version > branch.version:
            return latest
        if len(self._latest) >= LATEST_MAX and branch.name not in self._latest:
            self._latest.pop(next(iter(self._latest)))
        self._latest[branch.name] = branch
        return branch

    async def _serve(self, name: str) -> None:
        """Look for all who wait, then for those who came meanwhile. It begins at the loop's next turn: whoever asks in
        this one shares the lookup."""
        try:
            while (waiting := self._waiting.pop(name, None)) is not None:
                try:
                    waiting.set_result(await self._lookup(name))
                except asyncio.CancelledError:
                    waiting.cancel()
                    raise
                except BaseException as error:
                    waiting.set_exception(error)
                    waiting.exception()  # the waiters may be gone
        finally:
            self._busy.discard(name)

    async def _lookup(self, name: str) -> Branch:
        known = self._latest.get(name)
        branch = await self._refs.read(self._repository, name)
        if known is not None and known.incarnation == branch.incarnation and branch.version < known.version:
            raise Corrupt(
                f"branch {name!r} went back from version {known.version} to {branch.version}: "
                "the ref store has lost acknowledged changes; stop writing and recover it"
            )
        return self.observe(branch)
