"""Fresh branch reads, shared: a reader never gets an answer that was asked for before it came."""

import asyncio

import msgspec
import pytest

from lsmfs.lsm.branches import BranchReader
from refstore.drivers.memory import MemoryRefStore
from refstore.errors import Corrupt, NotFound, Unavailable
from refstore.records import Branch, CommitId, Create, SealLayers
from tests.aio import aio
from tests.lsm.support import RefWrapper


class SlowRefs(RefWrapper):
    """A read looks at once and answers when it is told to."""

    def __init__(self) -> None:
        super().__init__(MemoryRefStore())
        self.answers: list[asyncio.Future[None]] = []
        self.changed = 0

    async def read(self, repository: str, name: str) -> Branch:
        self.calls["read"] += 1
        seen = msgspec.structs.replace(await self.inner.read(repository, name), version=1 + self.changed)
        answer = asyncio.get_running_loop().create_future()
        self.answers.append(answer)
        await answer
        return seen


async def opened() -> tuple[SlowRefs, BranchReader]:
    refs = SlowRefs()
    await refs.inner.change("repo", "main", Create(incarnation="life", base_commit=CommitId("0")))
    return refs, BranchReader(refs, "repo")


async def turn() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


@aio
async def test_readers_that_come_during_a_lookup_share_the_next_one_and_see_what_was_done_before_they_came() -> None:
    refs, reader = await opened()
    first = asyncio.ensure_future(reader.read("main"))
    await turn()
    refs.changed += 1  # a write is acknowledged after the first lookup looked
    late = [asyncio.ensure_future(reader.read("main")) for _ in range(20)]
    await turn()
    assert refs.calls["read"] == 1
    refs.answers[0].set_result(None)
    await turn()
    assert first.done()
    assert not any(task.done() for task in late)
    assert refs.calls["read"] == 2
    refs.answers[1].set_result(None)
    assert (await first).version == 1
    assert {(await task).version for task in late} == {2}
    assert refs.calls["read"] == 2


@aio
async def test_readers_that_come_during_the_shared_lookup_wait_for_the_one_after_it() -> None:
    refs, reader = await opened()
    tasks = []
    for _ in range(3):
        tasks.append(asyncio.ensure_future(reader.read("main")))
        await turn()
    refs.answers[0].set_result(None)
    await turn()
    refs.changed += 1
    last = asyncio.ensure_future(reader.read("main"))
    await turn()
    refs.answers[1].set_result(None)
    await turn()
    refs.answers[2].set_result(None)
    assert [(await task).version for task in tasks] == [1, 1, 1]
    assert (await last).version == 2


@aio
async def test_a_reader_that_is_cancelled_leaves_the_others_served() -> None:
    refs, reader = await opened()
    first, second, third = [asyncio.ensure_future(reader.read("main")) for _ in range(3)]
    await turn()
    first.cancel()
    await turn()
    second.cancel()
    await turn()
    refs.answers[-1].set_result(None)
    assert (await third).version == 1
    again = asyncio.ensure_future(reader.read("main"))
    await turn()
    refs.answers[-1].set_result(None)
    assert (await again).version == 1
    assert first.cancelled()
    assert second.cancelled()


@aio
async def test_an_error_reaches_every_reader_and_the_next_read_is_tried_anew() -> None:
    refs, reader = await opened()
    tasks = [asyncio.ensure_future(reader.read("main"))]
    await turn()
    tasks += [asyncio.ensure_future(reader.read("main")) for _ in range(2)]
    await turn()
    refs.answers[0].set_exception(Unavailable("no"))
    await turn()
    refs.answers[1].set_exception(Unavailable("no"))
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(answer) for answer in answers] == [Unavailable] * 3
    with pytest.raises(NotFound):
        await reader.read("other")


@aio
async def test_branches_do_not_wait_for_each_other() -> None:
    refs, reader = await opened()
    await refs.inner.change("repo", "dev", Create(incarnation="life", base_commit=CommitId("0")))
    main, dev = asyncio.ensure_future(reader.read("main")), asyncio.ensure_future(reader.read("dev"))
    await turn()
    assert refs.calls["read"] == 2
    refs.answers[1].set_result(None)
    assert (await dev).name == "dev"
    refs.answers[0].set_result(None)
    await main


@aio
async def test_a_branch_that_goes_back_in_version_is_corrupt_and_a_new_life_is_not() -> None:
    refs = MemoryRefStore()
    branch = await refs.change("repo", "main", Create(incarnation="life", base_commit=CommitId("0")))
    reader = BranchReader(refs, "repo")
    reader.observe(msgspec.structs.replace(branch, version=5))
    with pytest.raises(Corrupt, match="went back from version 5 to 1"):
        await reader.read("main")
    reader.observe(msgspec.structs.replace(branch, version=9, incarnation="earlier life"))
    assert (await reader.read("main")).version == 1


@aio
async def test_a_read_that_is_overtaken_by_a_change_answers_the_newer_of_both() -> None:
    refs, reader = await opened()
    reading = asyncio.ensure_future(reader.read("main"))
    await turn()
    sealed = await refs.inner.change("repo", "main", SealLayers(incarnation="life"))
    reader.observe(msgspec.structs.replace(sealed, version=7))
    refs.answers[0].set_result(None)
    assert (await reading).version == 7
