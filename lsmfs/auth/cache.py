"""Values that are read again when they are older than `FRESH_SECONDS`; bounded, and shared by all who wait for one.

What was not found is kept as well, apart, so that a flood of wrong names cannot drive out the good ones. `forget` makes
a change in this process visible at once: also a load that began before it is not kept.
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

from lsmfs.clock import Clock
from lsmfs.policy import FRESH_SECONDS
from refstore.errors import Denied, NotFound

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Fresh(Generic[K, V]):
    def __init__(self, load: Callable[[K], Awaitable[V]], clock: Clock, entries_max: int) -> None:
        self._load = load
        self._clock = clock
        self._entries_max = entries_max
        self._values: dict[K, tuple[float, V]] = {}
        self._refusals: dict[K, tuple[float, NotFound | Denied]] = {}
        self._loading: dict[K, asyncio.Task[V]] = {}

    async def get(self, key: K) -> V:
        """The value, at most `FRESH_SECONDS` old, or what `load` raises."""
        now = self._clock.monotonic()
        found = self._values.get(key)
        if found is not None and now <= found[0]:
            return found[1]
        refused = self._refusals.get(key)
        if refused is not None and now <= refused[0]:
            raise type(refused[1])(*refused[1].args)
        return await self._shared(key)

    def forget(self) -> None:
        self._values.clear()
        self._refusals.clear()
        self._loading.clear()

    async def _shared(self, key: K) -> V:
        task = self._loading.get(key)
        if task is None:
            task = self._loading[key] = asyncio.create_task(self._loaded(key))
            task.add_done_callback(lambda done: self._ended(key, done))
        # A caller that is cancelled leaves the load to the others.
        return await asyncio.shield(task)

    def _ended(self, key: K, task: "asyncio.Task[V]") -> None:
        if self._loading.get(key) is task:
            del self._loading[key]
        if not task.cancelled():
            task.exception()  # seen, also if every waiter was cancelled

    async def _loaded(self, key: K) -> V:
        until = self._clock.monotonic() + FRESH_SECONDS  # from before the read: what it sees is no older
        try:
            value = await self._load(key)
        except (NotFound, Denied) as error:
            if self._loading.get(key) is asyncio.current_task():
                self._values.pop(key, None)
                _keep(self._refusals, key, (until, type(error)(*error.args)), self._entries_max)
            raise
        if self._loading.get(key) is asyncio.current_task():
            self._refusals.pop(key, None)
            _keep(self._values, key, (until, value), self._entries_max)
        return value


E = TypeVar("E")


def _keep(into: dict[K, E], key: K, entry: E, entries_max: int) -> None:
    into.pop(key, None)
    while len(into) >= entries_max:
        del into[next(iter(into))]  # the one loaded longest ago
    into[key] = entry
