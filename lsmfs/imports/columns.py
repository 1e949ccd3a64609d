"""The columns of a manifest as Records: checked, renamed and cast, whatever file they come from.

All work is on columns; nothing is done row by row. Whatever is wrong is `Invalid`, and the message names the column.
"""

from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lsmfs.imports.source import folder_prefix
from lsmfs.lsm import records
from lsmfs.model import METADATA_BYTES_MAX
from refstore.errors import Invalid

ALIASES = {
    "path": "key",
    "url": "address",
    "size": "size_bytes",
    "e_tag": "etag",
    "last_modified": "mtime",
    "last_modified_date": "mtime",  # S3 Inventory
}
TEXT = ("key", "path", "address", "url", "etag", "e_tag", "content_type", "metadata")
KNOWN = [name for name in records.SCHEMA.names if name != "extents"]
KINDS = {"": records.PUT, "put": records.PUT, "0": records.PUT, "tombstone": records.TOMBSTONE, "1": records.TOMBSTONE}

_metadata = msgspec.json.Decoder(dict[str, str])
_sorted = msgspec.json.Encoder(order="sorted")


class Repeated(Invalid):
    """A key is there more than once. Not for callers: they are told where."""


def normalised(table: pa.Table, prefix: str = "") -> pa.Table:
    """The user's columns as Records, in the user's order, with the prefix before every key."""
    table = _renamed(table)
    if "kind" in table.column_names:
        table = _replaced(table, "kind", _kinds(table["kind"]))
    is_put = _is_put(table)
    _check_puts(table, is_put)
    if "metadata" in table.column_names:
        table = _replaced(table, "metadata", _canonical(table["metadata"]))
    if prefix:
        text = table["key"].cast(pa.string())
        table = _replaced(table, "key", pc.binary_join_element_wise(folder_prefix(prefix), text, ""))
    return records.conform(table)


def _renamed(table: pa.Table) -> pa.Table:
    names = [ALIASES.get(name, name) for name in table.column_names]
    if unknown := [name for name in names if name not in KNOWN]:
        known = f"{', '.join(KNOWN)}; or {', '.join(ALIASES)}"
        raise Invalid(f"unknown columns {', '.join(unknown)}; known are {known}")
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


def check_unique(rows: pa.Table) -> None:
    """`Repeated` if a key is there more than once, with an example."""
    if records.is_ascending(rows["key"]):
        return
    counts = rows["key"].value_counts()
    doubled = counts.filter(pc.greater(counts.field("counts"), 1))
    if len(doubled):
        example = doubled.field("values")[0].as_py()
        raise Repeated(f"{len(doubled)} keys are there more than once, such as {example!r}: a unit has each key once")
