"""Diff and merge of runs against plain dicts, whatever the shape; what is alike is neither read nor written."""

import asyncio

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lsmfs.lsm import build
from lsmfs.lsm.build import Shape, write_run
from lsmfs.lsm.run import EMPTY_RUN, Run
from lsmfs.lsm.tables import Tables
from lsmfs.model import Entry
from lsmfs.objectstore.counting import CountingStore
from lsmfs.objectstore.memory import MemoryStore
from lsmfs.tree.diff import ADDED, CHANGED, REMOVED, diff, kinds_of
from lsmfs.tree.merge import (
    BOTH,
    DEST_WINS,
    DESTINATION,
    SOURCE,
    SOURCE_WINS,
    MergeConflict,
    Strategy,
    merge_runs,
)
from refstore.errors import Invalid
from tests.aio import aio
from tests.lsm.support import content_of, entry, keys, memory_tables, rows_of, run_content

Content = dict[bytes, Entry]

KEYS = st.integers(0, 60).map(lambda number: f"k{number:05}".encode())
CONTENTS = st.dictionaries(KEYS, st.integers(0, 3).map(entry), max_size=40)
EDITS = st.dictionaries(KEYS, st.one_of(st.none(), st.integers(0, 3).map(entry)), max_size=12)
SHAPES = st.sampled_from([Shape(4, 1 << 20), Shape(3, 260), Shape(1 << 20, 500)])
RULES = st.sampled_from([None, SOURCE_WINS, DEST_WINS])


async def run_of(tables: Tables, content: Content, shape: Shape) -> Run:
    return await write_run(tables, rows_of(content), 0, shape) if content else EMPTY_RUN


def edited(content: Content, edits: dict[bytes, Entry | None]) -> Content:
    return {key: value for key, value in {**content, **edits}.items() if value is not None}


def expected_merge(base: Content, source: Content, destination: Content, rule: str | None) -> Content | set[bytes]:
    """The merged content, or the keys in conflict."""
    merged, clashes = dict(destination), set()
    for key in base.keys() | source.keys() | destination.keys():
        was, theirs, ours = base.get(key), source.get(key), destination.get(key)
        if theirs in (was, ours):
            continue
        if ours != was and rule is None:
            clashes.add(key)
        elif ours == was or rule == SOURCE_WINS:
            merged[key] = theirs  # type: ignore[assignment]
    return clashes or {key: value for key, value in merged.items() if value is not None}


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(base=CONTENTS, ours=EDITS, theirs=EDITS, shape=SHAPES, rule=RULES, window=st.sampled_from([1, 7, 1 << 18]))
def test_a_merge_is_the_merge_of_dicts(
    base: Content,
    ours: dict[bytes, Entry | None],
    theirs: dict[bytes, Entry | None],
    shape: Shape,
    rule: str | None,
    window: int,
) -> None:
    async def check() -> None:
        tables = memory_tables()
        source, destination = edited(base, theirs), edited(base, ours)
        below, above, into = [await run_of(tables, content, shape) for content in (base, source, destination)]
        expected = expected_merge(base, source, destination, rule)
        strategy = Strategy({"": rule} if rule else None)
        if isinstance(expected, set):
            with pytest.raises(MergeConflict) as conflict:
                await merge_runs(tables, below, above, into, 0, shape, strategy)
            assert {clash.key for clash in conflict.value.clashes} == expected
            for clash in conflict.value.clashes:
                assert clash[1:] == (base.get(clash.key), source.get(clash.key), destination.get(clash.key))
            return
        merged = await merge_runs(tables, below, above, into, 0, shape, strategy)
        assert await run_content(tables, merged) == expected
        assert merged.content_hash() == (await run_of(tables, expected, shape)).content_hash()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "WINDOW_ROWS", window)
        asyncio.run(check())


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(left=CONTENTS, edits=EDITS, shape=SHAPES, window=st.sampled_from([1, 7, 1 << 18]))
def test_a_diff_is_the_diff_of_dicts(
    left: Content, edits: dict[bytes, Entry | None], shape: Shape, window: int
) -> None:
    async def check() -> None:
        tables, right = memory_tables(), edited(left, edits)
        found: dict[bytes, int] = {}
        async for before, after in diff(tables, await run_of(tables, left, shape), await run_of(tables, right, shape)):
            assert content_of(before) == {key: left.get(key) for key in content_of(before)}
            assert content_of(after) == {key: right.get(key) for key in content_of(after)}
            found.update(zip(content_of(after), kinds_of(before, after).tolist(), strict=True))
        changed = {key for key in left.keys() | right.keys() if left.get(key) != right.get(key)}
        assert list(found) == sorted(changed)
        assert found == {
            key: CHANGED if key in left and key in right else ADDED if key in right else REMOVED for key in changed
        }

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "WINDOW_ROWS", window)
        asyncio.run(check())


