"""Running the server: the process that binds the addresses, starts the workers and keeps them running.

1. It binds every address, so a port in use is told before anything starts. With several workers each gets a socket of
   its own on the same port, among which the kernel divides connections; this process keeps them open as well, so
   connections that wait for a worker that died are taken by the next.
2. It starts worker 0 and waits until that accepts, then the others; then it says `listening`.
3. A worker that dies is replaced, after a pause that doubles while they keep dying young.
4. The first SIGTERM or SIGINT: workers are told to stop and get `shutdown_seconds_max` for requests under way, and
   then CLOSE_SECONDS_MAX to close what they have open; who is not done by then is killed, and the exit code is 1.
   A second signal kills them at once. SIGHUP is passed on: log files are opened again.

Promises: no worker outlives this process for longer than a graceful end takes, however it ends (they watch a pipe).
"""

import asyncio
import contextlib
import errno
import fcntl
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import structlog

from lsmfs.installation import Configuration
from lsmfs.server.config import Address, ServerConfig
from lsmfs.server.worker import Report, Start, written
from refstore import errors
from refstore.errors import Denied, Error, Invalid, Unavailable

log = structlog.get_logger("server")

APPLICATION = "lsmfs.server.app:create_app"
START_SECONDS_MAX = 120.0  # a first start that waits for Redis to load its file
CLOSE_SECONDS_MAX = 30.0  # a writer's last flush is retried for that long
RESTART_SECONDS_MIN, RESTART_SECONDS_MAX = 0.1, 10.0
YOUNG_SECONDS = 30.0  # a worker that lived longer died of something new
REPORT_BYTES_MAX = 1024 * 1024
FOLDER_PREFIX, LOCK = "lsmfs-metrics-", "lock"
FAILED = 1

Tell = Callable[[list[str], dict[str, Any] | None], None]


class Child:
    """A worker process, started."""

    def __init__(self, process: asyncio.subprocess.Process, report: "asyncio.Task[Report]") -> None:
        self.process = process
        self.report = report
        self.began = time.monotonic()


class Supervisor:
    """The workers of one server."""

    def __init__(
        self, config: ServerConfig, configuration: Configuration, factory: str, is_quickstart: bool, folder: str
    ) -> None:
        self._config = config
        self._configuration = configuration
        self._factory = factory
        self._is_quickstart = is_quickstart
        self._folder = folder
        self._sockets: list[list[socket.socket]] = []
        self._children: dict[int, Child] = {}
        self._stop = asyncio.Event()
        self.urls: list[str] = []

    async def run(self, tell: Tell) -> int:
        """Until a signal; the exit code. `tell` is called with the URLs when all workers accept."""
        self._sockets = bind(self._config.addresses, self._config.workers)
        scheme = "https" if self._config.tls.certificate_file else "http"
        self.urls = [f"{scheme}://{Address(*each.getsockname()[:2])}" for each in self._sockets[0]]
        self._listen_to_signals()
        keepers: list[asyncio.Task[None]] = []
        try:
            announcement = await self._until_stopped(self._first())
            if not self._stop.is_set():
                keepers = [asyncio.ensure_future(self._keep(index)) for index in range(self._config.workers)]
                await self._until_stopped(self._all_ready())
            if not self._stop.is_set():
                tell(self.urls, announcement)
                await self._stop.wait()
        finally:
            self._stop.set()
            self._close_sockets()
            code = await self._end()
            for keeper in keepers:
                keeper.cancel()
            await asyncio.gather(*keepers, return_exceptions=True)
        return code

    async def _until_stopped(self, work: Any) -> Any:
        """The work's result, or None if a signal came first."""
        working, stopped = asyncio.ensure_future(work), asyncio.ensure_future(self._stop.wait())
        try:
            await asyncio.wait((working, stopped), return_when=asyncio.FIRST_COMPLETED)
            return working.result() if working.done() else None
        finally:
            for task in (working, stopped):
                task.cancel()

    async def _first(self) -> dict[str, Any] | None:
        """Start worker 0; what it announces. What keeps it from starting would keep all: raised."""
        child = await self._start(0)
        report = await self._report_of(child)
        if not report.is_ready:
            raise _raised(report)
        return report.announcement

    async def _all_ready(self) -> None:
        while True:
            await asyncio.sleep(0.02)
            children = list(self._children.values())
            if len(children) == self._config.workers and all(
                each.report.done() and not each.report.cancelled() and each.report.result().is_ready
                for each in children
            ):
                return

    async def _report_of(self, child: Child) -> Report:
        try:
            async with asyncio.timeout(START_SECONDS_MAX):
                return await asyncio.shield(child.report)
        except TimeoutError:
            return Report(
                False, error="Unavailable", words=f"the server did not start in {START_SECONDS_MAX:.0f} seconds"
            )

    async def _keep(self, index: int) -> None:
        """Have this worker running until told to stop."""
        pause = RESTART_SECONDS_MIN
        while not self._stop.is_set():
            child = self._children.get(index) or await self._start(index)
            code = await child.process.wait()
            del self._children[index]
            self._forget_gauges(child.process.pid)
            if self._stop.is_set():
                return
            pause = RESTART_SECONDS_MIN if time.monotonic() - child.began > YOUNG_SECONDS else pause
            log.error("worker ended, is replaced", worker=index, pid=child.process.pid, code=code, pause_seconds=pause)
            await asyncio.sleep(pause)
            pause = min(2 * pause, RESTART_SECONDS_MAX)

    async def _start(self, index: int) -> Child:
        reading, writing = os.pipe()
        listening = [each.fileno() for each in self._sockets[index]]
        start = Start(
            self._config, self._configuration, self._factory, self.urls, index, self._config.workers,
            self._is_quickstart, listening, writing,
        )  # fmt: skip
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "lsmfs.server.worker",
                stdin=asyncio.subprocess.PIPE,
                pass_fds=[*listening, writing],
                env={**os.environ, "PROMETHEUS_MULTIPROC_DIR": self._folder},
            )  # fmt: skip
        except OSError as error:
            os.close(reading)
            raise Unavailable(f"a worker cannot be started: {error.strerror}") from None
        finally:
            os.close(writing)
        assert process.stdin is not None
        process.stdin.write(written(start))  # and stays open: its end tells the worker that we are gone
        self._children[index] = Child(process, asyncio.ensure_future(_read_report(reading)))
        if self._stop.is_set():  # told to stop while it was being started
            _signal(process, signal.SIGTERM)
        return self._children[index]

    async def _end(self) -> int:
        """Tell all to stop and wait; who does not is killed."""
        children = [child for child in self._children.values() if child.process.returncode is None]
        for child in children:
            _signal(child.process, signal.SIGTERM)
        seconds = self._config.limits.shutdown_seconds_max + CLOSE_SECONDS_MAX
        waits = [asyncio.ensure_future(child.process.wait()) for child in children]
        _, pending = await asyncio.wait(waits, timeout=seconds) if waits else (None, set())
        if pending:
            log.error("workers did not end in time, killed", count=len(pending), seconds=seconds)
            self._kill()
            await asyncio.wait(pending)
        return FAILED if pending else 0

    def _listen_to_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._heard, number)
        loop.add_signal_handler(signal.SIGHUP, self._pass_on, signal.SIGHUP)

    def _heard(self, number: signal.Signals) -> None:
        if self._stop.is_set():
            self._kill()
            shutil.rmtree(self._folder, ignore_errors=True)
            os._exit(128 + number)
        self._stop.set()

    def _pass_on(self, number: signal.Signals) -> None:
        for child in self._children.values():
            _signal(child.process, number)

    def _kill(self) -> None:
        for child in self._children.values():
            _signal(child.process, signal.SIGKILL)

    def _close_sockets(self) -> None:
        for sockets in self._sockets:
            for each in sockets:
                each.close()

    def _forget_gauges(self, pid: int) -> None:
        from prometheus_client.multiprocess import mark_process_dead

        mark_process_dead(pid, self._folder)  # type: ignore[no-untyped-call]


