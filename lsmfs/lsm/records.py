"""Records as columns: the one schema of every Table, and the pure operations on it.

    key            string, ascending, unique     the bytes of a path
    kind           uint8                         0 put, 1 tombstone, 2 append (see `appends`)
    size_bytes     int64
    mtime          timestamp[us, UTC]
    etag           string
    address        string                        the first extent's
    offset         int64                         the first extent's
    extents        string, null for one extent   JSON: [[address, offset, length, MD5 if known], ...]
    content_type   string, null
    metadata       string, null                  JSON object, keys in order

Everything is flat, because nested columns cost more to sort, gather and write than rare JSON does to parse, and every
engine reads it. A tombstone has zeros and nulls in all columns but key and kind. An append has no content type and no
metadata; its other columns are those of an object that holds what was appended, so that it becomes a put by its kind.
"""

import hashlib
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lsmfs.lsm import appends
from lsmfs.model import KEY_BYTES_MAX, METADATA_BYTES_MAX, Entry, Extent, check_entry
from refstore.errors import Corrupt, Invalid

PUT, TOMBSTONE, APPEND = 0, 1, 2

SCHEMA = pa.schema(
    [
        pa.field("key", pa.string(), nullable=False),
        pa.field("kind", pa.uint8(), nullable=False),
        pa.field("size_bytes", pa.int64(), nullable=False),
        pa.field("mtime", pa.timestamp("us", "UTC"), nullable=False),
        pa.field("etag", pa.string(), nullable=False),
        pa.field("address", pa.string(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("extents", pa.string()),
        pa.field("content_type", pa.string()),
        pa.field("metadata", pa.string()),
    ]
)
Rows = np.ndarray[Any, np.dtype[np.int64]]
ROW_WEIGHT = 64  # bytes counted for the fixed columns of a record, beside its strings

_encode = msgspec.json.Encoder(order="sorted").encode
_extents = msgspec.json.Decoder(tuple[Extent, ...]).decode
_metadata = msgspec.json.Decoder(dict[str, str]).decode
EMPTY = SCHEMA.empty_table()


def from_entries(records: Sequence[tuple[bytes, Entry | None]], kinds: Sequence[int] | None = None) -> pa.Table:
    """Records (None is a tombstone) in the order given: a memstore becomes columns here, and only here."""
    tomb = Entry("", 0)
    entries = [entry or tomb for _, entry in records]
    columns: list[Any] = [
        [key for key, _ in records],
        kinds or [TOMBSTONE if entry is None else PUT for _, entry in records],
        [e.size_bytes for e in entries],
        [e.mtime_us for e in entries],
        [e.etag for e in entries],
        [e.address for e in entries],
        [e.offset for e in entries],
        [appends.text_of(e.extents).decode() if e.rest else None for e in entries],
        [e.content_type for e in entries],
        [_encode(e.metadata).decode() if e.metadata else None for e in entries],
    ]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)]
    return pa.Table.from_arrays(arrays, schema=SCHEMA)


def entry_at(table: pa.Table | pa.RecordBatch, row: int) -> Entry | None:
    """The entry in one row, of an append what it adds; None for a tombstone. Bulk work stays in columns."""
    _, kind, size, mtime, etag, address, offset, extents, content_type, metadata = (c[row] for c in table.columns)
    if not has_entry(kind.as_py()):
        return None
    return entry_of(
        size.as_py(),
        mtime.value,
        etag.as_py(),
        address.as_py(),
        offset.as_py(),
        extents.as_py(),
        content_type.as_py(),
        metadata.as_py(),
    )


def entries_at(table: pa.Table | pa.RecordBatch) -> list[Entry | None]:
    """The entries of all rows, in a fifth of the time: for the few that are joined."""
    columns = [table[name] for name in SCHEMA.names[1:]]
    columns[2] = columns[2].cast(pa.int64())
    rows = zip(*(column.to_pylist() for column in columns), strict=True)
    return [entry_of(*values) if has_entry(kind) else None for kind, *values in rows]


