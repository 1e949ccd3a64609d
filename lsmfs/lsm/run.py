"""A Run: Ranges in key order that do not overlap. Written down, it is a Table of Ranges: a MetaRange.

    max_key, min_key   string    bounds of the range, both inclusive; max_key ascends
    count, tombstones  int64     records in it, and how many of them are tombstones
    id                 binary    SHA-256 of the range's logical content
    size_bytes, file   int64, string    where its Parquet file is: not part of the run's identity

The identity of a run is the hash of its ranges' bounds and ids: equal content, equal identity, whoever wrote it.
"""

from bisect import bisect_left
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lsmfs.lsm import records

RANGE_SCHEMA = pa.schema(
    [
        pa.field("max_key", pa.string(), nullable=False),
        pa.field("min_key", pa.string(), nullable=False),
        pa.field("count", pa.int64(), nullable=False),
        pa.field("tombstones", pa.int64(), nullable=False),
        pa.field("id", pa.binary(32), nullable=False),
        pa.field("size_bytes", pa.int64(), nullable=False),
        pa.field("file", pa.string(), nullable=False),
    ]
)
IDENTITY = ["max_key", "min_key", "count", "id"]


class Run:
    """A Run in memory. Immutable."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table.replace_schema_metadata(None)

    # Python's lists of columns are made when they are first asked for: a merge looks at most runs in columns alone.
    @cached_property
    def max_keys(self) -> list[bytes]:
        keys: list[bytes] = self.table["max_key"].cast(pa.binary()).to_pylist()
        return keys

    @cached_property
    def min_keys(self) -> list[bytes]:
        keys: list[bytes] = self.table["min_key"].cast(pa.binary()).to_pylist()
        return keys

    @cached_property
    def files(self) -> list[str]:
        files: list[str] = self.table["file"].to_pylist()
        return files

    @staticmethod
    def of(rows: Sequence[dict[str, Any]]) -> "Run":
        return Run(pa.Table.from_pylist(list(rows), schema=RANGE_SCHEMA))

    def __len__(self) -> int:
        return len(self.table)

    @property
    def count(self) -> int:
        return pc.sum(self.table["count"]).as_py() or 0

    @property
    def tombstones(self) -> int:
        return pc.sum(self.table["tombstones"]).as_py() or 0

    @property
    def size_bytes(self) -> int:
        return pc.sum(self.table["size_bytes"]).as_py() or 0

    def content_hash(self) -> str:
        return self._content_hash

    @cached_property
    def _content_hash(self) -> str:
        return records.content_hash(self.table.select(IDENTITY)).hex()

    def at_or_after(self, key: bytes) -> int:
        """The first range that ends at key or after it; len(self) if none does."""
        return bisect_left(self.max_keys, key)

    def part(self, start: int, stop: int) -> "Run":
        """Its ranges from start on and before stop."""
        return Run(self.table.slice(start, stop - start))

    def holding(self, key: bytes) -> str | None:
        """The file of the range whose bounds include the key."""
        at = self.at_or_after(key)
        return self.files[at] if at < len(self.files) and self.min_keys[at] <= key else None


EMPTY_RUN = Run(RANGE_SCHEMA.empty_table())
