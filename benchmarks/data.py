"""Made-up entries of a data lake as Arrow tables: keys of about 80 bytes, addresses and etags as random as real ones.

A key's number decides its place: numbers ascend with keys, so any slice of numbers is a sorted table, and two tables
overlap exactly where their numbers do.
"""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lsmfs.lsm import records
from lsmfs.model import Entry

Numbers = np.ndarray[Any, np.dtype[np.int64]]

KEYS_PER_FOLDER = 1000
_MTIME_US = 1_700_000_000_000_000
_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)


def sequence(start: int, stop: int, step: int = 1) -> Numbers:
    return np.arange(start, stop, step, dtype=np.int64)


def keys(numbers: Numbers) -> pa.Array:
    """events/day=00012/part-00012345-<16 hex digits>-c000.snappy.parquet and some more: 78 bytes."""
    folder = _digits(numbers // KEYS_PER_FOLDER, 6)
    part = _digits(numbers, 9)
    scrambled = (numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)).byteswap().view(np.uint8)
    pieces = ["warehouse/events/day=", folder, "/part-", part, "-", _hex(scrambled, 16), "-c000.snappy.parquet", ""]
    return pc.binary_join_element_wise(*(pa.scalar(p) if isinstance(p, str) else p for p in pieces))


def keys_in(folders: Numbers, letter: str, numbers: Numbers) -> pa.Array:
    """lake/dir=00001/a-000000123-<16 hex digits>-c000.snappy.parquet: one key in each of the numbered folders."""
    scrambled = (numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)).byteswap().view(np.uint8)
    pieces = ["lake/dir=", _digits(folders, 5), f"/{letter}-", _digits(numbers, 9), "-", _hex(scrambled, 16)]
    pieces += ["-c000.snappy.parquet", ""]
    return pc.binary_join_element_wise(*(pa.scalar(p) if isinstance(p, str) else p for p in pieces))


def key_of(number: int) -> bytes:
    key: str = keys(np.array([number], np.int64))[0].as_py()
    return key.encode()


def puts(numbers: Numbers, seed: int = 0) -> pa.Table:
    """An entry for each number; another seed gives other entries."""
    random = np.random.default_rng(seed)
    count = len(numbers)
    address = _hex(random.bytes(count * 10), 20)
    columns = {
        "key": keys(numbers),
        "kind": pa.array(np.zeros(count, np.uint8)),
        "size_bytes": pa.array(random.integers(1, 1 << 30, count)),
        "mtime": pa.array(_MTIME_US + random.integers(0, 10**13, count), pa.timestamp("us", "UTC")),
        "etag": _hex(random.bytes(count * 16), 32),
        "address": pc.binary_join_element_wise(pa.scalar("lake/data/"), address, pa.scalar("")),
        "offset": pa.array(np.zeros(count, np.int64)),
        "extents": pa.nulls(count, pa.string()),
        "content_type": pa.repeat(pa.scalar("application/vnd.apache.parquet"), count),
        "metadata": pa.nulls(count, pa.string()),
    }
    return pa.Table.from_arrays(list(columns.values()), schema=records.SCHEMA)


def tombstones(key_column: pa.Array) -> pa.Table:
    """A deletion of each key."""
    return pa.table({"key": key_column, "kind": pa.array(np.ones(len(key_column), np.uint8))})


def entry(number: int) -> Entry:
    """One entry for a single put."""
    return Entry(
        address=f"lake/data/{number * 0x9E3779B97F4A7C15 % (1 << 80):020x}",
        size_bytes=number + 1,
        etag=f"{number * 0xC2B2AE3D27D4EB4F % (1 << 128):032x}",
        mtime_us=_MTIME_US + number,
        content_type="application/vnd.apache.parquet",
    )


def spread(count: int, among: int, seed: int) -> Numbers:
    """That many different numbers below `among`, ascending, spread evenly at random."""
    step = among // count
    return sequence(0, count) * step + np.random.default_rng(seed).integers(0, step, count)


def _digits(numbers: Numbers, width: int) -> pa.Array:
    """Decimal, with leading zeros."""
    powers = 10 ** np.arange(width - 1, -1, -1, dtype=np.int64)
    digits = (numbers[:, None] // powers % 10 + ord("0")).astype(np.uint8)
    return _fixed(digits.tobytes(), len(numbers), width)


def _hex(data: Any, width: int) -> pa.Array:
    """Every width/2 bytes as hexadecimal digits."""
    octets = np.frombuffer(data, np.uint8)
    digits = np.empty(2 * len(octets), np.uint8)
    digits[0::2], digits[1::2] = _HEX[octets >> 4], _HEX[octets & 15]
    return _fixed(digits.tobytes(), len(digits) // width, width)


def _fixed(data: bytes, count: int, width: int) -> pa.Array:
    offsets = np.arange(count + 1, dtype=np.int32) * width
    return pa.StringArray.from_buffers(count, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(data))
