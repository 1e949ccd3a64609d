"""Appends are joined the same way wherever layers meet: in what order and in how many steps does not matter."""

import asyncio
import hashlib
from collections.abc import Callable

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from lsmfs.lsm import appends, build, records
from lsmfs.lsm.appends import EMPTY_ETAG, joined, of_extents
from lsmfs.lsm.build import Shape, apply_layers, write_run
from lsmfs.lsm.run import EMPTY_RUN, Run
from lsmfs.lsm.table import OpenTable
from lsmfs.model import Entry, Extent
from refstore.errors import Corrupt, Invalid
from tests.aio import aio
from tests.lsm.stacks import Content
from tests.lsm.support import (
    Added,
    added,
    after,
    content_of,
    entry,
    memory_repository,
    memory_tables,
    put_all,
    rows_of,
    scanned,
    visible,
)

MD5 = hashlib.md5(b"hello").hexdigest()
HELLO = Extent("repo/data/hello", 0, 5, MD5)
WORLD = Extent("repo/data/world", 2, 7)
ABROAD = Extent("s3://bucket/abroad", 3, 4)
BODY = Entry("repo/data/body", 10, "0" * 32, 7, 1, "text/plain", {"who": "me"})


def append_of(*extents: Extent, at: int = 9) -> Entry:
    return of_extents(extents, at)


def test_an_append_to_an_object_adds_its_extents_and_keeps_its_type_and_metadata() -> None:
    whole = joined([append_of(HELLO)], BODY)
    assert whole.extents == (Extent("repo/data/body", 1, 10, "0" * 32), HELLO)
    assert (whole.size_bytes, whole.mtime_us) == (15, 9)
    assert (whole.content_type, whole.metadata) == ("text/plain", {"who": "me"})


def test_the_newest_append_comes_last_and_gives_the_time() -> None:
    whole = joined([append_of(HELLO, at=3), append_of(WORLD, at=8)], BODY)
    assert whole.extents[1:] == (WORLD, HELLO)
    assert whole.mtime_us == 3


def test_an_append_to_nothing_is_an_object_of_what_was_appended() -> None:
    assert joined([append_of(HELLO)], None) == Entry("repo/data/hello", 5, MD5, 9)
    assert joined([append_of(WORLD)], None).extents == (WORLD,)


def test_an_append_without_bytes_changes_nothing_but_the_time_and_creates_an_empty_object() -> None:
    nothing = append_of(Extent("repo/data/none", 0, 0), at=20)
    assert joined([nothing], BODY) == Entry("repo/data/body", 10, "0" * 32, 20, 1, "text/plain", {"who": "me"})
    assert joined([nothing], None) == Entry("", 0, EMPTY_ETAG, 20)
    assert joined([append_of(HELLO), nothing], Entry("empty", 0, EMPTY_ETAG)).extents == (HELLO,)


def test_the_etag_is_the_md5_of_one_extent_and_else_names_the_number_of_them() -> None:
    assert append_of(HELLO).etag == MD5
    assert append_of(WORLD).etag.endswith("-1")
    assert joined([append_of(HELLO)], BODY).etag.endswith("-2")
    tags = {append_of(*some).etag for some in ((HELLO,), (WORLD,), (HELLO, WORLD), (WORLD, HELLO), (ABROAD,))}
    assert len(tags) == 5


def test_the_etag_of_extents_never_changes() -> None:
    """Stored trees depend on it."""
    assert append_of(HELLO, WORLD, ABROAD).etag == "1f343f9fd1b5beac82922053438dbb57-3"
    assert appends.text_of([HELLO, WORLD]) == (
        b'[["repo/data/hello",0,5,"5d41402abc4b2a76b9719d911017c592"],["repo/data/world",2,7]]'
    )


def test_somebody_elses_etag_is_not_taken_for_the_md5_of_an_extent() -> None:
    abroad = Entry("s3://bucket/x", 4, MD5)
    assert joined([append_of(HELLO)], abroad).extents == (Extent("s3://bucket/x", 0, 4), HELLO)
    assert append_of(Extent("s3://bucket/x", 0, 4, MD5)).etag.endswith("-1")


