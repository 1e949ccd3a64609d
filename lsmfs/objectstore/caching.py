"""A store that keeps small immutable objects in memory: least recently used out first, bounded in bytes.

`immutable` says of a name that its content never changes once it is there; only such objects are kept, and only whole
ones up to `object_bytes_max`. A span of a kept object is cut from it; a span of one that is not kept is fetched as a
span and keeps nothing. An object that another process deletes may be served on: right for immutable names, whose
deletion only means that nobody refers to them. What this process puts or deletes is forgotten, also while a fetch of
it is under way.
"""

from collections import OrderedDict
from collections.abc import AsyncIterator, Callable

from lsmfs.objectstore.checks import check_within
from lsmfs.objectstore.store import ANYTHING, Body, LateName, ObjectStore, Precondition, Span, Tag, name_of
from lsmfs.objectstore.wrapper import WrapperStore


class CachingStore(WrapperStore):
    def __init__(
        self,
        inner: ObjectStore,
        immutable: Callable[[str], bool],
        size_bytes_max: int = 64 << 20,
        object_bytes_max: int = 1 << 20,
    ) -> None:
        super().__init__(inner)
        self._immutable = immutable
        self._size_bytes_max = size_bytes_max
        self._object_bytes_max = object_bytes_max
        self._kept: OrderedDict[str, bytes] = OrderedDict()
        self._fetching: set[str] = set()
        self._size_bytes = 0

    @property
    def size_bytes(self) -> int:
        """Of all bodies that are kept now."""
        return self._size_bytes

    async def get(self, name: str, span: Span | None = None) -> bytes:
        if (body := self._kept.get(name)) is not None:
            self._kept.move_to_end(name)
            return body if span is None else body[slice(*check_within(name, span, len(body)))]
        if span is not None or not self._immutable(name):
            return await self.inner.get(name, span)
        return await self._fetch(name)

    async def put(self, name: str, body: Body, expected: Precondition = ANYTHING) -> Tag:
        try:
            return await self.inner.put(name, body, expected)
        finally:  # also when it failed: it may have had its effect
            self._forget(name)

    async def put_stream(self, name: str | LateName, body: AsyncIterator[bytes]) -> Tag:
        def asked() -> str:
            names.append(name_of(name))
            return names[-1]

        names = [name] if isinstance(name, str) else []
        try:
            return await self.inner.put_stream(name if isinstance(name, str) else asked, body)
        finally:
            for each in names:  # none if the body ended before its name was known
                self._forget(each)

    async def delete(self, name: str) -> None:
        try:
            await self.inner.delete(name)
        finally:
            self._forget(name)

    async def _fetch(self, name: str) -> bytes:
        self._fetching.add(name)
        try:
            body = await self.inner.get(name)
            if name in self._fetching:  # it was not put or deleted meanwhile
                self._keep(name, body)
            return body
        finally:
            self._fetching.discard(name)

    def _keep(self, name: str, body: bytes) -> None:
        if len(body) > self._object_bytes_max:
            return
        self._forget(name)
        self._kept[name] = body
        self._size_bytes += len(body)
        while self._size_bytes > self._size_bytes_max:
            _, oldest = self._kept.popitem(last=False)
            self._size_bytes -= len(oldest)

    def _forget(self, name: str) -> None:
        self._fetching.discard(name)
        self._size_bytes -= len(self._kept.pop(name, b""))
