"""Answers, and how they are sent.

    Answer(status, headers, body)      body: bytes, or pieces that are streamed; `length` is then their number of bytes,
                                       and for HEAD that of the body which is not sent
    xml_answer(root, *children)        200 with a document
    send_answer(send, answer, ...)     with the request id; nothing of a body for HEAD, 204 and 304
    send_slowly(send, task, ...)       a result that takes long: white space keeps the connection alive meanwhile

The first piece of a stream is fetched before the status is sent, so that what is wrong from the start is an error as
it should be. What goes wrong later can only break the connection: the client sees fewer bytes than announced.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from email.utils import formatdate
from functools import lru_cache
from time import gmtime, strftime

from lsmfs.asgi import Receive, Send
from lsmfs.gateway.errors import S3Error, render
from lsmfs.gateway.markup import DECLARATION, document

Header = tuple[bytes, bytes]

XML: Header = (b"content-type", b"application/xml")
PATIENCE_SECONDS = 5.0  # clients wait a minute for the first byte, load balancers sometimes 30 seconds
WATCHED_BYTES_MIN = 8 * 1024 * 1024  # longer bodies stop when the client has gone; shorter ones are soon over anyway


class Answer:
    __slots__ = ("body", "headers", "length", "status")

    def __init__(
        self,
        status: int = 200,
        headers: list[Header] | None = None,
        body: "bytes | AsyncIterator[bytes]" = b"",
        length: int | None = None,
    ) -> None:
        self.status = status
        self.headers = [] if headers is None else headers
        self.body = body
        self.length = len(body) if length is None and isinstance(body, bytes) else length


def xml_answer(root: str, *children: str, headers: list[Header] | None = None) -> Answer:
    return Answer(200, [XML, *(headers or ())], document(root, *children))


def error_answer(error: S3Error, request_id: str, resource: str) -> Answer:
    headers = [(name.encode(), value.encode()) for name, value in error.headers.items()]
    return Answer(error.status, [XML, *headers], render(error, request_id, resource))


@lru_cache(4096)
def http_date(seconds: int) -> bytes:
    """Last-Modified, as HTTP writes it."""
    return formatdate(seconds, usegmt=True).encode()


@lru_cache(4096)
def _to_seconds(seconds: int) -> str:
    return strftime("%Y-%m-%dT%H:%M:%S", gmtime(seconds))


def xml_date(mtime_us: int) -> str:
    """LastModified, as S3's XML writes it."""
    seconds, rest = divmod(mtime_us, 1_000_000)
    return f"{_to_seconds(seconds)}.{rest // 1000:03d}Z"


async def send_answer(send: Send, answer: Answer, request_id: str, is_head: bool, receive: Receive) -> None:
    body = answer.body
    is_bare = is_head or answer.status in (204, 304)
    headers = [(b"x-amz-request-id", request_id.encode()), *answer.headers]
    if answer.status not in (204, 304) and answer.length is not None and not (is_head and answer.status >= 400):
        headers.append((b"content-length", b"%d" % answer.length))
    start = {"type": "http.response.start", "status": answer.status, "headers": headers}
    if isinstance(body, bytes) or is_bare:
        await send(start)
        await send({"type": "http.response.body", "body": b"" if is_bare else body})
        return
    first = await anext(body, b"")
    if answer.length == len(first):
        await anext(body, None)  # its end is where its digest is compared: what is wrong is not sent at all
        await send(start)
        await send({"type": "http.response.body", "body": first})
        return
    await send(start)
    await send({"type": "http.response.body", "body": first, "more_body": True})
    await _send_pieces(send, body, receive, (answer.length or 0) >= WATCHED_BYTES_MIN)


async def _send_pieces(send: Send, body: AsyncIterator[bytes], receive: Receive, watched: bool) -> None:
    gone = asyncio.ensure_future(_disconnected(receive)) if watched else None
    try:
        async for piece in body:
            if gone is not None and gone.done():
                return
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
    finally:
        if isinstance(body, AsyncGenerator):
            await body.aclose()  # files are closed now, and not when somebody collects garbage
        if gone is not None:
            gone.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await gone


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def send_slowly(
    send: Send,
    work: "asyncio.Task[Answer]",
    request_id: str,
    resource: str,
    refused: Callable[[BaseException], S3Error],
) -> None:
    """200 now, white space until the work is done, then its document, or its error as one."""
    headers = [(b"x-amz-request-id", request_id.encode()), XML]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": DECLARATION.encode(), "more_body": True})
    while not work.done():
        await asyncio.wait([work], timeout=PATIENCE_SECONDS)
        if not work.done():
            await send({"type": "http.response.body", "body": b" ", "more_body": True})
    error = work.exception()
    body = render(refused(error), request_id, resource) if error is not None else work.result().body
    assert isinstance(body, bytes)
    await send({"type": "http.response.body", "body": body.removeprefix(DECLARATION.encode())})
