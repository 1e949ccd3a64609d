"""A Table: one immutable, sorted Parquet file of Records, and the same rows opened for reading.

    Parquet file   one row group; key as DELTA_BYTE_ARRAY, zstd; statistics and page index; a native bloom filter on key
                   key-value metadata: lsmfs.format, lsmfs.kind, and whatever facts its maker recorded (its history)

The name of a file carries the XXH3-128 of its bytes, so any flipped bit is found before a single row is believed.
What no checksum can find, a file written wrong, is found too: keys out of order or doubled, another format version.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from lsmfs.lsm import records
from refstore.errors import Corrupt, Invalid

FORMAT = "1"
BLOOM_FALSE_POSITIVES = 0.01

_BLOOM_SALTS = (0x47B6137B, 0x44974D91, 0x8824AD5B, 0xA2B7289D, 0x705495C7, 0x2DF1424B, 0x9EFC4947, 0x5C6BFB31)


def digest_of(data: Any) -> str:
    """The checksum that names carry."""
    return xxhash.xxh3_128_hexdigest(data)


def encode(table: pa.Table, kind: str, facts: Mapping[str, str], bloom_column: str | None = "key") -> bytes:
    """The Parquet bytes of rows that are sorted already."""
    metadata = {"lsmfs.format": FORMAT, "lsmfs.kind": kind, **facts}
    sink = pa.BufferOutputStream()
    bloom = {"ndv": len(table), "fpp": BLOOM_FALSE_POSITIVES}
    with pq.ParquetWriter(
        sink,
        table.schema,
        compression="zstd",
        compression_level=1,
        use_dictionary=["content_type"] if bloom_column else False,
        column_encoding={"key": "DELTA_BYTE_ARRAY"} if bloom_column else None,
        write_page_index=True,
        write_page_checksum=True,  # a run's name has the hash of what it says, not of its bytes
        store_schema=False,
        bloom_filter_options={bloom_column: bloom} if bloom_column and len(table) else None,
    ) as writer:
        writer.write_table(table, row_group_size=max(1, len(table)))
        writer.add_key_value_metadata(metadata)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def decode(data: bytes, name: str, schema: pa.Schema = records.SCHEMA) -> tuple[pa.Table, dict[str, str], bytes]:
    """Rows, facts and bloom filter of a file whose digest was checked; `Corrupt` if its maker wrote it wrong."""
    try:
        file = pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True)
        facts = {k.decode(): v.decode() for k, v in (file.metadata.metadata or {}).items() if k.startswith(b"lsmfs.")}
        _check_format(facts, name)
        table = pa.Table.from_arrays(file.read(use_threads=False).columns, schema=schema).combine_chunks()
        bloom = _bloom_bits(data, file.metadata)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise Corrupt(f"{name} is no table of ours: {str(error).splitlines()[0]}") from None
    key_column = schema.names[0]
    if not records.is_ascending(table[key_column]):
        raise Corrupt(f"{name}: its keys are not in ascending order, or one is there twice")
    return table, facts, bloom


def _check_format(facts: Mapping[str, str], name: str) -> None:
    version = facts.get("lsmfs.format")
    if version is None:
        raise Corrupt(f"{name} is a Parquet file that lsmfs did not write")
    if version != FORMAT:
        raise Invalid(f"{name} has format version {version}, this lsmfs reads {FORMAT}: use a newer lsmfs")


def _bloom_bits(data: bytes, metadata: Any) -> bytes:
    """The bit set of the key column's filter, which fills the end of its region; empty if there is none."""
    if not metadata.num_row_groups:
        return b""
    column = metadata.row_group(0).column(0)
    if column.bloom_filter_offset is None:
        return b""
    end = column.bloom_filter_offset + column.bloom_filter_length
    size, shift, position = 0, 0, column.bloom_filter_offset + 1  # the header begins with a varint: numBytes
    while True:
        byte = data[position]
        size |= (byte & 127) << shift
        if byte < 128:
            break
        shift, position = shift + 7, position + 1
    size >>= 1  # zigzag
    return data[end - size : end]


