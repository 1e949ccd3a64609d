"""An object store in a bucket: S3 at any endpoint, Google's or Azure's, on obstore.

obstore's own retries are off (`bucket_url`): a create that it repeats after a lost answer would be refused by its own
first attempt, and the caller told that somebody else was first. A lost answer is `OutcomeUnknown` here, and
`RetryingStore` reads back. For the same reason S3's 409 to a create is `Unavailable`: two puts met, neither need be
stored.

A tag is the ETag. Google compares generations instead, which its listings do not tell, so a put with a tag first asks
for the generation that has this ETag: one request more, and as atomic.

Memory is bounded: bodies go up in parts, of which PARTS_MAX are held, and come down in pieces. What a body that
raises had uploaded is aborted; if the process dies, its parts stay hidden in the bucket until a lifecycle rule of the
bucket removes them.
"""

import asyncio
import atexit
import contextlib
import heapq
import tempfile
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager
from typing import IO, TYPE_CHECKING, TypeVar

import obstore

from lsmfs.objectstore.bucket_errors import status_of, translated
from lsmfs.objectstore.bucket_url import Bucket
from lsmfs.objectstore.checks import check_name, check_span, check_within, is_name
from lsmfs.objectstore.store import ABSENT, ANYTHING, Body, LateName, ObjectInfo, Precondition, Span, Tag
from refstore.errors import AlreadyExists, Conflict, Invalid, NotFound, Unavailable

if TYPE_CHECKING:
    from obstore import GetOptions, GetResult, ObjectMeta, PutMode, PutResult

PART_BYTES = 8 << 20  # S3 takes 10,000 parts: 80 GB a body
PARTS_MAX = 4  # under way at once: with the one being filled, 40 MB a body
PIECE_BYTES = 1 << 20
LISTING_PAGE = 1000  # what one request of every cloud gives
SORTED_NAMES = 100_000  # some 30 MB; an unordered listing of n times as many is made n times
EXIT_SECONDS = 0.1  # threads of obstore that have just answered let go of Python's objects well within

A = TypeVar("A")
T = TypeVar("T")


