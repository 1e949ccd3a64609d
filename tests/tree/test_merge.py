"""Diff and merge of runs against plain dicts, whatever the shape; what is alike is neither read nor written."""

import asyncio

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
from lsmfs.tree.merge import DEST_WINS, SOURCE_WINS, MergeConflict, Strategy, merge_runs
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
async def test_a_merge_into_an_unchanged_destination_is_the_source() -> None:
    tables, shape = memory_tables(), Shape(16, 1 << 20)
    content = {key: entry(1) for key in keys(range(100))}
    base = await run_of(tables, content, shape)
    source = await run_of(tables, {**content, b"new": entry(2)}, shape)
    assert await merge_runs(tables, base, source, base, 0, shape, Strategy()) is source


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
    assert [strategy.winner(key) for key in (b"a/x", b"a/b/x", b"c")] == [SOURCE_WINS, DEST_WINS, None]
    with pytest.raises(Invalid, match="no strategy"):
        Strategy({"": "ours"})
