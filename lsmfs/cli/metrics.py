"""Counts of a service in Prometheus' text format: into a file for its textfile collector, or on a loopback port.

The file is replaced as a whole, so a collector never reads half of it. The port answers `GET /metrics` and nothing
else, on 127.0.0.1 only, one answer for each connection.
"""

import asyncio
import contextlib
import dataclasses
import errno
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from lsmfs.cli.files import output
from refstore.errors import Denied, Unavailable

HOST = "127.0.0.1"
REQUEST_SECONDS_MAX = 5.0
HEADER_LINES_MAX = 100  # of a request; a scraper sends about ten

Snapshot = Callable[[], str]


def text_of(prefix: str, counts: Any, gauges: Mapping[str, float]) -> str:
    """Every field of the dataclass as a counter, and the gauges."""
    lines = []
    for field in dataclasses.fields(counts):
        name = f"{prefix}_{_unit_last(field.name)}_total"
        lines += [f"# TYPE {name} counter", f"{name} {getattr(counts, field.name)}"]
    for gauge, value in gauges.items():
        lines += [f"# TYPE {prefix}_{gauge} gauge", f"{prefix}_{gauge} {value}"]
    return "\n".join(lines) + "\n"


def _unit_last(name: str) -> str:
    return f"{name.removeprefix('seconds_')}_seconds" if name.startswith("seconds_") else name


def write(path: str, text: str) -> None:
    """Replace the file with the text."""
    with output(path) as file:
        file.write(text.encode())


@contextlib.asynccontextmanager
async def served(port: int, snapshot: Snapshot) -> AsyncIterator[int]:
    """Answer on the port, or on a free one for 0; the port."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, TimeoutError, ValueError):  # a client that went away, or said nonsense
            async with asyncio.timeout(REQUEST_SECONDS_MAX):
                writer.write(_response(await _request(reader), snapshot))
                await writer.drain()
        writer.close()

    try:
        server = await asyncio.start_server(answer, HOST, port)
    except OSError as error:
        raise _refused(error, port) from None
    async with server:
        yield server.sockets[0].getsockname()[1]


def _refused(error: OSError, port: int) -> Unavailable | Denied:
    if error.errno == errno.EACCES:
        return Denied(f"port {port} may not be used: choose one above 1023")
    return Unavailable(f"port {port} on {HOST} cannot be used ({error.strerror}): choose another --metrics-port")


async def _request(reader: asyncio.StreamReader) -> list[bytes]:
    """The words of the request line; the rest of its head is read and dropped."""
    words = (await reader.readline()).split()
    for _ in range(HEADER_LINES_MAX):
        if not (await reader.readline()).strip():
            break
    return words


def _response(words: list[bytes], snapshot: Snapshot) -> bytes:
    is_known = words[:2] == [b"GET", b"/metrics"]
    status = b"200 OK" if is_known else b"404 Not Found"
    body = snapshot().encode() if is_known else b"GET /metrics\n"
    head = b"HTTP/1.1 %s\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"
    return head % (status, len(body)) + body
