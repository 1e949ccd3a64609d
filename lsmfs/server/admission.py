"""Admission of bodies: how many bytes one worker takes in at once.

A body is held in part while it is stored: up to `HELD_BYTES_MAX` of each, or its own size if that is less. It takes
room for that as it comes, so that many who send slowly do not keep out those who send: before its first byte is read it
enters with `FIRST_BYTES`, and grows to twice what has come. It leaves when its request ends.

Bodies that find no room wait in the order they came, unread, so that TCP holds their clients back; those that have
begun go before those that have not. Who waits longer than `WAIT_SECONDS_MAX` is refused with `Unavailable`, which is
503: try again. When all have begun and none can grow, one at a time takes all that it will ever need, so that some end:
the room is exceeded by at most that one.
"""

import asyncio
from collections import deque
from typing import TypeVar

from lsmfs.server.config import MEBIBYTE
from refstore.errors import Unavailable

HELD_BYTES_MAX = 8 * MEBIBYTE  # what storing one body holds at most: one part of an upload
FIRST_BYTES = 64 * 1024  # what uvicorn holds of a body that nobody reads
WAIT_SECONDS_MAX = 20.0  # clients give up after 60 s, and a retry is better than that

T = TypeVar("T")


class Admission:
    """The room of one worker."""

    def __init__(self, bytes_max: int, wait_seconds_max: float = WAIT_SECONDS_MAX) -> None:
        self.bytes_max = bytes_max
        self.wait_seconds_max = wait_seconds_max
        self.bytes_taken = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._growing: deque[tuple[int, int, asyncio.Future[int]]] = deque()

    def weight_of(self, size_bytes: int | None) -> int:
        """Of a body of that size; None is a body that does not say."""
        return min(HELD_BYTES_MAX if size_bytes is None else size_bytes, HELD_BYTES_MAX, self.bytes_max)

    async def enter(self, weight: int) -> None:
        """Wait for room; `Unavailable` if there is none in time. Who has entered must leave."""
        if not self._waiting and not self._growing and self.bytes_taken + weight <= self.bytes_max:
            self.bytes_taken += weight
            return
        entered = asyncio.get_running_loop().create_future()
        self._waiting.append((weight, entered))
        try:
            await self._in_time(entered)
        except BaseException:
            if not entered.cancelled():  # let in at the same moment
                self.leave(weight)
            else:
                self._let_in()
            raise

    async def grow(self, weight: int, weight_max: int) -> int:
        """The same for a body that is in: so much more, or at once the most that it will need; how much it was."""
        if not self._growing and (granted := self._granted(weight, weight_max)):
            self.bytes_taken += granted
            return granted
        grown: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._growing.append((weight, weight_max, grown))
        try:
            return await self._in_time(grown)
        except BaseException:
            if not grown.cancelled():
                self.leave(grown.result())
            else:
                self._let_in()
            raise

    async def _in_time(self, waited: "asyncio.Future[T]") -> T:
        try:
            async with asyncio.timeout(self.wait_seconds_max):
                return await waited
        except TimeoutError:
            raise Unavailable("too many uploads at once: try again in some seconds") from None

    def _granted(self, weight: int, weight_max: int) -> int:
        free = self.bytes_max - self.bytes_taken
        return weight if weight <= free else weight_max if free >= 0 else 0

    def leave(self, weight: int) -> None:
        self.bytes_taken -= weight
        self._let_in()

    def _let_in(self) -> None:
        """Those for whom there is room now; who has given up is no longer waiting."""
        while self._growing:
            weight, weight_max, grown = self._growing[0]
            granted = 0 if grown.cancelled() else self._granted(weight, weight_max)
            if not granted and not grown.cancelled():
                return
            self._growing.popleft()
            if granted:
                self.bytes_taken += granted
                grown.set_result(granted)
        while self._waiting:
            weight, entered = self._waiting[0]
            if not entered.cancelled() and self.bytes_taken + weight > self.bytes_max:
                return
            self._waiting.popleft()
            if not entered.cancelled():
                self.bytes_taken += weight
                entered.set_result(None)
