"""A store that tries again: bounded in attempts and in time, with full jitter between.

Flow of a conditional put, the only verb whose repetition needs thought:
1. Put. Success and every error but `Unavailable` go to the caller, unless an earlier attempt's outcome is unknown.
2. `Unavailable`: the driver says that nothing was done. Wait, go to 1.
3. `OutcomeUnknown`, or a refusal after one: read back what is stored.
   - our bytes: the put succeeded; the answer is the tag they have. (Somebody else's equal bytes are as good.)
   - what the condition asked for (no object, or the expected tag): it was not done, or not yet. Wait, go to 1. A late
     arrival of the first attempt is harmless: ours is then refused, and read back.
   - anything else: the first attempt may have succeeded and been replaced since. Nobody can tell: `OutcomeUnknown`.

Reads, unconditional puts and deletes are repeated as they are. An unconditional put that is repeated may land on what
somebody else put in between; whoever shares a name with others puts with a condition. A stream is begun again only
before its first piece (later the name may hold another object); a listing goes on after the last name it gave.
`put_stream` is not repeated: its body can be read once.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from lsmfs.clock import Clock
from lsmfs.objectstore.store import ABSENT, ANYTHING, Body, ObjectInfo, ObjectStore, Precondition, Span, Tag
from lsmfs.objectstore.wrapper import WrapperStore
from refstore.errors import AlreadyExists, Conflict, NotFound, OutcomeUnknown, Unavailable

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Six attempts in at most 3.1 s of waiting ride out a restarted server; the deadline bounds slow failures."""

    attempts_max: int = 6
    delay_seconds_first: float = 0.1
    delay_seconds_max: float = 5.0
    deadline_seconds: float = 30.0


class _Attempts:
    """The budget of one call."""

    def __init__(self, policy: RetryPolicy, clock: Clock, sleep: Callable[[float], Awaitable[None]]) -> None:
        self._policy, self._clock, self._sleep = policy, clock, sleep
        self._deadline = clock.monotonic() + policy.deadline_seconds
        self._made = 0

    async def wait(self, error: Unavailable) -> None:
        """Wait before the next attempt, or raise the error if the budget is spent."""
        self._made += 1
        ceiling = min(self._policy.delay_seconds_max, self._policy.delay_seconds_first * 2 ** (self._made - 1))
        delay = ceiling * self._clock.jitter()
        if self._made >= self._policy.attempts_max or self._clock.monotonic() + delay > self._deadline:
            raise error
        await self._sleep(delay)


class RetryingStore(WrapperStore):
    def __init__(
        self,
        inner: ObjectStore,
        clock: Clock,
        policy: RetryPolicy | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        super().__init__(inner)
        self._clock = clock
        self._policy = policy or RetryPolicy()
        self._sleep = sleep

    async def get(self, name: str, span: Span | None = None) -> bytes:
        return await self._again(lambda: self.inner.get(name, span))

    async def get_tagged(self, name: str) -> tuple[bytes, Tag]:
        return await self._again(lambda: self.inner.get_tagged(name))

    async def head(self, name: str) -> ObjectInfo:
        return await self._again(lambda: self.inner.head(name))

    async def delete(self, name: str) -> None:
        await self._again(lambda: self.inner.delete(name))

    async def put(self, name: str, body: Body, expected: Precondition = ANYTHING) -> Tag:
        if expected is ANYTHING:
            return await self._again(lambda: self.inner.put(name, body))
        return await self._put_if(name, body, expected)

    async def stream(self, name: str, span: Span | None = None) -> AsyncIterator[bytes]:
        attempts, begun = self._attempts(), False
        while True:
            try:
                async for piece in self.inner.stream(name, span):
                    begun = True
                    yield piece
                return
            except Unavailable as error:
                if begun:
                    raise
                await attempts.wait(error)

    async def list(self, prefix: str = "", after: str = "") -> AsyncIterator[ObjectInfo]:
        attempts = self._attempts()
        while True:
            try:
                async for info in self.inner.list(prefix, after):
                    yield info
                    after, attempts = info.name, self._attempts()  # progress earns a new budget
                return
            except Unavailable as error:
                await attempts.wait(error)

    async def _put_if(self, name: str, body: Body, expected: Precondition) -> Tag:
        attempts, unknown = self._attempts(), None
        while True:
            try:
                return await self.inner.put(name, body, expected)
            except OutcomeUnknown as error:
                unknown, failure = error, error
            except (AlreadyExists, Conflict):
                if unknown is None:
                    raise
                failure = unknown
            except Unavailable as error:
                await attempts.wait(error if unknown is None else unknown)
                continue
            if (tag := await self._read_back(name, body, expected, failure)) is not None:
                return tag
            await attempts.wait(failure)

    async def _read_back(self, name: str, body: Body, expected: Precondition, failure: OutcomeUnknown) -> Tag | None:
        """The tag if our bytes are stored, None if the condition still holds; else the outcome stays unknown."""
        try:
            stored, tag = await self.get_tagged(name)
        except NotFound:
            if expected is ABSENT:
                return None
            raise failure from None
        except Unavailable:  # would say "nothing was done", which nobody knows
            raise failure from None
        if stored == body:
            return tag
        if tag == expected:
            return None
        raise failure

    async def _again(self, call: Callable[[], Awaitable[T]]) -> T:
        attempts = self._attempts()
        while True:
            try:
                return await call()
            except Unavailable as error:
                await attempts.wait(error)

    def _attempts(self) -> _Attempts:
        return _Attempts(self._policy, self._clock, self._sleep)
