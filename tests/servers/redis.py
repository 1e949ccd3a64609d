"""Real Redis servers for tests, on loopback ports, in temporary directories, with nothing on disk when they end.

`shared_redis()` is the one server of this test process; `redis_server(...)` starts another with its own options, for
tests that need a replica, a cluster or a fault.
"""

import atexit
import contextlib
import functools
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.servers.missing import missing
from tests.servers.process import ServerProcess, free_port

ADDRESS = "LSMFS_TEST_REDIS_URL"


@functools.cache
def shared_redis() -> str:
    """The URL of a Redis server that lives as long as this process; skips the test if there is none."""
    if url := os.environ.get(ADDRESS):
        return url
    stack = contextlib.ExitStack()
    atexit.register(stack.close)
    return f"redis://127.0.0.1:{stack.enter_context(redis_server()).port}/0"


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
    with redis_server("--cluster-enabled", "yes") as server:
        call(server.port, "CLUSTER ADDSLOTSRANGE 0 16383")
        while "cluster_state:ok" not in call(server.port, "CLUSTER INFO"):
            pass
        yield server


def answers(port: int) -> bool:
    return call(port, "PING").startswith("+PONG")


def call(port: int, command: str) -> str:
    """One inline command by a plain socket: the second route to the server, beside the client under test."""
    with socket.create_connection(("127.0.0.1", port), timeout=2) as connection:
        connection.sendall(command.encode() + b"\r\n")
        return connection.recv(65536).decode(errors="replace")
