"""Rows that users send, as an Arrow IPC stream or a Parquet file: hostile until they are read.

What is looked at before anything is made of it: names and types of columns (no nested, no extension types), the number
of rows, and how large texts become when dictionaries are laid out. Arrow's buffers must not be compressed: a small body
would become any number of bytes. Then every batch is validated in full, offsets and UTF-8 included.
"""

import mmap
import struct
from collections.abc import Iterator
from typing import IO, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lsmfs.lsm import records
from refstore.errors import Invalid

PARQUET = b"PAR1"
ROWS_MAX = 20_000_000  # of one unit: some minutes of work
BATCH_ROWS = 65536
TEXTS = ("key", "etag", "address", "extents", "content_type", "metadata")
THRIFT_BYTES_MAX = 16 * 1024 * 1024  # of a Parquet footer's texts and lists


def read_rows(file: IO[bytes], size_bytes: int, bytes_max: int) -> pa.Table:
    """All rows of the file, in memory; `Invalid`."""
    if not size_bytes:
        raise Invalid("the body is empty: send an Arrow IPC stream or a Parquet file")
    buffer = pa.py_buffer(mmap.mmap(file.fileno(), size_bytes, access=mmap.ACCESS_READ))
    try:
        batches = _parquet(buffer, bytes_max) if bytes(buffer[:4]) == PARQUET else _arrow(buffer)
        return _bounded(batches, bytes_max)
    except (pa.ArrowException, OSError, ValueError, struct.error) as error:
        raise Invalid(f"the rows cannot be read: {str(error).splitlines()[0][:300] if str(error) else error}") from None


def _bounded(batches: Iterator[pa.RecordBatch], bytes_max: int) -> pa.Table:
    found, rows, size = [], 0, 0
    for batch in batches:
        batch.validate(full=True)
        rows += len(batch)
        size += sum(_laid_out_bytes(column) for column in batch.columns)
        if rows > ROWS_MAX or size > bytes_max:
            raise Invalid(f"the rows are too many: up to {ROWS_MAX}, and {bytes_max} bytes of memory: send parts")
        found.append(_laid_out(batch))
    if not rows:
        raise Invalid("the body has no rows")
    return pa.Table.from_batches(found)


def _laid_out_bytes(column: Any) -> int:
    """What a column takes when a dictionary's values stand in each row."""
    if not pa.types.is_dictionary(column.type):
        return int(column.nbytes)
    lengths = pc.binary_length(column.dictionary).cast(pa.int64())
    return (pc.sum(lengths.take(column.indices)).as_py() or 0) + 8 * len(column)


def _laid_out(batch: pa.RecordBatch) -> pa.RecordBatch:
    columns = [c.cast(pa.string()) if pa.types.is_dictionary(c.type) else c for c in batch.columns]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _check_schema(schema: pa.Schema) -> None:
    if unknown := [name for name in schema.names if name not in records.SCHEMA.names]:
        raise Invalid(f"unknown columns {unknown[:10]}: a table of entries has {records.SCHEMA.names}")
    if len(set(schema.names)) < len(schema.names):
        raise Invalid("a column is there more than once")
    for field in schema:
        kind = field.type
        if pa.types.is_dictionary(kind):
            kind = kind.value_type
            if not pa.types.is_string(kind):
                raise Invalid(f"column {field.name!r} is of type {field.type}: dictionaries are of strings")
        plain = pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_integer(kind)
        if not plain and not pa.types.is_timestamp(kind) and not pa.types.is_null(kind):
            raise Invalid(f"column {field.name!r} is of type {field.type}, which rows do not have")


def _parquet(buffer: pa.Buffer, bytes_max: int) -> Iterator[pa.RecordBatch]:
    limits = {"thrift_string_size_limit": THRIFT_BYTES_MAX, "thrift_container_size_limit": 1_000_000}
    with pq.ParquetFile(pa.BufferReader(buffer), **limits) as plain:
        _check_schema(plain.schema_arrow)
        names = [name for name in TEXTS if name in plain.schema_arrow.names]
        # What a file says of its size may be a lie; `_bounded` counts. This refuses the honest ones early.
        groups = [plain.metadata.row_group(at).total_byte_size for at in range(plain.metadata.num_row_groups)]
        if plain.metadata.num_rows > ROWS_MAX or sum(groups) > bytes_max:
            raise Invalid(f"the file has more than {ROWS_MAX} rows or {bytes_max} bytes: send parts")
    # Texts stay as dictionaries until they are counted: a few bytes can stand for many large ones.
    texts = [name for name in names if plain.schema_arrow.field(name).type == pa.string()]
    with pq.ParquetFile(pa.BufferReader(buffer), read_dictionary=texts, **limits) as file:
        yield from file.iter_batches(BATCH_ROWS)


def _arrow(buffer: pa.Buffer) -> Iterator[pa.RecordBatch]:
    for message in _messages(buffer):
        if is_compressed(bytes(message.metadata)):
            raise Invalid("the stream's buffers are compressed: write it without compression")
    with pa.ipc.open_stream(pa.BufferReader(buffer)) as reader:
        _check_schema(reader.schema)
        yield from reader


def _messages(buffer: pa.Buffer) -> Iterator[Any]:
    reader = pa.ipc.MessageReader.open_stream(pa.BufferReader(buffer))
    while True:
        try:
            yield reader.read_next_message()
        except StopIteration:
            return


# Of Arrow's flatbuffers: Message {version, header_type, header, ...}; RecordBatch {length, nodes, buffers, compression}
# and DictionaryBatch {id, data: RecordBatch}. A field's place is in its table's vtable.
_HEADER_TYPE, _HEADER, _COMPRESSION, _DATA = 1, 2, 3, 1
_DICTIONARY_BATCH, _RECORD_BATCH = 2, 3


def is_compressed(metadata: bytes) -> bool:
    """Whether an IPC message says that its buffers are compressed."""
    message = struct.unpack_from("<I", metadata)[0]
    at = _field(metadata, message, _HEADER_TYPE)
    kind = metadata[at] if at is not None else 0
    table = _table(metadata, message, _HEADER)
    if kind == _DICTIONARY_BATCH and table is not None:
        table = _table(metadata, table, _DATA)
    if kind not in (_DICTIONARY_BATCH, _RECORD_BATCH) or table is None:
        return False
    return _field(metadata, table, _COMPRESSION) is not None


def _field(data: bytes, table: int, number: int) -> int | None:
    """Where the field of a table is, if it has it."""
    vtable = table - struct.unpack_from("<i", data, table)[0]
    if vtable < 0 or 4 + 2 * number >= struct.unpack_from("<H", data, vtable)[0]:
        return None
    offset = struct.unpack_from("<H", data, vtable + 4 + 2 * number)[0]
    return table + offset if offset else None


def _table(data: bytes, table: int, number: int) -> int | None:
    at = _field(data, table, number)
    return None if at is None else at + struct.unpack_from("<I", data, at)[0]
