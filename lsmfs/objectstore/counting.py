"""A store that counts what is asked of the one it wraps: calls, failures and bytes by verb.

For metrics, for `lsmfs doctor`, and for tests that say how many requests a verb may cost. Bytes are those of bodies, in
either direction. A stream or listing counts as one call when it is begun.
"""

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from lsmfs.objectstore.store import ANYTHING, Body, LateName, ObjectInfo, ObjectStore, Precondition, Span, Tag
from lsmfs.objectstore.wrapper import WrapperStore


@dataclass(frozen=True, slots=True)
class Count:
    calls: int = 0
    failures: int = 0
    size_bytes: int = 0


class CountingStore(WrapperStore):
    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self._counts: dict[str, Count] = {}

    def snapshot(self) -> dict[str, Count]:
        """The counts by verb since the beginning; verbs never called are missing."""
        return dict(self._counts)

    def calls(self, verb: str) -> int:
        return self._counts.get(verb, Count()).calls

    async def get(self, name: str, span: Span | None = None) -> bytes:
        with self._counted("get"):
            body = await self.inner.get(name, span)
        self._add("get", size_bytes=len(body))
        return body

    async def get_tagged(self, name: str) -> tuple[bytes, Tag]:
        with self._counted("get_tagged"):
            body, tag = await self.inner.get_tagged(name)
        self._add("get_tagged", size_bytes=len(body))
        return body, tag

    async def stream(self, name: str, span: Span | None = None) -> AsyncIterator[bytes]:
        with self._counted("stream"):
            async for piece in self.inner.stream(name, span):
                self._add("stream", size_bytes=len(piece))
                yield piece

    async def put(self, name: str, body: Body, expected: Precondition = ANYTHING) -> Tag:
        with self._counted("put"):
            tag = await self.inner.put(name, body, expected)
        self._add("put", size_bytes=memoryview(body).nbytes)
        return tag

    async def put_stream(self, name: str | LateName, body: AsyncIterator[bytes]) -> Tag:
        async def counted() -> AsyncIterator[bytes]:
            async for piece in body:
                self._add("put_stream", size_bytes=len(piece))
                yield piece

        with self._counted("put_stream"):
            return await self.inner.put_stream(name, counted())

    async def delete(self, name: str) -> None:
        with self._counted("delete"):
            await self.inner.delete(name)

    async def list(self, prefix: str = "", after: str = "") -> AsyncIterator[ObjectInfo]:
        with self._counted("list"):
            async for info in self.inner.list(prefix, after):
                yield info

    async def head(self, name: str) -> ObjectInfo:
        with self._counted("head"):
            return await self.inner.head(name)

    @contextmanager
    def _counted(self, verb: str) -> Iterator[None]:
        self._add(verb, calls=1)
        try:
            yield
        except Exception:  # not a cancelled call or a listing left early: those are no failures of the store
            self._add(verb, failures=1)
            raise

    def _add(self, verb: str, calls: int = 0, failures: int = 0, size_bytes: int = 0) -> None:
        was = self._counts.get(verb, Count())
        self._counts[verb] = Count(was.calls + calls, was.failures + failures, was.size_bytes + size_bytes)
