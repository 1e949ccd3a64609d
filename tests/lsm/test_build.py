"""Building runs: equal content gives equal runs whatever the history, and what no change touches is not read."""

import asyncio

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lsmfs.lsm import boundary, build
from lsmfs.lsm.build import Shape, apply_layers, write_run
from lsmfs.lsm.run import EMPTY_RUN, Run
from lsmfs.lsm.tables import Tables
from lsmfs.model import Entry
from lsmfs.objectstore.counting import CountingStore
from lsmfs.objectstore.memory import MemoryStore
from lsmfs.objectstore.store import ANYTHING, Body, Precondition, Tag
from refstore.errors import Unavailable
from tests.aio import aio
from tests.lsm.support import SHAPE, entry, keys, memory_tables, rows_of, run_content

Content = dict[bytes, Entry | None]

KEYS = st.one_of(
    st.integers(0, 300).map(lambda n: f"k{n:05}".encode()),
    st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=20).map(str.encode),
)
ENTRIES = st.integers(0, 5).map(entry)
LAYERS = st.lists(
    st.tuples(st.booleans(), st.dictionaries(KEYS, st.one_of(st.none(), ENTRIES), min_size=1, max_size=60)),
    min_size=1,
    max_size=3,
)
SHAPES = st.sampled_from([Shape(4, 1 << 20), Shape(16, 700), Shape(3, 260), Shape(1 << 20, 500), Shape(1, 1 << 20)])


def apply_to(content: Content, changes: Content, drop_tombstones: bool) -> Content:
    merged = {**content, **changes}
    return {k: v for k, v in merged.items() if v is not None} if drop_tombstones else merged


async def save_layer(tables: Tables, changes: Content, as_run: bool, shape: Shape) -> str | Run:
    rows = rows_of(changes)
    if as_run:
        return await write_run(tables, rows, 0, shape)
    return await tables.save_table(rows, 0, f"u{len(changes)}", {})


async def built(tables: Tables, numbers: list[int], shape: Shape = SHAPE) -> Run:
    return await write_run(tables, rows_of({key: entry(1) for key in keys(numbers)}), 0, shape)


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    start=st.dictionaries(KEYS, ENTRIES, max_size=200),
    history=st.lists(LAYERS, min_size=1, max_size=4),
    shape=SHAPES,
    drop=st.booleans(),
    window=st.sampled_from([1, 7, 1 << 18]),
)
def test_any_history_gives_the_run_of_building_the_same_content_from_scratch(
    start: dict[bytes, Entry], history: list[list[tuple[bool, Content]]], shape: Shape, drop: bool, window: int
) -> None:
    async def check() -> None:
        tables = memory_tables()
        content: Content = dict(start)
        run = await write_run(tables, rows_of(content), 0, shape)
        for oldest_first in history:
            layers = [await save_layer(tables, changes, as_run, shape) for as_run, changes in reversed(oldest_first)]
            for _, changes in oldest_first:
                content = apply_to(content, changes, False)
            content = apply_to(content, {}, drop)
            run = await apply_layers(tables, run, layers, 0, shape, drop_tombstones=drop)
            assert await run_content(tables, run) == content
            scratch = await write_run(tables, rows_of(content), 0, shape)
            assert run.table.equals(scratch.table)
            assert run.content_hash() == scratch.content_hash()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "WINDOW_ROWS", window)
        asyncio.run(check())


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 400), max_size=300, unique=True), SHAPES, st.integers(1, 50))
def test_a_run_written_in_windows_is_the_run_written_at_once(numbers: list[int], shape: Shape, window: int) -> None:
    async def check() -> None:
        at_once = await built(memory_tables(), numbers, shape)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(build, "WINDOW_ROWS", window)
            in_windows = await built(memory_tables(), numbers, shape)
        assert at_once.table.equals(in_windows.table)

    asyncio.run(check())


@aio
async def test_a_layer_that_says_nothing_new_gives_the_same_run() -> None:
    tables = memory_tables()
    run = await built(tables, list(range(300)))
    same = await tables.save_table(rows_of({key: entry(1) for key in keys(range(40, 60))}), 0, "u", {})
    assert (await apply_layers(tables, run, [same], 0, SHAPE, True)).content_hash() == run.content_hash()


