"""What the server does beside answering: compaction, the end of deletions, writers that nobody uses any more, uploads
that nobody ends.

The first worker compacts and sweeps, unless the configuration says that others do. A service that fails is logged and
goes on.
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
SWEEP_SECONDS = 3600.0
UPLOAD_DAYS_MAX = 7  # an upload of parts that was begun before that is given up: its client has gone
DAY_US = 24 * 3600 * 1_000_000


@contextlib.asynccontextmanager
async def repeating(seconds: float, work: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    """The work, again and again while inside."""

    async def repeat() -> None:
        while True:
            await asyncio.sleep(seconds)
            try:
                await work()
            except Error as error:
                log.warning("failed", what=getattr(work, "__name__", "sweep"), error=str(error))

    task = asyncio.ensure_future(repeat())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def sweep_uploads(installation: Installation) -> None:
    """Forget uploads of parts that were begun long ago, and completed ones; their bytes are then garbage."""
    from lsmfs.gateway.uploads import Uploads

    before = installation.clock.now_us() - UPLOAD_DAYS_MAX * DAY_US
    async for name in installation.names():
        if count := await Uploads(installation.refs, name, installation.clock).sweep(before):
            log.info("uploads swept", repository=name, count=count)


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
