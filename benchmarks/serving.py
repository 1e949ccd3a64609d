"""Servers to measure, and a client that costs little: the same one for the server and for its baseline.

A server is started as users start it, in processes of its own, with its log turned down. The client sends prepared
bytes over kept connections, one request at a time on each, and reads no more of an answer than its length.
"""

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import NamedTuple, cast

import msgspec

from lsmfs.server.config import Logging, ServerConfig
from lsmfs.server.config_stores import prepare
from lsmfs.server.run import serve

ACCESS_KEY, SECRET = "AKIALSMFSBENCHMARKS0", "benchmark0benchmark0benchmark0benchmark0"
BASELINE = "benchmarks.baseline_app:create_app"
START_SECONDS_MAX = 60.0
END = b"\r\n\r\n"


class Started(NamedTuple):
    port: int
    pid: int


@contextlib.asynccontextmanager
async def served(folder: Path, workers: int = 1, factory: str = "") -> AsyncIterator[Started]:
    """A server on a free port of the loopback while inside."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.serving", str(folder), str(workers), factory),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "LSMFS_ACCESS_KEY_ID": ACCESS_KEY, "LSMFS_SECRET_ACCESS_KEY": SECRET},
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(START_SECONDS_MAX):
            line = await process.stdout.readline()
        yield Started(int(line.rpartition(b":")[2].strip(b'/"\n ]}')), process.pid)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


class Client(asyncio.Protocol):
    """One connection: sends the next request when the answer to the last is there."""

    def __init__(self, requests: Sequence[bytes], statuses: set[bytes]) -> None:
        self._requests = requests
        self._statuses = statuses
        self._at = 0
        self._head = b""
        self._left = -1
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)
        self._next()

    def _next(self) -> None:
        if self._at == len(self._requests):
            self._transport.close()
            self.done.set_result(None)
        else:
            self._transport.write(self._requests[self._at])
            self._at += 1

    def data_received(self, data: bytes) -> None:
        if self._left < 0:
            self._head += data
            end = self._head.find(END)
            if end < 0:
                return
            head, data = self._head[:end].lower(), self._head[end + 4 :]
            self._head = b""
            self._statuses.add(head[9:12])
            at = head.find(b"content-length:")
            self._left = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
        self._left -= len(data)
        if self._left <= 0:
            self._left = -1
            self._next()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(error or ConnectionResetError("the server closed the connection"))


async def drive(port: int, requests: Sequence[bytes], connections: int, expected: bytes = b"200") -> float:
    """Send all requests over so many connections; seconds. Every answer must have the expected status."""
    loop, statuses = asyncio.get_running_loop(), set[bytes]()
    parts = [requests[first::connections] for first in range(connections)]
    began = time.perf_counter()
    clients = [
        (await loop.create_connection(lambda part=part: Client(part, statuses), "127.0.0.1", port))[1]  # type: ignore[misc]
        for part in parts
    ]
    await asyncio.gather(*(client.done for client in clients))
    seconds = time.perf_counter() - began
    assert statuses == {expected}, f"answers {statuses}"
    return seconds


async def answer(port: int, request: bytes) -> tuple[int, bytes]:
    """The status and the body of one request."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    head = (await reader.readuntil(END)).lower()
    at = head.find(b"content-length:")
    body = await reader.readexactly(int(head[at + 15 :].split(b"\r\n", 1)[0])) if at >= 0 else b""
    writer.close()
    return int(head[9:12]), body


def main(folder: str, workers: str, factory: str) -> int:
    config = ServerConfig(
        listen="127.0.0.1:0", data=folder, workers=int(workers), logging=Logging(level="ERROR", output=f"{folder}.log")
    )

    def tell(urls: list[str], announcement: object) -> None:
        sys.stdout.write(msgspec.json.encode(urls).decode() + "\n")
        sys.stdout.flush()

    return asyncio.run(serve(config, prepare(config, names_stores=False), tell, factory=factory))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
