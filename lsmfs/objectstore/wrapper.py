"""A store that hands everything to another: what retrying, counting, caching and faulting are built on.

A wrapper overrides the verbs it cares about; the rest goes through unchanged. Closing a wrapper closes what it wraps.
"""

from collections.abc import AsyncIterator

from lsmfs.objectstore.store import ANYTHING, Body, LateName, ObjectInfo, ObjectStore, Precondition, Span, Tag


class WrapperStore:
    def __init__(self, inner: ObjectStore) -> None:
        self.inner = inner

    async def get(self, name: str, span: Span | None = None) -> bytes:
        return await self.inner.get(name, span)

    async def get_tagged(self, name: str) -> tuple[bytes, Tag]:
        return await self.inner.get_tagged(name)

    def stream(self, name: str, span: Span | None = None) -> AsyncIterator[bytes]:
        return self.inner.stream(name, span)

    async def put(self, name: str, body: Body, expected: Precondition = ANYTHING) -> Tag:
        return await self.inner.put(name, body, expected)

    async def put_stream(self, name: str | LateName, body: AsyncIterator[bytes]) -> Tag:
        return await self.inner.put_stream(name, body)

    async def delete(self, name: str) -> None:
        await self.inner.delete(name)

    def list(self, prefix: str = "", after: str = "") -> AsyncIterator[ObjectInfo]:
        return self.inner.list(prefix, after)

    async def head(self, name: str) -> ObjectInfo:
        return await self.inner.head(name)

    async def aclose(self) -> None:
        await self.inner.aclose()