def has_entry(kind: int) -> bool:
    """Whether a record of that kind has an entry; what a later lsmfs may have written must not be taken for a put."""
    if kind > APPEND:
        raise Corrupt(f"a record is of kind {kind}, which this lsmfs does not know: use a newer one")
    return kind != TOMBSTONE


def entry_of(
    size_bytes: int,
    mtime_us: int,
    etag: str,
    address: str,
    offset: int,
    extents: str | None,
    content_type: str | None,
    metadata: str | None,
) -> Entry:
    """An entry from the values of its row."""
    if extents is None and metadata is None:
        return Entry(address, size_bytes, etag, mtime_us, offset, content_type)
    try:
        pieces = () if extents is None else _extents(extents)
        facts = None if metadata is None else _metadata(metadata)
    except msgspec.DecodeError as error:
        raise Corrupt(f"the entry of {address!r} has unreadable extents or metadata: {error}") from None
    digest = pieces[0].digest if len(pieces) > 1 else ""
    return Entry(address, size_bytes, etag, mtime_us, offset, content_type, facts, pieces[1:], digest)


def conform(table: pa.Table) -> pa.Table:
    """A user's columns as Records: missing optional ones are filled, types cast, JSON written in one way, so that equal
    entries are equal rows whoever wrote them; `Invalid` says which column is wrong."""
    _check_names(table.column_names)
    kind = _cast(table, "kind") if "kind" in table.column_names else pa.array(np.zeros(len(table), np.uint8))
    if kind.null_count or (pc.max(kind).as_py() or 0) > APPEND:
        raise Invalid(f"column 'kind' holds values other than {PUT} (put), {TOMBSTONE} (tombstone), {APPEND} (append)")
    has_entries = pc.not_equal(kind, TOMBSTONE)
    columns = [kind if field.name == "kind" else _conform_column(table, field, has_entries) for field in SCHEMA]
    result = pa.Table.from_arrays(columns, schema=SCHEMA).combine_chunks()
    _check_keys(result["key"])
    for name in ("size_bytes", "offset"):
        if (pc.min(result[name]).as_py() or 0) < 0:
            raise Invalid(f"column {name!r} has negative values")
    return _conform_appends(_conform_extents(result))


def _check_names(names: list[str]) -> None:
    if "key" not in names:
        raise Invalid("the table has no column 'key'")
    if unknown := set(names) - set(SCHEMA.names):
        raise Invalid(f"unknown columns {sorted(unknown)}: a table of entries has {SCHEMA.names}")
    if len(set(names)) < len(names):
        raise Invalid(f"a column is there more than once: {names}")


def _cast(table: pa.Table, name: str) -> Any:
    column, target = table[name], SCHEMA.field(name).type
    if pa.types.is_nested(column.type):
        raise Invalid(f"column {name!r} is of type {column.type}, expected {target}")
    try:
        column.validate(full=True)  # UTF-8, which Arrow takes on trust
        return pc.cast(column, target)
    except pa.ArrowException as error:
        raise Invalid(f"column {name!r}: {str(error).splitlines()[0]}") from None


def _conform_column(table: pa.Table, field: pa.Field, has_entries: Any) -> Any:
    if field.name not in table.column_names:
        if field.name == "address" and pc.any(has_entries).as_py():
            raise Invalid("the table has no column 'address': where are the objects?")
        return pa.repeat(_nothing(field), len(table))
    column = _cast(table, field.name)
    if field.name == "key":
        if column.null_count:
            raise Invalid(f"column 'key' has {column.null_count} nulls")
        return column
    if not pc.all(has_entries).as_py():
        column = pc.if_else(has_entries, column, _nothing(field))
    if field.name == "address" and column.null_count:
        raise Invalid(f"column 'address' has {column.null_count} nulls: where are these objects?")
    if field.name == "metadata":
        return _conform_metadata(column)
    # Without nulls `fill_null` would copy the column all the same.
    return column if field.nullable or not column.null_count else pc.fill_null(column, _nothing(field))


