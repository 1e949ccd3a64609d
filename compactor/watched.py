"""The repositories a compactor looks at: those named, or all there are, also those that come later.

Whoever watches all of them also sees to the end of deletions that somebody began.
"""

import asyncio

import structlog

from lsmfs.installation import Installation
from lsmfs.repository import Repository
from refstore.errors import Error, NotFound

log = structlog.get_logger("compactor")


class Watched:
    def __init__(self, installation: Installation, names: list[str]) -> None:
        self._installation = installation
        self._names = names
        self._open: dict[str, Repository] = {}
        self._removals: dict[str, asyncio.Task[None]] = {}

    async def refresh(self) -> list[Repository]:
        """Those that are there now, opened; `NotFound` for one that was named."""
        names = self._names or await self._all()
        for name in self._open.keys() - names:
            await self._open.pop(name).aclose()
        for name in names:
            if name not in self._open:
                await self._add(name)
        return [self._open[name] for name in names if name in self._open]

    async def _add(self, name: str) -> None:
        try:
            self._open[name] = await self._installation.repository(name)
        except NotFound:
            if name in self._names:
                raise  # else it went between the list and now

    async def _all(self) -> list[str]:
        records = [record async for record in self._installation.records()]
        for record in records:
            if record.deleting and (record.name not in self._removals or self._removals[record.name].done()):
                self._removals[record.name] = asyncio.ensure_future(self._remove(record.name))
        return [record.name for record in records if not record.deleting]

    async def _remove(self, name: str) -> None:
        """Somebody began to delete it: see to it that it ends."""
        try:
            log.info("deleted", repository=name, objects=await self._installation.delete(name))
        except Error as error:  # the next look tries again
            log.warning("not deleted yet", repository=name, error=str(error))

    async def aclose(self) -> None:
        for removal in self._removals.values():
            removal.cancel()  # it goes on where it was
        await asyncio.gather(*self._removals.values(), return_exceptions=True)
        for repository in self._open.values():
            await repository.aclose()
