"""Records as columns: a user's table becomes ours, or is refused with the reason."""

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lsmfs.lsm import records
from lsmfs.model import Entry, Extent
from refstore.errors import Invalid
from tests.aio import aio
from tests.lsm.support import content_of, entry, memory_repository, rows_of, visible

KEYS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=8).map(str.encode)
CHANGES = st.dictionaries(KEYS, st.none() | st.integers(0, 5).map(entry), max_size=30)


def table_of(**columns: Any) -> pa.Table:
    return pa.table({"key": ["a", "b"], "address": ["x", "y"], **columns})


def conformed(table: pa.Table) -> dict[bytes, Entry | None]:
    rows = records.conform(table)
    assert rows.schema == records.SCHEMA
    rows.validate(full=True)
    return content_of(rows)


def test_missing_optional_columns_are_filled() -> None:
    assert conformed(table_of()) == {b"a": Entry("x", 0), b"b": Entry("y", 0)}
    assert conformed(pa.table({"key": ["a"], "kind": [1]})) == {b"a": None}


KEY_TYPES: dict[str, pa.DataType] = {
    "string": pa.string(),
    "large string": pa.large_string(),
    "string view": pa.string_view(),
    "binary": pa.binary(),
    "large binary": pa.large_binary(),
    "dictionary": pa.dictionary(pa.int32(), pa.string()),
    "dictionary of large strings": pa.dictionary(pa.int8(), pa.large_string()),
}


@pytest.mark.parametrize("kind", list(KEY_TYPES))
def test_text_of_any_arrow_type_is_taken(kind: str) -> None:
    def column(values: list[str | None]) -> pa.Array:
        plain = pa.array(values)
        return plain.dictionary_encode().cast(KEY_TYPES[kind]) if "dict" in kind else plain.cast(KEY_TYPES[kind])

    table = pa.table(
        {
            "key": column(["a", "ü"]),
            "address": column(["x", "y"]),
            "etag": column(["e", None]),
            "content_type": column([None, "text/plain"]),
            "metadata": column(['{"k":"v"}', None]),
        }
    )
    expected = {
        b"a": Entry("x", 0, "e", metadata={"k": "v"}),
        "ü".encode(): Entry("y", 0, content_type="text/plain"),
    }
    assert conformed(table) == expected


@pytest.mark.parametrize("kind", [pa.int8(), pa.int32(), pa.uint64(), pa.float64(), pa.decimal128(20, 0)])
def test_whole_numbers_of_any_arrow_type_are_taken(kind: pa.DataType) -> None:
    table = table_of(size_bytes=pa.array([1, 2]).cast(kind), kind=pa.array([0, 1]).cast(kind))
    assert conformed(table) == {b"a": Entry("x", 1), b"b": None}


@pytest.mark.parametrize(
    "column",
    [
        pa.array([1_000_000, 2_000_000]),
        pa.array([1, 2], pa.timestamp("s")),
        pa.array([1000, 2000], pa.timestamp("ms", "UTC")),
        pa.array([10**9, 2 * 10**9], pa.timestamp("ns", "Europe/Berlin")),
        pa.array(["1970-01-01T00:00:01Z", "1970-01-01T00:00:02Z"]),
    ],
)
def test_times_of_any_arrow_type_are_taken(column: pa.Array) -> None:
    found = conformed(table_of(mtime=column))
    assert found == {b"a": Entry("x", 0, mtime_us=1_000_000), b"b": Entry("y", 0, mtime_us=2_000_000)}
    assert Entry("x", 0, mtime_us=1_000_000).modified == datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)


def test_columns_in_chunks_and_slices_are_taken() -> None:
    whole = rows_of({f"k{n}".encode(): entry(n) for n in range(9)})
    pieces = pa.concat_tables([whole.slice(3, 2), whole.slice(5, 1), whole.slice(8, 1)])
    assert conformed(pieces) == {f"k{n}".encode(): entry(n) for n in (3, 4, 5, 8)}


def test_what_a_tombstone_carries_beside_its_key_is_dropped() -> None:
    """Equal deletions are equal rows, whoever wrote them."""
    table = table_of(kind=[1, 0], size_bytes=[5, 6], etag=["e", "f"], metadata=['{"a":"b"}', None])
    assert records.conform(table) == rows_of({b"a": None, b"b": Entry("y", 6, "f")})


def test_metadata_is_written_in_one_way_whoever_wrote_it() -> None:
    table = table_of(metadata=['{ "b" : "2", "a" : "1" }', "{}"])
    expected = rows_of({b"a": Entry("x", 0, metadata={"a": "1", "b": "2"}), b"b": Entry("y", 0)})
    assert records.conform(table) == expected


def test_extents_are_taken_as_they_are_said() -> None:
    table = table_of(size_bytes=[10, 4], extents=['[["x",0,6],["z",1,4]]', None])
    assert conformed(table) == {b"a": Entry("x", 10, rest=(Extent("z", 1, 4),)), b"b": Entry("y", 4)}


