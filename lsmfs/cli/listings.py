"""A listing: a file that says which objects there are, read into the columns of Records.

    key (or path)           text, once each
    address                 where the object is: a URL, or a name in the installation's own store
    size_bytes (or size)    without it an object would read as empty, so it must be there
    etag, mtime, content_type, metadata (a JSON object), kind (put or tombstone), offset    if you like

All work is on columns; nothing is done row by row. Text stays text: a key 007 does not become a number. Whatever is
wrong is `Invalid`, and the message names the file and the column.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet

from lsmfs.cli.files import opened, translated
from lsmfs.lsm import records
from lsmfs.model import METADATA_BYTES_MAX
from refstore.errors import Invalid

ALIASES = {"path": "key", "size": "size_bytes"}
TEXT = ("key", "path", "address", "etag", "content_type", "metadata")
KNOWN = [name for name in records.SCHEMA.names if name != "extents"]
KINDS = {"": records.PUT, "put": records.PUT, "0": records.PUT, "tombstone": records.TOMBSTONE, "1": records.TOMBSTONE}
BATCH_ROWS = 64 * 1024

_metadata = msgspec.json.Decoder(dict[str, str])
_sorted = msgspec.json.Encoder(order="sorted")


def read(path: str, prefix: str = "", advance: Callable[[int], None] = lambda rows: None) -> pa.Table:
    """The listing as Records, with the prefix before every key; `advance` is told of rows that have been read."""
    suffix = Path(path.removesuffix(".gz")).suffix.lower()
    reader = READERS.get(suffix)
    if reader is None:
        raise Invalid(f"{path}: a listing is a file that ends with {', '.join(READERS)}")
    with opened(path) as (_, size):
        if size == 0:
            raise Invalid(f"{path} is empty: a listing has columns key, address and size_bytes")
    try:
        return normalised(_collected(reader(path), advance), prefix)
    except pa.ArrowException as error:
        raise Invalid(f"{path} cannot be read: {str(error).splitlines()[0]}") from None
    except OSError as error:
        raise translated(error, path) from None
    except Invalid as error:
        raise Invalid(f"{path}: {error}") from None


def _collected(batches: Iterable[pa.RecordBatch], advance: Callable[[int], None]) -> pa.Table:
    found = []
    for batch in batches:
        found.append(batch)
        advance(len(batch))
    if not sum(map(len, found)):
        raise Invalid("it has no rows: there is nothing to stage")
    return pa.Table.from_batches(found)


def _parquet(path: str) -> Iterable[pa.RecordBatch]:
    with pyarrow.parquet.ParquetFile(path) as file:
        yield from file.iter_batches(BATCH_ROWS)


def _csv(path: str) -> Iterable[pa.RecordBatch]:
    types = {name: pa.string() for name in (*TEXT, "kind")} | {"size": pa.int64(), "size_bytes": pa.int64()}
    options = pyarrow.csv.ConvertOptions(column_types=types)
    with pyarrow.csv.open_csv(path, convert_options=options) as reader:
        yield from reader


def _json(path: str) -> Iterable[pa.RecordBatch]:
    schema = pa.schema([(name, pa.string()) for name in TEXT if name != "metadata"])
    with pa.input_stream(path, compression="detect") as source:
        table = pyarrow.json.read_json(source, parse_options=pyarrow.json.ParseOptions(explicit_schema=schema))
    # A column of the explicit schema that is in no line comes back all null: it was not there.
    absent = [name for name in TEXT if name in table.column_names and table[name].null_count == len(table)]
    yield from table.drop_columns(absent).to_batches()


READERS: dict[str, Callable[[str], Iterable[pa.RecordBatch]]] = {
    ".parquet": _parquet,
    ".csv": _csv,
    ".ndjson": _json,
    ".jsonl": _json,
}


def normalised(table: pa.Table, prefix: str = "") -> pa.Table:
    """The user's columns as Records."""
    table = _renamed(table)
    if "kind" in table.column_names:
        table = _replaced(table, "kind", _kinds(table["kind"]))
    is_put = _is_put(table)
    _check_puts(table, is_put)
    if "metadata" in table.column_names:
        table = _replaced(table, "metadata", _canonical(table["metadata"]))
    if prefix:
        joined = prefix if prefix.endswith("/") else prefix + "/"
        table = _replaced(table, "key", pc.binary_join_element_wise(joined, table["key"].cast(pa.string()), ""))
    rows = _bare_tombstones(records.conform(table))
    _check_unique(rows)
    return rows


