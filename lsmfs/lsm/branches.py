"""Fresh branch reads, shared. A read sees every write acknowledged before it began.

Requests that arrive while a lookup is under way share the *next* lookup, never the one already sent: that one may
have looked before the write they must see. A branch never goes back in version: a ref store that says so has lost
writes, and is refused.
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
        self._queued: dict[str, asyncio.Future[Branch]] = {}
        self._latest: dict[str, Branch] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def read(self, name: str) -> Branch:
        """The branch as of now."""
        if name in self._busy:
            queued = self._queued.get(name)
            if queued is None:
                queued = self._queued[name] = asyncio.get_running_loop().create_future()
            return await asyncio.shield(queued)
        return await self._lookup(name)

    def observe(self, branch: Branch) -> Branch:
        """Take note of a branch that a change has answered; the newest one known."""
        latest = self._latest.get(branch.name)
        if latest is not None and latest.incarnation == branch.incarnation and latest.version > branch.version:
            return latest
        if len(self._latest) >= LATEST_MAX and branch.name not in self._latest:
            self._latest.pop(next(iter(self._latest)))
        self._latest[branch.name] = branch
        return branch

    async def _lookup(self, name: str) -> Branch:
        known = self._latest.get(name)
        self._busy.add(name)
        try:
            branch = await self._refs.read(self._repository, name)
        finally:
            self._busy.discard(name)
            self._serve_queued(name)
        if known is not None and known.incarnation == branch.incarnation and branch.version < known.version:
            raise Corrupt(
                f"branch {name!r} went back from version {known.version} to {branch.version}: "
                "the ref store has lost acknowledged changes; stop writing and recover it"
            )
        return self.observe(branch)

    def _serve_queued(self, name: str) -> None:
        queued = self._queued.pop(name, None)
        if queued is None:
            return
        self._busy.add(name)  # the next lookup begins now: who comes later waits for the one after it
        task = asyncio.ensure_future(self._lookup_for(name, queued))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _lookup_for(self, name: str, queued: "asyncio.Future[Branch]") -> None:
        try:
            queued.set_result(await self._lookup(name))
        except asyncio.CancelledError:
            queued.cancel()
            raise
        except BaseException as error:
            queued.set_exception(error)
            queued.exception()  # the waiters may be gone
