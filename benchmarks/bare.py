"""The bare libraries doing the same work: what the engine's overhead is measured against.

They write files with the very options of the engine's tables, to the same disk, without hashing, verifying, naming or
fsyncing anything. Polars is imported where it is used: benchmarks that compare with pyarrow alone do without it.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lsmfs.lsm import records, table
from lsmfs.lsm.run import Run


def write(rows: pa.Table, path: Path) -> None:
    """One file of one row group."""
    with pq.ParquetWriter(str(path), rows.schema, **table.parquet_options(rows)) as writer:
        writer.write_table(rows, row_group_size=max(1, len(rows)))


def write_files(rows: pa.Table, counts: Sequence[int], folder: Path) -> None:
    """Rows as consecutive files of so many rows each."""
    start = 0
    for number, count in enumerate(counts):
        write(rows.slice(start, count), folder / f"{number}.parquet")
        start += count


def counts_of(run: Run) -> list[int]:
    counts: list[int] = run.table["count"].to_pylist()
    return counts


def read_sort_write(files: Sequence[Path], counts: Sequence[int], folder: Path) -> None:
    """What compaction does, by polars and pyarrow alone: read all, newest file first; sort; drop doubles; write."""
    import polars

    frame = polars.concat([polars.read_parquet(file) for file in files])
    merged = frame.unique("key", keep="first", maintain_order=True).sort("key")
    write_files(_as_records(merged), counts, folder)


def read_all(files: Sequence[Path]) -> pa.Table:
    """The rows of all files, sorted; of equal keys any one."""
    import polars

    frame = polars.concat([polars.read_parquet(file) for file in files])
    return _as_records(frame.unique("key").sort("key"))


def merge_ranges(bases: Sequence[Path], changes: Sequence[pa.Table], folder: Path, threads: int) -> None:
    """What a commit does to touched ranges, by polars and pyarrow alone: read, merge, write, one range a thread."""
    with ThreadPoolExecutor(threads) as pool:
        targets = (folder / f"{number}.parquet" for number in range(len(bases)))
        for _ in pool.map(_merge_range, bases, changes, targets):
            pass


def _merge_range(base: Path, changes: pa.Table, target: Path) -> None:
    import polars

    upper: Any = polars.from_arrow(changes)
    lower = polars.read_parquet(base)
    merged = polars.concat([upper, lower.join(upper, on="key", how="anti")]).sort("key")
    write(_as_records(merged.filter(polars.col("kind") == records.PUT)), target)


def merge_three_ways(sections: Sequence[Sequence[Sequence[Path]]], folder: Path, threads: int) -> None:
    """What a merge does to ranges that both sides changed, by polars and pyarrow alone: read the files of base, source
    and destination, join to find what the source changed, put that over the destination, write; one section a thread.
    It looks neither for conflicts nor for what the source removed."""
    with ThreadPoolExecutor(threads) as pool:
        targets = (folder / f"{number}.parquet" for number in range(len(sections)))
        for _ in pool.map(_merge_section, sections, targets):
            pass


def _merge_section(files: Sequence[Sequence[Path]], target: Path) -> None:
    import polars

    base, source, destination = (polars.concat([polars.read_parquet(file) for file in some]) for some in files)
    compared = [name for name in records.SCHEMA.names if name not in ("key", "mtime")]
    differs = polars.any_horizontal(polars.col(name).ne_missing(polars.col(f"{name}.base")) for name in compared)
    changes = source.join(base, on="key", how="left", suffix=".base").filter(differs).select(source.columns)
    merged = polars.concat([changes, destination.join(changes, on="key", how="anti")]).sort("key")
    write(_as_records(merged), target)


def _as_records(frame: Any) -> pa.Table:
    """Polars' strings are views; Parquet's writer takes plain ones."""
    return frame.to_arrow().cast(records.SCHEMA).combine_chunks()


def by_range(base: Run, changes: pa.Table) -> list[pa.Table]:
    """Sorted changes, split by the range of the base that they belong to."""
    owners = pc.search_sorted(base.table["max_key"], changes["key"]).to_numpy()
    starts = np.searchsorted(np.minimum(owners, len(base) - 1), np.arange(len(base) + 1))
    return [changes.slice(low, high - low) for low, high in pairwise(starts)]
