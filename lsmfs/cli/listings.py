"""A listing for `stage`: a manifest, as `lsmfs.imports.manifest` says, that is read whole."""

from collections.abc import Callable, Iterable

import pyarrow as pa

from lsmfs.imports import manifest
from lsmfs.imports.columns import check_unique, normalised
from refstore.errors import Invalid


def read(path: str, prefix: str = "", advance: Callable[[int], None] = lambda rows: None) -> pa.Table:
    """The listing as Records, with the prefix before every key; `advance` is told of rows that have been read."""
    manifest.check_file(path)
    with manifest.translated(path):
        rows = normalised(_collected(manifest.read_batches(path), advance), prefix)
        check_unique(rows)
        return rows


def _collected(batches: Iterable[pa.RecordBatch], advance: Callable[[int], None]) -> pa.Table:
    found = []
    for batch in batches:
        found.append(batch)
        advance(len(batch))
    if not sum(map(len, found)):
        raise Invalid("it has no rows: there is nothing to stage")
    return pa.Table.from_batches(found)
