"""The lake as a server keeps it open: repositories, one writer for each branch, and bodies.

Requests that write to one branch share its Writer, so they share its flushes: group commit. A repository that was
deleted, or made anew under the same name, is noticed within seconds. Everything kept open is bounded; what has not been
used longest is closed first, and never while somebody writes with it.

Closing waits for the writes under way: what was acknowledged is durable before, so nothing else is lost.
"""

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import AsyncIterator
from weakref import WeakSet, WeakValueDictionary

from lsmfs.blocks import Bodies, Layout, SmallBodies, read_body
from lsmfs.installation import Installation
from lsmfs.lsm.writer import Writer
from lsmfs.model import Entry
from lsmfs.objectstore.store import Span
from lsmfs.policy import FRESH_SECONDS, read_record
from lsmfs.repository import Repository
from lsmfs.settings import Settings
from refstore.errors import BranchReplaced, NotFound, Unavailable

REPOSITORIES_MAX = 256  # open at once: each has some threads and the newest views of its branches
WRITERS_MAX = 256  # open at once for each repository; each is a place in a branch's bounded table of writers
IDLE_SECONDS = 60.0  # a writer that nobody used so long leaves its branch's table
CLOSE_SECONDS = 30.0  # who writes may end so long: as long as a write is retried


class Writing:
    """A shared writer, and how many use it now."""

    def __init__(self, writer: Writer) -> None:
        self.writer = writer
        self.users = 0
        self.used_at = 0.0
        self.is_gone = False  # from the table of writers: the last user closes it
        self._opening = asyncio.Lock()
        self._is_open = False

    async def open(self) -> None:
        async with self._opening:
            if not self._is_open:
                await self.writer.__aenter__()
                self._is_open = True