def _nothing(field: pa.Field) -> pa.Scalar:
    """What a tombstone has in this column."""
    if field.nullable:
        return pa.scalar(None, field.type)
    return pa.scalar("" if pa.types.is_string(field.type) else 0, field.type)


def _conform_metadata(column: Any) -> Any:
    if column.null_count == len(column):
        return column
    texts = flat(column).dictionary_encode()  # many objects share theirs
    try:
        values = [_metadata(text) for text in texts.dictionary.to_pylist()]
    except msgspec.DecodeError as error:
        raise Invalid(f"column 'metadata' is no JSON object of strings: {error}") from None
    for value in values:
        if sum(len(k) + len(v) for k, v in value.items()) > METADATA_BYTES_MAX:
            raise Invalid(f"column 'metadata': more than {METADATA_BYTES_MAX} bytes for one object")
    written = [_encode(value).decode() if value else None for value in values]
    return pa.array(written, pa.string()).take(texts.indices)


def _conform_extents(rows: pa.Table) -> pa.Table:
    """Row by row, for the rare objects that have several."""
    column = flat(rows["extents"])
    if column.null_count == len(column):
        return rows
    texts = column.to_pylist()
    for row, text in enumerate(texts):
        if text is None:
            continue
        try:
            entry = entry_at(rows, row)
            assert entry is not None
            check_entry(entry)
        except (Corrupt, Invalid) as error:
            raise Invalid(f"column 'extents' of key {rows['key'][row].as_py()!r}: {error}") from None
        texts[row] = appends.text_of(entry.extents).decode() if entry.rest else None
    return rows.set_column(SCHEMA.get_field_index("extents"), SCHEMA.field("extents"), pa.array(texts, pa.string()))


def _conform_appends(rows: pa.Table) -> pa.Table:
    """Row by row too: an append has no facts of its own, and the etag of its extents."""
    if not _has_appends(rows):
        return rows
    at = np.flatnonzero(_kinds(rows) == APPEND)
    some = rows.take(pa.array(at))
    entries = [appends.joined([entry], None) for entry in entries_at(some) if entry is not None]
    order = np.arange(len(rows))
    return _replaced(rows, order, at, _appended(some, entries, [APPEND] * len(entries)))


def _check_keys(keys: Any) -> None:
    if not len(keys):
        return
    lengths = pc.min_max(pc.binary_length(keys)).as_py()
    if not lengths["min"]:
        raise Invalid("a key is empty: give a path inside the branch")
    if lengths["max"] > KEY_BYTES_MAX:
        raise Invalid(f"a key has {lengths['max']} bytes, at most {KEY_BYTES_MAX} are allowed")
    if not np.frombuffer(_string_bytes(flat(keys)), np.uint8).all():
        raise Invalid("a key has a NUL byte")


