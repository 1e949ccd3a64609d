"""A Table: one immutable, sorted Parquet file of Records, and the same rows opened for reading.

    Parquet file   one row group; key as DELTA_BYTE_ARRAY, zstd; statistics and page index; a native bloom filter on key
                   key-value metadata: lsmfs.format, lsmfs.kind, and whatever facts its maker recorded (its history)

The name of a file carries the XXH3-128 of its bytes, so any flipped bit is found before a single row is believed.
What no checksum can find, a file written wrong, is found too: keys out of order or doubled, another format version.
"""

import itertools
from bisect import bisect_left
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import xxhash

from lsmfs.lsm import records
from refstore.errors import Corrupt, Invalid

FORMAT = "1"
COMMON_KEYS_MIN = 64
COMMON_MAX = 4096  # stretches of keys known to be another table's too, held for listings: at most 1 MB a table
SAMPLE_ROWS = 64  # of so many keys one is held ready for bisecting: 60 KB for a usual range, and half the time
BLOOM_FALSE_POSITIVES = (
    0.0002  # as asked of Parquet; measured up to 0.001, so 18 layers open at most 0.02 a missing key
)

_BLOOM_SALTS = (0x47B6137B, 0x44974D91, 0x8824AD5B, 0xA2B7289D, 0x705495C7, 0x2DF1424B, 0x9EFC4947, 0x5C6BFB31)


_serials = itertools.count()


def digest_of(data: Any) -> str:
    """The checksum that names carry."""
    return xxhash.xxh3_128_hexdigest(data)


def encode(table: pa.Table, kind: str, facts: Mapping[str, str], bloom_column: str | None = "key") -> bytes:
    """The Parquet bytes of rows that are sorted already."""
    metadata = {"lsmfs.format": FORMAT, "lsmfs.kind": kind, **facts}
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, table.schema, **parquet_options(table, bloom_column)) as writer:
        writer.write_table(table, row_group_size=max(1, len(table)))
        writer.add_key_value_metadata(metadata)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def parquet_options(table: pa.Table, bloom_column: str | None = "key") -> dict[str, Any]:
    """How files are written. A run (no `bloom_column`) is small and read whole: plain, without a filter."""
    bloom = {"ndv": len(table), "fpp": BLOOM_FALSE_POSITIVES}
    return {
        "compression": "zstd",
        "compression_level": 1,
        "use_dictionary": ["content_type"] if bloom_column else False,
        "column_encoding": {"key": "DELTA_BYTE_ARRAY"} if bloom_column else None,
        "write_page_index": True,
        "write_page_checksum": True,  # a run's name has the hash of what it says, not of its bytes
        "store_schema": False,
        "bloom_filter_options": {bloom_column: bloom} if bloom_column and len(table) else None,
    }


def decode(data: bytes, name: str, schema: pa.Schema = records.SCHEMA) -> tuple[pa.Table, dict[str, str], bytes]:
    """Rows, facts and bloom filter of a file whose digest was checked; `Corrupt` if its maker wrote it wrong."""
    try:
        file = pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True)
        facts = {k.decode(): v.decode() for k, v in (file.metadata.metadata or {}).items() if k.startswith(b"lsmfs.")}
        _check_format(facts, name)
        read = file.read(use_threads=False)
        _check_columns(read, schema, name)
        table = pa.Table.from_arrays(read.columns, schema=schema).combine_chunks()
        table[0].validate(full=True)  # UTF-8, which Parquet readers take on trust
        bloom = _bloom_bits(data, file.metadata)
    except (pa.ArrowException, OSError, UnicodeDecodeError, LookupError, TypeError, ValueError) as error:
        raise Corrupt(f"{name} is no table of ours: {(str(error) or repr(error)).splitlines()[0]}") from None
    _check_rows(table, name)
    return table, facts, bloom


