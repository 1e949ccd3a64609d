"""A manifest: a file that says which objects there are, read into the columns of Records.

    key (or path)           text, once each
    address (or url)        where the object is: a URL, or a name in the installation's own store
    size_bytes (or size)    without it an object would read as empty, so it must be there
    etag (or e_tag), mtime (or last_modified), content_type, metadata (a JSON object), kind (put or tombstone), offset

Text stays text: a key 007 does not become a number. Whatever is wrong is `Invalid`, and the message names the file and
the column. Files are read a block at a time; rows may be in any order; `.gz` may follow the suffix of a text file.
"""

import asyncio
import errno
import os
import stat
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet

from lsmfs.imports.columns import TEXT, normalised
from lsmfs.imports.source import Batch, Place
from refstore.errors import Denied, Error, Invalid, NotFound, Unavailable

BATCH_ROWS = 64 * 1024
BLOCK_BYTES = 4 << 20  # of a text file, read at a time


class ManifestSource:
    is_ordered = True  # the file is: the same rows come in the same order
    may_repeat = False

    def __init__(self, path: str) -> None:
        self.path = os.path.abspath(path)
        self.total: int | None = None
        self._mark = ""

    @property
    def url(self) -> str:
        return f"file://{quote(os.fsencode(self.path))}"

    @property
    def mark(self) -> str:
        if not self._mark:
            with translated(self.path):
                status = os.stat(self.path)
            self._mark = f"{status.st_mtime_ns:x}-{status.st_size:x}-{status.st_ino:x}"
        return self._mark

    async def check(self) -> None:
        await asyncio.to_thread(self._check)

    def _check(self) -> None:
        check_file(self.path)
        with translated(self.path):
            if Path(self.path).suffix.lower() == ".parquet":
                with pyarrow.parquet.ParquetFile(self.path) as file:
                    self.total = file.metadata.num_rows
            first = next(iter(read_batches(self.path)), None)
            if first is None or not len(first):
                raise Invalid("it has no rows: there is nothing to import")
            normalised(pa.Table.from_batches([first.slice(0, 1)]))

    async def batches(self, prefix: str, place: Place) -> AsyncIterator[Batch]:
        reading = iter(read_batches(self.path, place.rows))
        while (rows := await asyncio.to_thread(self._next, reading, prefix)) is not None:
            yield Batch(rows)

    async def aclose(self) -> None:
        """Nothing is held."""

    def _next(self, reading: Iterator[pa.RecordBatch], prefix: str) -> pa.Table | None:
        with translated(self.path):
            batch = next(reading, None)
            return None if batch is None else normalised(pa.Table.from_batches([batch]), prefix)


def is_manifest(path: str) -> bool:
    """Whether the name says so."""
    return _suffix(path) in READERS


def check_file(path: str) -> None:
    """`Invalid` or `NotFound` if it is no file that may be a manifest."""
    if not is_manifest(path):
        raise Invalid(f"{path}: a manifest is a file that ends with {', '.join(READERS)}")
    with translated(path):
        status = os.stat(path)
    if stat.S_ISDIR(status.st_mode):
        raise Invalid(f"{path} is a directory: give a file")
    if stat.S_ISREG(status.st_mode) and not status.st_size:
        raise Invalid(f"{path} is empty: a manifest has columns key, address and size_bytes")


def read_batches(path: str, skip: int = 0) -> Iterator[pa.RecordBatch]:
    """The rows as the file has them, without the first `skip` of them."""
    if skip and _suffix(path) == ".parquet":
        skip, groups = _groups_after(path, skip)
        found: Iterable[pa.RecordBatch] = _parquet(path, groups)
    else:
        found = READERS[_suffix(path)](path)
    for batch in found:
        if skip < len(batch):
            yield batch.slice(skip)
        skip = max(0, skip - len(batch))


def _suffix(path: str) -> str:
    return Path(path.removesuffix(".gz")).suffix.lower()


def _groups_after(path: str, skip: int) -> tuple[int, list[int]]:
    """The row groups that follow so many rows, and how many rows of the first are to be passed over."""
    with pyarrow.parquet.ParquetFile(path) as file:
        groups = list(range(file.num_row_groups))
        while groups and (rows := file.metadata.row_group(groups[0]).num_rows) <= skip:
            skip -= rows
            del groups[0]
    return skip, groups


def _parquet(path: str, groups: list[int] | None = None) -> Iterable[pa.RecordBatch]:
    # Buffered ahead, what was read would be held until the end of the file: 8 MB for each million objects.
    with pyarrow.parquet.ParquetFile(path, pre_buffer=False) as file:
        yield from file.iter_batches(BATCH_ROWS, row_groups=groups)


def _csv(path: str) -> Iterable[pa.RecordBatch]:
    types = {name: pa.string() for name in (*TEXT, "kind")} | {"size": pa.int64(), "size_bytes": pa.int64()}
    options = pyarrow.csv.ConvertOptions(column_types=types)
    blocks = pyarrow.csv.ReadOptions(block_size=BLOCK_BYTES)
    with pyarrow.csv.open_csv(path, read_options=blocks, convert_options=options) as reader:
        yield from reader


def _json(path: str) -> Iterable[pa.RecordBatch]:
    schema = pa.schema([(name, pa.string()) for name in TEXT if name != "metadata"])
    options = pyarrow.json.ParseOptions(explicit_schema=schema)
    blocks = pyarrow.json.ReadOptions(block_size=BLOCK_BYTES)
    with pa.input_stream(path, compression="detect") as source:
        for batch in pyarrow.json.open_json(source, read_options=blocks, parse_options=options):
            # A column of the explicit schema that is in no line comes back all null: it was not there.
            absent = [name for name in TEXT if name in batch.schema.names and batch[name].null_count == len(batch)]
            yield batch.drop_columns(absent)


READERS: dict[str, Callable[[str], Iterable[pa.RecordBatch]]] = {
    ".parquet": _parquet,
    ".csv": _csv,
    ".ndjson": _json,
    ".jsonl": _json,
}


@contextmanager
def translated(path: str) -> Iterator[None]:
    """The edge at which errors of the file and of its reader become ours, with the path before them."""
    try:
        yield
    except pa.ArrowException as error:
        raise Invalid(f"{path} cannot be read: {str(error).splitlines()[0]}") from None
    except OSError as error:
        raise _of_file(error, path) from None
    except Invalid as error:
        raise Invalid(f"{path}: {error}") from None


def _of_file(error: OSError, path: str) -> Error:
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return NotFound(f"{path} does not exist: correct the name")
    if error.errno in (errno.EACCES, errno.EPERM):
        return Denied(f"{path}: {error.strerror}: change its rights, or choose another file")
    return Unavailable(f"{path}: {error.strerror or error}")
