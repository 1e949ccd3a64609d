"""A seeded event loop in virtual time: sleeping costs nothing, and which ready task runs next is drawn from the seed.

The same seed gives the same history, step by step. A history in which every task waits for ever is a bug: it is
reported as a deadlock, not waited for.
"""

import asyncio
import random
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Deadlock(Exception):
    """Every task waits and no timer is set."""


class _NoSelector(selectors.SelectSelector):
    """There is nothing to wait for outside: time itself is simulated."""

    def __init__(self, loop: "VirtualLoop") -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise Deadlock("every task waits and no timer is set")
        self._loop.now += max(0.0, timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self, rng: random.Random) -> None:
        self.now = 0.0
        self._rng = rng
        super().__init__(_NoSelector(self))

    def time(self) -> float:
        return self.now

    def _run_once(self) -> None:
        ready: Any = self._ready  # type: ignore[attr-defined]
        if len(ready) > 1:
            handles = list(ready)
            ready.clear()
            self._rng.shuffle(handles)
            ready.extend(handles)
        super()._run_once()  # type: ignore[misc]


def run(main: Coroutine[Any, Any, T], rng: random.Random) -> T:
    """Run to its end; what it left behind is cancelled."""
    loop = VirtualLoop(rng)
    loop.set_exception_handler(lambda *_: None)  # tasks of crashed processes end as they like
    try:
        return loop.run_until_complete(main)
    finally:
        loop.run_until_complete(_cancel(asyncio.all_tasks(loop)))
        loop.close()


async def _cancel(tasks: set["asyncio.Task[Any]"]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


__all__ = ["Deadlock", "VirtualLoop", "run"]
