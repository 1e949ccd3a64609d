"""A real `lsmfs run` on a loopback port, in a process of its own; it can be ended and started again."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx

from lsmfs.client import connect
from lsmfs.client.installation import RemoteInstallation
from tests.servers.process import free_port

ADMIN = ("ADMINKEYADMINKEY", "admin-secret-of-forty-characters-or-so-1")
WAIT_SECONDS_MAX = 60.0
CONFIG = """
api:
  allowed_imports: ["file:///", "s3://"]
"""


def without_settings(environment: dict[str, str]) -> dict[str, str]:
    """An environment that names no server and no key."""
    return {name: value for name, value in environment.items() if not name.startswith(("LSMFS_", "LAKECTL_"))}


class Served:
    """A server under test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.keys = {"admin": ADMIN}
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "server.yaml").write_text(CONFIG)

    def start(self) -> None:
        settings = {"LSMFS_ACCESS_KEY_ID": ADMIN[0], "LSMFS_SECRET_ACCESS_KEY": ADMIN[1]}
        command = ["run", "--listen", f"127.0.0.1:{self.port}", "--data", "data", "--config", "server.yaml"]
        log = self.folder / "log"  # a file, and not a pipe that nobody empties
        log.write_bytes(b"")
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "lsmfs", *command],
                cwd=self.folder,
                env={**without_settings(dict(os.environ)), **settings},
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while b"listening on " not in log.read_bytes():
            assert self._process.poll() is None, f"the server ended: {log.read_text()}"
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        try:
            process.wait(WAIT_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def client(self) -> RemoteInstallation:
        return connect(self.url, *ADMIN)

    def add_user(self, name: str, group: str = "Admins") -> None:
        """A new user of that name; `settings` has the key."""
        with httpx.Client(base_url=f"{self.url}/api/v1/auth", auth=ADMIN, trust_env=False) as client:
            assert client.post("/users", json={"id": name}).status_code == 201
            assert client.put(f"/groups/{group}/members/{name}").status_code == 201
            made = client.post(f"/users/{name}/credentials")
        assert made.status_code == 201, made.text
        self.keys[name] = (made.json()["access_key_id"], made.json()["secret_access_key"])

    def settings(self, name: str = "ana") -> dict[str, str]:
        """The environment that names the server, and that user's key."""
        key, secret = self.keys[name]
        return {"LSMFS_ENDPOINT_URL": self.url, "LSMFS_ACCESS_KEY_ID": key, "LSMFS_SECRET_ACCESS_KEY": secret}

    def empty(self) -> None:
        """Delete every repository."""

        async def delete_all() -> None:
            async with self.client() as lake:
                for name in [name async for name in lake.names()]:
                    await lake.delete(name)

        asyncio.run(delete_all())


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[Served]:
    server = Served(folder)
    try:
        server.start()
        yield server
    finally:
        server.stop()
