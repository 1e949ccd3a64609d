"""What can be imported: the objects below a bucket's prefix or a local folder, or those that a manifest names.

    s3://bucket/prefix?endpoint=...   gs://...   az://...   a bucket, as `objectstore.bucket_url` says
    /a/folder, a/folder, file:///a/folder                   every regular file below it
    a file that ends with .parquet, .csv, .ndjson, .jsonl   a manifest, as `manifest` says

A source gives batches of Records in its own order, keys with the prefix of the destination before them. An ordered one
may begin at a `Place`, so that an import goes on where it was. What cannot be an entry is left out and told: `Skip`.
"""

import os
import re
from collections.abc import AsyncIterator, Callable, Mapping
from typing import NamedTuple, Protocol
from urllib.parse import unquote, urlsplit

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from lsmfs.clock import Clock, SystemClock
from lsmfs.model import key_of
from refstore.errors import Invalid, NotFound

CLOUDS = ("s3", "gs", "az")
_OTHER_SCHEMES = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "azure": "az", "abfs": "az", "abfss": "az", "wasbs": "az"}
_MISSPELT = re.compile(r"(s3|gs|az|file|lsmfs):/?(?!/)")


class Skip(msgspec.Struct, frozen=True, array_like=True):
    """How many objects were left out for one reason, and the first of them."""

    count: int
    example: str

    def plus(self, other: "Skip") -> "Skip":
        return Skip(self.count + other.count, self.example)


class Place(NamedTuple):
    """Where to go on: after so many rows, or after the name. What was skipped up to `counted` has been told."""

    rows: int = 0
    name: str = ""
    counted: bytes = b""


class Batch(NamedTuple):
    """Records in the order of the source, and what was left out among them; `reached` is the last name looked at."""

    rows: pa.Table
    reached: bytes = b""
    skipped: Mapping[str, Skip] = {}


class Source(Protocol):
    @property
    def url(self) -> str:
        """What an import remembers: `open_source` of it opens the same source."""
        ...

    @property
    def mark(self) -> str:
        """Differs if the source is not the one that an import began with, so that it must begin again."""
        ...

    @property
    def total(self) -> int | None:
        """How many objects there are, if that is known."""
        ...

    @property
    def is_ordered(self) -> bool:
        """Whether `batches` may begin at a place."""
        ...

    @property
    def may_repeat(self) -> bool:
        """Whether a key that comes twice is one object seen twice, and no mistake."""
        ...

    async def check(self) -> None:
        """`NotFound` if there is nothing, `Invalid` if it cannot be imported, `Denied`."""
        ...

    def batches(self, prefix: str, place: Place) -> AsyncIterator[Batch]: ...

    async def aclose(self) -> None: ...


class Counted(NamedTuple):
    objects: int
    size_bytes: int
    skipped: Mapping[str, Skip]


def open_source(text: str, environment: Mapping[str, str], store_url: str = "", clock: Clock | None = None) -> Source:
    """The source that a user names; `NotFound`, `Invalid`. `store_url` is the address of the lake's own store: what is
    in the same cloud has addresses relative to it. Contacts nobody yet."""
    scheme, separator, _ = text.partition("://")
    if separator and scheme in CLOUDS:
        # Here and not above: each kind imports what the others need not wait for.
        from lsmfs.imports.buckets import BucketSource

        return BucketSource(text, environment, store_url, clock or SystemClock())
    return _open_local(text, _local_path(text))


def _open_local(text: str, path: str) -> Source:
    from lsmfs.imports.folders import FolderSource
    from lsmfs.imports.manifest import ManifestSource, is_manifest

    if os.path.isdir(path):
        return FolderSource(path)
    if not os.path.exists(path):
        raise NotFound(f"{text} does not exist: give a folder, a bucket's address or a manifest")
    if is_manifest(path):
        return ManifestSource(path)
    raise Invalid(f"{text} is a single file: give a folder, or a manifest (.parquet, .csv); `lsmfs put` stores a file")


def _local_path(text: str) -> str:
    scheme, separator, _ = text.partition("://")
    if not text or "\0" in text:
        raise Invalid("the source is empty: give a folder, a bucket's address or a manifest")
    if separator and "/" not in scheme:
        return _file_path(text, scheme)
    if found := _MISSPELT.match(text):
        raise Invalid(f"{text!r} has a misspelt scheme: {found[1]}:// is followed by a name")
    return text


def _file_path(text: str, scheme: str) -> str:
    if scheme != "file":
        advice = f"say {_OTHER_SCHEMES[scheme]}://" if scheme in _OTHER_SCHEMES else "known are s3, gs, az and file"
        raise Invalid(f"{text!r} has the scheme {scheme}://, which cannot be imported: {advice}")
    parts = urlsplit(text)
    if parts.netloc not in ("", "localhost") or parts.query or parts.fragment:
        raise Invalid(f"{text!r} has a host or parameters: a local folder is file:///path (? is %3F, # is %23)")
    return unquote(parts.path)


def folder_prefix(prefix: str) -> str:
    """The prefix as it stands before every key: empty, or ending with a slash."""
    if not prefix:
        return ""
    joined = prefix if prefix.endswith("/") else prefix + "/"
    key_of(joined)
    return joined


async def count(
    source: Source, prefix: str = "", tell: Callable[[int, int], None] = lambda objects, size: None
) -> Counted:
    """What an import would take, without writing anything; `tell` hears of it as it is counted."""
    await source.check()
    objects = size = 0
    skipped: dict[str, Skip] = {}
    async for batch in source.batches(folder_prefix(prefix), Place()):
        objects += len(batch.rows)
        size += pc.sum(batch.rows["size_bytes"]).as_py() or 0
        skipped = added(skipped, batch.skipped)
        tell(objects, size)
    return Counted(objects, size, skipped)


def added(skipped: Mapping[str, Skip], more: Mapping[str, Skip]) -> dict[str, Skip]:
    """Both together."""
    result = dict(skipped)
    for reason, skip in more.items():
        result[reason] = result[reason].plus(skip) if reason in result else skip
    return result