def beyond(prefix: bytes) -> bytes | None:
    """The smallest key greater than all that begin with prefix; None if there is none."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes([stripped[-1] + 1]) if stripped else None


def is_ascending(keys: Any) -> bool:
    """Whether keys are strictly ascending: sorted, and none twice."""
    if len(keys) < 2:
        return True
    return bool(pc.all(pc.less(keys.slice(0, len(keys) - 1), keys.slice(1))).as_py())


def sort_unique(table: pa.Table) -> pa.Table:
    """Sorted by key; of equal keys the first one stays, so put the newest first. An append is joined with what is
    behind it."""
    order = pc.sort_indices(table["key"])
    keys = table["key"].take(order)
    if len(keys) > 1:
        first = np.ones(len(keys), np.bool_)
        first[1:] = pc.not_equal(keys.slice(1), keys.slice(0, len(keys) - 1)).to_numpy()
        if not first.all():
            if _has_appends(table):
                return _join_sorted(table, order.to_numpy().astype(np.int64), first)
            order = order.filter(pa.array(first))
    return table.take(order).combine_chunks()


def _join_sorted(table: pa.Table, order: Rows, first: Any) -> pa.Table:
    """`sort_unique` where there are appends: in the given order, a new key at each `first`."""
    starts = np.flatnonzero(first)
    lengths = np.diff(starts, append=len(order))
    on_top = np.flatnonzero((_kinds(table)[order[starts]] == APPEND) & (lengths > 1))
    stacks = [order[start : start + length] for start, length in zip(starts[on_top], lengths[on_top], strict=True)]
    return _replaced(table, order[starts], on_top, _join(table, stacks))


def _join(table: pa.Table, stacks: Sequence[Rows]) -> pa.Table:
    """One row for each stack of rows, which are of one key and newest first. The only work on records one by one."""
    if not stacks:
        return table.slice(0, 0)
    rows = table.take(pa.array(np.concatenate(stacks)))
    found, kinds = entries_at(rows), _kinds(rows).tolist()
    ends = np.cumsum([0, *map(len, stacks)]).tolist()
    entries, made = [], []
    for start, stop in pairwise(ends):
        stack = kinds[start:stop]
        depth = next((at for at, kind in enumerate(stack) if kind != APPEND), len(stack))
        below = found[start + depth] if depth < len(stack) else None
        entries.append(appends.joined([e for e in found[start : start + depth] if e is not None], below))
        made.append(APPEND if depth == len(stack) else PUT)
    return _appended(rows.take(pa.array(ends[:-1])), entries, made)


def _appended(rows: pa.Table, entries: Sequence[Entry], kinds: Sequence[int]) -> pa.Table:
    """These entries under the keys of the rows."""
    return from_entries(list(zip(rows["key"].to_pylist(), entries, strict=True)), kinds)


def _replaced(table: pa.Table, order: Rows, at: Rows, rows: pa.Table) -> pa.Table:
    """The table's rows in that order, with those at some places of it replaced by these."""
    order[at] = len(table) + np.arange(len(rows))
    return pa.concat_tables([table, rows]).combine_chunks().take(pa.array(order)).combine_chunks()


def merge(newest_first: Sequence[pa.Table]) -> pa.Table:
    """The k-way merge: every key once, as its newest table says, appends joined with what is below; tombstones stay,
    and so do appends to what no table has."""
    tables = [table for table in newest_first if len(table)]
    if not tables:
        return EMPTY
    if len(tables) == 1:
        return tables[0]
    if len(tables) == 2:
        return overlay(*tables)
    return sort_unique(pa.concat_tables(tables).combine_chunks())


def overlay(upper: pa.Table, lower: pa.Table) -> pa.Table:
    """Two sorted tables as one. Binary search of the smaller side beats sorting both by far, because most of the
    result is the larger side as it stands."""
    both = pa.concat_tables([upper, lower])
    upper_at = pc.search_sorted(flat(lower["key"]), flat(upper["key"])).to_numpy().astype(np.int64)
    exists = upper_at < len(lower)
    hit = np.zeros(len(upper), np.bool_)
    if exists.any():
        found = lower["key"].take(pa.array(upper_at[exists]))
        hit[exists] = pc.equal(found, upper["key"].filter(pa.array(exists))).to_numpy()
    keep = np.ones(len(lower), np.bool_)
    keep[upper_at[hit]] = False
    rank = np.concatenate(([0], np.cumsum(keep)))
    order = np.empty(len(upper) + int(rank[-1]), np.int64)
    upper_to = rank[upper_at] + np.arange(len(upper))
    lower_to = np.ones(len(order), np.bool_)
    lower_to[upper_to] = False
    order[upper_to] = np.arange(len(upper))
    order[lower_to] = np.flatnonzero(keep) + len(upper)
    if _has_appends(upper):
        joining = np.flatnonzero(hit & (_kinds(upper) == APPEND))
        stacks = list(np.stack([joining, len(upper) + upper_at[joining]], axis=1))
        return _replaced(both, order, upper_to[joining], _join(both, stacks))
    return both.combine_chunks().take(pa.array(order)).combine_chunks()


