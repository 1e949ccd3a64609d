"""Multipart uploads under way, on the ref store's KV: partition `<repository>/uploads`.

    u/<upload id>                  Upload: what the object will be, and after its completion what was answered
    p/<upload id>/<part number>    Part: where the bytes are; the last one of a number counts

An upload id begins with the time, so ids of one key are in the order of their beginning. A part's bytes are stored
before its record is, and an upload is gone before its parts are: what an interruption leaves is parts of no upload,
which `sweep` removes. The bytes of parts that are not part of an object are garbage collection's to find, which must
count the records here as references.
"""

import asyncio
import re
from collections.abc import AsyncIterator
from typing import TypeVar

import msgspec

from lsmfs.clock import Clock
from lsmfs.gateway.addressing import Place
from lsmfs.gateway.errors import S3Error
from lsmfs.model import Extent
from refstore.errors import Conflict, Corrupt
from refstore.store import VALUE_BYTES_MAX, Store

PARTS_MAX = 10_000  # S3's limit
REMOVED_AT_ONCE = 100  # of an ended upload's records
KEPT_US = 24 * 3600 * 1_000_000  # a completed upload answers repeated completes so long
_Record = TypeVar("_Record", "Upload", "Part")
_ID = re.compile(r"[0-9a-f]{13}[0-9a-v]{20}\Z")


class Completed(msgspec.Struct, frozen=True):
    """What was answered."""

    etag: str
    at_us: int
    checksums: dict[str, str] = {}


class Upload(msgspec.Struct, frozen=True):
    id: str
    ref: str
    path: str
    user: str
    initiated_us: int
    content_type: str | None = None
    metadata: dict[str, str] = {}
    algorithm: str = ""
    is_composite: bool = False
    completed: Completed | None = None

    @property
    def key(self) -> str:
        return f"{self.ref}/{self.path}"


class Part(msgspec.Struct, frozen=True):
    number: int
    etag: str
    size_bytes: int
    modified_us: int
    extents: tuple[Extent, ...]
    algorithm: str = ""
    checksum: str = ""


def partition_of(repository: str) -> str:
    return f"{repository}/uploads"


class Uploads:
    """The uploads of one repository."""

    def __init__(self, store: Store, repository: str, clock: Clock) -> None:
        self._store = store
        self._partition = partition_of(repository)
        self._clock = clock

    def new_id(self) -> str:
        return f"{self._clock.now_us():013x}"[-13:] + self._clock.new_id()

    async def begin(self, upload: Upload) -> None:
        await self._store.set(self._partition, _key(upload.id), msgspec.json.encode(upload))

    async def find(self, identity: str, place: Place) -> Upload:
        """The upload of that id, also a completed one; S3Error NoSuchUpload if it is not for this key."""
        data = await self._store.get(self._partition, _key(identity)) if _ID.match(identity) else None
        upload = None if data is None else _decoded(data, Upload)
        if upload is None or (upload.ref, upload.path) != (place.ref, place.path):
            raise S3Error("NoSuchUpload", extra={"UploadId": identity[:80]})
        return upload

    async def open(self, identity: str, place: Place) -> Upload:
        """The same, if it is neither completed nor aborted."""
        upload = await self.find(identity, place)
        if upload.completed is not None:
            raise S3Error("NoSuchUpload", extra={"UploadId": identity[:80]})
        return upload

    async def all(self) -> AsyncIterator[Upload]:
        """Those under way, by their beginning."""
        async for item in self._store.scan(self._partition, prefix=b"u/"):
            upload = _decoded(item.value, Upload)
            if upload.completed is None:
                yield upload

    async def put_part(self, upload: Upload, part: Part) -> None:
        """Keep the part, unless the upload has ended meanwhile."""
        data = msgspec.json.encode(part)
        if len(data) > VALUE_BYTES_MAX:
            message = f"The part has {len(part.extents)} pieces, which is too many: make smaller parts."
            raise S3Error("EntityTooLarge", message)
        key = _part_key(upload.id, part.number)
        await self._store.set(self._partition, key, data)
        try:
            await self.open(upload.id, Place("", upload.ref, upload.path))
        except S3Error:
            await self._store.delete(self._partition, key)
            raise

    async def parts(self, identity: str, after: int = 0) -> AsyncIterator[Part]:
        prefix = b"p/%s/" % identity.encode()
        async for item in self._store.scan(self._partition, _part_key(identity, after + 1), prefix):
            yield _decoded(item.value, Part)

    async def complete(self, upload: Upload, completed: Completed) -> None:
        """Remember what was answered; somebody else may have completed it at the same time."""
        done = msgspec.structs.replace(upload, completed=completed, metadata={}, content_type=None)
        try:
            await self._store.set_if(
                self._partition, _key(upload.id), msgspec.json.encode(done), msgspec.json.encode(upload)
            )
        except Conflict:
            return

    async def abort(self, upload: Upload) -> None:
        await self._store.delete(self._partition, _key(upload.id))
        await self.remove_parts(upload.id)

    async def remove_parts(self, identity: str) -> None:
        keys = [_part_key(identity, part.number) async for part in self.parts(identity)]
        for start in range(0, len(keys), REMOVED_AT_ONCE):
            some = keys[start : start + REMOVED_AT_ONCE]
            await asyncio.gather(*(self._store.delete(self._partition, key) for key in some))

    async def sweep(self, begun_before_us: int = 0) -> int:
        """Forget completed uploads after `KEPT_US`, those begun before that time, and parts of no upload; how many."""
        swept, alive, kept_from = 0, set[bytes](), self._clock.now_us() - KEPT_US
        orphans = [item.key async for item in self._store.scan(self._partition, prefix=b"p/")]
        async for item in self._store.scan(self._partition, prefix=b"u/"):  # after the parts: an upload is before them
            upload = _decoded(item.value, Upload)
            is_old = upload.completed.at_us < kept_from if upload.completed else upload.initiated_us < begun_before_us
            if is_old:
                await self._store.delete(self._partition, item.key)
                swept += 1
            elif upload.completed is None:
                alive.add(upload.id.encode())
        for key in orphans:
            if key.split(b"/")[1] not in alive:
                await self._store.delete(self._partition, key)
                swept += 1
        return swept


def _key(identity: str) -> bytes:
    return b"u/" + identity.encode()


def _part_key(identity: str, number: int) -> bytes:
    return b"p/%s/%05d" % (identity.encode(), number)


def _decoded(data: bytes, kind: type[_Record]) -> _Record:
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Corrupt(f"a record of an upload cannot be read: {error}") from None
