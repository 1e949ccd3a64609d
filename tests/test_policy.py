"""Read-only repositories, protected branches, and deletion that can be interrupted anywhere."""

import itertools
from collections.abc import AsyncIterator, Callable

import pytest

from lsmfs import policy, removal
from lsmfs.objectstore.faulting import Fault, FaultingStore, Kind
from lsmfs.objectstore.memory import MemoryStore
from lsmfs.objectstore.store import ObjectInfo
from lsmfs.objectstore.wrapper import WrapperStore
from lsmfs.policy import REPOSITORIES
from lsmfs.removal import KINDS, delete_repository
from lsmfs.repository import Repository
from refstore.drivers.memory import MemoryRefStore
from refstore.errors import Denied, Error, Invalid, NotFound
from tests.aio import aio
from tests.lsm.support import another_client, entry, memory_repository, put_all, visible
from tests.tree.test_branches import committed


class TestProtection:
    @aio
    async def test_a_protected_branch_takes_merges_and_nothing_else(self) -> None:
        repository = await memory_repository()
        await repository.create_branch("dev", "main")
        await repository.protect("ma*")
        with pytest.raises(Denied, match="protected against writes by the rule 'ma\\*'"):
            await put_all(repository, {b"a": entry(1)})
        for verb in (repository.commit("main", "no"), repository.hard_reset("main", "main")):
            with pytest.raises(Denied, match="protected against commits"):
                await verb
        await committed(repository, {b"a": entry(1)}, "dev")
        await repository.merge("dev", "main")
        assert await visible(repository) == {b"a": entry(1)}

    @aio
    async def test_a_rule_may_block_commits_alone_and_can_be_taken_back(self) -> None:
        repository = await memory_repository()
        await repository.protect("main", ["commit"])
        await put_all(repository, {b"a": entry(1)})
        with pytest.raises(Denied):
            await repository.commit("main", "no")
        await repository.protect("main", [])
        assert repository.record.rules == ()
        await repository.commit("main", "yes")
        with pytest.raises(Invalid):
            await repository.protect("main", ["everything"])  # type: ignore[list-item]

    @aio
    async def test_a_writer_that_is_open_already_is_refused_as_soon_as_the_rule_is_known(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(policy, "FRESH_SECONDS", -1.0)
        repository = await memory_repository()
        async with repository.writer("main") as writer:
            await writer.put("a", entry(1))
            await (await another_client(repository)).protect("main")
            with pytest.raises(Denied):
                await writer.put("b", entry(1))
        assert await visible(repository) == {b"a": entry(1)}


class TestReadOnly:
    @aio
    async def test_nothing_changes_until_it_is_writable_again(self) -> None:
        repository = await memory_repository()
        await committed(repository, {b"a": entry(1)})
        await repository.set_read_only(True)
        other = await another_client(repository)
        verbs = (
            put_all(other, {b"b": entry(1)}),
            other.commit("main", "no"),
            other.create_branch("dev", "main"),
            other.create_tag("v1", "main"),
            other.reset("main"),
            other.merge("main~", "main"),
            other.revert("main", "main"),
        )
        for verb in verbs:
            with pytest.raises(Denied, match="read-only"):
                await verb
        assert await visible(other) == {b"a": entry(1)}
        await repository.set_read_only(False)
        await committed(repository, {b"b": entry(1)})

    @aio
    async def test_metadata_is_kept(self) -> None:
        repository = await memory_repository()
        await repository.set_metadata({"team": "data"})
        assert (await another_client(repository)).record.metadata == {"team": "data"}


async def full(store: MemoryStore, refs: MemoryRefStore) -> Repository:
    repository = await memory_repository(store, refs=refs)
    await committed(repository, {b"a": entry(1)})
    await repository.create_branch("dev", "main")
    await put_all(repository, {b"b": entry(1)}, "dev")
    await repository.create_tag("v1", "main")
    await repository.create_branch("gone", "main")
    await repository.delete_branch("gone")
    return repository


async def left(store: MemoryStore, refs: MemoryRefStore) -> list[object]:
    items = [item for kind in KINDS async for item in refs.scan(f"repo/{kind}")]
    records = [item async for item in refs.scan(REPOSITORIES)]
    branches = [branch async for branch in refs.branches("repo")]
    return [*items, *records, *branches, *[i async for i in store.list("repo/")], *await refs.events("repo")]


def _failing_at(call: int) -> Callable[[str, str, int], Fault | None]:
    calls = itertools.count()
    return lambda *_: Fault(Kind.BEFORE) if next(calls) == call else None


class LateWriter(WrapperStore):
    """A store to which somebody uploads one thing more after some deletes."""

    def __init__(self, inner: MemoryStore, after: int) -> None:
        super().__init__(inner)
        self.after = after
        self.deletes = self.looked = 0

    async def delete(self, name: str) -> None:
        self.deletes += 1
        await self.inner.delete(name)
        if self.deletes == self.after:
            await self.inner.put("repo/aaa-late", b"x")

    async def list(self, prefix: str = "", after: str = "") -> AsyncIterator[ObjectInfo]:
        async for info in self.inner.list(prefix, after):
            self.looked += 1
            yield info


class TestDeletion:
    @aio
    async def test_everything_of_it_goes_and_the_name_is_free(self) -> None:
        store, refs = MemoryStore(), MemoryRefStore()
        repository = await full(store, refs)
        other = await Repository.create(store, refs, "other", threads=False)
        heard: list[int] = []
        gone = await delete_repository(store, refs, refs, "repo", repository.clock, heard.append)
        assert gone == sum(heard) > 5
        assert [item.key async for item in refs.scan(REPOSITORIES)] == [b"other"]
        await refs.delete(REPOSITORIES, b"other")
        assert await left(store, refs) == []
        assert len([0 async for _ in other.log("main")]) == 1
        await full(store, refs)

    @aio
    async def test_objects_go_in_batches_of_names_and_also_those_that_come_meanwhile(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(removal, "NAMES_AT_ONCE", 3)
        store, refs = MemoryStore(), MemoryRefStore()
        repository = await full(store, refs)
        there = len([0 async for _ in store.list("repo/")])
        heard: list[int] = []
        late = LateWriter(store, 4)
        assert await delete_repository(late, refs, refs, "repo", repository.clock, heard.append) == there + 1
        assert late.deletes == there + 1
        assert max(heard) == 3
        assert late.looked <= there + 3 * len(heard)  # a look ends with its batch
        assert await left(store, refs) == []

    @aio
    async def test_interrupted_at_any_call_of_the_object_store_it_is_opened_by_nobody_and_ends_when_repeated(
        self,
    ) -> None:
        done, after = False, 0
        while not done:
            store, refs = MemoryStore(), MemoryRefStore()
            repository = await full(store, refs)
            broken = FaultingStore(store, _failing_at(after))
            try:
                await delete_repository(broken, refs, refs, "repo", repository.clock)
                done = True
            except Error:
                with pytest.raises(NotFound, match="is being deleted"):
                    await another_client(repository)
                await delete_repository(store, refs, refs, "repo", repository.clock)
            assert await left(store, refs) == []
            after += 1
        assert after > 5