class BucketStore:
    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self._store = bucket.store
        atexit.unregister(_let_threads_end)  # once, however many stores there are
        atexit.register(_let_threads_end)

    async def get(self, name: str, span: Span | None = None) -> bytes:
        if span is not None and check_span(name, span).start == span.stop:
            check_within(name, span, (await self.head(name)).size_bytes)  # no request can ask for no bytes
            return b""
        with self._translated("get", name):
            result = await self._open(name, span)
            return (await result.bytes_async()).to_bytes()

    async def get_tagged(self, name: str) -> tuple[bytes, Tag]:
        with self._translated("get", name):
            result = await self._open(name, None)
            return (await result.bytes_async()).to_bytes(), _tag(result.meta)

    async def stream(self, name: str, span: Span | None = None) -> AsyncIterator[bytes]:
        if span is not None and span.start == span.stop:
            await self.get(name, span)
            return
        with self._translated("get", name):
            result = await self._open(name, span)
            async for piece in result.stream(min_chunk_size=PIECE_BYTES):
                yield bytes(piece)

    async def put(self, name: str, body: Body, expected: Precondition = ANYTHING) -> Tag:
        path = self._path(name)
        if expected is ANYTHING:
            with self._translated("put", name, writes=True):
                return _tag(await self._upload(path, body, multipart=memoryview(body).nbytes > PART_BYTES))
        mode: PutMode = "create" if expected is ABSENT else await self._version(name, expected)
        try:
            with self._translated("put", name, writes=True):
                return _tag(await obstore.put_async(self._store, path, body, mode=mode, use_multipart=False))
        except (AlreadyExists, NotFound) as error:
            if expected is not ABSENT:  # S3's 409 when two updates meet, or 404 when the object is gone
                raise Conflict(str(error)) from error
            if self._bucket.scheme == "s3" and status_of(error.__cause__) == 409:
                raise Unavailable(f"{error}; two puts met, try again") from error
            raise

    async def put_stream(self, name: str | LateName, body: AsyncIterator[bytes]) -> Tag:
        if not isinstance(name, str):
            return await self._put_spooled(name, body)
        path = self._path(name)
        first = bytearray()
        async for piece in body:
            first += piece
            if len(first) >= PART_BYTES:
                break
        else:
            return await self.put(name, first)
        rest = _Rest(first, body)
        try:
            with self._translated("put", name, writes=True):
                return _tag(await self._upload(path, rest, multipart=True))
        except Exception:
            if rest.failure is not None:  # the body's error is its maker's, and not for us to translate
                raise rest.failure from None
            raise

    async def _put_spooled(self, name: LateName, body: AsyncIterator[bytes]) -> Tag:
        """Wait for the name with the body on local disk: an upload has to begin with its name."""
        with _spool() as file:
            async for piece in body:
                await _spooled(file.write, piece)
            size, known = file.tell(), name()
            with contextlib.suppress(NotFound):
                there = await self.head(known)
                if there.size_bytes == size:  # somebody stored these very bytes before
                    return there.tag
            await _spooled(file.seek, 0)
            return await self.put_stream(known, _read_pieces(file))

    async def delete(self, name: str) -> None:
        path = self._path(name)
        try:
            with self._translated("delete", name, writes=True):
                await obstore.delete_async(self._store, path)
        except NotFound:
            return

    def list(self, prefix: str = "", after: str = "") -> AsyncIterator[ObjectInfo]:
        return self._list_as_it_comes(prefix, after) if self._bucket.ordered else self._list_sorted(prefix, after)

    async def head(self, name: str) -> ObjectInfo:
        with self._translated("head", name):
            return self._info(await obstore.head_async(self._store, self._path(name)))

    async def aclose(self) -> None:
        """obstore closes its connections when the last reference to it goes."""

    def _path(self, name: str) -> str:
        return self._bucket.prefix + check_name(name)

    def _translated(self, verb: str, name: str, writes: bool = False) -> AbstractContextManager[None]:
        return translated(f"{verb} {self._bucket.label}{name}", writes=writes)

    async def _open(self, name: str, span: Span | None) -> "GetResult":
        options: GetOptions = {} if span is None else {"range": check_span(name, span)}
        result = await obstore.get_async(self._store, self._path(name), options=options)
        if span is not None:  # a store gives what there is of a span; we give all of it or an error
            check_within(name, span, result.meta["size"])
        return result

    async def _upload(self, path: str, body: "Body | AsyncIterable[bytes]", multipart: bool) -> "PutResult":
        return await obstore.put_async(
            self._store, path, body, use_multipart=multipart, chunk_size=PART_BYTES, max_concurrency=PARTS_MAX
        )

    async def _version(self, name: str, tag: Tag) -> "PutMode":
        if self._bucket.scheme != "gs":
            return {"e_tag": f'"{tag}"'}
        try:
            with self._translated("head", name):
                meta = await obstore.head_async(self._store, self._path(name))
        except NotFound as error:
            raise Conflict(f"{name!r} is gone, expected tag {tag}") from error
        if (found := _tag(meta)) != tag:
            raise Conflict(f"{name!r} has tag {found}, expected {tag}")
        return {"version": meta["version"]}

    def _info(self, meta: "ObjectMeta") -> ObjectInfo:
        name = meta["path"].removeprefix(self._bucket.prefix)
        return ObjectInfo(name, meta["size"], _tag(meta), meta["last_modified"])

    async def _list_as_it_comes(self, prefix: str, after: str) -> AsyncIterator[ObjectInfo]:
        last = ""
        async for info in self._entries(prefix, after):
            if info.name <= last:
                said = f"{self._bucket.label} lists {info.name!r} after {last!r}"
                raise Invalid(f"{said}: say ordered=no in the store's address")
            last = info.name
            if info.name > after and info.name.startswith(prefix):
                yield info
            elif info.name > prefix and not info.name.startswith(prefix):
                return

    async def _list_sorted(self, prefix: str, after: str) -> AsyncIterator[ObjectInfo]:
        """The smallest names beyond the last, as often as it takes: bounded memory, whatever order they come in."""
        while True:
            smallest: list[ObjectInfo] = []
            async for info in self._entries(prefix, ""):
                if info.name > after and info.name.startswith(prefix):
                    smallest.append(info)
                    if len(smallest) >= 2 * SORTED_NAMES:
                        smallest = heapq.nsmallest(SORTED_NAMES, smallest)
            smallest.sort()
            for info in smallest[:SORTED_NAMES]:
                yield info
            if len(smallest) < SORTED_NAMES:
                return
            after = smallest[SORTED_NAMES - 1].name

    async def _entries(self, prefix: str, after: str) -> AsyncIterator[ObjectInfo]:
        """What is in the directory of the prefix (obstore knows no other prefixes) and after the name, unsorted."""
        directory = prefix.rpartition("/")[0]
        if directory and not is_name(directory):
            return  # nothing can be there, and obstore would refuse it
        directory = self._bucket.prefix + directory
        offset = self._bucket.prefix + after if is_name(after) else None
        with self._translated("list", prefix):
            pages = obstore.list(
                self._store, prefix=directory.rstrip("/") or None, offset=offset, chunk_size=LISTING_PAGE
            )
            async for page in pages:
                for meta in page:
                    if meta["path"].startswith(self._bucket.prefix):  # and is not the folder marker of the prefix
                        yield self._info(meta)


class _Rest:
    """A body whose beginning was read already; remembers what it raised."""

    def __init__(self, first: bytearray, body: AsyncIterator[bytes]) -> None:
        self._first = bytes(first)
        self._body = body
        self.failure: Exception | None = None

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._first
        try:
            async for piece in self._body:
                yield piece
        except Exception as error:
            self.failure = error
            raise


def _tag(meta: "ObjectMeta | PutResult") -> Tag:
    """The ETag without its quotes: Azure's listings leave them away."""
    if meta["e_tag"] is None:
        raise Invalid("the store gives no ETags, without which no put can be conditional")
    return Tag(meta["e_tag"].strip('"'))


def _let_threads_end() -> None:
    """A thread of obstore that needs the interpreter while that is ending aborts the process (PyO3 before Python 3.14):
    under load every fourth process that ended right after an answer did."""
    time.sleep(EXIT_SECONDS)


async def _read_pieces(file: IO[bytes]) -> AsyncIterator[bytes]:
    while piece := await _spooled(file.read, PIECE_BYTES):
        yield piece


def _spool() -> IO[bytes]:
    """A file without a name, so it goes with the process."""
    with _disk_translated():
        return tempfile.TemporaryFile()


async def _spooled(call: Callable[[A], T], argument: A) -> T:
    with _disk_translated():
        return await asyncio.to_thread(call, argument)


@contextlib.contextmanager
def _disk_translated() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        folder = tempfile.gettempdir()
        raise Unavailable(f"{folder}, where a body waits for its name: {error.strerror}: free some space") from error
