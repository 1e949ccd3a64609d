"""An object store in a dict: for tests, simulations and `mem://`.

Keeps every promise of the protocol but durability. Safe for any number of tasks of one event loop, because no verb
awaits between its check and its change; not safe across threads. A tag is a number that never comes back, so it
differs even when the same bytes are put again.
"""

from bisect import bisect_left, bisect_right
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

from lsmfs.clock import Clock, SystemClock
from lsmfs.objectstore.checks import check_name, check_within
from lsmfs.objectstore.store import ABSENT, ANYTHING, Body, LateName, ObjectInfo, Precondition, Span, Tag, name_of
from refstore.errors import AlreadyExists, Conflict, NotFound

PIECE_BYTES = 1 << 20  # of a stream: the same as the other drivers', so that callers are tested with several pieces
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class MemoryStore:
    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._objects: dict[str, tuple[bytes, ObjectInfo]] = {}
        self._order: list[str] = []  # the names, sorted; code points sort as their UTF-8 bytes do
        self._puts = 0

    async def get(self, name: str, span: Span | None = None) -> bytes:
        body, _ = self._find(name)
        return body if span is None else body[slice(*check_within(name, span, len(body)))]

    async def get_tagged(self, name: str) -> tuple[bytes, Tag]:
        body, info = self._find(name)
        return body, info.tag

    async def stream(self, name: str, span: Span | None = None) -> AsyncIterator[bytes]:
        body = await self.get(name, span)
        for start in range(0, len(body), PIECE_BYTES):
            yield body[start : start + PIECE_BYTES]

    async def put(self, name: str, body: Body, expected: Precondition = ANYTHING) -> Tag:
        self._check(check_name(name), expected)
        return self._store(name, bytes(body))

    async def put_stream(self, name: str | LateName, body: AsyncIterator[bytes]) -> Tag:
        if isinstance(name, str):
            check_name(name)
        pieces = [piece async for piece in body]
        return self._store(check_name(name_of(name)), b"".join(pieces))

    async def delete(self, name: str) -> None:
        if self._objects.pop(check_name(name), None) is not None:
            del self._order[bisect_left(self._order, name)]

    async def list(self, prefix: str = "", after: str = "") -> AsyncIterator[ObjectInfo]:
        name = after
        # Sought again after every yield: the caller may put and delete while it reads.
        at = max(bisect_right(self._order, after), bisect_left(self._order, prefix))
        while at < len(self._order) and (name := self._order[at]).startswith(prefix):
            yield self._objects[name][1]
            at = bisect_right(self._order, name)

    async def head(self, name: str) -> ObjectInfo:
        return self._find(name)[1]

    async def aclose(self) -> None:
        """Nothing is held that could be released."""

    def _find(self, name: str) -> tuple[bytes, ObjectInfo]:
        try:
            return self._objects[check_name(name)]
        except KeyError:
            raise NotFound(f"no object {name!r}") from None

    def _check(self, name: str, expected: Precondition) -> None:
        if expected is ANYTHING:
            return
        found = self._objects.get(name)
        if expected is ABSENT:
            if found:
                raise AlreadyExists(f"object {name!r} exists")
        elif not found or found[1].tag != expected:
            raise Conflict(f"object {name!r} has tag {found[1].tag if found else None}, expected {expected}")

    def _store(self, name: str, body: bytes) -> Tag:
        self._puts += 1
        tag = Tag(f"m{self._puts}")
        if name not in self._objects:
            self._order.insert(bisect_left(self._order, name), name)
        modified = EPOCH + timedelta(microseconds=self._clock.now_us())
        self._objects[name] = body, ObjectInfo(name, len(body), tag, modified)
        return tag
