"""`stage`: listings of every format, and whatever can be wrong with one."""

import gzip
import json
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from lsmfs.imports.columns import normalised
from refstore.errors import Invalid
from tests.cli.support import Lake


def parquet(lake: Lake, columns: dict[str, Any]) -> str:
    path = str(lake.folder / "listing.parquet")
    pyarrow.parquet.write_table(pa.table(columns), path)
    return path


def two(**more: Any) -> dict[str, Any]:
    return {"key": ["b", "a"], "address": ["s3://x/b", "s3://x/a"], "size_bytes": [2, 1], **more}


def test_a_parquet_listing_is_staged_as_one_unit_with_everything_it_says(lake: Lake) -> None:
    listing = parquet(
        lake,
        two(
            etag=["eb", "ea"],
            mtime=pa.array([1_700_000_000_000, None], pa.timestamp("ms")),
            content_type=["text/csv", None],
            metadata=['{"z": "1", "a": "2"}', None],
        ),
    )
    before = lake.json("status", "lake/main")["version"]
    assert lake.json("stage", listing, "lsmfs://lake/main/raw")["staged"] == 2
    assert lake.json("status", "lake/main")["version"] == before + 1
    assert lake.keys() == ["raw/a", "raw/b"]
    found = lake.json("stat", "lake/main/raw/b")
    assert found["mtime"] == "2023-11-14T22:13:20Z"
    assert found["metadata"] == {"z": "1", "a": "2"}
    assert (found["etag"], found["content_type"]) == ("eb", "text/csv")
    assert found["extents"] == [["s3://x/b", 0, 2]]


def test_a_csv_listing_keeps_text_as_text(lake: Lake) -> None:
    listing = lake.file("l.csv", "path,address,size,etag,mtime\n007,s3://x/1,5,123e4,2024-01-02T03:04:05Z\n")
    assert lake("stage", listing, "lake/main").code == 0
    found = lake.json("stat", "lake/main/007")
    assert (found["etag"], found["mtime"]) == ("123e4", "2024-01-02T03:04:05Z")


def test_a_compressed_csv_listing_is_read(lake: Lake) -> None:
    listing = lake.file("l.csv.gz", gzip.compress(b"key,address,size\na,s3://x/a,5\n"))
    assert lake("stage", listing, "lake/main").code == 0
    assert lake.keys() == ["a"]


@pytest.mark.parametrize("suffix", ["ndjson", "jsonl"])
def test_a_json_listing_has_a_document_on_each_line(lake: Lake, suffix: str) -> None:
    put = {"key": "a", "address": "s3://x/a", "size": 1, "metadata": '{"k":"v"}'}
    rows = [put, {"key": "b", "kind": "tombstone"}]
    lake.put("b")
    listing = lake.file(f"l.{suffix}", "\n".join(map(json.dumps, rows)))
    assert lake("stage", listing, "lake/main").code == 0
    assert lake.keys() == ["a"]
    assert lake.json("stat", "lake/main/a")["metadata"] == {"k": "v"}


def test_a_listing_of_tombstones_needs_no_addresses(lake: Lake) -> None:
    lake.put("a", "b", "c")
    assert lake("stage", parquet(lake, {"key": ["a", "c"], "kind": [1, 1]}), "lake/main").code == 0
    assert lake.keys() == ["b"]


def test_staged_objects_are_read_from_where_they_are(lake: Lake) -> None:
    lake.file("else where", "their bytes")
    listing = lake.file("l.csv", f"key,address,size\na,file://{lake.folder}/else%20where,11\n")
    assert lake("stage", listing, "lake/main").code == 0
    assert lake("get", "lake/main/a").out == "their bytes"


def test_an_empty_object_of_somebody_else_may_have_any_etag(lake: Lake) -> None:
    listing = lake.file("l.csv", f"key,address,size,etag\na,s3://bucket/a,0,{'0' * 32}\n")
    assert lake("stage", listing, "lake/main").code == 0
    assert lake("get", "lake/main/a").code == 0


def test_a_staged_object_that_is_not_there_is_told_when_it_is_read(lake: Lake) -> None:
    listing = lake.file("l.csv", f"key,address,size\na,file://{lake.folder}/none,11\n")
    assert lake("stage", listing, "lake/main").code == 0
    result = lake("get", "lake/main/a")
    assert result.code == 3
    assert "which the entry refers to" in result.told


def test_a_large_listing_is_one_unit(lake: Lake) -> None:
    count = 100_000
    keys = pa.array([f"k{number:07}" for number in range(count)])
    columns = {"key": keys, "address": keys, "size": pa.repeat(7, count)}
    assert lake.json("stage", parquet(lake, columns), "lake/main")["staged"] == count
    assert lake.json("status", "lake/main")["l1_tables"] == 1
    assert lake.json("stat", "lake/main/k0099999")["size_bytes"] == 7