def settled(upper: pa.Table, below: pa.Table) -> pa.Table:
    """The upper rows with their appends joined with what is below: as a reader sees them, but for tombstones."""
    if not _has_appends(upper):
        return upper
    found = pc.is_in(below["key"], flat(upper["key"]))
    return _as_puts(merge([upper, below.filter(found).combine_chunks()]))


def live(table: pa.Table) -> pa.Table:
    """What a reader sees where nothing lies below: without tombstones, appends as puts."""
    if not _highest_kind(table):
        return table
    return _as_puts(table.filter(pc.not_equal(table["kind"], TOMBSTONE)).combine_chunks())


def _as_puts(table: pa.Table) -> pa.Table:
    """With appends as puts: what was appended is all there is."""
    if not _has_appends(table):
        return table
    kinds = np.where(_kinds(table) == APPEND, PUT, _kinds(table)).astype(np.uint8)
    return table.set_column(SCHEMA.get_field_index("kind"), SCHEMA.field("kind"), pa.array(kinds))


def _highest_kind(table: pa.Table) -> int:
    """PUT, TOMBSTONE or APPEND: one look that spares tables without appends everything else."""
    highest = pc.max(table["kind"]).as_py() or 0
    has_entry(highest)
    return int(highest)


def _has_appends(table: pa.Table) -> bool:
    return _highest_kind(table) == APPEND


def _kinds(table: pa.Table) -> np.ndarray[Any, np.dtype[np.uint8]]:
    found: np.ndarray[Any, np.dtype[np.uint8]] = flat(table["kind"]).to_numpy()
    return found


def weights(table: pa.Table) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The logical bytes of each record."""
    total = np.full(len(table), ROW_WEIGHT, np.int64)
    for field in table.schema:
        column = table[field.name]
        if pa.types.is_string(field.type) and column.null_count < len(column):
            total += pc.fill_null(pc.binary_length(column), 0).to_numpy()
    return total


def content_hash(table: pa.Table) -> bytes:
    """SHA-256 of what the table says, however it is stored: column by column, lengths (-1 for null) then bytes."""
    digest = hashlib.sha256()
    for field in table.schema:
        column = flat(table[field.name])
        digest.update(f"{field.name}:{len(column)};".encode())
        if pa.types.is_string(field.type):
            if column.null_count == len(column):
                digest.update(b"null;")
                continue
            digest.update(pc.fill_null(pc.binary_length(column), -1).to_numpy(zero_copy_only=False).astype("<i4").data)
            digest.update(_string_bytes(pc.fill_null(column, "") if column.null_count else column))
        elif pa.types.is_fixed_size_binary(field.type):
            width = field.type.byte_width
            digest.update(column.buffers()[1][column.offset * width : (column.offset + len(column)) * width])
        else:
            values = column.cast(pa.int64()) if pa.types.is_timestamp(field.type) else column
            digest.update(values.to_numpy(zero_copy_only=False).astype("<i8", copy=False).data)
    return digest.digest()


def flat(column: Any) -> Any:
    """One chunk, without copying when it is one already."""
    if isinstance(column, pa.ChunkedArray):
        return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    return column


def offsets_of(column: Any) -> np.ndarray[Any, np.dtype[np.int32]]:
    """The n+1 offsets of a string array into its bytes."""
    return np.frombuffer(column.buffers()[1], np.int32, len(column) + 1, column.offset * 4)


def _string_bytes(column: Any) -> Any:
    """The bytes of all values, one after the other."""
    data = column.buffers()[2]
    if not len(column) or data is None:
        return b""
    offsets = offsets_of(column)
    return data[int(offsets[0]) : int(offsets[-1])]


def key_bytes(column: Any) -> tuple[np.ndarray[Any, np.dtype[np.int32]], Any]:
    """The offsets and bytes of a key column: what hashing and bisecting work on."""
    column = flat(column)
    data = column.buffers()[2]
    return offsets_of(column), data if data is not None else b""
