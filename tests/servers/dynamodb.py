"""DynamoDB Local for tests: Amazon's own server as jars, in memory, on a loopback port.

`shared_dynamodb()` is the one server of this test process. The jars are fetched once by Maven (`install.py`) into a
cache directory, with the native SQLite library that the server stands on.
"""

import atexit
import contextlib
import functools
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.servers.missing import missing
from tests.servers.process import ServerProcess, accepts_connections, free_port

ADDRESS = "LSMFS_TEST_DYNAMODB_URL"
VERSION = "2.6.1"  # of the 2.x line, which runs on Java 17


def jars() -> Path:
    """Where the jars are, or would be."""
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "lsmfs-test" / f"dynamodb-local-{VERSION}"


@functools.cache
def shared_dynamodb() -> str:
    """The URL of a DynamoDB endpoint that lives as long as this process; skips the test if there is none."""
    if url := os.environ.get(ADDRESS):
        return url
    stack = contextlib.ExitStack()
    atexit.register(stack.close)
    return f"http://127.0.0.1:{stack.enter_context(dynamodb_server()).port}"


@contextlib.contextmanager
def dynamodb_server() -> Iterator[ServerProcess]:
    """A fresh, empty server; skips the test if Java or the jars are missing."""
    java = shutil.which("java")
    if java is None:
        missing(f"no {ADDRESS}, and no Java on this machine to run DynamoDB Local")
    if not (jars() / f"DynamoDBLocal-{VERSION}.jar").exists():
        missing(f"no {ADDRESS}, and no jars of DynamoDB Local")
    port = free_port()
    tuned = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]  # starts in half the time; two cores do
    libraries = ["-cp", str(jars() / "*"), f"-Dsqlite4java.library.path={jars()}"]
    main = ["com.amazonaws.services.dynamodbv2.local.main.ServerRunner", "-inMemory", "-disableTelemetry", "-port"]
    with (
        tempfile.TemporaryDirectory(prefix="lsmfs-dynamodb-") as directory,
        ServerProcess(
            [java, *tuned, *libraries, *main, str(port)], port, lambda: accepts_connections(port), Path(directory)
        ) as server,
    ):
        yield server