class Open:
    """A repository that is kept open."""

    def __init__(self, repository: Repository, layout: Layout) -> None:
        self.repository = repository
        self.bodies = Bodies(repository.store, repository.name, repository.clock, layout)
        self.small = SmallBodies(repository.store)
        self.writers: OrderedDict[str, Writing] = OrderedDict()
        self.lenders: WeakSet[Open] = WeakSet()  # whose bytes its entries may refer to: that is written down
        self.checked_at = repository.clock.monotonic()
        self.generation = 0
        self.users = 0
        self._unused = asyncio.Event()
        self._unused.set()

    @property
    def is_fresh(self) -> bool:
        return self.repository.clock.monotonic() - self.checked_at < FRESH_SECONDS

    def use(self, branch: str) -> Writing:
        """The branch's writer, for somebody who then calls `release`."""
        writing = self.writers.get(branch)
        if writing is None:
            writing = self.writers[branch] = Writing(self.repository.writer(branch, "server"))
        self.writers.move_to_end(branch)
        writing.users += 1
        self.users += 1
        self._unused.clear()
        return writing

    async def release(self, writing: Writing) -> None:
        try:
            writing.users -= 1
            writing.used_at = self.repository.clock.monotonic()
            if writing.is_gone and not writing.users:
                await writing.writer.aclose()
            if len(self.writers) > WRITERS_MAX:
                await self.close_unused(len(self.writers) - WRITERS_MAX, writing.used_at)
        finally:
            self.users -= 1
            if not self.users:
                self._unused.set()

    def drop(self, branch: str, writing: Writing) -> None:
        """Let nobody else use this writer: its branch is gone, and with it what the writer knows."""
        writing.is_gone = True
        if self.writers.get(branch) is writing:
            del self.writers[branch]

    async def close_unused(self, count: int, used_before: float) -> None:
        """Close at most so many writers that nobody uses, those first that were used longest ago."""
        unused = [branch for branch, each in self.writers.items() if not each.users and each.used_at <= used_before]
        for writing in [self.writers.pop(branch) for branch in unused[:count]]:
            await writing.writer.aclose()

    async def aclose(self) -> None:
        """Close the writers when nobody uses them. The repository itself may still be read from: its threads go with
        it."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._unused.wait(), CLOSE_SECONDS)
        await asyncio.gather(*(writing.writer.aclose() for writing in self.writers.values()), return_exceptions=True)


class Lake:
    def __init__(
        self, installation: Installation, layout: Layout | None = None, settings: Settings | None = None
    ) -> None:
        self.installation = installation
        self.clock = installation.clock
        self._layout = layout or Layout()
        self._settings = settings
        self._open: OrderedDict[str, Open] = OrderedDict()
        self._opening: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._closing: set[asyncio.Task[None]] = set()
        self._is_closed = False

    async def aclose(self) -> None:
        """Close writers and repositories; the installation belongs to the caller."""
        self._is_closed = True
        repositories = [opened.repository for opened in self._open.values()]
        for name in list(self._open):
            self._leave(name)
        while self._closing:
            await asyncio.wait(self._closing)
        for repository in repositories:
            await repository.aclose()

    async def repository(self, name: str) -> Repository:
        """The repository of that name; `NotFound`."""
        return (await self._opened(name)).repository

    async def forget(self, name: str) -> None:
        """Close a repository that was deleted or changed under its name."""
        closing = self._leave(name)
        if closing is not None:
            await asyncio.wait((closing,))

    @contextlib.asynccontextmanager
    async def writing(self, repository: str, branch: str) -> AsyncIterator[Writer]:
        """The writer that all share who write to the branch."""
        opened = await self._opened(repository)
        writing = opened.use(branch)
        try:
            await writing.open()
            yield writing.writer
        except (NotFound, BranchReplaced):
            opened.drop(branch, writing)
            raise
        finally:
            await opened.release(writing)

    async def close_idle(self) -> None:
        """Close writers that nobody used lately; call it now and then."""
        for opened in list(self._open.values()):
            await opened.close_unused(len(opened.writers), self.clock.monotonic() - IDLE_SECONDS)

    async def save_body(
        self,
        repository: str,
        body: AsyncIterator[bytes],
        content_type: str | None = None,
        metadata: dict[str, str] | None = None,
    ) -> Entry:
        """Store a body; the entry that describes it, which nobody sees until it is put."""
        opened = await self._opened(repository)
        return await opened.bodies.save(body, opened.generation, content_type, metadata)

    async def read_small(self, repository: str, entry: Entry, span: Span | None = None) -> bytes:
        """The same at once, of an object that is small and has one extent of ours."""
        return await (await self._opened(repository)).small.get(entry, span)

    async def read_body(
        self, repository: str, entry: Entry, span: Span | None = None, verify: bool = True
    ) -> AsyncIterator[bytes]:
        """An object's bytes, or those of the span."""
        opened = await self._opened(repository)
        installation = self.installation
        source = opened.repository.store
        async for piece in read_body(entry, source, installation.foreign, installation.store_url, span, verify):
            yield piece

    async def borrow(self, source: str, target: str) -> None:
        """Call it before entries of `target` refer to bytes of `source`: it is not deleted then before `target` is.
        `Invalid` if their storage differs."""
        if source == target:
            return
        lender, borrower = await self._opened(source), await self._opened(target)
        if lender not in borrower.lenders:
            await self.installation.lend(lender.repository.record, borrower.repository.record)
            borrower.lenders.add(lender)

    async def _opened(self, name: str) -> Open:
        if self._is_closed:
            raise Unavailable("the server is stopping: try again")
        opened = self._open.get(name)
        if opened is None or not opened.is_fresh:
            async with self._opening.setdefault(name, asyncio.Lock()):
                opened = self._open.get(name)  # another may have looked meanwhile
                if opened is None or not opened.is_fresh:
                    opened = await self._look(name, opened)
        self._open.move_to_end(name)
        return opened

    async def _look(self, name: str, opened: Open | None) -> Open:
        """What has this name now: opened, if it is not known."""
        if opened is not None and not await self._is_current(opened):
            self._leave(name)
            opened = None
        if opened is None:
            opened = Open(await self.installation.repository(name, self._settings), self._layout)
        default = opened.repository.record.default_branch
        opened.generation = (await opened.repository.branches.read(default)).floor
        opened.checked_at = self.clock.monotonic()
        if self._is_closed:
            raise Unavailable("the server is stopping: try again")
        self._open[name] = opened
        for other in [each for each, known in self._open.items() if not known.users and known is not opened]:
            if len(self._open) > REPOSITORIES_MAX:
                self._leave(other)
        return opened

    async def _is_current(self, opened: Open) -> bool:
        """Whether it is the repository that has this name now."""
        known = opened.repository.record
        try:
            record, _ = await read_record(self.installation.refs, known.name)
        except NotFound:
            return False
        return not record.deleting and (record.created_us, record.storage) == (known.created_us, known.storage)

    def _leave(self, name: str) -> "asyncio.Task[None] | None":
        """Let nobody else use what is open under the name; it is closed when those who write with it have ended."""
        opened = self._open.pop(name, None)
        if opened is None:
            return None
        closing = asyncio.ensure_future(opened.aclose())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)
        return closing
