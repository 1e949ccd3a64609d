"""One Table: what is written is what is read, by us and by any Parquet reader; what is damaged is never believed."""

import io
from collections.abc import Callable, Iterator

import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lsmfs.lsm import records, table
from lsmfs.lsm.run import RANGE_SCHEMA
from lsmfs.lsm.table import OpenTable, Probe
from lsmfs.model import Entry, Extent
from refstore.errors import Corrupt, Invalid
from tests.lsm.support import content_of, entry, keys, rows_of

TEXT = st.text(st.characters(codec="utf-8"), max_size=12)
KEYS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=12).map(str.encode)
INT64_MAX = 2**63 - 1


@st.composite
def entries(draw: st.DrawFn) -> Entry:
    lengths = draw(st.lists(st.integers(0, 1000), max_size=3))
    return Entry(
        address=draw(TEXT),
        size_bytes=sum(lengths) + draw(st.integers(0, 2**62)),
        etag=draw(TEXT),
        mtime_us=draw(st.integers(-(2**62), INT64_MAX)),
        offset=draw(st.integers(0, INT64_MAX)),
        content_type=draw(st.none() | TEXT),
        metadata=draw(st.none() | st.dictionaries(TEXT, TEXT, min_size=1, max_size=3)),
        rest=tuple(Extent(draw(TEXT), draw(st.integers(0, INT64_MAX)), length) for length in lengths),
    )


CONTENT = st.dictionaries(KEYS, st.none() | entries(), max_size=12)


def opened(rows: pa.Table) -> OpenTable:
    return OpenTable(*table.decode(table.encode(rows, "table", {}), "t"))


def forged(rows: pa.Table, metadata: dict[str, str] | None = None) -> bytes:
    """Parquet bytes by a foreign hand, with the facts it likes."""
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, rows.schema) as writer:
        writer.write_table(rows)
        writer.add_key_value_metadata({"lsmfs.format": table.FORMAT} if metadata is None else metadata)
    return sink.getvalue()


@settings(max_examples=80, deadline=None)
@given(CONTENT)
def test_what_is_encoded_is_decoded_with_extents_metadata_and_nulls(content: dict[bytes, Entry | None]) -> None:
    data = table.encode(rows_of(content), "table", {"lsmfs.writer": "w"})
    rows, facts, bloom = table.decode(data, "t")
    assert rows.schema == records.SCHEMA
    assert content_of(rows) == content
    assert facts == {"lsmfs.format": table.FORMAT, "lsmfs.kind": "table", "lsmfs.writer": "w"}
    found = OpenTable(rows, facts, bloom)
    assert {found.key(row): found.entry(row) for row in range(found.count)} == content
    for key in content:
        assert found.may_hold(Probe(key))
        assert found.key(found.find(key)) == key


def test_any_parquet_reader_sees_the_same_rows() -> None:
    content: dict[bytes, Entry | None] = {key: entry(n) for n, key in enumerate(keys(range(300)))}
    content[b"k00007"] = None
    content["ä/ü".encode()] = Entry("a", 5, "e", 1, 2, "text/plain", {"b": "2", "a": "1"}, (Extent("b", 3, 4),))
    rows = rows_of(content)
    data = table.encode(rows, "table", {})
    assert pq.read_table(io.BytesIO(data)).replace_schema_metadata(None) == rows
    seen = polars.read_parquet(io.BytesIO(data))
    assert seen.rows() == [tuple(row.values()) for row in rows.to_pylist()]
    last = seen.row(-1, named=True)
    assert (last["key"], last["metadata"], last["extents"]) == ("ä/ü", '{"a":"1","b":"2"}', '[["a",2,1],["b",3,4]]')