@aio
async def test_a_diff_reads_only_ranges_that_differ() -> None:
    store = CountingStore(MemoryStore())
    tables, shape = memory_tables(store), Shape(16, 1 << 20)
    content = {key: entry(1) for key in keys(range(1000))}
    left = await run_of(tables, content, shape)
    right = await run_of(tables, {**content, left.min_keys[7]: entry(2)}, shape)
    before = store.calls("get")
    assert [len(rows) async for rows, _ in diff(tables, left, right)] == [1]
    assert store.calls("get") - before == 2


@aio
async def test_a_merge_of_disjoint_changes_writes_nothing_and_takes_both_sides_ranges() -> None:
    store = CountingStore(MemoryStore())
    tables, shape = memory_tables(store), Shape(16, 1 << 20)
    content = {key: entry(1) for key in keys(range(1000))}
    base = await run_of(tables, content, shape)
    source = await run_of(tables, {**content, base.min_keys[3]: entry(2)}, shape)
    destination = await run_of(tables, {**content, base.min_keys[9]: entry(3)}, shape)
    before = store.calls("put")
    merged = await merge_runs(tables, base, source, destination, 0, shape, Strategy())
    assert store.calls("put") == before
    assert merged.files[3] == source.files[3]
    assert merged.files[9] == destination.files[9]


@aio
async def test_what_both_sides_changed_alike_is_not_read() -> None:
    store = CountingStore(MemoryStore())
    tables, shape = memory_tables(store), Shape(16, 1 << 20)
    content = {key: entry(1) for key in keys(range(1000))}
    base = await run_of(tables, content, shape)
    alike = {base.min_keys[at]: entry(2) for at in range(5, 30)}
    source = await run_of(tables, {**content, **alike, base.min_keys[40]: entry(3)}, shape)
    destination = await run_of(tables, {**content, **alike}, shape)
    before = store.snapshot()
    merged = await merge_runs(tables, base, source, destination, 0, shape, Strategy())
    assert store.snapshot() == before
    assert merged.content_hash() == source.content_hash()


@aio
async def test_a_merge_into_an_unchanged_destination_is_the_source() -> None:
    tables, shape = memory_tables(), Shape(16, 1 << 20)
    content = {key: entry(1) for key in keys(range(100))}
    base = await run_of(tables, content, shape)
    source = await run_of(tables, {**content, b"new": entry(2)}, shape)
    assert await merge_runs(tables, base, source, base, 0, shape, Strategy()) is source


@aio
async def test_a_merge_that_lost_its_race_reads_and_writes_nothing_that_only_it_touched() -> None:
    store = CountingStore(MemoryStore())
    tables, shape = memory_tables(store), Shape(16, 1 << 20)
    content = {key: entry(1) for key in keys(range(1000))}
    base = await run_of(tables, content, shape)

    def changed(*changes: tuple[int, int]) -> Content:
        """The first key of some ranges, and the second one of others: so both sides may change the same range."""
        return {**content, **{key_in(base, at, place): entry(7 + place) for at, place in changes}}

    source = await run_of(tables, changed((3, 0), (5, 0)), shape)
    first = await run_of(tables, changed((3, 1), (9, 0)), shape)
    moved = await run_of(tables, changed((3, 1), (9, 0), (12, 0)), shape)
    result = await merge_runs(tables, base, source, first, 0, shape, Strategy())
    before = store.snapshot()
    final = await merge_runs(tables, first, result, moved, 0, shape, Strategy())
    assert store.snapshot() == before
    assert await run_content(tables, final) == changed((3, 0), (3, 1), (5, 0), (9, 0), (12, 0))


def key_in(run: Run, at: int, place: int) -> bytes:
    """A key of a range, which is not its last."""
    found = [key for key in keys(range(1000)) if run.min_keys[at] <= key < run.max_keys[at]]
    return found[place]


@aio
async def test_directories_that_each_side_added_are_not_written_again() -> None:
    store = CountingStore(MemoryStore())
    tables, shape = memory_tables(store), Shape(16, 1 << 20)
    content = {key: entry(1) for key in keys(range(500))}
    base = await run_of(tables, content, shape)
    added = {b"n" + key: entry(2) for key in keys(range(300))}
    others = {b"o" + key: entry(3) for key in keys(range(300))}
    source = await run_of(tables, {**content, **added}, shape)
    destination = await run_of(tables, {**content, **others}, shape)
    before = store.calls("put")
    merged = await merge_runs(tables, base, source, destination, 0, shape, Strategy())
    assert store.calls("put") - before <= 2  # the ranges in which one directory ends and another begins
    assert len(merged) > 50
    assert await run_content(tables, merged) == {**content, **added, **others}
    assert merged.content_hash() == (await run_of(tables, {**content, **added, **others}, shape)).content_hash()


