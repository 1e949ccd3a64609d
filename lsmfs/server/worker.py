"""One worker process of the server: `python -m lsmfs.server.worker`, started by `run` and by nobody else.

1. It reads a `Start` from its standard input: the configuration, the sockets it inherits, which application.
2. It makes the application, lets it start (its lifespan), accepts, and says so on the pipe it was given.
3. SIGTERM, or the end of its standard input (the process that started it is gone), and it stops accepting, ends the
   requests under way, lets the application close what it has open, and ends. Told twice it does the same once: who
   cannot wait kills it.

The application is what the factory `module:function` returns when called as `factory(config, worker)`. In its lifespan
it may set state["announcement"], an `Announcement` as a dict: what to tell the person at the terminal, once.
"""

import asyncio
import contextlib
import gc
import importlib
import os
import pickle
import signal
import socket
import struct
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypedDict

import msgspec
import uvicorn

from lsmfs.asgi import Application, Message
from lsmfs.installation import Configuration, Installation
from lsmfs.server import logs
from lsmfs.server.config import ServerConfig
from lsmfs.server.config_stores import environment_of, open_configured
from lsmfs.server.metrics import Metrics
from lsmfs.server.observing import Observed
from lsmfs.server.protocol import protocol_with
from refstore.errors import Error

BACKLOG = 2048  # connections the kernel holds for us; most systems cut it to 4096 or less
LENGTH = struct.Struct(">I")  # before the pickled start
NOT_STARTED = 3
STDIN = 0
# Requests make many objects and few cycles: with Python's own thresholds a fifth of the time went to them.
GARBAGE_THRESHOLDS = (50_000, 20, 100)


class Announcement(TypedDict):
    """What the application tells at its first start: for people, and for --json."""

    text: str
    document: dict[str, Any]


@dataclass(frozen=True)
class Start:
    """What a worker is told."""

    config: ServerConfig
    configuration: Configuration
    factory: str
    urls: list[str]
    index: int
    count: int
    is_quickstart: bool
    listening: list[int]
    telling: int


class Report(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a worker tells, once: it accepts, or why it does not."""

    is_ready: bool
    announcement: dict[str, Any] | None = None
    error: str = ""
    words: str = ""


class Worker:
    """What the application's factory is given beside the configuration."""

    def __init__(self, start: Start, log: logs.Log, metrics: Metrics) -> None:
        self.index = start.index
        """0 is the one that starts first, alone: what only one should do, it does."""
        self.count = start.count
        self.urls = start.urls
        self.is_quickstart = start.is_quickstart
        self.log = log
        self.metrics = metrics
        self.environment: Mapping[str, str] = environment_of(start.config, os.environ)
        self._start = start

    def open_installation(self) -> Installation:
        return open_configured(self._start.config, self._start.configuration, os.environ)


Factory = Callable[[ServerConfig, Worker], Application]


class Server(uvicorn.Server):
    """uvicorn's, with the signals left to us: it would raise them again when it has ended."""

    def __init__(self, config: uvicorn.Config, start: Start) -> None:
        super().__init__(config)
        self._start = start

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        _tell(self._start, Report(True, self.lifespan.state.get("announcement")))

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Opening:
    """Around the application's lifespan: an error of ours there is one line, not a traceback, and is kept."""

    def __init__(self, application: Application) -> None:
        self.error: Error | None = None
        self._application = application

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "lifespan":
            await self._application(scope, receive, send)
            return
        failure: Message | None = None

        async def sending(message: Message) -> None:
            nonlocal failure
            if message["type"] == "lifespan.startup.failed":
                failure = message  # its text is a traceback
            else:
                await send(message)

        try:
            await self._application(scope, receive, sending)
        except Error as error:
            self.error = error
            await send({"type": "lifespan.startup.failed", "message": str(error)})
        except Exception:
            if failure is not None:
                await send(failure)
            raise


async def serve(start: Start, log: logs.Log) -> int:
    """Serve until told to stop; the exit code."""
    metrics = Metrics()
    application = Opening(_factory(start.factory)(start.config, Worker(start, log, metrics)))
    observed = Observed(application, log, metrics, start.config.limits)
    server = Server(_uvicorn_config(start.config, observed), start)
    loop = asyncio.get_running_loop()

    def stop() -> None:
        server.should_exit = True

    loop.add_signal_handler(signal.SIGTERM, stop)
    loop.add_signal_handler(signal.SIGHUP, log.output.reopen)
    loop.add_reader(STDIN, _at_end(loop, stop))
    try:
        await server.serve([socket.socket(fileno=number) for number in start.listening])
    except SystemExit:  # uvicorn's answer to a lifespan that failed
        error = application.error
        words = str(error) if error else "the application did not start: the log tells why"
        _tell(start, Report(False, error=type(error).__name__ if error else "", words=words))
        return NOT_STARTED
    return 0


def _factory(name: str) -> Factory:
    module, _, attribute = name.partition(":")
    factory: Factory = getattr(importlib.import_module(module), attribute)
    return factory


def _uvicorn_config(config: ServerConfig, application: Application) -> uvicorn.Config:
    limits = config.limits
    return uvicorn.Config(
        application,
        loop="uvloop",
        http=protocol_with(limits),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        proxy_headers=False,  # whoever reaches us could claim any address
        server_header=False,
        limit_concurrency=limits.connections_max,
        backlog=BACKLOG,
        timeout_keep_alive=limits.keep_alive_seconds,
        timeout_graceful_shutdown=limits.shutdown_seconds_max,
        ssl_certfile=config.tls.certificate_file,
        ssl_keyfile=config.tls.key_file,
    )


def _at_end(loop: asyncio.AbstractEventLoop, stop: Callable[[], None]) -> Callable[[], None]:
    """To be called when the standard input has something: nothing comes any more but its end."""

    def look() -> None:
        if not os.read(STDIN, 1):
            loop.remove_reader(STDIN)
            stop()

    return look


def _tell(start: Start, report: Report) -> None:
    with contextlib.suppress(OSError):  # nobody listens: then the standard input ends as well
        os.write(start.telling, msgspec.json.encode(report) + b"\n")
        os.close(start.telling)


def read_start() -> Start:
    """The start, from the standard input. Who writes it is the process that started us, so it may be pickled."""
    start: Start = pickle.loads(_exactly(LENGTH.unpack(_exactly(LENGTH.size))[0]))
    return start


def _exactly(size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = os.read(STDIN, size - len(data))  # not by a buffer: the end of it is watched for later
        if not piece:
            raise EOFError("this is no program to start by hand: use `lsmfs run`")
        data += piece
    return data


def written(start: Start) -> bytes:
    """What `read_start` reads."""
    data = pickle.dumps(start)
    return LENGTH.pack(len(data)) + data


def main() -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole group; the one that started us tells us
    start = read_start()
    gc.set_threshold(*GARBAGE_THRESHOLDS)
    try:
        with logs.logging(start.config.logging) as log, asyncio.Runner(loop_factory=_loop()) as runner:
            return runner.run(serve(start, log))
    except (Error, OSError) as error:  # a certificate that cannot be read, a log that cannot be written
        _tell(start, Report(False, error=type(error).__name__, words=str(error)))
        return NOT_STARTED


def _loop() -> Callable[[], asyncio.AbstractEventLoop]:
    import uvloop

    return uvloop.new_event_loop


if __name__ == "__main__":
    sys.exit(main())
