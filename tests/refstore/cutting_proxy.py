"""A TCP proxy before a real server that cuts a connection at a chosen request: a network fault, at a known moment.

`cut(words)` names the next request that is lost on its way: the server never sees it. `cut(words, answered=True)` lets
the server do it and loses the answer. All other bytes pass unchanged. The words are looked for in what arrives at
once, so they stand near the beginning of the request: a command, or a header.
"""

import asyncio
from dataclasses import dataclass
from types import TracebackType
from typing import Self


@dataclass
class Cut:
    words: bytes
    answered: bool
    times: int


class CuttingProxy:
    """`async with CuttingProxy(server.port) as proxy:` listens on `proxy.port`; `proxy.cuts` counts what was cut."""

    def __init__(self, upstream_port: int) -> None:
        self._upstream_port = upstream_port
        self._plan: Cut | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self.cuts = 0

    def cut(self, words: bytes, answered: bool = False, times: int = 1) -> None:
        self._plan = Cut(words, answered, times)

    @property
    def port(self) -> int:
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        for writer in self._writers:
            writer.close()
        await asyncio.gather(*self._tasks)  # they end by themselves, now that nothing is left to read

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream_reader, upstream_writer = await asyncio.open_connection("127.0.0.1", self._upstream_port)
        both = {writer, upstream_writer}
        self._writers |= both
        lost = asyncio.Event()
        answers = asyncio.create_task(_pass_on(upstream_reader, writer, lost))
        self._tasks.append(answers)
        try:
            while request := await reader.read(1 << 16):
                found = self._matching(request)
                if found is not None and not found.answered:
                    break
                if found is not None:
                    lost.set()  # and the rest of the request passes; the connection ends with the answer
                upstream_writer.write(request)
        except OSError:
            pass
        finally:
            for each in both:
                each.close()
            await answers

    def _matching(self, request: bytes) -> Cut | None:
        plan = self._plan
        if plan is None or not plan.times or plan.words not in request:
            return None
        plan.times -= 1
        self.cuts += 1
        return plan


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, lost: asyncio.Event) -> None:
    """Answers to the client, until one is to be lost or the connection ends."""
    try:
        while (answer := await reader.read(1 << 16)) and not lost.is_set():
            writer.write(answer)
    except OSError:
        pass
    finally:
        writer.close()
