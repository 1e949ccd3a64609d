"""Tables and Runs by name: flip any byte, cut anywhere, and the answer is Corrupt or right, never wrong."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lsmfs import paths
from lsmfs.lsm import records, table
from lsmfs.lsm.build import Shape, write_run
from lsmfs.lsm.cache import DiskCache
from lsmfs.lsm.run import EMPTY_RUN, RANGE_SCHEMA, Run
from lsmfs.lsm.tables import OPEN_TABLES_MAX, Tables
from lsmfs.objectstore.counting import CountingStore
from lsmfs.objectstore.memory import MemoryStore
from lsmfs.objectstore.store import ObjectStore
from refstore.errors import Corrupt, Error, Invalid, NotFound
from refstore.records import RunId
from tests.aio import aio
from tests.lsm.support import content_of, entry, keys, memory_tables, rows_of, run_content

SMALL = {b"a": entry(1), b"b": None, "ü".encode(): entry(3)}
MASKS = (0x01, 0x80, 0xFF)


async def make_table(tables: Tables, content: dict[bytes, Any]) -> str:
    return await tables.save_table(rows_of(content), 0, "unique", {"lsmfs.writer": "w"})


async def make_range(tables: Tables, content: dict[bytes, Any]) -> str:
    return str((await tables.save_range(rows_of(content), 0))["file"])


async def make_unit(tables: Tables, content: dict[bytes, Any]) -> str:
    run = await write_run(tables, rows_of(content), 0, Shape(1, 1 << 20))
    return await tables.save_unit(run, 0, "unique", {})


async def make_run(tables: Tables, content: dict[bytes, Any]) -> str:
    return await tables.save_run(await write_run(tables, rows_of(content), 0, Shape(1, 1 << 20)), 0)


MAKERS: dict[str, Callable[[Tables, dict[bytes, Any]], Any]] = {
    "table": make_table,
    "range": make_range,
    "unit": make_unit,
    "run": make_run,
}
kinds = pytest.mark.parametrize("kind", list(MAKERS))


async def fetched(store: ObjectStore, name: str) -> dict[bytes, Any]:
    """What a client that knows nothing yet reads behind the name."""
    tables = memory_tables(store)
    if paths.is_run(name):
        return await run_content(tables, await tables.load_run(RunId(name)))
    found = await tables.load(name)
    content = {found.key(row): found.entry(row) for row in range(found.count)}
    assert content == content_of(await tables.read(name))
    return content


def flipped(data: bytes, step: int) -> Iterator[bytes]:
    for at in range(0, len(data), step):
        yield data[:at] + bytes([data[at] ^ MASKS[at % len(MASKS)]]) + data[at + 1 :]


async def check_damaged(kind: str, content: dict[bytes, Any], step: int) -> None:
    store = MemoryStore()
    name = await MAKERS[kind](memory_tables(store), content)
    path = paths.layer_path("repo", name)
    data = await store.get(path)
    assert await fetched(store, name) == content
    for bad in flipped(data, step):
        await store.put(path, bad)
        try:
            found = await fetched(store, name)
        except Corrupt:
            continue
        except Invalid:
            assert kind == "run"  # only there a flipped bit may look like another format version
            continue
        assert kind == "run"  # its name has the hash of what it says: bytes that say nothing may change
        assert found == content


@kinds
@aio
async def test_any_flipped_byte_of_a_small_file_is_found(kind: str) -> None:
    await check_damaged(kind, SMALL, 1)


@kinds
@aio
async def test_flipped_bytes_of_a_larger_file_are_found(kind: str) -> None:
    await check_damaged(kind, {key: entry(n) for n, key in enumerate(keys(range(60)))}, 23)


@kinds
@aio
async def test_a_file_cut_off_anywhere_or_continued_is_corrupt(kind: str) -> None:
    store = MemoryStore()
    name = await MAKERS[kind](memory_tables(store), SMALL)
    path = paths.layer_path("repo", name)
    data = await store.get(path)
    for length in range(len(data)):
        await store.put(path, data[:length])
        with pytest.raises(Corrupt):
            await fetched(store, name)
    await store.put(path, data + b"\0")
    with pytest.raises(Corrupt):
        await fetched(store, name)


@kinds
@aio
async def test_the_file_of_another_name_is_corrupt(kind: str) -> None:
    store = MemoryStore()
    name = await MAKERS[kind](memory_tables(store), SMALL)
    other = await MAKERS[kind](memory_tables(store), {**SMALL, b"c": entry(4)})
    await store.put(paths.layer_path("repo", name), await store.get(paths.layer_path("repo", other)))
    with pytest.raises(Corrupt):
        await fetched(store, name)


@kinds
@aio
async def test_a_file_that_is_gone_is_not_found(kind: str) -> None:
    store = MemoryStore()
    name = await MAKERS[kind](memory_tables(store), SMALL)
    await store.delete(paths.layer_path("repo", name))
    with pytest.raises(NotFound):
        await fetched(store, name)


async def stored(store: ObjectStore, kind: str, data: bytes) -> str:
    """Bytes of a foreign hand under a name with the right checksum."""
    name = str(paths.TableFile(kind, 0, "0" * 20, len(data), table.digest_of(data)))
    await store.put(paths.layer_path("repo", name), data)
    return name


@aio
async def test_keys_out_of_order_or_doubled_are_corrupt_under_a_right_checksum() -> None:
    store = MemoryStore()
    rows = rows_of({key: entry(1) for key in keys(range(3))})
    for order in ([1, 0, 2], [0, 0, 1], [0, 2, 1]):
        name = await stored(store, "t", table.encode(rows.take(order), "table", {}))
        with pytest.raises(Corrupt, match="ascending"):
            await fetched(store, name)


@aio
async def test_another_format_version_is_invalid_under_a_right_checksum(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    with monkeypatch.context() as future:
        future.setattr(table, "FORMAT", "2")
        name = await stored(store, "t", table.encode(rows_of(SMALL), "table", {}))
        unit = await stored(store, "u", table.encode(EMPTY_RUN.table, "unit", {}, None))
    for one in (name, unit):
        with pytest.raises(Invalid, match="format version 2"):
            await fetched(store, one)


@pytest.mark.parametrize("kind", ["t", "g", "u"])
@aio
async def test_what_is_not_parquet_is_corrupt_under_a_right_checksum(kind: str) -> None:
    store = MemoryStore()
    for data in (b"", b"hello", b"PAR1" * 9):
        with pytest.raises(Corrupt):
            await fetched(store, await stored(store, kind, data))


@aio
async def test_a_table_where_a_run_should_be_and_a_run_where_a_table_should_be_are_corrupt() -> None:
    store = MemoryStore()
    run = await write_run(memory_tables(store), rows_of(SMALL), 0, Shape(1, 1 << 20))
    with pytest.raises(Corrupt):
        await fetched(store, await stored(store, "t", table.encode(run.table, "unit", {}, None)))
    with pytest.raises(Corrupt):
        await fetched(store, await stored(store, "u", table.encode(rows_of(SMALL), "table", {})))


WRONG_RANGES: dict[str, dict[str, Any]] = {
    "bounds that cross": {"min_key": "k00001", "max_key": "k00000"},
    "bounds that overlap the range before": {"min_key": "k00000~", "max_key": "k00002"},
    "no records": {"count": 0},
    "more tombstones than records": {"tombstones": 2},
    "a file that is no name": {"file": "passwd"},
    "no file": {"file": ""},
    "a file that is a table": {"file": str(paths.TableFile("t", 0, "0" * 20, 7, "0" * 32))},
    "a file of other content": {"id": bytes(32)},
    "a size that is not the file's": {"size_bytes": 1},
}


@pytest.mark.parametrize("wrong", list(WRONG_RANGES))
@aio
async def test_a_run_that_contradicts_itself_is_corrupt(wrong: str) -> None:
    store = MemoryStore()
    tables = memory_tables(store)
    rows = [await tables.save_range(rows_of({key: entry(1)}), 0) for key in keys([1, 3])]
    rows[0]["max_key"] = "k00001"
    rows[1].update(WRONG_RANGES[wrong])
    if wrong == "bounds that overlap the range before":
        rows[1]["max_key"] = "k00003"
    bad = Run.of(rows)
    with pytest.raises(Corrupt):
        await fetched(store, await stored(store, "u", table.encode(bad.table, "unit", {}, None)))
    name = await tables.save_run(bad, 0)
    with pytest.raises(Corrupt):
        await fetched(store, name)


@pytest.mark.parametrize("name", ["", "x", "passwd", "t", "t0-1-1-1", "../secret", "t../../x", "r0-zz", "u", "g0-"])
@aio
async def test_a_name_that_nobody_here_has_given_ends_in_an_error_of_ours(name: str) -> None:
    tables = memory_tables()
    for load in (tables.load, tables.read, tables.load_run):
        with pytest.raises(Error):
            await load(RunId(name))


@aio
async def test_concurrent_loads_share_one_fetch_and_later_ones_need_none() -> None:
    store = CountingStore(MemoryStore())
    name = await make_table(memory_tables(store), SMALL)
    run = RunId(await make_run(memory_tables(store), SMALL))
    tables = memory_tables(store)
    await asyncio.gather(*(tables.load(name) for _ in range(10)), *(tables.load_run(run) for _ in range(10)))
    await tables.load(name)
    await tables.load_run(run)
    assert store.calls("get") == 2


@aio
async def test_a_load_that_fails_is_tried_anew_by_the_next_caller_and_leaves_nothing_behind() -> None:
    store = MemoryStore()
    name = await make_table(memory_tables(store), SMALL)
    path = paths.layer_path("repo", name)
    data = await store.get(path)
    await store.delete(path)
    tables = memory_tables(store)
    answers = await asyncio.gather(*(tables.load(name) for _ in range(3)), return_exceptions=True)
    assert [type(answer) for answer in answers] == [NotFound] * 3
    await store.put(path, data)
    assert (await tables.load(name)).count == len(SMALL)


@aio
async def test_a_caller_that_is_cancelled_does_not_cancel_the_fetch_of_the_others() -> None:
    store = CountingStore(MemoryStore())
    name = await make_table(memory_tables(store), SMALL)
    tables = memory_tables(store)
    first, second = (asyncio.ensure_future(tables.load(name)) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    assert (await second).count == len(SMALL)
    assert first.cancelled()
    assert store.calls("get") == 1


@aio
async def test_equal_ranges_and_runs_are_stored_once_under_one_name() -> None:
    store = MemoryStore()
    first = await make_run(memory_tables(store), SMALL)
    names = [info.name async for info in store.list()]
    assert await make_run(memory_tables(store), SMALL) == first
    assert [info.name async for info in store.list()] == names


@aio
async def test_opened_tables_are_bounded() -> None:
    tables = memory_tables()
    names = []
    for n in range(OPEN_TABLES_MAX + 20):
        names.append(await tables.save_table(rows_of({b"a": entry(n)}), 0, f"u{n}", {}))
        await tables.load(names[-1])
    assert tables.peek(names[0]) is None
    assert sum(tables.peek(name) is not None for name in names) == OPEN_TABLES_MAX


@aio
async def test_a_client_with_the_cache_of_another_fetches_nothing(tmp_path: Path) -> None:
    store = CountingStore(MemoryStore())
    name = await make_table(memory_tables(store), SMALL)
    for _ in range(2):
        tables = Tables(store, "repo", DiskCache(tmp_path, 1 << 20), threads=False)
        assert content_of((await tables.load(name)).rows) == SMALL
        assert content_of(await tables.read(name)) == SMALL
    assert store.calls("get") == 1


@aio
async def test_what_is_corrupt_is_never_cached(tmp_path: Path) -> None:
    store = MemoryStore()
    name = await make_table(memory_tables(store), SMALL)
    path = paths.layer_path("repo", name)
    data = await store.get(path)
    await store.put(path, data[:-1])
    tables = Tables(store, "repo", DiskCache(tmp_path, 1 << 20), threads=False)
    with pytest.raises(Corrupt):
        await tables.load(name)
    await store.put(path, data)
    assert content_of((await tables.load(name)).rows) == SMALL


def test_the_schemas_of_stored_files_never_change() -> None:
    """Other engines and older versions read them."""
    assert records.SCHEMA.names == [
        "key", "kind", "size_bytes", "mtime", "etag", "address", "offset", "extents", "content_type", "metadata"
    ]  # fmt: skip
    assert RANGE_SCHEMA.names == ["max_key", "min_key", "count", "tombstones", "id", "size_bytes", "file"]
    assert RANGE_SCHEMA.field("id").type == pa.binary(32)


@aio
async def test_a_run_that_is_there_already_keeps_its_ranges_and_one_cut_off_is_mended() -> None:
    store = MemoryStore()
    rows = rows_of({b"a": entry(1)})
    ranges = [await memory_tables(store).save_range(rows, generation) for generation in (0, 1)]
    name = await memory_tables(store).save_run(Run.of(ranges[:1]), 1)
    tables = memory_tables(store)
    assert await tables.save_run(Run.of(ranges[1:]), 1) == name
    for client in (tables, memory_tables(store)):
        assert (await client.load_run(name)).files == [ranges[0]["file"]]
    path = paths.layer_path("repo", name)
    await store.put(path, (await store.get(path))[:-9])
    await tables.save_run(Run.of(ranges[1:]), 1)
    assert (await memory_tables(store).load_run(name)).files == [ranges[1]["file"]]
