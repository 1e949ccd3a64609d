"""Units: tables that are staged or prepared whole, and seen whole or not at all."""

import asyncio

import pytest

from lsmfs import paths
from lsmfs.objectstore.counting import CountingStore
from lsmfs.objectstore.memory import MemoryStore
from refstore.errors import (
    Error,
    Invalid,
)
from refstore.store import ABSENT
from tests.aio import aio
from tests.lsm.support import (
    another_client,
    entry,
    keys,
    memory_repository,
    rows_of,
)
from tests.lsm.writing import Gate, l1, settle, truth, with_writer


@aio
async def test_a_staged_table_is_one_unit_that_no_reader_sees_in_part() -> None:
    repository = await memory_repository(settings=with_writer(unit_rows_max=50))
    observer = await another_client(repository)
    seen: set[int] = set()
    done = False

    async def observe() -> None:
        while not done:
            seen.add(len((await observer.list("main")).items))
            await asyncio.sleep(0)

    watching = asyncio.ensure_future(observe())
    async with repository.writer("main") as writer:
        await writer.stage(rows_of({key: entry(1) for key in keys(range(50))}))
        await writer.stage(rows_of({key: entry(2) for key in keys(range(50, 300))}))
        await writer.stage(rows_of(dict.fromkeys(keys(range(300)))))
    done = True
    await watching
    assert seen <= {0, 50, 300}
    assert [name[0] for name in await l1(repository)] == ["t", "u", "u"]
    assert await truth(repository) == {}


@aio
async def test_what_was_put_before_a_unit_goes_before_it_and_what_comes_after_it_after() -> None:
    store = Gate(MemoryStore())
    repository = await memory_repository(store)
    store.is_shut = True
    async with repository.writer("main") as writer:
        work = [
            writer.put("a", entry(1)),
            writer.stage(rows_of({b"a": entry(2), b"b": entry(2)})),
            writer.put("b", entry(3)),
            writer.stage(rows_of({b"c": entry(4)})),
            writer.delete("c"),
        ]
        tasks = []
        for one in work:
            tasks.append(asyncio.ensure_future(one))
            await settle()
        store.is_shut = False
        for waiter in reversed(store.waiting):
            waiter.set_result(None)
            await settle()
        await asyncio.gather(*tasks)
    assert await truth(repository) == {b"a": entry(2), b"b": entry(3)}


@aio
async def test_a_table_without_rows_is_staged_as_nothing() -> None:
    store = CountingStore(MemoryStore())
    repository = await memory_repository(store)
    before = store.calls("put")
    async with repository.writer("main") as writer:
        await writer.stage(rows_of({}))
        with pytest.raises(Invalid, match="no rows"):
            await writer.prepare(rows_of({}))
    assert store.calls("put") == before
    assert await l1(repository) == ()


@pytest.mark.parametrize("rows_max", [10, 1000])
@aio
async def test_a_prepared_layer_is_seen_when_any_writer_stages_it_and_not_before(rows_max: int) -> None:
    repository = await memory_repository(settings=with_writer(unit_rows_max=rows_max))
    other = await another_client(repository)
    content = {key: entry(1) for key in keys(range(100))}
    async with repository.writer("main") as writer:
        name = await writer.prepare(rows_of(dict(content)))
        await writer.put("k00000", entry(9))
    assert await truth(repository) == {b"k00000": entry(9)}
    async with other.writer("main") as writer:
        await writer.stage_prepared(name)
    assert await truth(repository) == content
    assert (await l1(repository))[-1] == name


@aio
async def test_a_prepared_layer_that_is_gone_or_damaged_is_not_staged() -> None:
    repository = await memory_repository()
    async with repository.writer("main") as writer:
        gone = await writer.prepare(rows_of({b"a": entry(1)}))
        damaged = await writer.prepare(rows_of({b"a": entry(1)}))
    await repository.store.delete(paths.layer_path("repo", gone))
    await repository.store.put(paths.layer_path("repo", damaged), b"oops")
    client = await another_client(repository)
    async with client.writer("main") as writer:
        with pytest.raises(Error):
            await writer.stage_prepared(gone)
        with pytest.raises(Error):
            await writer.stage_prepared(damaged)
    assert await l1(repository) == ()


@pytest.mark.parametrize("name", ["", "x", "passwd", "t1", "../../etc/passwd", "t0-a-1-" + "g" * 32])
@aio
async def test_a_prepared_name_that_nobody_was_given_is_an_error_of_ours(name: str) -> None:
    repository = await memory_repository()
    async with repository.writer("main") as writer:
        with pytest.raises(Error):
            await writer.stage_prepared(name)
    assert await l1(repository) == ()


@aio
async def test_layers_are_numbered_in_the_order_of_their_batches_however_they_are_uploaded() -> None:
    repository = await memory_repository()
    async with repository.writer("main") as writer:
        prepared = await writer.prepare(rows_of({b"b": entry(1)}))
        condition = asyncio.ensure_future(writer.put("a", entry(1), ABSENT))  # decided after what is before it
        await asyncio.sleep(0)
        await asyncio.gather(
            condition, writer.stage(rows_of({b"a": entry(2)})), writer.stage(rows_of({b"a": entry(3)}))
        )
        await writer.stage_prepared(prepared)
    facts = [(await repository.tables.load(name)).facts for name in await l1(repository)]
    assert [one["lsmfs.number"] for one in facts] == ["1", "2", "3", "0"]
