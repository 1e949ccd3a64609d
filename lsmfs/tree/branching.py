"""What happens to a branch as a whole: it is created, deleted, restored, reset; its staged layers are put aside and
come back. Each is one change of its record, whatever is in it.

A deleted branch leaves its last record behind, from which it can be restored while its layers exist.
"""

from collections.abc import AsyncIterator

import msgspec

from lsmfs.tree.changer import BranchChanger
from refstore.errors import AlreadyExists, BranchReplaced, Conflict, Corrupt, NotFound
from refstore.records import (
    Branch,
    BranchChange,
    CommitId,
    Create,
    Delete,
    Reset,
    Restore,
    Stash,
    StashLayers,
    TakeStash,
    encode,
)
from refstore.store import Store

DELETE_TRIES_MAX = 10


class Deleted(msgspec.Struct, frozen=True):
    """A branch as it was. `number` orders the lives of a name: clocks do not."""

    branch: Branch
    number: int
    deleted_us: int


class Branching(BranchChanger):
    async def create(self, name: str, base: CommitId, floor: int, hidden: bool) -> Branch:
        create = Create(incarnation=self._clock.new_id(), base_commit=base, floor=floor, hidden=hidden)
        return await self.change(name, create)

    async def delete(self, name: str, store: Store) -> None:
        """Keep the record, then end the branch as it was kept; one that is too busy for that ends as it is."""
        for attempt in range(DELETE_TRIES_MAX):
            branch = await self._branches.read(name)
            if not branch.aside.hidden:
                await self._keep(store, branch)
            exact = not branch.aside.hidden and attempt < DELETE_TRIES_MAX - 1
            change = Delete(incarnation=branch.incarnation, expected_version=branch.version if exact else None)
            try:
                await self.change(name, change)
            except (NotFound, BranchReplaced):
                return  # by us, if an answer was lost, or by somebody else meanwhile
            except Conflict:
                continue
            return

    async def _keep(self, store: Store, branch: Branch) -> None:
        others = [each async for each in self.deleted(store, branch.name)]
        number = max((each.number for each in others if each.branch.incarnation != branch.incarnation), default=0) + 1
        data = encode(Deleted(branch, number, self._clock.now_us()))
        await self.retrying(lambda: store.set(self._partition, _key(branch), data))

    async def deleted(self, store: Store, name: str = "") -> AsyncIterator[Deleted]:
        """Branches that can be restored, by name, the latest of each name last."""
        found: list[Deleted] = []
        async for key, data in store.scan(self._partition, prefix=f"{name}/".encode() if name else b""):
            try:
                found.append(msgspec.json.decode(data, type=Deleted))
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise Corrupt(f"the record of deleted branch {key!r} cannot be read: {error}") from None
        for each in sorted(found, key=lambda deleted: (deleted.branch.name, deleted.number)):
            yield each

    async def restore(self, name: str, store: Store) -> Branch:
        """The branch as it was when it was deleted last; `NotFound`, `AlreadyExists`."""
        found = [each async for each in self.deleted(store, name)]
        if not found:
            raise NotFound(f"there is no deleted branch {name!r}")
        latest = found[-1]
        try:
            there = await self._branches.read(name)
        except NotFound:
            there = None
        if there is not None and there.incarnation == latest.branch.incarnation:
            raise AlreadyExists(f"branch {name!r} exists already")  # a delete that was begun and not done
        branch = await self.change(name, Restore(incarnation=self._clock.new_id(), branch=latest.branch))
        await self.retrying(lambda: store.delete(self._partition, _key(latest.branch)))
        return branch

    async def reset(self, name: str, base: CommitId | None = None, clean: bool = False) -> Branch:
        branch = await self._branches.read(name)
        change = Reset(incarnation=branch.incarnation, write=self._clock.new_id(), base=base, clean=clean)
        return await self.change(name, change)

    async def stash(self, name: str, message: str) -> Stash:
        incarnation = (await self._branches.read(name)).incarnation
        write, now = self._clock.new_id(), self._clock.now_us()
        change = StashLayers(incarnation=incarnation, write=write, message=message, created_us=now)
        return (await self.change(name, change)).aside.stashes[-1]

    async def take_stash(self, name: str, number: int | None, drop: bool) -> Stash:
        """Bring a stash back, or drop it; the latest if no number is given."""
        branch = await self._branches.read(name)
        found = [stash for stash in branch.aside.stashes if number in (None, stash.id)]
        if not found:
            what = "no stash" if number is None else f"no stash {number}"
            raise NotFound(f"branch {name!r} has {what}")
        change: BranchChange = TakeStash(
            incarnation=branch.incarnation, write=self._clock.new_id(), stash=found[-1].id, drop=drop
        )
        await self.change(name, change)
        return found[-1]

    @property
    def _partition(self) -> str:
        return deleted_partition(self._tables.repository)


def deleted_partition(repository: str) -> str:
    return f"{repository}/deleted"


def _key(branch: Branch) -> bytes:
    return f"{branch.name}/{branch.incarnation}".encode()
