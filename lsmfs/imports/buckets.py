"""A bucket's prefix as a source: every object below it, as the cloud lists them.

A store that lists in byte order (`bucket_url` says which are believed to) is listed once, can go on after any name, and
is retried; a name out of order ends the import and says so. Any other is listed from its beginning, as it comes, and
the importer sorts.

An address is `s3://bucket/name`, if the lake's own store is reached with the same parameters; else those stand with the
bucket, `s3://bucket?endpoint=http%3A%2F%2Fhost&region=r/name`, so that the bytes can be read from anywhere. Credentials
are the environment's, now and whenever an object is read.

What consoles put as a folder, an empty object `a/`, is listed as `a`. It is told from an empty object `a` by what comes
after it, `a/...`, or by its place, and left out.
"""

from collections.abc import AsyncIterator, Mapping
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import obstore
import pyarrow as pa
import pyarrow.compute as pc

from lsmfs.clock import Clock
from lsmfs.imports.source import Batch, Place, Skip, added
from lsmfs.lsm import records
from lsmfs.model import KEY_BYTES_MAX
from lsmfs.objectstore.bucket import LISTING_PAGE, BucketStore
from lsmfs.objectstore.bucket_errors import translated
from lsmfs.objectstore.bucket_url import Bucket, open_bucket
from lsmfs.objectstore.checks import NAME_BYTES_MAX, is_name
from lsmfs.objectstore.retrying import RetryingStore
from lsmfs.objectstore.store import ObjectInfo
from refstore.errors import Denied, Invalid, NotFound, Unavailable

BATCH_OBJECTS = 8 * 1024  # eight pages: some seconds of listing, which progress is told after

MARKER, UNREADABLE, TOO_LONG = "folder markers", "names that cannot be read back", "keys that are too long"
# What a machine is asked for an identity of its own, if nobody has given credentials.
_IDENTITY_SERVICES = ("169.254.", "metadata.google.internal", "/latest/api/token", "/metadata/identity/")
_CREDENTIALS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
    "az": "AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_TOKEN",
}


class BucketSource:
    total: int | None = None
    may_repeat = True  # an object that is replaced while the bucket is listed may be seen twice
    mark = ""

    def __init__(self, url: str, environment: Mapping[str, str], store_url: str, clock: Clock) -> None:
        self._bucket = open_bucket(url, environment)
        self._listing = _Listing(self._bucket)
        self._retried = RetryingStore(self._listing, clock)
        parts = urlsplit(url)
        self.url = parts._replace(path="/" + self._bucket.prefix.rstrip("/")).geturl()
        self._base = base_address(url, store_url) + "/" + self._bucket.prefix

    @property
    def is_ordered(self) -> bool:
        return self._bucket.ordered

    async def check(self) -> None:
        try:
            async for _ in self._listing.as_it_comes(""):
                return
            await self._check_object()
        except (Denied, Unavailable) as error:
            if any(service in str(error) for service in _IDENTITY_SERVICES):
                wanted = _CREDENTIALS[self._bucket.scheme]
                raise Denied(f"there are no credentials for {self._bucket.label}: set {wanted}") from error
            raise
        raise NotFound(f"there is nothing below {self._bucket.label}: correct the name or the endpoint")

    async def _check_object(self) -> None:
        if not self._bucket.prefix:
            return
        name = self._bucket.prefix.rstrip("/")
        try:
            with translated(f"head {self._bucket.label}"):
                await obstore.head_async(self._bucket.store, name)
        except NotFound:
            return
        raise Invalid(f"{self._bucket.label.rstrip('/')} is a single object: give the folder that it is in")

    async def batches(self, prefix: str, place: Place) -> AsyncIterator[Batch]:
        infos = self._retried.list("", place.name) if self.is_ordered else self._listing.as_it_comes("")
        room = min(KEY_BYTES_MAX - len(prefix.encode()), NAME_BYTES_MAX)
        found: list[ObjectInfo] = []
        skipped: dict[str, Skip] = {}
        last = ""
        async for info in infos:
            last = info.name
            if not (reason := _unfit(last, room)):
                found.append(info)
            elif last.encode() > place.counted:
                skipped = added(skipped, {reason: Skip(1, last)})
            if len(found) >= BATCH_OBJECTS:
                yield Batch(self._rows(found, prefix), last.encode(), self._listing.markers(skipped, place.counted))
                found, skipped = [], {}
        skipped = self._listing.markers(skipped, place.counted)
        if found or skipped:
            yield Batch(self._rows(found, prefix), last.encode(), skipped)

    async def aclose(self) -> None:
        await self._retried.aclose()

    def _rows(self, found: list[ObjectInfo], prefix: str) -> pa.Table:
        if not found:
            return records.EMPTY
        names = pa.array([info.name for info in found], pa.string())
        columns: dict[str, Any] = {
            "key": pc.binary_join_element_wise(prefix, names, "") if prefix else names,
            "address": pc.binary_join_element_wise(self._base, names, ""),
            "size_bytes": [info.size_bytes for info in found],
            "mtime": pa.array([info.modified for info in found], records.SCHEMA.field("mtime").type),
            "etag": [info.tag for info in found],
        }
        return records.conform(pa.table(columns))