EXTENTS = st.builds(
    Extent,
    st.sampled_from(["repo/data/a", "repo/data/b", "s3://bucket/c"]),
    st.integers(0, 2),
    st.sampled_from([0, 1, 5]),
    st.sampled_from(["", "", MD5, "f" * 32]),
)
PUTS = st.builds(
    Entry,
    address=st.sampled_from(["repo/data/a", "s3://bucket/c"]),
    size_bytes=st.integers(20, 30) | st.just(0),
    etag=st.sampled_from(["", MD5, "mine"]),
    mtime_us=st.integers(0, 3),
    content_type=st.sampled_from([None, "text/plain"]),
    metadata=st.sampled_from([None, {"a": "b"}]),
)
PARTED = st.builds(  # a user's own list of extents, perhaps with empty ones
    lambda put, rest: Entry(put.address, 20, put.etag, put.mtime_us, 1, put.content_type, put.metadata, rest),
    PUTS,
    st.lists(EXTENTS, min_size=1, max_size=3).map(tuple),
)
ADDED = st.builds(Added, st.lists(EXTENTS, max_size=3).map(tuple), st.integers(0, 3))
KEYS = st.sampled_from([b"a", b"b", b"c", b"d"])
LAYER = st.dictionaries(KEYS, st.one_of(st.none(), PUTS, PARTED, ADDED, ADDED, ADDED), max_size=4)


def bracketed(draw: Callable[[int], int], tables: list[pa.Table]) -> pa.Table:
    """Newest first, merged in steps of any neighbours."""
    while len(tables) > 1:
        start = draw(len(tables) - 2)
        stop = start + 2 + draw(len(tables) - start - 2)
        tables = [*tables[:start], records.merge(tables[start:stop]), *tables[stop:]]
    return tables[0]


@settings(max_examples=400, deadline=None)
@given(newest_first=st.lists(LAYER, min_size=2, max_size=6), data=st.data())
def test_layers_merged_in_any_steps_give_the_same_rows(newest_first: list[Content], data: st.DataObject) -> None:
    tables = [rows_of(layer) for layer in newest_first]
    at_once = records.merge(tables)
    in_steps = bracketed(lambda most: data.draw(st.integers(0, most)), tables)
    assert in_steps.equals(at_once)
    assert records.content_hash(in_steps) == records.content_hash(at_once)
    expected: dict[bytes, Entry | None] = {}
    for layer in reversed(newest_first):
        expected = after(expected, layer)
    assert content_of(records.live(at_once)) == {key: value for key, value in expected.items() if value is not None}
    assert records.is_ascending(at_once["key"])
    at_once.validate(full=True)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    base=st.dictionaries(KEYS, PUTS | PARTED, max_size=4),
    oldest_first=st.lists(st.tuples(st.booleans(), LAYER.filter(bool)), min_size=1, max_size=5),
    data=st.data(),
    shape=st.sampled_from([Shape(1, 1 << 20), Shape(1 << 20, 200), Shape()]),
)
def test_layers_compacted_in_any_steps_are_committed_as_the_same_run(
    base: dict[bytes, Entry], oldest_first: list[tuple[bool, Content]], data: st.DataObject, shape: Shape
) -> None:
    async def check() -> None:
        tables = memory_tables()

        async def saved(at: int, as_run: bool, layer: Content) -> str | Run:
            if as_run:
                return await write_run(tables, rows_of(layer), 0, shape)
            return await tables.save_table(rows_of(layer), 0, f"{at}", {})

        lower = await write_run(tables, rows_of(base), 0, shape)
        l1 = [await saved(at, *layer) for at, layer in enumerate(oldest_first)]
        at_once = await apply_layers(tables, lower, l1[::-1], 0, shape, drop_tombstones=True)
        l2 = EMPTY_RUN
        for _ in range(data.draw(st.integers(0, 3))):
            count = data.draw(st.integers(0, len(l1)))
            l2 = await apply_layers(tables, l2, l1[:count][::-1], 0, shape, drop_tombstones=False)
            l1 = l1[count:]
        committed = await apply_layers(tables, lower, [*l1[::-1], l2], 0, shape, drop_tombstones=True)
        assert committed.content_hash() == at_once.content_hash()
        assert committed.tombstones == 0
        expected: dict[bytes, Entry | None] = dict(base)
        for _, layer in oldest_first:
            expected = after(expected, layer)
        rows = [await tables.read(file) for file in committed.files]
        found = {key: value for table in rows for key, value in content_of(table).items()}
        assert found == {key: value for key, value in expected.items() if value is not None}
        assert all(not any(table["kind"].to_pylist()) for table in rows)  # puts and nothing else

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "WINDOW_ROWS", data.draw(st.sampled_from([1, 1 << 18])))
        asyncio.run(check())


