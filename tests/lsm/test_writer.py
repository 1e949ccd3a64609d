"""The write client: what it acknowledges is there, once and in order, and under pressure."""

import asyncio

import msgspec
import pytest

from compactor.executor import compact
from compactor.planner import Plan
from lsmfs.lsm.memstore import Batch
from lsmfs.lsm.writer import Writer
from lsmfs.model import Entry, Extent
from lsmfs.objectstore.counting import CountingStore
from lsmfs.objectstore.faulting import Fault, FaultingStore, Kind
from lsmfs.objectstore.memory import MemoryStore
from refstore import refs as rules
from refstore.errors import (
    Invalid,
    LayersFull,
    NotFound,
    Unavailable,
)
from refstore.store import ABSENT
from tests.aio import aio
from tests.lsm.support import (
    SETTINGS,
    another_client,
    entry,
    keys,
    memory_repository,
    rows_of,
)
from tests.lsm.writing import Gate, disturbed, l1, settle, truth, with_writer


@aio
async def test_what_is_put_is_there_when_the_put_returns_for_every_client() -> None:
    repository = await memory_repository()
    other = await another_client(repository)
    async with repository.writer("main") as writer:
        await writer.put("a", entry(1))
        assert await repository.get("main", "a") == await other.get("main", b"a") == entry(1)
        await writer.put(b"a", entry(2))
        assert await other.get("main", "a") == entry(2)
        await writer.delete("a")
        for client in (repository, other):
            with pytest.raises(NotFound, match="'a' does not exist on 'main'"):
                await client.get("main", "a")
        await writer.delete("never there")


@aio
async def test_operations_on_one_key_keep_the_order_in_which_they_were_asked_for() -> None:
    repository = await memory_repository()
    async with repository.writer("main") as writer:
        puts = [writer.put("a", entry(n)) for n in range(10)]
        await asyncio.gather(*puts, writer.delete("a"), writer.put("a", entry(10)), writer.put("b", entry(1)))
        await asyncio.gather(writer.put("b", entry(2)), writer.delete("b"))
    assert await truth(repository) == {b"a": entry(10)}


@aio
async def test_batches_whose_uploads_overtake_each_other_are_appended_in_order() -> None:
    store = Gate(MemoryStore())
    repository = await memory_repository(store, settings=with_writer(flush_bytes=1, flushes_max=4))
    store.is_shut = True
    async with repository.writer("main") as writer:
        puts = []
        for n in range(4):
            puts.append(asyncio.ensure_future(writer.put("a", entry(n))))
            await settle()
        assert len(store.waiting) == 4  # four uploads are under way
        for waiter in reversed(store.waiting):
            waiter.set_result(None)
            await settle()
        await asyncio.gather(*puts)
    assert await truth(repository) == {b"a": entry(3)}
    assert len(await l1(repository)) == 4


@aio
async def test_concurrent_puts_share_one_flush_and_those_that_come_during_it_share_the_next() -> None:
    store = CountingStore(MemoryStore())
    repository, refs = await disturbed(store)
    before = store.calls("put")
    async with repository.writer("main") as writer:
        await asyncio.gather(*(writer.put(key, entry(1)) for key in keys(range(1000))))
        assert (store.calls("put") - before, refs.calls["append"]) == (1, 1)
        first = asyncio.ensure_future(writer.put("x", entry(1)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)  # its flush has begun
        await asyncio.gather(first, *(writer.put(key, entry(2)) for key in keys(range(1000))))
        assert (store.calls("put") - before, refs.calls["append"]) == (3, 3)
    assert len(await truth(repository)) == 1001


@aio
async def test_a_writer_that_lingers_flushes_once_for_all_that_come_meanwhile() -> None:
    store = CountingStore(MemoryStore())
    repository = await memory_repository(store, settings=with_writer(linger_seconds=0.02))
    before = store.calls("put")
    async with repository.writer("main") as writer:
        puts = []
        for n in range(5):
            puts.append(asyncio.ensure_future(writer.put(f"k{n}", entry(n))))
            await settle()
        await asyncio.gather(*puts)
    assert store.calls("put") - before == 1


@aio
async def test_flush_waits_for_all_that_was_put_before() -> None:
    repository = await memory_repository()
    async with repository.writer("main") as writer:
        puts = [asyncio.ensure_future(writer.put(key, entry(1))) for key in keys(range(10))]
        await asyncio.sleep(0)
        await writer.flush()
        assert all(put.done() for put in puts)
        await writer.flush()  # with nothing to do


@aio
async def test_a_layer_carries_its_history() -> None:
    repository = await memory_repository()
    async with repository.writer("main") as writer:
        for n in range(3):
            await writer.put("a", entry(n), "e1" if n == 2 else None)
    facts = [(await repository.tables.load(name)).facts for name in await l1(repository)]
    branch = await repository.refs.read("repo", "main")
    assert [one["lsmfs.number"] for one in facts] == ["1", "2", "3"]
    assert {(one["lsmfs.branch"], one["lsmfs.incarnation"]) for one in facts} == {("main", branch.incarnation)}
    assert len({one["lsmfs.writer"] for one in facts}) == 1
    assert [one["lsmfs.seen"] for one in facts] == ["1", "2", "3"]
    assert [one["lsmfs.expected_view"] for one in facts] == ["", "", "3"]


@aio
async def test_puts_wait_while_too_much_is_not_yet_acknowledged() -> None:
    store = Gate(MemoryStore())
    settings = with_writer(buffer_bytes_max=2000, flush_bytes=1, flushes_max=100)
    repository = await memory_repository(store, settings=settings)
    store.is_shut = True
    async with repository.writer("main") as writer:
        puts = []
        for key in keys(range(50)):
            puts.append(asyncio.ensure_future(writer.put(key, entry(1))))
            await settle()
        assert 5 <= len(store.waiting) <= 15  # of 50: an operation weighs some 200 bytes
        assert not any(put.done() for put in puts)
        store.open()
        await asyncio.gather(*puts)
    assert len(await truth(repository)) == 50


@aio
async def test_at_the_cap_of_layers_a_write_fails_at_its_deadline_and_says_what_to_do() -> None:
    repository = await memory_repository()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rules, "L1_TABLES_MAX", 3)
        async with repository.writer("main") as writer:
            for key in keys(range(3)):
                await writer.put(key, entry(1))
            with pytest.raises(LayersFull, match="3 tables waiting for compaction: run a compactor"):
                await writer.put("late", entry(1))
            assert len(await truth(repository)) == 3
            branch = await repository.branches.read("main")
            await compact(repository, Plan(branch, branch.l1, branch.l2, "test"))
            await writer.put("later", entry(1))
    assert set(await truth(repository)) == {*keys(range(3)), b"later"}


