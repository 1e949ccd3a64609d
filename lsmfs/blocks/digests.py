"""A digest of bytes that pass: taken in a thread, while the next pieces are received, written or sent."""

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hashlib import _Hash as Hash

INLINE_BYTES_MAX = 64 * 1024  # hashed here: a thread's turn would cost more
BEHIND_BYTES_MAX = 4 * 1024 * 1024  # a thread that finds something to do at once hashes twice as fast as one that waits


class Digest:
    """It may be so many bytes behind, and is up to date when it is asked. One thread at a time works on it, until
    nothing is left; whoever gives up may just leave it."""

    def __init__(self, make: "Callable[[], Hash]") -> None:
        self._hash = make()
        self._pieces: deque[bytes] = deque()
        self._behind_bytes = 0
        self._lock = threading.Lock()
        self._is_running = False
        self._running: asyncio.Future[None] | None = None

    @property
    def name(self) -> str:
        return self._hash.name

    async def update(self, piece: bytes) -> None:
        """Take the piece soon."""
        if self._behind_bytes > BEHIND_BYTES_MAX:
            await self._settle()
        with self._lock:
            if not self._is_running and len(piece) <= INLINE_BYTES_MAX:
                return self._hash.update(piece)
            self._pieces.append(piece)
            self._behind_bytes += len(piece)
            if not self._is_running:
                self._is_running = True
                self._running = asyncio.get_running_loop().run_in_executor(None, self._work)
        return None

    async def hexdigest(self) -> str:
        """Of all pieces so far."""
        await self._settle()
        return self._hash.hexdigest()

    async def _settle(self) -> None:
        if self._running is not None:
            await self._running

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._pieces:
                    self._is_running = False
                    return
                piece = self._pieces.popleft()
                self._behind_bytes -= len(piece)
            self._hash.update(piece)