async def serve(
    config: ServerConfig,
    configuration: Configuration,
    tell: Tell,
    is_quickstart: bool = False,
    factory: str = "",
) -> int:
    """Run the server until a signal; the exit code. `configuration` is what `config_stores.prepare` gave."""
    with _temporary_folder() as folder:
        return await Supervisor(config, configuration, factory or APPLICATION, is_quickstart, folder).run(tell)


def bind(addresses: list[Address], workers: int) -> list[list[socket.socket]]:
    """For each worker a socket of each address; `Unavailable`, `Denied` or `Invalid` naming the address."""
    bound: list[list[socket.socket]] = [[] for _ in range(workers)]
    try:
        for address in addresses:
            # First alone: two servers that both share ports would not notice each other.
            first = _bound(address, is_shared=False)
            if workers == 1:
                bound[0].append(first)
                continue
            found = Address(address.host, first.getsockname()[1])
            first.close()
            for sockets in bound:
                sockets.append(_bound(found, is_shared=True))
    except BaseException:
        for sockets in bound:
            for each in sockets:
                each.close()
        raise
    return bound


def _bound(address: Address, is_shared: bool) -> socket.socket:
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)[0]
        made = socket.socket(family, kind, protocol)
    except OSError as error:
        raise Invalid(f"{address} is no address of this machine ({error.strerror}): choose another") from None
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if is_shared:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        made.bind(place)
        made.set_inheritable(True)
        return made
    except OSError as error:
        made.close()
        raise _refused(address, error) from None


def _refused(address: Address, error: OSError) -> Error:
    if error.errno == errno.EADDRINUSE:
        return Unavailable(f"{address} is in use: stop what listens there, or choose another with --listen")
    if error.errno in (errno.EACCES, errno.EPERM):
        return Denied(f"{address} may not be used: choose a port above 1023 with --listen")
    return Invalid(f"{address} cannot be listened on ({error.strerror}): choose another with --listen")


async def _read_report(descriptor: int) -> Report:
    """The one line that a worker writes; if it ends without, that."""
    reader = asyncio.StreamReader(limit=REPORT_BYTES_MAX)
    with os.fdopen(descriptor, "rb") as file:
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), file
        )
        line = await reader.readline()
        transport.close()
    return msgspec.json.decode(line, type=Report) if line else Report(False, words="a worker ended while it started")


def _raised(report: Report) -> Exception:
    """The worker's error, here."""
    kind = getattr(errors, report.error, None) if report.error else None
    if isinstance(kind, type) and issubclass(kind, Error):
        return kind(report.words)
    return Invalid(report.words) if report.error else RuntimeError(report.words)


def _signal(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(number)


@contextlib.contextmanager
def _temporary_folder() -> Iterator[str]:
    """For the workers' counts: gone when the server is. Who is killed leaves it to the next one to remove."""
    folder = tempfile.mkdtemp(prefix=FOLDER_PREFIX)
    with open(os.path.join(folder, LOCK), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for path in Path(tempfile.gettempdir()).glob(f"{FOLDER_PREFIX}*"):
            if _is_left_over(path):
                shutil.rmtree(path, ignore_errors=True)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _is_left_over(folder: Path) -> bool:
    """Ours, and its server no longer holds the lock. One without a lock is just being made, or was never whole."""
    try:
        if folder.stat().st_uid != os.getuid():
            return False
        with (folder / LOCK).open("r") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
    except OSError:
        return False