def test_the_file_has_one_row_group_statistics_a_page_index_and_a_bloom_filter_on_the_key() -> None:
    data = table.encode(rows_of({key: entry(1) for key in keys(range(5000))}), "table", {})
    metadata = pq.ParquetFile(io.BytesIO(data)).metadata
    assert metadata.num_row_groups == 1
    column = metadata.row_group(0).column(0)
    assert (column.statistics.min, column.statistics.max) == ("k00000", "k04999")
    assert column.has_column_index
    assert column.has_offset_index
    assert column.bloom_filter_offset > 0
    assert all(metadata.row_group(0).column(at).bloom_filter_offset is None for at in range(1, 10))


def test_the_bloom_filter_finds_every_key_and_few_others() -> None:
    found = opened(rows_of({f"k{n:06}x".encode(): entry(1) for n in range(10_000)}))
    assert all(found.may_hold(Probe(f"k{n:06}x".encode())) for n in range(10_000))
    false = sum(found.may_hold(Probe(f"k{n:06}y".encode())) for n in range(9_999))
    assert false < 200  # of 10 k misses inside the bounds: asked for 1 %, allowed 2 %


def test_the_bloom_filter_is_the_one_that_parquet_describes() -> None:
    """The masks and blocks of the split-block filter, from the specification's words, for one key."""
    found = opened(rows_of({b"hello": entry(1)}))
    probe = Probe(b"hello")
    assert (probe.block, probe.mask.bit_count()) == (0x26C7827D, 8)  # XXH64("hello") = 0x26C7827D889F6DA3
    assert found.may_hold(probe)


def test_keys_outside_the_bounds_are_not_even_probed() -> None:
    found = opened(rows_of({key: entry(1) for key in keys(range(5, 10))}))
    assert (found.first, found.last) == (b"k00005", b"k00009")
    assert not any(found.may_hold(Probe(key)) for key in (b"a", b"k00004~", b"k00009\0", b"z"))


def test_a_table_without_rows_holds_nothing() -> None:
    found = opened(records.EMPTY)
    assert (found.count, found.first, found.last) == (0, b"", b"")
    assert not found.may_hold(Probe(b"a"))
    assert found.find(b"a") == -1


@given(st.lists(KEYS, min_size=1, max_size=30, unique=True), KEYS, st.integers(0, 30))
@settings(max_examples=100, deadline=None)
def test_lower_bound_is_the_first_row_at_or_after_the_key(there: list[bytes], key: bytes, low: int) -> None:
    found = opened(rows_of(dict.fromkeys(there)))
    ordered = sorted(there)
    low = min(low, len(ordered))
    expected = next((row for row in range(low, len(ordered)) if ordered[row] >= key), len(ordered))
    assert found.lower_bound(key, low) == expected
    assert found.find(key) == (ordered.index(key) if key in there else -1)


def damaged(data: bytes) -> Iterator[bytes]:
    """Every byte flipped in turn, and the file cut off at every length."""
    for at in range(len(data)):
        for mask in (0x01, 0x80, 0xFF):
            yield data[:at] + bytes([data[at] ^ mask]) + data[at + 1 :]
        yield data[:at]


def test_damage_that_no_checksum_guards_ends_in_an_error_of_ours_and_no_other() -> None:
    """`decode` is called after the digest was compared; even so nothing else may escape from it."""
    data = table.encode(rows_of({b"a": entry(1), b"b": None}), "table", {})
    for bad in damaged(data):
        try:
            table.decode(bad, "t")
        except (Corrupt, Invalid):
            continue


SWAPPED: dict[str, Callable[[pa.Table], pa.Table]] = {
    "unsorted": lambda rows: rows.take([1, 0, 2]),
    "doubled": lambda rows: rows.take([0, 1, 1]),
    "a column less": lambda rows: rows.drop_columns(["etag"]),
    "a column more": lambda rows: rows.append_column("more", rows["etag"]),
    "columns in another order": lambda rows: rows.select([0, 1, 6, 3, 5, 4, 2, 7, 8, 9]),
    "columns of another name": lambda rows: rows.rename_columns(["path", *rows.column_names[1:]]),
    "text for numbers": lambda rows: rows.set_column(2, "size_bytes", pa.array(["x", "y", "z"])),
    "lists for text": lambda rows: rows.set_column(4, "etag", pa.array([["x"], ["y"], ["z"]])),
    "a key that is null": lambda rows: rows.set_column(0, "key", pa.array(["a", None, "c"])),
    "a kind that is null": lambda rows: rows.set_column(1, "kind", pa.array([0, None, 1], pa.uint8())),
    "a kind that is unknown": lambda rows: rows.set_column(1, "kind", pa.array([0, 3, 1], pa.uint8())),
    "a key that is empty": lambda rows: rows.set_column(0, "key", pa.array(["", "b", "c"])),
    "a key that is not UTF-8": lambda rows: rows.set_column(0, "key", pa.array([b"a", b"b\xff", b"c"])),
    "a table of ranges": lambda rows: RANGE_SCHEMA.empty_table(),
}


