"""Admission of bodies: how many bytes one worker takes in at once.

A body is held in part while it is stored: up to `HELD_BYTES_MAX` of each. Before its first byte is read it is admitted
with that weight, or its own size if that is less, and it leaves when its request ends. Bodies that find no room wait in
the order they came, unread, so that TCP holds their clients back; who waits longer than `WAIT_SECONDS_MAX` is refused
with `Unavailable`, which is 503: try again.
"""

import asyncio
from collections import deque

from lsmfs.server.config import MEBIBYTE
from refstore.errors import Unavailable

HELD_BYTES_MAX = 8 * MEBIBYTE  # what storing one body holds at most: one part of an upload
WAIT_SECONDS_MAX = 20.0  # clients give up after 60 s, and a retry is better than that


class Admission:
    """The room of one worker."""

    def __init__(self, bytes_max: int, wait_seconds_max: float = WAIT_SECONDS_MAX) -> None:
        self.bytes_max = bytes_max
        self.wait_seconds_max = wait_seconds_max
        self.bytes_taken = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    def weight_of(self, size_bytes: int | None) -> int:
        """Of a body of that size; None is a body that does not say."""
        return min(HELD_BYTES_MAX if size_bytes is None else size_bytes, HELD_BYTES_MAX, self.bytes_max)

    async def enter(self, weight: int) -> None:
        """Wait for room; `Unavailable` if there is none in time. Who has entered must leave."""
        if not self._waiting and self.bytes_taken + weight <= self.bytes_max:
            self.bytes_taken += weight
            return
        entered = asyncio.get_running_loop().create_future()
        self._waiting.append((weight, entered))
        try:
            async with asyncio.timeout(self.wait_seconds_max):
                await entered
        except BaseException as error:
            self._give_up(weight, entered)
            if isinstance(error, TimeoutError):
                raise Unavailable("too many uploads at once: try again in some seconds") from None
            raise

    def leave(self, weight: int) -> None:
        self.bytes_taken -= weight
        self._let_in()

    def _give_up(self, weight: int, entered: "asyncio.Future[None]") -> None:
        if entered.done() and not entered.cancelled():  # let in at the same moment
            self.leave(weight)
        else:
            self._waiting.remove((weight, entered))
            self._let_in()

    def _let_in(self) -> None:
        while self._waiting and self.bytes_taken + self._waiting[0][0] <= self.bytes_max:
            weight, entered = self._waiting.popleft()
            self.bytes_taken += weight
            entered.set_result(None)