@aio
async def test_at_the_cap_of_layers_writes_wait_for_the_compactor_and_then_succeed() -> None:
    repository = await memory_repository(settings=with_writer(deadline_seconds=20.0))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rules, "L1_TABLES_MAX", 3)
        async with repository.writer("main") as writer:
            work = asyncio.ensure_future(asyncio.gather(*(_puts(writer, at) for at in range(4))))
            while not work.done():
                await asyncio.sleep(0.001)
                branch = await repository.branches.read("main")
                if len(branch.l1) == 3:
                    await compact(repository, Plan(branch, branch.l1, branch.l2, "test"))
            await work
    assert len(await truth(repository)) == 20


async def _puts(writer: Writer, at: int) -> None:
    for n in range(5):
        await writer.put(f"k{at}-{n}", entry(n))


@aio
async def test_closing_waits_for_what_was_put_and_refuses_what_comes_later() -> None:
    store = Gate(MemoryStore())
    repository = await memory_repository(store)
    store.is_shut = True
    writer = repository.writer("main")
    await writer.__aenter__()
    first = asyncio.ensure_future(writer.put("a", entry(1)))
    await settle()
    second = asyncio.ensure_future(writer.put("b", entry(1)))
    await settle()
    closing = asyncio.ensure_future(writer.aclose())
    await settle()
    assert not closing.done()
    with pytest.raises(Invalid, match="writer to branch 'main' is closed"):
        await writer.put("c", entry(1))
    store.open()
    await closing
    await asyncio.gather(first, second)
    await writer.aclose()
    for late in (
        writer.put("c", entry(1)),
        writer.delete("a"),
        writer.put("c", entry(1), ABSENT),
        writer.stage(rows_of({b"c": entry(1)})),
    ):
        with pytest.raises(Invalid, match="closed"):
            await late
    assert await truth(repository) == {b"a": entry(1), b"b": entry(1)}


@aio
async def test_closing_answers_the_puts_that_wait_for_room() -> None:
    store = Gate(MemoryStore())
    repository = await memory_repository(store, settings=with_writer(buffer_bytes_max=500, flush_bytes=1))
    store.is_shut = True
    writer = repository.writer("main")
    await writer.__aenter__()
    puts = [asyncio.ensure_future(writer.put(key, entry(1))) for key in keys(range(20))]
    await settle()
    closing = asyncio.ensure_future(writer.aclose())
    await settle()
    store.open()
    await closing
    answers = await asyncio.gather(*puts, return_exceptions=True)
    accepted = [key for key, answer in zip(keys(range(20)), answers, strict=True) if answer is None]
    assert {type(answer) for answer in answers} == {type(None), Invalid}
    assert sorted(await truth(repository)) == accepted


@aio
async def test_a_cancelled_put_is_done_all_the_same_and_hurts_nobody_else() -> None:
    store = Gate(MemoryStore())
    repository = await memory_repository(store)
    store.is_shut = True
    async with repository.writer("main") as writer:
        tasks = [asyncio.ensure_future(writer.put(key, entry(1))) for key in keys(range(3))]
        await settle()
        queued = asyncio.ensure_future(writer.put("k00009", entry(1), ABSENT))
        await settle()
        tasks[1].cancel()
        queued.cancel()
        await settle()
        store.open()
        answers = await asyncio.gather(*tasks, queued, return_exceptions=True)
        await writer.put("after", entry(1))
    assert [type(answer).__name__ for answer in answers] == ["NoneType", "CancelledError", "NoneType", "CancelledError"]
    assert sorted(await truth(repository)) == [b"after", *keys([0, 1, 2, 9])]