class _Listing(BucketStore):
    """The bucket, for its listing alone."""

    def __init__(self, bucket: Bucket) -> None:
        super().__init__(bucket)
        self._markers: dict[str, None] = {}  # in order, and once each: a listing that is retried meets some again

    def markers(self, skipped: Mapping[str, Skip], counted: bytes) -> dict[str, Skip]:
        """What was skipped together with the folder markers that were met since the last call."""
        met = [name for name in self._markers if name.encode() > counted]
        self._markers = {}
        return added(skipped, {MARKER: Skip(len(met), met[0])} if met else {})

    async def list(self, prefix: str = "", after: str = "") -> AsyncIterator[ObjectInfo]:
        """In ascending order: a store that does not keep it is told, and nothing is lost silently."""
        last = after
        async for info in self.as_it_comes(after):
            if info.name > last:
                last = info.name
                yield info
            elif info.size_bytes:
                said = f"{self._bucket.label} lists {info.name!r} after {last!r}"
                raise Invalid(f"{said}: say ordered=no in the address of the source, and it will be sorted")
            else:
                self._markers[info.name + "/"] = None

    async def as_it_comes(self, after: str) -> AsyncIterator[ObjectInfo]:
        """Without folder markers that stand before what is in the folder."""
        held: ObjectInfo | None = None
        async for info in self._all(after):
            if held is not None:
                if info.name.startswith(held.name + "/"):
                    self._markers[held.name + "/"] = None
                else:
                    yield held
            held = info if not info.size_bytes else None
            if held is None:
                yield info
        if held is not None:
            yield held

    async def _all(self, after: str) -> AsyncIterator[ObjectInfo]:
        prefix = self._bucket.prefix
        offset = prefix + after if is_name(after) else None
        try:
            with translated(f"list {self._bucket.label}"):
                async for page in obstore.list(
                    self._store, prefix=prefix.rstrip("/") or None, offset=offset, chunk_size=LISTING_PAGE
                ):
                    for meta in page:
                        if meta["path"].startswith(prefix):  # and is not the marker of the prefix itself
                            yield self._info(meta)
        except Invalid as error:
            raise Invalid(f"{error}: such a name cannot be read; import the folders beside it") from error


def _unfit(name: str, room: int) -> str:
    """Why an object can be no entry; nothing if it can."""
    if not is_name(name):
        return UNREADABLE
    return TOO_LONG if len(name.encode()) > room else ""


def base_address(url: str, store_url: str) -> str:
    """The beginning of the addresses of what is in a bucket, as `blocks.locate` reads them."""
    bucket, own = urlsplit(url), urlsplit(store_url)
    parameters = _parameters(bucket.query)
    has = _parameters(own.query) if own.scheme == bucket.scheme else {}
    told = "" if parameters == has else f"?{urlencode(parameters)}"
    return f"{bucket.scheme}://{bucket.netloc}{told}"


def _parameters(query: str) -> dict[str, str]:
    """All but how the bucket is listed, which does not matter for reading."""
    return {name: value for name, value in sorted(parse_qsl(query)) if name != "ordered"}