def _check_columns(read: pa.Table, schema: pa.Schema, name: str) -> None:
    if read.column_names != schema.names:
        raise Corrupt(f"{name} has columns {read.column_names}, expected {schema.names}")
    for field in schema:
        if not field.nullable and read[field.name].null_count:
            raise Corrupt(f"{name} has nulls in column {field.name!r}")


def _check_rows(table: pa.Table, name: str) -> None:
    """The first column is the key, whatever the table is of."""
    if not records.is_ascending(table[0]):
        raise Corrupt(f"{name}: its keys are not in ascending order, or one is there twice")
    if len(table) and not table[0][0].as_py():
        raise Corrupt(f"{name}: its first key is empty")
    if "kind" in table.column_names and (pc.max(table["kind"]).as_py() or 0) > records.APPEND:
        raise Corrupt(f"{name}: it has records of a kind that this lsmfs does not know: use a newer one")


def _check_format(facts: Mapping[str, str], name: str) -> None:
    version = facts.get("lsmfs.format")
    if version is None:
        raise Corrupt(f"{name} is a Parquet file that lsmfs did not write")
    if version != FORMAT:
        raise Invalid(f"{name} has format version {version}, this lsmfs reads {FORMAT}: use a newer lsmfs")


def _bloom_bits(data: bytes, metadata: Any) -> bytes:
    """The bit set of the key column's filter, which fills the end of its region; empty if there is none."""
    if metadata.num_row_groups != 1:
        return b""  # no rows; or a foreign hand wrote several groups, each with a filter of its own keys alone
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
        "_addresses",
        "_blocks",
        "_bloom",
        "_common",
        "_etags",
        "_key_array",
        "_key_data",
        "_key_offsets",
        "_kinds",
        "_offsets",
        "_optional",
        "_samples",
        "_serial",
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
        key, kind, size, mtime, etag, address, offset, *optional = (records.flat(column) for column in rows.columns)
        self._key_array = key
        self._key_offsets, self._key_data = _strings(key)
        self._etags, self._addresses = _strings(etag), _strings(address)
        self._kinds = bytes(kind.buffers()[1][kind.offset : kind.offset + self.count]) if self.count else b""
        self._sizes, self._times, self._offsets = (_integers(column) for column in (size, mtime, offset))
        self._optional = [None if column.null_count == self.count else column for column in optional]
        self._samples: list[bytes] | None = None
        self._common: dict[tuple[int, int, int], int] = {}
        self._serial = next(_serials)
        self.first = self.key(0) if self.count else b""
        self.last = self.key(self.count - 1) if self.count else b""

    def key(self, row: int) -> bytes:
        return bytes(self._key_data[self._key_offsets[row] : self._key_offsets[row + 1]])

    def keys(self, row: int, count: int) -> list[bytes]:
        offsets, data = self._key_offsets, self._key_data
        ends = offsets[row : row + count + 1].tolist()
        whole = bytes(data[ends[0] : ends[-1]])
        return [whole[start - ends[0] : stop - ends[0]] for start, stop in itertools.pairwise(ends)]

    def puts_from(self, row: int, limit: int) -> int:
        """How many rows from this one on are puts."""
        kinds = self._kinds[row : row + limit]
        return len(kinds) - len(kinds.lstrip(b"\0"))

    def is_tombstone(self, row: int) -> bool:
        return self._kinds[row] == records.TOMBSTONE

    def is_append(self, row: int) -> bool:
        return self._kinds[row] == records.APPEND

    def may_hold(self, probe: Probe) -> bool:
        """Whether bounds and bloom filter allow the key: without them every table would be searched."""
        if not self.first <= probe.key <= self.last or not self.count:
            return False
        if not self._blocks:
            return True
        at = (probe.block * self._blocks >> 32) * 32
        return int.from_bytes(self._bloom[at : at + 32], "little") & probe.mask == probe.mask

    def lower_bound(self, key: bytes, low: int = 0) -> int:
        """The first row at or after `low` whose key is >= key."""
        samples = self._samples or self._sample()
        sample = bisect_left(samples, key)
        offsets, data = self._key_offsets, self._key_data
        low, high = max(low, sample * SAMPLE_ROWS - SAMPLE_ROWS + 1), min(self.count, sample * SAMPLE_ROWS)
        while low < high:
            middle = (low + high) >> 1
            if data[offsets[middle] : offsets[middle + 1]].tobytes() < key:
                low = middle + 1
            else:
                high = middle
        return low

    def _sample(self) -> list[bytes]:
        """Every so manieth key, made when the table is first searched."""
        rows = pa.array(np.arange(0, self.count, SAMPLE_ROWS))
        self._samples = self._key_array.take(rows).cast(pa.binary()).to_pylist()
        return self._samples

    def find(self, key: bytes) -> int:
        """The row of the key, or -1."""
        row = self.lower_bound(key)
        return row if row < self.count and self.key(row) == key else -1

    def tombstones_from(self, row: int, count_max: int) -> int:
        """How many rows from here on are tombstones without a gap; at most `count_max`."""
        end = min(self.count, row + count_max)
        for kind in (records.PUT, records.APPEND):
            stop = self._kinds.find(kind, row, end)
            end = stop if stop >= 0 else end
        return end - row

    def common_keys(self, row: int, other: "OpenTable", other_row: int, count: int) -> int:
        """How many of `count` keys from here and from there are the same, up to the first that differs, or fewer. Two
        tables never change, so what was once compared is remembered: a page that is listed again leaps at once."""
        place = (row, other._serial, other_row)
        known = self._common.get(place)
        if known is not None:
            return min(known, count)
        found = self._compare_keys(row, other, other_row, count)
        if found < count or found >= COMMON_KEYS_MIN:  # not the few keys before some other table's key
            if len(self._common) >= COMMON_MAX:
                self._common.clear()
            self._common[place] = found
        return found

    def _compare_keys(self, row: int, other: "OpenTable", other_row: int, count: int) -> int:
        mine = np.frombuffer(self._key_offsets, np.int32, count + 1, row * 4)
        theirs = np.frombuffer(other._key_offsets, np.int32, count + 1, other_row * 4)
        shift = mine - theirs
        differs = shift != shift[0]
        if differs.any():
            count = int(differs.argmax()) - 1  # the first offset that is off ends the first key of another length
        start, size = int(mine[0]), int(mine[count] - mine[0])
        if _equal(self._key_array, start, other._key_array, int(theirs[0]), size):
            return count
        here = np.frombuffer(self._key_data, np.uint8, size, start)
        there = np.frombuffer(other._key_data, np.uint8, size, int(theirs[0]))
        return int(np.searchsorted(mine, start + int((here != there).argmax()), side="right")) - 1

    def entry(self, row: int) -> Any:
        """The row's Entry, of an append what it adds; None for a tombstone."""
        if not records.has_entry(self._kinds[row]):
            return None
        extents, content_type, metadata = (None if c is None else c[row].as_py() for c in self._optional)
        return records.entry_of(
            self._sizes[row],
            self._times[row],
            _text(self._etags, row),
            _text(self._addresses, row),
            self._offsets[row],
            extents,
            content_type,
            metadata,
        )


def _text(column: tuple[Any, Any], row: int) -> str:
    offsets, data = column
    return str(data[offsets[row] : offsets[row + 1]], "utf-8")


def _equal(mine: Any, at: int, theirs: Any, other_at: int, size: int) -> bool:
    """Whether so many bytes of two key columns are the same: by `memcmp`, without a copy."""
    here, there = mine.buffers()[2], theirs.buffers()[2]
    return not size or bool(here.slice(at, size).equals(there.slice(other_at, size)))


def _strings(column: Any) -> tuple[Any, Any]:
    offsets = memoryview(column.buffers()[1]).cast("i")[column.offset :] if len(column) else [0]
    data = column.buffers()[2]
    return offsets, memoryview(data if data is not None else b"")


def _integers(column: Any) -> Any:
    return memoryview(column.buffers()[1]).cast("q")[column.offset :] if len(column) else []
