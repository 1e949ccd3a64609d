"""What the server could do at best: the same worker around an application that does nothing of ours.

GET  /empty           an empty Starlette handler
GET  /constant/<n>    n bytes from memory
PUT  /discard         accepts the body, takes its MD5, forgets it
"""

import asyncio
import hashlib
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from lsmfs.asgi import Application, Receive, Scope, Send
from lsmfs.server.config import ServerConfig
from lsmfs.server.worker import Worker

INLINE_BYTES_MAX = 64 * 1024
SENT_BYTES = 1024 * 1024


def create_app(config: ServerConfig, worker: Worker) -> Application:
    async def empty(request: Request) -> Response:
        return Response(b"{}", media_type="application/json")

    starlette: Any = Starlette(routes=[Route("/empty", empty)])
    constant = bytes(SENT_BYTES)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if path.startswith("/constant/"):
            await _send_constant(constant, int(path.removeprefix("/constant/")), send)
        elif path == "/discard":
            await _discard(receive, send)
        else:
            await starlette(scope, receive, send)

    return app


async def _send_constant(constant: bytes, size: int, send: Send) -> None:
    await send(_start(size))
    while size > len(constant):
        await send({"type": "http.response.body", "body": constant, "more_body": True})
        size -= len(constant)
    await send({"type": "http.response.body", "body": constant[:size]})


async def _discard(receive: Receive, send: Send) -> None:
    digest, more = hashlib.md5(usedforsecurity=False), True
    held: list[bytes] = []
    while more:
        message = await receive()
        more = message.get("more_body", False)
        held.append(message["body"])
        if not more or sum(map(len, held)) >= SENT_BYTES:
            piece = b"".join(held)
            held.clear()
            if len(piece) > INLINE_BYTES_MAX:
                await asyncio.to_thread(digest.update, piece)
            else:
                digest.update(piece)
    await send(_start(0, digest.hexdigest()))
    await send({"type": "http.response.body", "body": b""})


def _start(size: int, etag: str = "") -> dict[str, Any]:
    headers = [(b"content-length", str(size).encode()), (b"etag", etag.encode())]
    return {"type": "http.response.start", "status": 200, "headers": headers}
