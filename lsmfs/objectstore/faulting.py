"""A store that fails as planned: for tests and simulations of everything above it.

Before each call the plan is asked `(verb, name, call number)`, numbers counting all calls from 1, and answers with a
Fault or None. What a fault does:

    BEFORE  nothing is done; `Unavailable`
    AFTER   it is done and the answer is lost: `OutcomeUnknown` for a write, `Unavailable` for a read;
            a stream or listing breaks off after its first item
    DELAY   it is done after `delay_seconds`
    TORN    a put stores only the first `keep_bytes`, then `OutcomeUnknown`: what a store without atomic puts would do
    TWICE   a write is delivered twice, as by a network that repeats; the answer is the first one's

A fault that makes no sense for a verb (TORN for a get) is done as if there were none. For a listing the name is its
prefix.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from lsmfs.objectstore.store import ANYTHING, Body, LateName, ObjectInfo, ObjectStore, Precondition, Span, Tag
from lsmfs.objectstore.wrapper import WrapperStore
from refstore.errors import Error, OutcomeUnknown, Unavailable

T = TypeVar("T")


class Kind(Enum):
    BEFORE = "before"
    AFTER = "after"
    DELAY = "delay"
    TORN = "torn"
    TWICE = "twice"


@dataclass(frozen=True, slots=True)
class Fault:
    kind: Kind
    delay_seconds: float = 0.0
    keep_bytes: int = 0


Plan = Callable[[str, str, int], Fault | None]


class FaultingStore(WrapperStore):
    def __init__(
        self, inner: ObjectStore, plan: Plan, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> None:
        super().__init__(inner)
        self._plan = plan
        self._sleep = sleep
        self._calls = 0

    async def get(self, name: str, span: Span | None = None) -> bytes:
        return await self._read("get", name, lambda: self.inner.get(name, span))

    async def get_tagged(self, name: str) -> tuple[bytes, Tag]:
        return await self._read("get_tagged", name, lambda: self.inner.get_tagged(name))

    async def head(self, name: str) -> ObjectInfo:
        return await self._read("head", name, lambda: self.inner.head(name))

    def stream(self, name: str, span: Span | None = None) -> AsyncIterator[bytes]:
        return self._items("stream", name, self.inner.stream(name, span))

    def list(self, prefix: str = "", after: str = "") -> AsyncIterator[ObjectInfo]:
        return self._items("list", prefix, self.inner.list(prefix, after))

    async def put(self, name: str, body: Body, expected: Precondition = ANYTHING) -> Tag:
        fault = await self._begin("put", name)
        if fault and fault.kind is Kind.TORN:
            await self.inner.put(name, memoryview(body)[: fault.keep_bytes], expected)
            raise OutcomeUnknown(f"planned fault: put of {name!r} torn after {fault.keep_bytes} bytes")
        return await self._write("put", name, fault, lambda: self.inner.put(name, body, expected))

    async def put_stream(self, name: str | LateName, body: AsyncIterator[bytes]) -> Tag:
        told = name if isinstance(name, str) else "a name that depends on the body"
        fault = await self._begin("put_stream", told)
        once = None if fault and fault.kind is Kind.TWICE else fault  # a body can be read only once
        return await self._write("put_stream", told, once, lambda: self.inner.put_stream(name, body))

    async def delete(self, name: str) -> None:
        fault = await self._begin("delete", name)
        await self._write("delete", name, fault, lambda: self.inner.delete(name))

    async def _begin(self, verb: str, name: str) -> Fault | None:
        self._calls += 1
        fault = self._plan(verb, name, self._calls)
        if fault and fault.kind is Kind.DELAY:
            await self._sleep(fault.delay_seconds)
        if fault and fault.kind is Kind.BEFORE:
            raise Unavailable(f"planned fault: {verb} of {name!r} was not done")
        return fault

    async def _read(self, verb: str, name: str, call: Callable[[], Awaitable[T]]) -> T:
        fault = await self._begin(verb, name)
        result = await call()
        if fault and fault.kind is Kind.AFTER:
            raise Unavailable(f"planned fault: the answer to {verb} of {name!r} was lost")
        return result

    async def _write(self, verb: str, name: str, fault: Fault | None, call: Callable[[], Awaitable[T]]) -> T:
        result = await call()
        if fault and fault.kind is Kind.TWICE:
            with suppress(Error):  # the second delivery's answer reaches nobody
                await call()
        if fault and fault.kind is Kind.AFTER:
            raise OutcomeUnknown(f"planned fault: the answer to {verb} of {name!r} was lost")
        return result

    async def _items(self, verb: str, name: str, items: AsyncIterator[T]) -> AsyncIterator[T]:
        fault = await self._begin(verb, name)
        async for item in items:
            yield item
            if fault and fault.kind is Kind.AFTER:
                raise Unavailable(f"planned fault: {verb} of {name!r} broke off")