@pytest.mark.parametrize("wrong", list(SWAPPED))
def test_a_table_that_a_foreign_hand_wrote_wrong_is_corrupt(wrong: str) -> None:
    rows = SWAPPED[wrong](rows_of({b"a": entry(1), b"b": entry(2), b"c": None}))
    with pytest.raises(Corrupt, match="t0-1"):
        table.decode(forged(rows), "t0-1")


def test_a_table_that_a_foreign_hand_wrote_right_is_read() -> None:
    rows = rows_of({b"a": entry(1), b"b": None})
    read, _, bloom = table.decode(forged(rows), "t")
    assert read == rows
    assert OpenTable(read, {}, bloom).may_hold(
        Probe(b"a")
    )  # without a filter, every key within the bounds may be there


def test_a_filter_of_one_row_group_does_not_hide_the_keys_of_another() -> None:
    rows = rows_of({key: entry(1) for key in keys(range(100))})
    sink = io.BytesIO()
    options = {"key": {"ndv": 10, "fpp": 0.01}}
    with pq.ParquetWriter(sink, rows.schema, bloom_filter_options=options) as writer:
        writer.write_table(rows, row_group_size=10)
        writer.add_key_value_metadata({"lsmfs.format": table.FORMAT})
    found = OpenTable(*table.decode(sink.getvalue(), "t"))
    assert all(found.may_hold(Probe(key)) for key in keys(range(100)))


def test_a_key_column_that_lies_about_being_utf_8_is_corrupt() -> None:
    rows = rows_of({b"a": entry(1), b"b": entry(1)})
    lying = pa.StringArray.from_buffers(2, rows["key"].chunk(0).buffers()[1], pa.py_buffer(b"a\xff"))
    with pytest.raises(Corrupt):
        table.decode(forged(rows.set_column(0, "key", lying)), "t")


def test_a_parquet_file_of_somebody_else_is_corrupt() -> None:
    rows = rows_of({b"a": entry(1)})
    with pytest.raises(Corrupt, match="did not write"):
        table.decode(forged(rows, {}), "t")


def test_another_format_version_is_invalid_and_says_what_to_do() -> None:
    with pytest.raises(Invalid, match="version 2, this lsmfs reads 1: use a newer"):
        table.decode(forged(rows_of({b"a": entry(1)}), {"lsmfs.format": "2"}), "t")


@pytest.mark.parametrize("data", [b"", b"P", b"PAR1", b"PAR1PAR1", b"{}" * 50, b"PAR1" + bytes(60) + b"PAR1"])
def test_what_is_not_parquet_is_corrupt(data: bytes) -> None:
    with pytest.raises(Corrupt):
        table.decode(data, "t")


@pytest.mark.parametrize("column", ["extents", "metadata"])
@pytest.mark.parametrize("value", ["", "{", "7", '{"a":1}', '[["a",1]]', '["a"]', "null"])
def test_an_entry_with_unreadable_json_is_corrupt_when_it_is_read(column: str, value: str) -> None:
    rows = rows_of({b"a": entry(1)})
    rows = rows.set_column(rows.column_names.index(column), column, pa.array([value]))
    with pytest.raises(Corrupt):
        records.entry_at(rows, 0)
    with pytest.raises(Corrupt):
        opened(rows).entry(0)