@given(upper=LAYER, below=st.dictionaries(KEYS, PUTS | PARTED, max_size=4))
@example(upper={b"a": added(1), b"b": added(2)}, below={b"a": entry(4), b"c": entry(1)})
def test_settled_rows_are_those_a_reader_sees_and_their_tombstones(upper: Content, below: dict[bytes, Entry]) -> None:
    rows = records.settled(rows_of(upper), rows_of(below))
    whole = after(below, upper)
    assert content_of(rows) == {key: whole[key] for key in upper}
    assert records.APPEND not in rows["kind"].to_pylist()


def test_merging_tables_without_appends_looks_at_no_record_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    def looked(*_: object) -> None:
        raise AssertionError("a record was looked at by itself")

    tables = [rows_of({f"{n % 40:02}".encode(): entry(n) for n in range(at, 90, 3)}) for at in range(3)]
    tables.append(rows_of({b"03": None}))
    below = rows_of({b"00": added(1), b"zz": added(2)})  # not joined: it is below
    monkeypatch.setattr(appends, "joined", looked)
    assert len(records.live(records.merge(tables))) == 40
    assert len(records.live(records.merge([tables[0], below]))) == 31
    monkeypatch.undo()


@aio
async def test_a_run_counts_appends_among_its_records_and_not_among_its_tombstones() -> None:
    run = await write_run(memory_tables(), rows_of({b"a": added(1), b"b": None, b"c": entry(1)}), 0, Shape())
    assert (run.count, run.tombstones) == (3, 1)


@pytest.mark.parametrize("read", ["entry", "entry_at", "entries_at", "merge", "sort", "live", "settled"])
def test_a_record_of_an_unknown_kind_is_corrupt_and_never_taken_for_a_put(read: str) -> None:
    rows = rows_of({b"a": entry(1), b"b": entry(2)})
    newer = rows.set_column(1, rows.schema.field(1), pa.array([0, 3], pa.uint8()))
    reads: dict[str, Callable[[], object]] = {
        "entry": lambda: OpenTable(newer, {}, b"").entry(1),
        "entry_at": lambda: records.entry_at(newer, 1),
        "entries_at": lambda: records.entries_at(newer),
        "merge": lambda: records.merge([newer, rows]),
        "sort": lambda: records.merge([newer, rows, rows]),
        "live": lambda: records.live(newer),
        "settled": lambda: records.settled(newer, rows),
    }
    with pytest.raises(Corrupt, match="kind 3"):
        reads[read]()


@aio
async def test_a_staged_table_may_hold_appends() -> None:
    repository = await memory_repository()
    await put_all(repository, {b"a": entry(4), b"c": entry(1)})
    async with repository.writer("main") as writer:
        await writer.stage(
            pa.table(
                {
                    "key": ["c", "b", "a", "d"],
                    "kind": [1, 2, 2, 2],
                    "address": ["", "repo/data/hello", "repo/data/hello", "s3://bucket/abroad"],
                    "size_bytes": [0, 5, 12, 4],
                    "offset": [0, 0, 0, 3],
                    "etag": ["", MD5, "ignored", "ignored"],
                    "content_type": ["", "ignored", None, None],
                    "extents": [None, None, f'[["repo/data/hello", 0, 5, "{MD5}"],["repo/data/world", 2, 7]]', None],
                }
            )
        )
    expected = {
        b"a": joined([append_of(HELLO, WORLD, at=0)], entry(4)),
        b"b": append_of(HELLO, at=0),
        b"d": append_of(ABROAD, at=0),
    }
    assert await visible(repository) == expected
    assert dict(await scanned(repository.scan("main"))) == expected
    await repository.commit("main", "all")
    assert await visible(repository) == expected


@pytest.mark.parametrize(
    "extents", ['[["x",0,5,"0"],["y",0,5]]', '[["x",0,5],["y",0,5,"ABCDEF0123456789ABCDEF0123456789"]]']
)
@aio
async def test_a_digest_that_is_no_md5_is_invalid(extents: str) -> None:
    repository = await memory_repository()
    async with repository.writer("main") as writer:
        with pytest.raises(Invalid, match="no MD5"):
            await writer.stage(pa.table({"key": ["a"], "address": ["x"], "size_bytes": [10], "extents": [extents]}))