@aio
async def test_a_body_that_raises_closes_the_writer_and_keeps_what_was_acknowledged() -> None:
    repository = await memory_repository()

    async def broken() -> None:
        async with repository.writer("main") as writer:
            await writer.put("a", entry(1))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await broken()
    assert await truth(repository) == {b"a": entry(1)}


@aio
async def test_an_upload_that_fails_fails_its_puts_and_no_others() -> None:
    failing = True

    def plan(verb: str, name: str, number: int) -> Fault | None:
        return Fault(Kind.BEFORE) if failing and verb == "put" and "/tables/" in name else None

    repository = await memory_repository(FaultingStore(MemoryStore(), plan))
    async with repository.writer("main") as writer:
        answers = await asyncio.gather(
            writer.put("a", entry(1)), writer.put("b", entry(1), ABSENT), return_exceptions=True
        )
        assert {type(answer) for answer in answers} == {Unavailable}
        with pytest.raises(Unavailable):
            await writer.stage(rows_of({b"c": entry(1)}))
        failing = False
        await writer.put("d", entry(1))
    assert await truth(repository) == {b"d": entry(1)}


@aio
async def test_an_upload_that_fails_does_not_let_later_batches_overtake_earlier_ones() -> None:
    """The batch after a failed one waits for the one before it too: else both append under one sequence number, and
    one of them is acknowledged without being there."""
    store = Gate(MemoryStore())
    repository = await memory_repository(store, settings=with_writer(flush_bytes=1, flushes_max=4))
    store.is_shut = True
    async with repository.writer("main") as writer:
        puts = []
        for n in range(3):
            puts.append(asyncio.ensure_future(writer.put("a", entry(n))))
            await settle()
        first, second, third = store.waiting
        second.set_exception(Unavailable("no"))
        await settle()
        third.set_result(None)
        await settle()
        early = await l1(repository)
        first.set_result(None)
        answers = await asyncio.gather(*puts, return_exceptions=True)
    assert early == ()
    assert [type(answer) for answer in answers] == [type(None), Unavailable, type(None)]
    assert len(await l1(repository)) == 2
    assert await truth(repository) == {b"a": entry(2)}


@aio
async def test_an_entry_that_cannot_be_stored_is_refused_alone() -> None:
    repository = await memory_repository()
    async with repository.writer("main") as writer:
        answers = await asyncio.gather(
            writer.put("a", entry(1)),
            writer.put("b", Entry("\ud800", 1)),
            writer.put("c", Entry("x", 2**70)),
            writer.put("d", Entry("x", 1, metadata={"k": "\udc00"})),
            writer.put("e", entry(1)),
            return_exceptions=True,
        )
    assert [type(answer) for answer in answers] == [type(None), Invalid, Invalid, Invalid, type(None)]
    assert await truth(repository) == {b"a": entry(1), b"e": entry(1)}


@pytest.mark.parametrize("key", ["", b"", "a" * 1025, "ü" * 513, "a\0b", b"a\xff", "a\ud800"])
@aio
async def test_a_key_that_cannot_be_one_is_invalid_everywhere(key: str | bytes) -> None:
    repository = await memory_repository()
    async with repository.writer("main") as writer:
        for call in (
            writer.put(key, entry(1)),
            writer.put(key, entry(1), ABSENT),
            writer.delete(key),
            repository.get("main", key),
            repository.get_many("main", [key]),
        ):
            with pytest.raises(Invalid, match="key"):
                await call
    assert await l1(repository) == ()


@pytest.mark.parametrize("name", ["", "a/b", "-x", "ä", "a..b", "x" * 256])
@aio
async def test_a_branch_name_that_cannot_be_one_is_invalid(name: str) -> None:
    repository = await memory_repository()
    with pytest.raises(Invalid, match="branch name"):
        repository.writer(name)
    with pytest.raises(Invalid, match="branch name"):
        await repository.commit(name, "m")


@aio
async def test_the_settings_of_the_tests_are_those_of_the_writer() -> None:
    assert SETTINGS.writer == with_writer().writer


@aio
async def test_a_flush_that_is_cancelled_cancels_nobodys_writes() -> None:
    store = Gate(MemoryStore())
    repository = await memory_repository(store)
    store.is_shut = True
    async with repository.writer("main") as writer:
        put = asyncio.ensure_future(writer.put("a", entry(1)))
        await settle()
        flush = asyncio.ensure_future(writer.flush())
        await settle()
        flush.cancel()
        await settle()
        store.open()
        await put
    assert await truth(repository) == {b"a": entry(1)}


def test_a_batch_weighs_the_metadata_and_extents_of_its_entries() -> None:
    plain, batch = entry(1), Batch()
    usual = batch.add(b"a", plain)
    large = msgspec.structs.replace(plain, metadata={"a": "x" * 5000}, rest=(Extent("mem://b/2", 0, 1),))
    assert batch.add(b"a", large) > usual + 5000
    assert batch.weight > 2 * usual + 5000