class Probe:
    """A key prepared for many filters: its block selector, and the 256-bit mask it must find there (Parquet's
    split-block filter)."""

    __slots__ = ("block", "key", "mask")

    def __init__(self, key: bytes) -> None:
        fingerprint = xxhash.xxh64_intdigest(key)
        low = fingerprint & 0xFFFFFFFF
        mask = 0
        for word, salt in enumerate(_BLOOM_SALTS):
            mask |= 1 << (((low * salt & 0xFFFFFFFF) >> 27) + 32 * word)
        self.key, self.block, self.mask = key, fingerprint >> 32, mask


class OpenTable:
    """A Table's rows in memory or mapped from the local cache, with point access by bisecting the key's offsets."""

    __slots__ = (
        "_address",
        "_blocks",
        "_bloom",
        "_key_data",
        "_key_offsets",
        "_kinds",
        "_offsets",
        "_sizes",
        "_times",
        "count",
        "facts",
        "first",
        "last",
        "rows",
        "size_bytes",
    )

    def __init__(self, rows: pa.Table, facts: Mapping[str, str], bloom: bytes) -> None:
        self.rows = rows
        self.facts = facts
        self.count = len(rows)
        self.size_bytes = rows.nbytes
        self._bloom, self._blocks = bloom, len(bloom) // 32
        key, kind, size, mtime, _, _, offset, *_ = (records.flat(column) for column in rows.columns)
        self._key_offsets, self._key_data = _strings(key)
        self._kinds = memoryview(kind.buffers()[1])[kind.offset :]
        self._sizes, self._times, self._offsets = (_integers(column) for column in (size, mtime, offset))
        self.first = self.key(0) if self.count else b""
        self.last = self.key(self.count - 1) if self.count else b""

    def key(self, row: int) -> bytes:
        return bytes(self._key_data[self._key_offsets[row] : self._key_offsets[row + 1]])

    def is_tombstone(self, row: int) -> bool:
        return bool(self._kinds[row] == records.TOMBSTONE)

    def may_hold(self, probe: Probe) -> bool:
        """Whether bounds and bloom filter allow the key: without them every table would be searched."""
        if not self.first <= probe.key <= self.last or not self.count:
            return False
        if not self._blocks:
            return True
        at = (probe.block * self._blocks >> 32) * 32
        return int.from_bytes(self._bloom[at : at + 32], "little") & probe.mask == probe.mask

    def lower_bound(self, key: bytes, low: int = 0) -> int:
        """The first row whose key is >= key."""
        offsets, data, high = self._key_offsets, self._key_data, self.count
        while low < high:
            middle = (low + high) >> 1
            if data[offsets[middle] : offsets[middle + 1]].tobytes() < key:
                low = middle + 1
            else:
                high = middle
        return low

    def find(self, key: bytes) -> int:
        """The row of the key, or -1."""
        row = self.lower_bound(key)
        return row if row < self.count and self.key(row) == key else -1

    def all_tombstones(self, row: int, count: int) -> bool:
        return bytes(self._kinds[row : row + count]) == bytes([records.TOMBSTONE]) * count

    def same_keys(self, row: int, other: "OpenTable", other_row: int, count: int) -> bool:
        """Whether `count` keys from here and from there are the same, by comparing bytes."""
        mine = np.frombuffer(self._key_offsets, np.int32)[row : row + count + 1]
        theirs = np.frombuffer(other._key_offsets, np.int32)[other_row : other_row + count + 1]
        if not np.array_equal(mine - mine[0], theirs - theirs[0]):
            return False
        # a memoryview compares item by item; copying both and comparing as bytes is far faster
        here, there = self._key_data[mine[0] : mine[-1]], other._key_data[theirs[0] : theirs[-1]]
        return bool(here.tobytes() == there.tobytes())

    def entry(self, row: int) -> Any:
        """The row's Entry, or None for a tombstone."""
        if self._kinds[row] == records.TOMBSTONE:
            return None
        etag, address, _, extents, content_type, metadata = (self.rows.column(i)[row].as_py() for i in range(4, 10))
        return records.entry_of(
            self._sizes[row], self._times[row], etag, address, self._offsets[row], extents, content_type, metadata
        )


def _strings(column: Any) -> tuple[Any, Any]:
    offsets = memoryview(column.buffers()[1]).cast("i")[column.offset :] if len(column) else [0]
    data = column.buffers()[2]
    return offsets, memoryview(data if data is not None else b"")


def _integers(column: Any) -> Any:
    return memoryview(column.buffers()[1]).cast("q")[column.offset :] if len(column) else []
