"""An HTTP server that answers as a test says: for what no real store does on demand, like losing an answer."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Request:
    method: str
    target: str
    headers: dict[str, str]


@dataclass(frozen=True)
class Answer:
    """`lost` cuts the connection instead of answering."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    lost: bool = False


class Stub:
    """What was asked, and where."""

    def __init__(self, answer: Callable[[Request], Answer]) -> None:
        self._answer = answer
        self.port = 0
        self.requests: list[Request] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                answer = self._answer(await self._read(line, reader))
                if answer.lost:
                    return
                headers = {"content-length": str(len(answer.body)), "last-modified": "Mon, 01 Jan 2024 00:00:00 GMT"}
                head = "".join(f"{name}: {value}\r\n" for name, value in {**headers, **answer.headers}.items())
                body = b"" if self.requests[-1].method == "HEAD" else answer.body
                writer.write(f"HTTP/1.1 {answer.status} Said\r\n{head}\r\n".encode() + body)
                await writer.drain()
        finally:
            writer.close()

    async def _read(self, line: bytes, reader: asyncio.StreamReader) -> Request:
        method, target, _ = line.decode().split()
        headers = {}
        while (line := await reader.readline()).strip():
            name, _, value = line.decode().partition(":")
            headers[name.lower()] = value.strip()
        await reader.readexactly(int(headers.get("content-length", 0)))
        self.requests.append(Request(method, target, headers))
        return self.requests[-1]


@asynccontextmanager
async def stub_server(answer: Callable[[Request], Answer]) -> AsyncIterator[Stub]:
    """A stub on a loopback port of its own."""
    stub = Stub(answer)
    server = await asyncio.start_server(stub.serve, "127.0.0.1", 0)
    stub.port = server.sockets[0].getsockname()[1]
    try:
        yield stub
    finally:
        server.close()
