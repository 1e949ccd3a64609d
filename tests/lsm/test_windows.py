"""Merging many layers in windows: their size is bounded by all layers together, loose tables and runs alike."""

import pytest

from lsmfs.lsm import build
from lsmfs.lsm.build import Shape, changes, write_run
from lsmfs.lsm.run import Run
from lsmfs.objectstore.counting import CountingStore
from lsmfs.objectstore.memory import MemoryStore
from tests.aio import aio
from tests.lsm.support import content_of, entry, keys, memory_tables, rows_of

LAYERS, ROWS = 20, 200


@pytest.mark.parametrize("as_runs", [True, False])
@aio
async def test_many_small_layers_are_merged_in_bounded_windows(as_runs: bool) -> None:
    tables = memory_tables()
    layers: list[str | Run] = []
    for number in range(LAYERS):
        rows = rows_of({key: entry(number) for key in keys(range(number, LAYERS * ROWS, LAYERS))})
        if as_runs:
            layers.append(await write_run(tables, rows, 0, Shape(16, 1 << 20)))
        else:
            layers.append(await tables.save_table(rows, 0, f"u{number}", {}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "WINDOW_ROWS", 500)
        patch.setattr(build, "MARK_ROWS", 16)
        windows = [window async for window in changes(tables, layers)]
    # Beyond its rows a window has at most one piece more of each layer: a range, or the rows between two marks.
    assert max(map(len, windows)) < 500 + LAYERS * (100 if as_runs else 16)
    assert [key for window in windows for key in content_of(window)] == keys(range(LAYERS * ROWS))


@aio
async def test_many_runs_are_read_once_however_many_windows_they_take() -> None:
    store = CountingStore(MemoryStore())
    tables = memory_tables(store)
    runs: list[str | Run] = []
    for number in range(LAYERS):
        rows = rows_of({key: entry(number) for key in keys(range(number, LAYERS * ROWS, LAYERS))})
        runs.append(await write_run(tables, rows, 0, Shape(100, 1 << 20)))
    before = store.calls("get")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "WINDOW_ROWS", 100)
        windows = [window async for window in changes(tables, runs)]
    assert len(windows) > 10
    assert [key for window in windows for key in content_of(window)] == keys(range(LAYERS * ROWS))
    assert store.calls("get") - before == sum(len(run) for run in runs if isinstance(run, Run))


@pytest.mark.parametrize("window", [1, 50, 1 << 18])
@aio
async def test_a_part_of_the_keys_is_read_from_the_ranges_that_have_it(window: int) -> None:
    store = CountingStore(MemoryStore())
    tables = memory_tables(store)
    run = await write_run(tables, rows_of({key: entry(1) for key in keys(range(1000))}), 0, Shape(16, 1 << 20))
    start, stop = run.min_keys[3], run.max_keys[5]
    before = store.calls("get")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "WINDOW_ROWS", window)
        found = [key async for rows in changes(tables, [run], start, stop) for key in content_of(rows)]
    assert found == [key for key in keys(range(1000)) if start <= key < stop]
    assert store.calls("get") - before == 3
    assert [rows async for rows in changes(tables, [run], stop, start)] == []
