"""A real server as a child process of the tests: started in its own directory, waited for, and surely ended.

Promises: on leaving the context the server and its children are gone; if pytest itself dies, the kernel ends the
server (Linux only; elsewhere it may be left over). Its output is in `server.log` in its directory, and the end of that
is part of the error if it does not come up. `free_port` only says what was free a moment ago; it reserves nothing.
"""

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

START_SECONDS_MAX = 30.0  # a JVM on a loaded machine of two cores needs about ten
STOP_SECONDS_MAX = 5.0  # then it is killed: nothing a test server holds is worth more
POLL_SECONDS = 0.05
LOG_TAIL_BYTES = 2000
PR_SET_PDEATHSIG = 1  # <sys/prctl.h>

# Loaded here, not in the child: between fork and exec only async-signal-safe work is sound.
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


def free_port() -> int:
    """A loopback TCP port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def accepts_connections(port: int) -> bool:
    """Whether somebody listens on this loopback port: the simplest `ready`."""
    with socket.socket() as probe:
        probe.settimeout(0.5)
        return probe.connect_ex(("127.0.0.1", port)) == 0


class ServerDidNotStart(Exception):
    """The server ended, or did not answer in time; the message ends with its log."""


class ServerProcess:
    """`with ServerProcess([...], port, ready, directory): ...` runs the command in `directory` until the block ends.

    `ready` is asked until it says True; what it raises as OSError counts as "not yet".
    """

    def __init__(
        self,
        command: list[str],
        port: int,
        ready: Callable[[], bool],
        directory: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.command = command
        self.port = port
        self.directory = directory
        self.log = directory / "server.log"
        self._ready = ready
        self._environment = None if environment is None else {**os.environ, **environment}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None, "the server was not started"
        return self._process.pid

    def __enter__(self) -> Self:
        self.directory.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.command,
                cwd=self.directory,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # its own process group, so that its children can be ended with it
                preexec_fn=_die_with_parent,
            )
        try:
            self._wait_until_ready(self._process)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """End the server politely, then not; no error if it has ended already."""
        process, self._process = self._process, None
        if process is None:
            return
        _signal_group(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_SECONDS_MAX)
        _signal_group(process.pid, signal.SIGKILL)  # also for children that outlived their parent
        process.wait()

    def kill(self) -> None:
        """End the server as a power cut would, for tests of recovery."""
        process, self._process = self._process, None
        if process is not None:
            _signal_group(process.pid, signal.SIGKILL)
            process.wait()

    def _wait_until_ready(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + START_SECONDS_MAX
        while time.monotonic() < deadline:
            if process.poll() is not None:
                raise ServerDidNotStart(self._report(f"ended with status {process.returncode}"))
            with contextlib.suppress(OSError):
                if self._ready():
                    return
            time.sleep(POLL_SECONDS)
        raise ServerDidNotStart(self._report(f"did not answer on port {self.port} in {START_SECONDS_MAX:.0f} s"))

    def _report(self, what: str) -> str:
        tail = self.log.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace")
        return f"{' '.join(self.command)}: {what}\n{tail}"


def _die_with_parent() -> None:
    if _libc is not None:
        _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _signal_group(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)
