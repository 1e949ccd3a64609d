"""A body cut into pieces of the sizes that its reader asks for."""

from collections import deque
from collections.abc import AsyncIterator


class Pieces:
    """Reads no further ahead than one piece of the body beyond what is asked for, so that bounds its memory."""

    def __init__(self, body: AsyncIterator[bytes]) -> None:
        self._body = body
        self._ahead: deque[bytes] = deque()
        self._ahead_bytes = 0
        self._cut_bytes = 0  # of the first one ahead: gone already
        self._is_exhausted = False
        self.taken_bytes = 0

    async def ends_within(self, size_bytes: int) -> bool:
        """Whether no more than so many bytes are left."""
        while self._ahead_bytes <= size_bytes and not self._is_exhausted:
            try:
                piece = await anext(self._body)
            except StopAsyncIteration:
                self._is_exhausted = True
            else:
                if piece:
                    self._ahead.append(piece)
                    self._ahead_bytes += len(piece)
        return self._ahead_bytes <= size_bytes

    async def take(self, size_bytes: int) -> bytes:
        """The next bytes: so many, or fewer at the end."""
        await self.ends_within(size_bytes - 1)
        parts: list[bytes | memoryview] = []
        left = min(size_bytes, self._ahead_bytes)
        self._ahead_bytes -= left
        self.taken_bytes += left
        while left:
            part = self._part(left)
            parts.append(part)
            left -= len(part)
        whole = parts[0] if len(parts) == 1 else b"".join(parts)
        return whole if isinstance(whole, bytes) else bytes(whole)

    def _part(self, size_bytes: int) -> bytes | memoryview:
        """As much of the first one ahead as is wanted; copied only once, however small the pieces that it is cut to."""
        first, start = self._ahead[0], self._cut_bytes
        if len(first) - start > size_bytes:
            self._cut_bytes += size_bytes
            return memoryview(first)[start : start + size_bytes]
        self._ahead.popleft()
        self._cut_bytes = 0
        return memoryview(first)[start:] if start else first
