"""What the server does beside answering: compaction, the end of deletions, writers that nobody uses any more.

The first worker compacts, unless the configuration says that others do. A service that fails is logged and goes on.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import structlog

from lsmfs.installation import Installation
from refstore.errors import Error

log = structlog.get_logger("server")

TIDY_SECONDS = 15.0
WATCH_SECONDS = 1.0


@contextlib.asynccontextmanager
async def repeating(seconds: float, work: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    """The work, again and again while inside."""

    async def repeat() -> None:
        while True:
            await asyncio.sleep(seconds)
            try:
                await work()
            except Error as error:
                log.warning("failed", what=work.__name__, error=str(error))

    task = asyncio.ensure_future(repeat())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@contextlib.asynccontextmanager
async def compacting(installation: Installation) -> AsyncIterator[None]:
    """A compactor of all repositories while inside; what is under way at the end is ended."""
    from compactor.daemon import Daemon
    from compactor.watched import Watched

    stop = asyncio.Event()
    async with contextlib.aclosing(Watched(installation, [])) as watched:
        daemon = Daemon(await watched.refresh())

        async def watch() -> None:
            daemon.repositories = await watched.refresh()

        running = asyncio.ensure_future(daemon.run(stop))
        try:
            async with repeating(WATCH_SECONDS, watch):
                yield
        finally:
            stop.set()
            await running
