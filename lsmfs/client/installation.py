"""The installation behind a server: the verbs of `lsmfs.installation.Installation` that concern repositories."""

from collections.abc import AsyncIterator, Callable
from types import TracebackType

import msgspec

from lsmfs.client import wire
from lsmfs.client.repository import RemoteRepository
from lsmfs.client.transport import Transport, path_of
from lsmfs.model import check_branch_name, check_repository_name
from lsmfs.policy import RepositoryRecord
from lsmfs.settings import Settings
from refstore.errors import NotFound


class RemoteInstallation:
    """Use it as an async context manager: it has the connections."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self.clock = transport.clock
        self.endpoint = transport.endpoint

    async def __aenter__(self) -> "RemoteInstallation":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        await self._transport.aclose()

    async def create(
        self, name: str, default_branch: str = "main", settings: Settings | None = None, storage: str = ""
    ) -> RemoteRepository:
        """A new repository, at the URL `storage` if the server allows that one; `AlreadyExists`."""
        body = {
            "name": check_repository_name(name),
            "default_branch": check_branch_name(default_branch),
            "storage_namespace": storage,
        }
        await self._transport.change("POST", "/repositories", msgspec.Raw, body=body)
        return await self.repository(name)

    async def repository(self, name: str, settings: Settings | None = None) -> RemoteRepository:
        """The repository of that name; `NotFound`."""
        record = await self.record(name)
        if record.deleting:
            raise NotFound(f"repository {name!r} is being deleted: `lsmfs repo delete {name}` goes on with it")
        return RemoteRepository(self._transport, record)

    async def record(self, name: str) -> RepositoryRecord:
        """What is known of a repository, also of one that is being deleted; `NotFound`."""
        path = wire.BASE + path_of(check_repository_name(name))
        return await self._transport.read(path, RepositoryRecord)

    async def names(self) -> AsyncIterator[str]:
        """The names of all repositories that the user may read, ascending."""
        async for record in self.records():
            yield record.name

    async def records(self) -> AsyncIterator[RepositoryRecord]:
        """What is known of them, in ascending order of their names; also of those being deleted."""
        after, has_more = "", True
        while has_more:
            page = await self._transport.read(wire.BASE, wire.RecordPage, {"after": after})
            for record in page.records:
                yield record
                after = record.name
            has_more = page.has_more and bool(page.records)

    async def delete(self, name: str, tell: Callable[[int], None] | None = None) -> int:
        """Delete a repository with everything in it, or go on with that; how many objects went. `NotFound`."""
        path = wire.BASE + path_of(check_repository_name(name))
        count = (await self._transport.change("DELETE", path, wire.Removed)).objects
        if tell is not None:
            tell(count)
        return count