@aio
async def test_untouched_ranges_are_kept_by_reference_and_not_read() -> None:
    store = CountingStore(MemoryStore())
    tables = memory_tables(store)
    run = await built(tables, list(range(0, 2000, 2)), Shape(16, 1 << 20))
    middle = run.min_keys[len(run) // 2]
    layer = await tables.save_table(rows_of({middle: entry(7)}), 0, "u", {})
    puts = store.calls("put")
    changed = await apply_layers(tables, run, [layer], 0, Shape(16, 1 << 20), True)
    assert store.calls("get") == 2  # the layer, and the one range that holds the key
    assert store.calls("put") - puts == 1
    assert len(set(changed.files) & set(run.files)) == len(run) - 1 > 40


@aio
async def test_a_range_that_loses_its_boundary_flows_into_the_next_and_no_further() -> None:
    store = CountingStore(MemoryStore())
    tables = memory_tables(store)
    shape = Shape(16, 1 << 20)
    run = await built(tables, list(range(1000)), shape)
    layer = await tables.save_table(rows_of({run.max_keys[5]: None}), 0, "u", {})
    changed = await apply_layers(tables, run, [layer], 0, shape, True)
    assert store.calls("get") == 3
    assert len(changed) == len(run) - 1
    assert changed.files[:5] == run.files[:5]
    assert changed.files[6:] == run.files[7:]


@aio
async def test_keys_beyond_a_last_range_closed_by_its_hash_begin_a_new_one_without_reading_it() -> None:
    store = CountingStore(MemoryStore())
    tables = memory_tables(store)
    shape = Shape(16, 1 << 20)
    run = await built(tables, list(range(1000)), shape)
    closed = next(n for n in range(999, 0, -1) if boundary.ends_after(keys([n])[0], 16))
    run = await built(tables, list(range(closed + 1)), shape)
    layer = await tables.save_table(rows_of({b"z": entry(1)}), 0, "u", {})
    before = store.calls("get")
    changed = await apply_layers(tables, run, [layer], 0, shape, True)
    assert store.calls("get") - before == 1
    assert changed.files[:-1] == run.files


@aio
async def test_compaction_keeps_tombstones_and_a_commit_drops_them() -> None:
    tables = memory_tables()
    key = keys([3])[0]
    layer = await tables.save_table(rows_of({key: None}), 0, "u", {})
    lower = await built(tables, list(range(10)))
    compacted = await apply_layers(tables, EMPTY_RUN, [layer], 0, SHAPE, drop_tombstones=False)
    assert (compacted.count, compacted.tombstones) == (1, 1)
    assert await run_content(tables, compacted) == {key: None}
    committed = await apply_layers(tables, lower, [compacted], 0, SHAPE, drop_tombstones=True)
    assert (committed.count, committed.tombstones) == (9, 0)


@aio
async def test_deleting_everything_gives_the_empty_run() -> None:
    tables = memory_tables()
    run = await built(tables, list(range(200)))
    layer = await tables.save_table(rows_of(dict.fromkeys(keys(range(200)))), 0, "u", {})
    emptied = await apply_layers(tables, run, [layer], 0, SHAPE, True)
    assert (len(emptied), emptied.content_hash()) == (0, EMPTY_RUN.content_hash())


@aio
async def test_a_failed_upload_fails_the_build_with_that_error_and_leaves_no_task_behind() -> None:
    class Failing(MemoryStore):
        puts = 0

        async def put(self, name: str, body: Body, expected: Precondition = ANYTHING) -> Tag:
            self.puts += 1
            await asyncio.sleep(0)
            if self.puts > 6:
                raise Unavailable("full")
            return await super().put(name, body, expected)

    tables = memory_tables(Failing())
    with pytest.raises(Unavailable, match="full"):
        await built(tables, list(range(1000)))
    assert asyncio.all_tasks() == {asyncio.current_task()}


def test_the_run_of_pinned_content_never_changes_its_id() -> None:
    """Stored trees depend on it: if this fails, the format has changed."""
    run = asyncio.run(built(memory_tables(), list(range(100)), Shape(16, 1 << 20)))
    assert run.content_hash() == PINNED
    assert EMPTY_RUN.content_hash() == PINNED_EMPTY


PINNED = "d043e20af0dcc9945d646e1bac1fbbbc7b885745d74f240a203e9922e9564aaa"
PINNED_EMPTY = "3af9ec7f4073fe6197b4a276c1ed1f06c039e47abf75f11f2a6b10d511dbcbff"
