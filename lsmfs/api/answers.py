"""Answers: JSON bodies, streams, and the one table from our errors to HTTP statuses.

An error is {"message": ...}. What we did not foresee, and what is wrong with stored data, says nothing of its cause:
that goes to the log. A stream ends when its client goes away; one that fails after its beginning cuts the connection.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Mapping

import msgspec
import structlog

from lsmfs.asgi import Receive, Send
from refstore import errors

RETRY_AFTER_SECONDS = 1  # clients back off by themselves; this only keeps the simple ones from hammering
JSON = b"application/json"
ERROR_HEADER = b"x-lsmfs-error"  # the class: our own client raises the same one
STATUSES: tuple[tuple[type[errors.Error], int], ...] = (  # the first that fits
    (errors.NotFound, 404),
    (errors.AlreadyExists, 409),
    (errors.LayersFull, 503),
    (errors.Conflict, 409),
    (errors.Invalid, 400),
    (errors.Denied, 403),
    (errors.Unavailable, 503),
    (errors.Corrupt, 500),
)
BROKEN = "something is wrong with the stored data: the server's log says what"
FAILED = "the server failed: its log says why"

log = structlog.get_logger("api")
encode = msgspec.json.encode


class ApiError(Exception):
    """An answer that no category of error stands for."""

    def __init__(
        self, status: int, message: str, headers: Mapping[str, str] | None = None, body: object = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers or {}
        self.body = body


class ClientGone(Exception):
    """The client went away before its body had ended."""


class Answer:
    """A whole body."""

    __slots__ = ("body", "headers", "status")

    def __init__(
        self,
        status: int,
        body: bytes = b"",
        content_type: bytes = JSON,
        headers: list[tuple[bytes, bytes]] | None = None,
    ) -> None:
        self.status = status
        self.body = body
        self.headers = headers or []
        if body:
            self.headers.append((b"content-type", content_type))
        if status not in (204, 304):
            self.headers.append((b"content-length", b"%d" % len(body)))

    async def send(self, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status, "headers": self.headers})
        await send({"type": "http.response.body", "body": self.body})


class Stream:
    """A body in pieces. `first` has been read already, so that what fails at once is still an error answer."""

    def __init__(
        self, status: int, headers: list[tuple[bytes, bytes]], first: bytes, pieces: AsyncIterator[bytes]
    ) -> None:
        self.status = status
        self.headers = headers
        self._first = first
        self._pieces = pieces

    async def send(self, receive: Receive, send: Send) -> None:
        gone = asyncio.ensure_future(_gone(receive))
        try:
            await send({"type": "http.response.start", "status": self.status, "headers": self.headers})
            await send({"type": "http.response.body", "body": self._first, "more_body": True})
            async for piece in self._pieces:
                if gone.done():
                    return
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        finally:
            gone.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await gone
            if isinstance(self._pieces, AsyncGenerator):
                await self._pieces.aclose()


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def stream(status: int, headers: list[tuple[bytes, bytes]], pieces: AsyncIterator[bytes]) -> Answer | Stream:
    """The answer whose first piece is there."""
    first = await anext(pieces, b"")
    return Stream(status, headers, first, pieces)


def json_answer(value: object, status: int = 200) -> Answer:
    return Answer(status, encode(value))


def error_answer(error: Exception) -> Answer:
    """What the caller is told; unforeseen errors are logged here."""
    if isinstance(error, ApiError):
        body = {"message": str(error)} if error.body is None else error.body
        return Answer(error.status, encode(body), headers=[(k.encode(), v.encode()) for k, v in error.headers.items()])
    status = next((status for kind, status in STATUSES if isinstance(error, kind)), 500)
    if status == 500:
        log.error("request failed", exc_info=error)
    headers = [(b"retry-after", b"%d" % RETRY_AFTER_SECONDS)] if status == 503 else []
    if isinstance(error, errors.Error):
        headers.append((ERROR_HEADER, type(error).__name__.encode()))
    text = BROKEN if isinstance(error, errors.Corrupt) else FAILED if status == 500 else _shown(error)
    return Answer(status, encode({"message": text}), headers=headers)


def _shown(error: Exception) -> str:
    return str(error).encode(errors="replace").decode()