@aio
async def test_a_last_range_that_is_kept_takes_in_what_follows_it() -> None:
    """The destination ends with a range that is not full; what the source has behind it belongs to that range."""
    tables, shape = memory_tables(), Shape(1 << 20, 500)
    numbers = keys(range(20))
    base_run = await run_of(tables, {key: entry(1) for key in numbers}, shape)
    full = base_run.table["count"][0].as_py()  # so many keys fill a range
    base = {key: entry(1) for key in numbers[: full + 1]}
    source = {**base, numbers[full + 2]: entry(2)}
    destination = {key: entry(1) for key in numbers[1:full]}
    runs = [await run_of(tables, content, shape) for content in (base, source, destination)]
    merged = await merge_runs(tables, runs[0], runs[1], runs[2], 0, shape, Strategy())
    expected = {**destination, numbers[full + 2]: entry(2)}
    assert await run_content(tables, merged) == expected
    assert len(merged) == 1
    assert merged.content_hash() == (await run_of(tables, expected, shape)).content_hash()


TOUCHED = st.dictionaries(KEYS, st.tuples(st.integers(0, 2), st.integers(0, 2)), max_size=12)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(base=st.sets(KEYS, max_size=40), ours=TOUCHED, theirs=TOUCHED)
def test_what_comes_out_does_not_depend_on_how_the_runs_are_cut(
    base: set[bytes], ours: dict[bytes, tuple[int, int]], theirs: dict[bytes, tuple[int, int]]
) -> None:
    """Also of records that differ in nothing but their mtime, which is the second number."""

    def written(edits: dict[bytes, tuple[int, int]]) -> Content:
        changed = {key: Entry(f"mem://{value}", value, f"e{value}", mtime) for key, (value, mtime) in edits.items()}
        return {**{key: Entry("mem://0", 0, "e0", 0) for key in base}, **changed}

    async def merged(shape: Shape) -> object:
        tables = memory_tables()
        runs = [await run_of(tables, content, shape) for content in (written({}), written(theirs), written(ours))]
        try:
            result = await merge_runs(tables, runs[0], runs[1], runs[2], 0, shape, Strategy())
        except MergeConflict as conflict:
            return conflict.clashes
        return await run_content(tables, result)

    whole = asyncio.run(merged(Shape(1 << 20, 1 << 20)))
    assert asyncio.run(merged(Shape(2, 1 << 20))) == whole
    assert asyncio.run(merged(Shape(1 << 20, 260))) == whole


@aio
async def test_a_merge_that_ends_in_a_conflict_writes_nothing() -> None:
    store = CountingStore(MemoryStore())
    tables, shape = memory_tables(store), Shape(16, 1 << 20)
    content = {key: entry(1) for key in keys(range(1000))}
    base = await run_of(tables, content, shape)
    firsts = {key_in(base, at, 0): entry(2) for at in range(3, 30, 3)}
    seconds = {key_in(base, at, 1): entry(3) for at in range(3, 30, 3)}
    source = await run_of(tables, {**content, **firsts}, shape)
    destination = await run_of(tables, {**content, **seconds, key_in(base, 3, 0): entry(4)}, shape)
    before = store.calls("put")
    with pytest.raises(MergeConflict) as conflict:
        await merge_runs(tables, base, source, destination, 0, shape, Strategy())
    assert conflict.value.count == 1
    assert store.calls("put") == before


RACES = {  # base, source, destination at first, destination when the race was lost; what must come out
    "source changed": ("A", "B", "A", "A", "B"),
    "destination changed before": ("A", "A", "B", "B", "B"),
    "destination changed during the race": ("A", "A", "A", "B", "B"),
    "conflict": ("A", "B", "C", "C", "conflict"),
    "conflict with the updated destination": ("A", "B", "A", "C", "conflict"),
    "destination changed twice": ("A", "A", "B", "C", "C"),
    "deleted at the source": ("A", "", "A", "A", ""),
    "deleted during the race": ("A", "A", "A", "", ""),
    "deleted at the source, changed during the race": ("A", "", "A", "C", "conflict"),
}


@pytest.mark.parametrize("race", RACES)
@aio
async def test_a_merge_that_lost_its_race_goes_on_with_its_result_as_source(race: str) -> None:
    """The correctness table of the source document, row by row."""
    tables, shape = memory_tables(), Shape(4, 1 << 20)
    *sides, expected = RACES[race]

    def content(value: str) -> Content:
        around = {key: entry(1) for key in keys(range(0, 40, 2))}
        return around | ({keys([21])[0]: entry(9, value)} if value else {})

    base, source, first, moved = [await run_of(tables, content(side), shape) for side in sides]
    try:
        result = await merge_runs(tables, base, source, first, 0, shape, Strategy())
        final = await merge_runs(tables, first, result, moved, 0, shape, Strategy())
    except MergeConflict:
        assert expected == "conflict"
        return
    assert await run_content(tables, final) == content(expected)
    direct = await merge_runs(tables, base, source, moved, 0, shape, Strategy())
    assert final.content_hash() == direct.content_hash()


def test_the_longest_prefix_decides_a_conflict() -> None:
    strategy = Strategy({"a/": SOURCE_WINS, "a/b/": DEST_WINS})
    winners = strategy.winners(pa.array(["a/x", "a/b/x", "c"]))
    assert winners.tolist() == [SOURCE, DESTINATION, BOTH]
    with pytest.raises(Invalid, match="no strategy"):
        Strategy({"": "ours"})
