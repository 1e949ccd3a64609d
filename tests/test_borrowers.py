"""A lender that is deleted and a borrower that comes at the same time: one of them sees the other."""

from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from lsmfs.borrowers import TOLD_MAX, check_unborrowed, forget, lend
from lsmfs.installation import Configuration, Installation
from lsmfs.policy import REPOSITORIES, RepositoryRecord
from refstore.drivers.memory import MemoryRefStore
from refstore.errors import Denied, NotFound
from refstore.store import Absent, Store
from tests.aio import aio
from tests.lsm.support import RefWrapper


async def add(store: Store, name: str, created_us: int = 1, deleting: bool = False) -> RepositoryRecord:
    record = RepositoryRecord(name, "main", created_us, deleting=deleting)
    await store.set(REPOSITORIES, name.encode(), msgspec.json.encode(record))
    return record


async def written(store: Store, lender: str) -> AsyncIterator[str]:
    async for item in store.scan(f"{lender}/borrowers"):
        yield item.key.decode()


@aio
async def test_a_lender_with_borrowers_is_told_with_their_names() -> None:
    store = MemoryRefStore()
    lake = await add(store, "lake")
    for number in range(TOLD_MAX + 2):
        await lend(store, lake, await add(store, f"pond-{number:02}"))
    with pytest.raises(Denied, match=r"pond-00, pond-01, .*, pond-09 and 2 more first"):
        await check_unborrowed(store, "lake")
    await check_unborrowed(store, "pond-00")


@aio
async def test_a_borrower_that_is_gone_or_was_made_anew_counts_for_nothing() -> None:
    store = MemoryRefStore()
    lake = await add(store, "lake")
    for name in ("gone", "anew"):
        await lend(store, lake, await add(store, name, 1))
    await store.delete(REPOSITORIES, b"gone")
    await add(store, "anew", 2)
    await check_unborrowed(store, "lake")
    assert [name async for name in written(store, "lake")] == []


@aio
async def test_a_borrower_whose_deletion_has_not_ended_counts() -> None:
    store = MemoryRefStore()
    await lend(store, await add(store, "lake"), await add(store, "pond"))
    await add(store, "pond", deleting=True)
    with pytest.raises(Denied, match="delete pond first"):
        await check_unborrowed(store, "lake")


@pytest.mark.parametrize(("created_us", "deleting"), [(1, True), (2, False)])
@aio
async def test_nothing_is_borrowed_from_a_lender_that_goes(created_us: int, deleting: bool) -> None:
    store = MemoryRefStore()
    lake, pond = await add(store, "lake"), await add(store, "pond")
    await add(store, "lake", created_us, deleting)
    with pytest.raises(NotFound, match="being deleted"):
        await lend(store, lake, pond)
    assert [name async for name in written(store, "lake")] == []


@aio
async def test_what_is_written_down_of_a_repository_goes_with_it() -> None:
    store = MemoryRefStore()
    lake, pond, river = [await add(store, name) for name in ("lake", "pond", "river")]
    for lender, borrower in ((lake, pond), (pond, river), (lake, river)):
        await lend(store, lender, borrower)
    await forget(store, "pond")
    assert [name async for name in written(store, "lake")] == ["river"]
    assert [name async for name in written(store, "pond")] == []


@aio
async def test_a_borrower_that_comes_while_its_lender_is_marked_is_seen_and_the_lender_stays(tmp_path: Path) -> None:
    async with Installation(tmp_path, Configuration(), {}) as installation:
        lake, pond = [await installation.create(name) for name in ("lake", "pond")]

        class Late(RefWrapper):
            """Who borrows has looked at the lender just before it is marked, and is written down just after."""

            async def set_if(self, partition: str, key: bytes, value: bytes, expected: bytes | Absent) -> None:
                await self.inner.set_if(partition, key, value, expected)
                if b'"deleting":true' in value:
                    await self.inner.set("lake/borrowers", b"pond", str(pond.record.created_us).encode())

        installation.refs = Late(installation.refs)
        with pytest.raises(Denied, match="delete pond first"):
            await installation.delete("lake")
        again = await installation.repository("lake")
        assert (await again.view("main")).branch.name == "main"
        for repository in (lake, pond, again):
            await repository.aclose()