def _renamed(table: pa.Table) -> pa.Table:
    names = [ALIASES.get(name, name) for name in table.column_names]
    if unknown := [name for name in names if name not in KNOWN]:
        raise Invalid(f"unknown columns {', '.join(unknown)}; known are {', '.join(KNOWN)}, path and size")
    if doubled := {name for name in names if names.count(name) > 1}:
        raise Invalid(f"columns {', '.join(sorted(doubled))} are there more than once")
    if "key" not in names:
        raise Invalid("it has no column key (or path)")
    for name, kind in zip(names, table.schema.types, strict=True):
        if pa.types.is_nested(kind):
            raise Invalid(f"column {name} is a {kind}; text is wanted{', a JSON object' if name == 'metadata' else ''}")
    return table.rename_columns(names)


def _replaced(table: pa.Table, name: str, column: Any) -> pa.Table:
    return table.set_column(table.column_names.index(name), name, column)


def _kinds(column: Any) -> Any:
    """Words or numbers as numbers; where nothing is said, a put."""
    text = pc.fill_null(column.cast(pa.string()), "")
    places = pc.index_in(text, value_set=pa.array(KINDS))
    if places.null_count:
        wrong = text.filter(pc.is_null(places))[0].as_py()
        raise Invalid(f"column kind holds {wrong!r}: put and tombstone are known")
    return pa.array(list(KINDS.values()), pa.uint8()).take(places)


def _is_put(table: pa.Table) -> Any:
    if "kind" in table.column_names:
        return pc.equal(table["kind"], records.PUT)
    return pa.chunked_array([pa.array(np.ones(len(table), np.bool_))])


def _check_puts(table: pa.Table, is_put: Any) -> None:
    """What a put needs: an address, and a size that is not negative."""
    puts = table.filter(is_put)
    if not len(puts):
        return
    for name, alias in (("address", ""), ("size_bytes", " (or size)")):
        if name not in table.column_names:
            raise Invalid(f"it has no column {name}{alias}")
        if nulls := puts[name].null_count:
            raise Invalid(f"column {name} has {nulls} nulls: every object needs one")
    if not pa.types.is_integer(puts["size_bytes"].type):
        raise Invalid(f"column size_bytes is a {puts['size_bytes'].type}; a number of bytes is wanted")
    if pc.min(puts["size_bytes"]).as_py() < 0:
        raise Invalid(f"column size_bytes has {pc.min(puts['size_bytes'])}: a size may not be negative")
    if empty := pc.sum(pc.equal(puts["address"].cast(pa.string()), "")).as_py():
        raise Invalid(f"column address is empty in {empty} rows: every object needs one")


def _canonical(column: Any) -> Any:
    """Metadata checked and written in one form. Each distinct text is looked at once, all of them in one call."""
    text = column.cast(pa.string())
    text = pc.if_else(pc.equal(text, ""), None, text)
    if text.null_count == len(text):
        return text
    encoded = text.combine_chunks().dictionary_encode()
    # A line break is legal in JSON only between tokens, where a space does as well.
    lines = pc.replace_substring_regex(encoded.dictionary, "[\r\n]", " ").to_pylist()
    try:
        values = _metadata.decode_lines("\n".join(lines))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Invalid(f"column metadata is not a JSON object of texts: {error}") from None
    written = _sorted.encode_lines(values).decode().split("\n")[:-1]
    if len(written) != len(lines):
        raise Invalid("column metadata holds a blank text: leave it empty, or write {}")
    if (longest := max(map(len, written))) > METADATA_BYTES_MAX:
        raise Invalid(f"column metadata holds {longest} bytes, at most {METADATA_BYTES_MAX} are allowed")
    return pa.DictionaryArray.from_arrays(encoded.indices, pa.array(written)).cast(pa.string())


def _bare_tombstones(rows: pa.Table) -> pa.Table:
    """A tombstone says nothing but its key."""
    is_put = pc.equal(rows["kind"], records.PUT)
    if pc.all(is_put).as_py():
        return rows
    for field in records.SCHEMA:
        if field.name not in ("key", "kind"):
            nothing = pa.scalar(None, field.type) if field.nullable else _zero(field.type)
            rows = _replaced(rows, field.name, pc.if_else(is_put, rows[field.name], nothing))
    return rows.cast(records.SCHEMA)


def _zero(kind: pa.DataType) -> pa.Scalar:
    return pa.scalar("") if pa.types.is_string(kind) else pa.scalar(0).cast(kind)


def _check_unique(rows: pa.Table) -> None:
    if records.is_ascending(rows["key"]):
        return
    counts = rows["key"].value_counts()
    doubled = counts.filter(pc.greater(counts.field("counts"), 1))
    if len(doubled):
        example = doubled.field("values")[0].as_py()
        raise Invalid(f"{len(doubled)} keys are there more than once, such as {example!r}: a unit has each key once")