BAD_COLUMNS: list[tuple[dict[str, Any], str]] = [
    ({"name": ["a"]}, "unknown columns name; known are key"),
    ({"address": ["a"]}, "no column key"),
    ({"key": ["a"], "size": [1]}, "no column address"),
    ({"key": ["a"], "address": ["b"]}, "no column size_bytes (or size)"),
    ({"key": ["a", None], "address": ["b", "b"], "size": [1, 1]}, "column 'key' has 1 nulls"),
    ({"key": ["a"], "address": pa.array([None], pa.string()), "size": [1]}, "column address has 1 nulls"),
    ({"key": ["a"], "address": ["b"], "size": pa.array([None], pa.int64())}, "column size_bytes has 1 nulls"),
    ({"key": ["a"], "address": [""], "size": [1]}, "address is empty in 1 rows"),
    ({"key": ["a"], "address": ["b"], "size": [-1]}, "may not be negative"),
    ({"key": ["a"], "address": ["b"], "size": ["1 MB"]}, "a number of bytes is wanted"),
    ({"key": ["b", "a", "b"], "address": ["b"] * 3, "size": [1] * 3}, "more than once, such as 'b'"),
    ({"key": [""], "address": ["b"], "size": [1]}, "a key is empty"),
    ({"key": ["k" * 2000], "address": ["b"], "size": [1]}, "at most 1024"),
    ({"key": ["a"], "path": ["a"], "address": ["b"], "size": [1]}, "columns key are there more than once"),
    ({"key": ["a"], "address": ["b"], "size": [1], "kind": ["copy"]}, "'copy': put and tombstone are known"),
    ({"key": ["a"], "address": ["b"], "size": [1], "metadata": ["{"]}, "column metadata is not a JSON object"),
    ({"key": ["a"], "address": ["b"], "size": [1], "metadata": ["[1]"]}, "column metadata is not a JSON object"),
    ({"key": ["a"], "address": ["b"], "size": [1], "metadata": [{"a": "b"}]}, "text is wanted, a JSON object"),
    ({"key": ["a"], "address": ["b"], "size": [1], "mtime": ["yesterday"]}, "column 'mtime'"),
    ({"key": pa.array([], pa.string())}, "it has no rows"),
]


def test_a_bad_listing_is_told_by_its_column_and_stages_nothing(lake: Lake) -> None:
    for columns, words in BAD_COLUMNS:
        result = lake("stage", parquet(lake, columns), "lake/main")
        assert result.code == 2, words
        assert "listing.parquet: " in result.told
        assert words in result.told
    assert lake.keys() == []


BAD_FILES = [
    ("l.csv", "", "l.csv is empty"),
    ("l.csv", "key,address,size\n", "it has no rows"),
    ("l.csv", "key,address,size\na,b,large\n", "l.csv cannot be read"),
    ("l.csv", "key,address,size\na,b\n", "l.csv cannot be read"),
    ("l.parquet", "not parquet", "l.parquet cannot be read"),
    ("l.jsonl", "{", "l.jsonl cannot be read"),
    ("l.txt", "a", "ends with .parquet, .csv"),
]


def test_a_file_that_is_no_listing_is_told(lake: Lake) -> None:
    for name, content, words in BAD_FILES:
        result = lake("stage", lake.file(name, content), "lake/main")
        assert result.code == 2, words
        assert words in result.told


def test_stage_tells_of_wrong_arguments(lake: Lake) -> None:
    assert "the listing comes first" in lake("stage", "lsmfs://lake/main", "l.csv").told
    assert lake("stage", "none.csv", "lake/main").code == 3
    (lake.folder / "d.parquet").mkdir()
    assert "is a directory" in lake("stage", str(lake.folder / "d.parquet"), "lake/main").told


def test_metadata_of_a_listing_is_written_in_one_form() -> None:
    table = pa.table(two(metadata=['{"b": "2",\n "a": "1"}', '{"a":"1","b":"2"}']))
    assert normalised(table)["metadata"].to_pylist() == ['{"a":"1","b":"2"}'] * 2


def test_metadata_that_only_joined_would_be_json_is_refused() -> None:
    with pytest.raises(Invalid, match="metadata"):
        normalised(pa.table(two(metadata=['{"a":"x', 'y"}\n{}'])))


def test_a_tombstone_says_nothing_but_its_key() -> None:
    rows = normalised(pa.table(two(kind=["put", "tombstone"], etag=["e", "e"])))
    (tomb,) = [row for row in rows.to_pylist() if row["kind"] == 1]
    assert (tomb["address"], tomb["size_bytes"], tomb["etag"]) == ("", 0, "")
