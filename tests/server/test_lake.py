"""A server's open lake: writers are shared, what is gone is noticed, what is open is bounded, closing waits."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from lsmfs.clock import SystemClock
from lsmfs.installation import Configuration, Installation
from lsmfs.model import Entry
from lsmfs.objectstore.store import Span
from lsmfs.policy import FRESH_SECONDS
from lsmfs.server import lake as lake_module
from lsmfs.server.lake import IDLE_SECONDS, Lake
from refstore.errors import BranchReplaced, Conflict, Denied, Invalid, NotFound, Unavailable
from refstore.records import Append, Branch, BranchChange
from refstore.store import ABSENT
from tests.aio import aio
from tests.blocks.support import pieces
from tests.lsm.support import DisturbedRefs


class MovedClock(SystemClock):
    """Time goes on, and a test may move it."""

    def __init__(self) -> None:
        super().__init__()
        self.ahead = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead


class Bench:
    """A lake with a repository "lake", its clock, and what its ref store hears."""

    def __init__(self, folder: Path) -> None:
        self.installation = Installation(folder, Configuration(), {})
        self.clock = MovedClock()
        self.refs = DisturbedRefs(self.installation.refs)
        self.installation.clock = self.clock
        self.installation.refs = self.refs
        self.lake = Lake(self.installation)

    @property
    def appends(self) -> int:
        return self.refs.calls["append"]

    async def create(self, name: str, storage: str = "") -> None:
        await (await self.installation.create(name, storage=storage)).aclose()

    async def put(self, path: str, body: bytes, branch: str = "main", repository: str = "lake") -> Entry:
        entry = await self.lake.save_body(repository, pieces(body))
        async with self.lake.writing(repository, branch) as writer:
            await writer.put(path, entry)
        return entry

    async def get(self, path: str, branch: str = "main", repository: str = "lake") -> bytes:
        entry = await (await self.lake.repository(repository)).get(branch, path)
        return b"".join([piece async for piece in self.lake.read_body(repository, entry)])


@contextlib.asynccontextmanager
async def opened(folder: Path, *names: str) -> AsyncIterator[Bench]:
    bench = Bench(folder)
    async with bench.installation:
        for name in names or ("lake",):
            await bench.create(name)
        try:
            yield bench
        finally:
            await bench.lake.aclose()


def held(
    begun: asyncio.Event, gate: asyncio.Event
) -> "Callable[[BranchChange, Callable[[], Awaitable[Branch]]], Awaitable[Branch]]":
    """Appends wait at the gate."""

    async def disturb(change: BranchChange, do: Callable[[], Awaitable[Branch]]) -> Branch:
        if isinstance(change, Append):
            begun.set()
            await gate.wait()
        return await do()

    return disturb


@aio
async def test_what_is_put_is_read_whole_and_in_part(tmp_path: Path) -> None:
    async with opened(tmp_path) as bench:
        entry = await bench.put("a", b"hello")
        assert await bench.get("a") == b"hello"
        assert [piece async for piece in bench.lake.read_body("lake", entry, Span(1, 3))] == [b"el"]


@aio
async def test_puts_at_the_same_time_share_flushes(tmp_path: Path) -> None:
    async with opened(tmp_path) as bench:
        await asyncio.gather(*(bench.put(f"{number}", b"%d" % number) for number in range(100)))
        assert bench.appends < 20
        assert [await bench.get(f"{number}") for number in (0, 50, 99)] == [b"0", b"50", b"99"]
        branch = await (await bench.lake.repository("lake")).branches.read("main")
        assert len(branch.writers) == 1


@aio
async def test_a_write_that_is_refused_leaves_the_writer_as_it_was(tmp_path: Path) -> None:
    async with opened(tmp_path) as bench:
        await bench.put("a", b"1")
        async with bench.lake.writing("lake", "main") as first:
            with pytest.raises(Conflict):
                await first.put("a", Entry("x", 1), ABSENT)
        async with bench.lake.writing("lake", "main") as second:
            assert second is first


@aio
async def test_a_repository_that_is_not_there_is_not_found(tmp_path: Path) -> None:
    async with opened(tmp_path) as bench:
        with pytest.raises(NotFound, match="'pond' does not exist"):
            await bench.lake.repository("pond")
        with pytest.raises(NotFound):
            async with bench.lake.writing("lake", "nowhere"):
                raise AssertionError("there is no such branch")


@aio
async def test_a_repository_that_was_deleted_and_made_anew_by_another_is_noticed(tmp_path: Path) -> None:
    async with opened(tmp_path) as bench:
        await bench.put("a", b"old")
        await bench.installation.delete("lake")
        bench.clock.ahead += FRESH_SECONDS
        with pytest.raises(NotFound):
            await bench.put("a", b"nowhere")
        await bench.create("lake")
        await bench.put("b", b"old")  # of the same content as what went with the one before
        assert await bench.get("b") == b"old"
        with pytest.raises(NotFound):
            await bench.get("a")


@aio
async def test_one_that_was_made_anew_at_once_is_noticed_too(tmp_path: Path) -> None:
    async with opened(tmp_path) as bench:
        await bench.put("a", b"old")
        await bench.installation.delete("lake")
        await bench.create("lake")
        bench.clock.ahead += FRESH_SECONDS
        await bench.put("a", b"old")
        assert await bench.get("a") == b"old"


@aio
async def test_a_repository_that_is_forgotten_is_opened_again_at_once(tmp_path: Path) -> None:
    async with opened(tmp_path) as bench:
        await bench.put("a", b"old")
        await bench.installation.delete("lake")
        await bench.lake.forget("lake")
        await bench.lake.forget("lake")
        await bench.create("lake")
        await bench.put("a", b"new")
        assert await bench.get("a") == b"new"


@aio
async def test_a_repository_that_went_is_read_to_the_end_by_those_who_have_it(tmp_path: Path) -> None:
    async with opened(tmp_path) as bench:
        await bench.put("a", b"1")
        repository = await bench.lake.repository("lake")
        await bench.lake.forget("lake")
        assert (await repository.get("main", "a")).size_bytes == 1
        await repository.aclose()


@aio
async def test_the_writer_of_a_deleted_branch_is_dropped(tmp_path: Path) -> None:
    async with opened(tmp_path) as bench:
        repository = await bench.lake.repository("lake")
        await repository.create_branch("dev", "main")
        await bench.put("a", b"1", "dev")
        async with bench.lake.writing("lake", "dev") as first:
            pass
        await repository.delete_branch("dev")
        with pytest.raises(NotFound):
            await bench.put("a", b"2", "dev")
        with pytest.raises(Invalid, match="closed"):
            await first.put("a", Entry("x", 1))
        await repository.create_branch("dev", "main")
        await bench.put("a", b"3", "dev")
        assert await bench.get("a", "dev") == b"3"


@aio
async def test_the_writer_of_a_branch_that_was_made_anew_is_dropped(tmp_path: Path) -> None:
    async with opened(tmp_path) as bench:
        repository = await bench.lake.repository("lake")
        await repository.create_branch("dev", "main")
        await bench.put("a", b"1", "dev")
        await repository.delete_branch("dev")
        await repository.create_branch("dev", "main")
        with pytest.raises(BranchReplaced):
            await bench.put("a", b"2", "dev")
        await bench.put("a", b"3", "dev")
        assert await bench.get("a", "dev") == b"3"


@aio
async def test_writers_are_bounded_and_those_that_are_used_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lake_module, "WRITERS_MAX", 3)
    async with opened(tmp_path) as bench:
        repository = await bench.lake.repository("lake")
        for name in "bcd":
            await repository.create_branch(name, "main")
        async with bench.lake.writing("lake", "main") as main:
            writers = []
            for name in "bcd":
                await bench.put("a", name.encode(), name)
                async with bench.lake.writing("lake", name) as writer:
                    writers.append(writer)
            await main.put("a", Entry("x", 1))  # used all the time
            for writer, is_closed in zip(writers, (True, False, False), strict=True):
                if is_closed:
                    with pytest.raises(Invalid, match="closed"):
                        await writer.put("a", Entry("x", 1))
                else:
                    await writer.put("a", Entry("x", 1))
        assert await bench.get("a", "b") == b"b"


@aio
async def test_repositories_are_bounded_and_those_that_are_written_to_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lake_module, "REPOSITORIES_MAX", 2)
    async with opened(tmp_path, "lake", "pond", "river", "ocean") as bench:
        async with bench.lake.writing("lake", "main") as writer:
            pond = await bench.lake.repository("pond")
            for name in ("river", "ocean"):
                await bench.put("a", b"1", repository=name)
            await writer.put("a", Entry("x", 1))
            async with bench.lake.writing("lake", "main") as again:
                assert again is writer
        assert await bench.lake.repository("pond") is not pond
        await pond.aclose()


@aio
async def test_idle_writers_are_closed_and_others_are_not(tmp_path: Path) -> None:
    async with opened(tmp_path) as bench:
        repository = await bench.lake.repository("lake")
        for name in "bc":
            await repository.create_branch(name, "main")
        writers = []
        async with bench.lake.writing("lake", "b") as used:
            for name in ("main", "c"):
                async with bench.lake.writing("lake", name) as writer:
                    writers.append(writer)
                bench.clock.ahead += IDLE_SECONDS / 2
            bench.clock.ahead += 1
            await bench.lake.close_idle()
            with pytest.raises(Invalid, match="closed"):
                await writers[0].put("a", Entry("x", 1))
            await writers[1].put("a", Entry("x", 1))
            await used.put("a", Entry("x", 1))
        await bench.put("a", b"1")
        assert await bench.get("a") == b"1"


@aio
async def test_closing_waits_for_writes_and_lets_nobody_in(tmp_path: Path) -> None:
    async with opened(tmp_path) as bench:
        begun, gate = asyncio.Event(), asyncio.Event()
        bench.refs.disturb = held(begun, gate)
        writing = asyncio.create_task(bench.put("a", b"1"))
        await begun.wait()
        closing = asyncio.create_task(bench.lake.aclose())
        await asyncio.sleep(0.01)
        assert not closing.done()
        with pytest.raises(Unavailable, match="stopping"):
            await bench.lake.repository("lake")
        gate.set()
        await closing
        assert writing.done()
        await writing
        async with await bench.installation.repository("lake") as repository:
            assert (await repository.get("main", "a")).size_bytes == 1


@aio
async def test_closing_lets_who_has_a_writer_still_write(tmp_path: Path) -> None:
    async with opened(tmp_path) as bench:
        async with bench.lake.writing("lake", "main") as writer:
            closing = asyncio.create_task(bench.lake.aclose())
            await asyncio.sleep(0.01)
            await writer.put("a", Entry("x", 1))
            assert not closing.done()
        await closing


@aio
async def test_who_is_cancelled_while_a_writer_is_opened_leaves_it_to_the_others(tmp_path: Path) -> None:
    async with opened(tmp_path) as bench:
        await bench.lake.repository("lake")
        puts = [asyncio.create_task(bench.put(f"{number}", b"1")) for number in range(4)]
        for _ in range(3):
            await asyncio.sleep(0)
        puts[0].cancel()
        answers = await asyncio.gather(*puts, return_exceptions=True)
        assert [type(answer) for answer in answers[1:]] == [Entry] * 3


@aio
async def test_borrowing_is_one_write_for_each_pair(tmp_path: Path) -> None:
    async with opened(tmp_path, "lake", "pond", "river") as bench:
        for _ in range(3):
            await bench.lake.borrow("lake", "pond")
            await bench.lake.borrow("lake", "river")
            await bench.lake.borrow("pond", "pond")
        assert bench.refs.calls["set"] == 2
        found = [item.key async for item in bench.refs.scan("lake/borrowers")]
        assert found == [b"pond", b"river"]


@aio
async def test_a_lender_is_not_deleted_before_its_borrowers(tmp_path: Path) -> None:
    async with opened(tmp_path, "lake", "pond", "river") as bench:
        entry = await bench.put("a", b"shared")
        for name in ("pond", "river"):
            await bench.lake.borrow("lake", name)
            async with bench.lake.writing(name, "main") as writer:
                await writer.put("a", entry)
        with pytest.raises(Denied, match="delete pond, river first"):
            await bench.installation.delete("lake")
        assert await bench.get("a", repository="pond") == b"shared"
        await bench.put("b", b"the lender lives on")
        await bench.installation.delete("river")
        assert [item.key async for item in bench.refs.scan("lake/borrowers")] == [b"pond"]
        with pytest.raises(Denied, match="delete pond first"):
            await bench.installation.delete("lake")
        await bench.installation.delete("pond")
        await bench.installation.delete("lake")


@aio
async def test_a_borrower_that_is_made_anew_borrows_anew(tmp_path: Path) -> None:
    async with opened(tmp_path, "lake", "pond") as bench:
        await bench.lake.borrow("lake", "pond")
        await bench.installation.delete("pond")
        await bench.lake.forget("pond")
        await bench.create("pond")
        await bench.lake.borrow("lake", "pond")
        with pytest.raises(Denied, match="delete pond first"):
            await bench.installation.delete("lake")


@aio
async def test_bytes_are_not_borrowed_from_other_storage(tmp_path: Path) -> None:
    async with opened(tmp_path) as bench:
        await bench.create("pond", storage=f"file://{tmp_path}/elsewhere")
        for pair in (("lake", "pond"), ("pond", "lake")):
            with pytest.raises(Invalid, match="different storage"):
                await bench.lake.borrow(*pair)
        await bench.installation.delete("lake")
