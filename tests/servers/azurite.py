"""A real Azure Blob server for tests: Microsoft's Azurite, an npm package, installed once into a cache directory.

`shared_azure()` is the one server of this test process, or the container in LSMFS_TEST_AZURE_URL (with its
credentials in the usual AZURE_STORAGE variables). The account and key are the ones that Azurite publishes for
everybody.
"""

import atexit
import contextlib
import fcntl
import functools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.servers.bucket import BucketAddress, azure_client
from tests.servers.missing import missing
from tests.servers.process import ServerProcess, accepts_connections, free_port

ADDRESS = "LSMFS_TEST_AZURE_URL"
VERSION = "3.35.0"
INSTALL_SECONDS_MAX = 300
CONTAINER = "lsmfs-test"
ACCOUNT = "devstoreaccount1"
KEYS = {
    "AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT,
    "AZURE_STORAGE_ACCOUNT_KEY": (
        "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
    ),
}


@functools.cache
def shared_azure() -> BucketAddress:
    """A container on a server that lives as long as this process; skips the test if there is none."""
    if url := os.environ.get(ADDRESS):
        return BucketAddress(url, dict(os.environ))
    stack = contextlib.ExitStack()
    atexit.register(stack.close)
    return stack.enter_context(azurite_server())


@contextlib.contextmanager
def azurite_server() -> Iterator[BucketAddress]:
    """A fresh server with one empty container; skips the test if it cannot be had."""
    program = shutil.which("azurite-blob") or install()
    if program is None:
        missing(f"no {ADDRESS}, no azurite-blob on this machine, and npm did not give one")
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="lsmfs-azurite-") as directory:
        listen = ["--blobHost", "127.0.0.1", "--blobPort", str(port)]
        quiet = ["--silent", "--disableTelemetry", "--skipApiVersionCheck", "--inMemoryPersistence"]
        command = [program, *listen, *quiet]
        with ServerProcess(command, port, lambda: accepts_connections(port), Path(directory)):
            endpoint = f"http://127.0.0.1:{port}/{ACCOUNT}"
            address = BucketAddress(f"az://{CONTAINER}?account={ACCOUNT}&endpoint={endpoint}", KEYS)
            azure_client(address).create_container()
            yield address


def cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lsmfs-test" / f"azurite-{VERSION}"


def installed_program() -> Path:
    """Where the program is, or would be."""
    return cache_folder() / "node_modules" / ".bin" / "azurite-blob"


def is_installed() -> bool:
    return shutil.which("azurite-blob") is not None or installed_program().exists()


def install() -> str | None:
    """The program in the cache directory, put there first if npm can; None if not. Safe for several at once."""
    cache, program = cache_folder(), installed_program()
    if program.exists():
        return str(program)
    npm = shutil.which("npm")
    if npm is None:
        return None
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.exists():
            command = [npm, "install", "--prefix", str(cache), f"azurite@{VERSION}", "--no-audit", "--no-fund"]
            subprocess.run(command, check=False, capture_output=True, timeout=INSTALL_SECONDS_MAX)
    return str(program) if program.exists() else None
