"""The smallest application that `run` can serve, and a program that runs it: python -m tests.server.tiny HOST:PORT ...

/pid    the worker's process id          /slow    answers after a second; `slow began` is in the log file
/echo   the length of the body           /large   more than a socket holds        /broken   an error of the server
/metrics
"""

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route

from lsmfs.asgi import Application
from lsmfs.server.config import ServerConfig
from lsmfs.server.worker import Worker
from refstore.errors import Unavailable

SLOW_SECONDS = 1.0


def create_app(config: ServerConfig, worker: Worker) -> Application:
    marks = Path(config.data) / "marks"

    def mark(text: str) -> None:
        with marks.open("a") as file:
            file.write(text + "\n")

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[dict[str, object]]:
        if worker.is_quickstart:
            raise Unavailable("the ref store is down: start it")
        async with worker.open_installation() as installation:
            names = [name async for name in installation.names()]
            yield {"announcement": {"text": f"worker {worker.index} has {names}", "document": {"key": "k"}}}
        mark(f"closed {worker.index}")

    async def pid(request: Request) -> Response:
        request.state.operation = "pid"
        return PlainTextResponse(str(os.getpid()))

    async def slow(request: Request) -> Response:
        mark("slow began")
        await asyncio.sleep(SLOW_SECONDS)
        return PlainTextResponse("slow ended")

    async def echo(request: Request) -> Response:
        return PlainTextResponse(str(len(await request.body())))

    async def large(request: Request) -> Response:
        return PlainTextResponse("x" * 32 * 1024 * 1024)

    async def broken(request: Request) -> Response:
        raise RuntimeError("the secret reason")

    routes = [
        Route("/pid", pid),
        Route("/slow", slow),
        Route("/echo", echo, methods=["POST"]),
        Route("/large", large),
        Route("/broken", broken),
        Mount("/metrics", worker.metrics.endpoint),
    ]
    return Starlette(routes=routes, lifespan=lifespan)


if __name__ == "__main__":
    from lsmfs.cli import run as run_command
    from lsmfs.server import run

    run.APPLICATION = "tests.server.tiny:create_app"
    sys.exit(run_command(["run", *sys.argv[1:]]))
