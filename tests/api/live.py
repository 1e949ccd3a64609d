"""The API on a loopback port, in a thread with a loop of its own, for clients that open sockets."""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import uvicorn

from lsmfs.api.app import Options
from tests.api.support import world

STARTS_WITHIN_SECONDS = 30


@contextlib.contextmanager
def serving(folder: Path, options: Options | None = None) -> Iterator[str]:
    """The URL of a server with one administrator and no repository."""
    listener = socket.create_server(("127.0.0.1", 0))
    started, stop = threading.Event(), threading.Event()
    failures: list[BaseException] = []

    async def run() -> None:
        async with world(folder, options) as there:
            app: Any = there.app
            server = uvicorn.Server(uvicorn.Config(app, lifespan="off", log_config=None, timeout_keep_alive=1))
            task = asyncio.create_task(server.serve(sockets=[listener]))
            started.set()
            await asyncio.to_thread(stop.wait)
            server.should_exit = True
            await task

    def thread() -> None:
        try:
            asyncio.run(run())
        except BaseException as error:
            failures.append(error)
            started.set()

    worker = threading.Thread(target=thread)
    worker.start()
    try:
        assert started.wait(STARTS_WITHIN_SECONDS)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        stop.set()
        worker.join()
    if failures:
        raise failures[0]
