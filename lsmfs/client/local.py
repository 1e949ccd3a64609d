"""The same verbs in process: an installation whose repositories also store and read bodies, as those of a server do."""

from collections.abc import AsyncIterator

from lsmfs.blocks import ALONE, Bodies, read_body
from lsmfs.installation import Installation
from lsmfs.model import Entry
from lsmfs.objectstore.store import Span
from lsmfs.policy import RepositoryRecord, read_record
from lsmfs.repository import Repository
from lsmfs.settings import Settings
from refstore.store import Absent


class LocalRepository(Repository):
    def __init__(self, opened: Repository, installation: Installation) -> None:
        """What the installation has opened, with bodies."""
        super().__init__(opened.store, opened.refs, opened.record, opened.clock, opened.settings, installation.disk)
        self._installation = installation

    async def put_object(
        self,
        branch: str,
        path: str,
        body: AsyncIterator[bytes],
        content_type: str | None = None,
        metadata: dict[str, str] | None = None,
        expected: str | Absent | None = None,
    ) -> Entry:
        """Store a body as an object, visible when all of it is there. `Conflict` if the condition does not hold."""
        entry = await self._saved(branch, body, content_type, metadata)
        async with self.writer(branch) as writer:
            await writer.put(path, entry, expected)
        return entry

    async def append_object(self, branch: str, path: str, body: AsyncIterator[bytes]) -> int:
        """Add a body to the end of an object, where there is none it begins; how many bytes."""
        entry = await self._saved(branch, body, None, None)
        async with self.writer(branch) as writer:
            await writer.append_extents(path, entry.extents)
        return entry.size_bytes

    async def _saved(
        self, branch: str, body: AsyncIterator[bytes], content_type: str | None, metadata: dict[str, str] | None
    ) -> Entry:
        bodies = Bodies(self.store, self.name, self.clock, ALONE)
        generation = (await self.branches.read(branch)).floor
        return await bodies.save(body, generation, content_type, metadata or None)

    def read_object(self, ref: str, path: str, entry: Entry, span: Span | None = None) -> AsyncIterator[bytes]:
        """The bytes that the entry describes, or those of the span."""
        installation = self._installation
        return read_body(entry, self.store, installation.foreign, installation.store_url, span)


class LocalInstallation(Installation):
    async def create(
        self, name: str, default_branch: str = "main", settings: Settings | None = None, storage: str = ""
    ) -> LocalRepository:
        return LocalRepository(await super().create(name, default_branch, settings, storage), self)

    async def repository(self, name: str, settings: Settings | None = None) -> LocalRepository:
        return LocalRepository(await super().repository(name, settings), self)

    async def record(self, name: str) -> RepositoryRecord:
        """What is known of a repository, also of one that is being deleted; `NotFound`."""
        return (await read_record(self.refs, name))[0]