BAD: dict[str, tuple[Any, str]] = {
    "no key": (pa.table({"address": ["x"]}), "no column 'key'"),
    "no address": (pa.table({"key": ["a"]}), "no column 'address'"),
    "a column that nobody knows": (table_of(colour=["red", "blue"]), "unknown columns \\['colour'\\]"),
    "a column twice": (
        pa.Table.from_arrays([pa.array(["a"])] * 3, names=["key", "key", "address"]), "more than once"
    ),
    "a key that is null": (pa.table({"key": ["a", None], "address": ["x", "y"]}), "nulls"),
    "a key that is empty": (pa.table({"key": ["", "b"], "address": ["x", "y"]}), "empty"),
    "a key that is too long": (pa.table({"key": ["a" * 1025], "address": ["x"]}), "1025 bytes"),
    "a key with a NUL": (pa.table({"key": ["a\0b"], "address": ["x"]}), "NUL"),
    "a key that is not UTF-8": (pa.table({"key": [b"\xff"], "address": ["x"]}), "key.*UTF"),
    "a key that says it is UTF-8 and is not": (
        pa.table(
            {
                "key": pa.StringArray.from_buffers(
                    1, pa.array(["a"]).buffers()[1], pa.py_buffer(b"\xff")
                ),
                "address": ["x"],
            }
        ),
        "UTF",
    ),
    "a key that is a list": (pa.table({"key": [["a"]], "address": ["x"]}), "key"),
    "an address that is null": (pa.table({"key": ["a"], "address": pa.array([None], pa.string())}), "address"),
    "a kind that is unknown": (table_of(kind=[0, 3]), "kind"),
    "a kind below zero": (table_of(kind=[0, -1]), "kind"),
    "a kind that is null": (table_of(kind=[0, None]), "kind"),
    "a kind that is text": (table_of(kind=["put", "delete"]), "kind"),
    "a kind of lists": (table_of(kind=[[0], [1]]), "kind"),
    "a size that is text": (table_of(size_bytes=["many", "few"]), "size_bytes"),
    "a size that is broken": (table_of(size_bytes=[1.5, 2.0]), "size_bytes"),
    "a size below zero": (table_of(size_bytes=[-1, 2]), "size_bytes"),
    "a size of a struct": (table_of(size_bytes=[{"a": 1}, {"a": 2}]), "size_bytes"),
    "an offset below zero": (table_of(offset=[-1, 2]), "offset"),
    "a size beyond 64 bits": (table_of(size_bytes=pa.array([2**64 - 1, 1], pa.uint64())), "size_bytes"),
    "a time that is text": (table_of(mtime=["yesterday", "today"]), "mtime"),
    "metadata that is no JSON": (table_of(metadata=["{", None]), "metadata"),
    "metadata of numbers": (table_of(metadata=['{"a":1}', None]), "metadata"),
    "metadata that is too long": (table_of(metadata=['{"a":"%s"}' % ("x" * 9000), None]), "metadata"),
    "metadata that is empty text": (table_of(metadata=["", None]), "metadata"),
    "extents that are no JSON": (table_of(extents=["x", None]), "extents"),
    "extents that are too short": (table_of(extents=['[["a",1]]', None]), "extents"),
    "extents longer than the size": (table_of(size_bytes=[1, 1], extents=['[["x",0,0],["y",0,9]]', None]), "extents"),
}  # fmt: skip


@pytest.mark.parametrize("wrong", list(BAD))
@aio
async def test_a_bad_table_is_invalid_with_the_reason(wrong: str) -> None:
    table, reason = BAD[wrong]
    repository = await memory_repository()
    async with repository.writer("main") as writer:
        with pytest.raises(Invalid, match=reason):
            await writer.stage(table)
        with pytest.raises(Invalid, match=reason):
            await writer.prepare(table)
    assert await visible(repository) == {}


@aio
async def test_doubled_keys_are_invalid_and_unsorted_ones_are_sorted() -> None:
    repository = await memory_repository()
    async with repository.writer("main") as writer:
        with pytest.raises(Invalid, match="1 keys are there more than once"):
            await writer.stage(pa.table({"key": ["b", "a", "b"], "address": ["x", "y", "z"]}))
        await writer.stage(pa.table({"key": ["b", "a"], "address": ["x", "y"]}))
    assert await visible(repository) == {b"a": Entry("y", 0), b"b": Entry("x", 0)}


@settings(max_examples=100, deadline=None)
@given(st.lists(CHANGES, max_size=5))
def test_merging_gives_each_key_once_as_its_newest_table_says(newest_first: list[dict[bytes, Entry | None]]) -> None:
    merged = records.merge([rows_of(one) for one in newest_first])
    expected: dict[bytes, Entry | None] = {}
    for one in reversed(newest_first):
        expected.update(one)
    assert content_of(merged) == expected
    assert records.is_ascending(merged["key"])
    assert content_of(records.live(merged)) == {key: value for key, value in expected.items() if value is not None}


@settings(max_examples=60, deadline=None)
@given(CHANGES, st.integers(0, 30))
def test_the_hash_and_weights_of_rows_do_not_depend_on_how_they_are_stored(
    content: dict[bytes, Entry | None], at: int
) -> None:
    rows = rows_of(content)
    chunked = pa.concat_tables([rows.slice(0, at), rows.slice(at)])
    padded = pa.concat_tables([rows_of({b"x": entry(1)}), rows]).combine_chunks().slice(1)
    assert records.content_hash(chunked) == records.content_hash(padded) == records.content_hash(rows)
    assert records.weights(chunked).tolist() == records.weights(padded).tolist() == records.weights(rows).tolist()


@settings(max_examples=60, deadline=None)
@given(CHANGES, CHANGES)
def test_rows_that_differ_have_hashes_that_differ(
    one: dict[bytes, Entry | None], other: dict[bytes, Entry | None]
) -> None:
    same = records.content_hash(rows_of(one)) == records.content_hash(rows_of(other))
    assert same == (one == other)
