"""Real Redis servers for tests, on loopback ports, in temporary directories, with nothing on disk when they end.

`shared_redis()` is the one server of this test process, `shared_redis_cluster()` and `shared_redis_pair()` its one
cluster and its one primary with a replica; `redis_server(...)` starts another with its own options, for tests that
need a fault.
"""

import atexit
import contextlib
import functools
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.servers.missing import missing
from tests.servers.process import POLL_SECONDS, START_SECONDS_MAX, ServerDidNotStart, ServerProcess, free_port

ADDRESS = "LSMFS_TEST_REDIS_URL"


@functools.cache
def shared_redis() -> str:
    """The URL of a Redis server that lives as long as this process; skips the test if there is none."""
    if url := os.environ.get(ADDRESS):
        return url
    stack = contextlib.ExitStack()
    atexit.register(stack.close)
    return f"redis://127.0.0.1:{stack.enter_context(redis_server()).port}/0"


@functools.cache
def shared_redis_cluster() -> str:
    """The URL of a cluster that lives as long as this process; skips the test if there is none."""
    stack = contextlib.ExitStack()
    atexit.register(stack.close)
    return f"redis+cluster://127.0.0.1:{stack.enter_context(redis_cluster()).port}"


@functools.cache
def shared_redis_pair() -> str:
    """The URL of a primary that has a replica; both live as long as this process."""
    stack = contextlib.ExitStack()
    atexit.register(stack.close)
    primary, _ = stack.enter_context(redis_pair())
    return f"redis://127.0.0.1:{primary.port}/0"


@contextlib.contextmanager
def redis_server(*options: str) -> Iterator[ServerProcess]:
    """A fresh server with these options on its command line; skips the test if the program is missing."""
    program = shutil.which("redis-server") or shutil.which("valkey-server")
    if program is None:
        missing(f"no {ADDRESS}, and no redis-server on this machine")
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="lsmfs-redis-") as directory:
        basic = ["--bind", "127.0.0.1", "--port", str(port), "--save", "", "--dir", directory]
        with ServerProcess([program, *basic, *options], port, lambda: answers(port), Path(directory)) as server:
            yield server


@contextlib.contextmanager
def redis_cluster() -> Iterator[ServerProcess]:
    """A cluster of one server that has all the slots: it refuses what a larger cluster would refuse."""
    # Its bus would be on port + 10000, which need not be free, nor a port at all.
    with redis_server("--cluster-enabled", "yes", "--cluster-port", str(free_port())) as server:
        call(server.port, "CLUSTER ADDSLOTSRANGE 0 16383")
        _wait_until_it_says(server.port, "CLUSTER INFO", "cluster_state:ok")
        yield server


@contextlib.contextmanager
def redis_pair() -> Iterator[tuple[ServerProcess, ServerProcess]]:
    """A primary and a replica that follows it."""
    # By default a primary waits 5 s for more replicas before it sends the first one anything.
    with (
        redis_server("--repl-diskless-sync-delay", "0") as primary,
        redis_server("--replicaof", f"127.0.0.1 {primary.port}") as replica,
    ):
        wait_for_replica(primary.port)
        yield primary, replica


def wait_for_replica(port: int) -> None:
    """Return when a replica has caught up with the primary on this port."""
    _wait_until_it_says(port, "INFO replication", "state=online")


def _wait_until_it_says(port: int, command: str, words: str) -> None:
    deadline = time.monotonic() + START_SECONDS_MAX
    while words not in (answer := call(port, command)):
        if time.monotonic() > deadline:
            raise ServerDidNotStart(f"{command} on port {port} did not say {words!r} in time but {answer!r}")
        time.sleep(POLL_SECONDS)


def answers(port: int) -> bool:
    return call(port, "PING").startswith("+PONG")


def call(port: int, command: str) -> str:
    """One inline command by a plain socket: the second route to the server, beside the client under test."""
    with socket.create_connection(("127.0.0.1", port), timeout=2) as connection:
        connection.sendall(command.encode() + b"\r\n")
        return connection.recv(65536).decode(errors="replace")
