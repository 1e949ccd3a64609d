"""Tags: names of commits that never move. In the ref store, one item each."""

from collections.abc import AsyncIterator

from lsmfs.model import check_branch_name
from refstore.errors import AlreadyExists, Conflict, NotFound
from refstore.records import CommitId
from refstore.store import ABSENT, Store


class Tags:
    """The tags of one repository."""

    def __init__(self, store: Store, repository: str) -> None:
        self._store = store
        self._partition = f"{repository}/tags"  # a repository's name has no slash

    async def create(self, name: str, commit: CommitId) -> None:
        """Name the commit; to do it again changes nothing, `AlreadyExists` if the tag names another one."""
        key = check_branch_name(name, "tag").encode()
        try:
            await self._store.set_if(self._partition, key, commit.encode(), ABSENT)
        except Conflict:
            there = await self.find(name)
            if there != commit:
                raise AlreadyExists(f"tag already exists: {name!r} names commit {there}") from None

    async def find(self, name: str) -> CommitId | None:
        found = await self._store.get(self._partition, name.encode())
        return None if found is None else CommitId(found.decode())

    async def all(self, prefix: str = "", after: str = "") -> AsyncIterator[tuple[str, CommitId]]:
        """In ascending order of the name."""
        async for item in self._store.scan(self._partition, after.encode(), prefix.encode()):
            if item.key.decode() != after:
                yield item.key.decode(), CommitId(item.value.decode())

    async def delete(self, name: str) -> None:
        if await self.find(check_branch_name(name, "tag")) is None:
            raise NotFound(f"tag {name!r} does not exist")
        await self._store.delete(self._partition, name.encode())
