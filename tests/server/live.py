"""The whole server as users start it: `lsmfs run` as a process of its own, in a process group of its own.

    with running(folder) as server:
        server.s3().put_object(...)                  boto3, as the administrator
        server.rest.post("/repositories", json=...)  httpx, the same
        server.kill(), server.stop(), server.start() the same data, the same port

Its log is `server.log` beside the data folder, and part of the error if it does not come up.
"""

import contextlib
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import boto3
import httpx
from botocore.config import Config

from lsmfs.auth.keys import Pair
from tests.gateway.raw import connected, signed
from tests.gateway.running import ADMIN, REGION
from tests.servers.process import _die_with_parent, free_port

__all__ = ["ADMIN", "REGION", "WAIT_SECONDS_MAX", "Live", "begun", "running"]

WAIT_SECONDS_MAX = 60.0
_INHERITED = ("PATH", "HOME", "LANG", "VIRTUAL_ENV")


class Live:
    """A server and its data; started, stopped and killed as often as a test likes."""

    def __init__(self, folder: Path, *arguments: str, environment: Mapping[str, str] | None = None) -> None:
        self.data = folder / "data"
        self.log = folder / "server.log"
        self.certificate = ""
        self.port = free_port()
        self.told: dict[str, Any] = {}
        self._arguments = arguments
        self._environment = dict(environment or {})
        self._process: subprocess.Popen[str] | None = None
        self._rest: httpx.Client | None = None
        self._opened: list[Any] = []  # clients, whose sockets are ours to close
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def process(self) -> subprocess.Popen[str]:
        assert self._process is not None, "the server does not run"
        return self._process

    @property
    def url(self) -> str:
        return f"{'https' if self.certificate else 'http'}://127.0.0.1:{self.port}"

    def start(self, **more: Any) -> "Live":
        """Until it says that it listens; `more` is for `subprocess`."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.command(),
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
                **{"preexec_fn": _die_with_parent, **more},
            )
        line = self._first_line()
        if not line:
            self.kill()
            raise AssertionError(f"the server did not start: {self.log.read_text()[-3000:]}")
        self.told = json.loads(line)
        return self

    def command(self) -> list[str]:
        listen = f"127.0.0.1:{self.port}"
        return [
            sys.executable, "-m", "lsmfs", "--json", "run", "--data", str(self.data), "--listen", listen,
            *self._arguments,
        ]  # fmt: skip

    def environment(self) -> dict[str, str]:
        """What it is started with: nothing of ours beside what programs need."""
        kept = {name: os.environ[name] for name in _INHERITED if name in os.environ}
        keys = {"LSMFS_ACCESS_KEY_ID": ADMIN.access_key_id, "LSMFS_SECRET_ACCESS_KEY": ADMIN.secret}
        return {
            **kept,
            "TMPDIR": str(self.data.parent),
            "LSMFS_LOGGING_OUTPUT": str(self.log),
            **keys,
            **self._environment,
        }

    def _first_line(self) -> str:
        lines: queue.Queue[str] = queue.Queue()
        stream = self.process.stdout
        assert stream is not None
        threading.Thread(target=lambda: lines.put(stream.readline()), daemon=True).start()
        with contextlib.suppress(queue.Empty):
            return lines.get(timeout=WAIT_SECONDS_MAX)
        return ""

    def stop(self) -> int:
        """As an administrator would; its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.wait()

    def wait(self) -> int:
        """Until it has ended, as it was told to; its exit code."""
        code = self.process.wait(WAIT_SECONDS_MAX)
        self._ended()
        return code

    def kill(self) -> None:
        """All its processes, as a power cut would; no error if it has ended."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._ended()

    def close(self) -> None:
        """It and all of its clients."""
        self.kill()
        for client in self._opened:
            client.close()

    def _ended(self) -> None:
        process, self._process = self.process, None
        assert process.stdout is not None
        process.stdout.close()
        self._rest = None

    @property
    def rest(self) -> httpx.Client:
        """The REST API as the administrator."""
        if self._rest is None:
            self._rest = self.client()
        return self._rest

    def client(self, pair: Pair | None = ADMIN) -> httpx.Client:
        verify = _trusting(self.certificate) if self.certificate else True
        auth = None if pair is None else httpx.BasicAuth(*pair)
        client = httpx.Client(
            base_url=f"{self.url}/api/v1", auth=auth, verify=verify, timeout=WAIT_SECONDS_MAX, trust_env=False
        )
        self._opened.append(client)
        return client

    def get(self, path: str) -> httpx.Response:
        """Outside of the API, as nobody."""
        return httpx.get(self.url + path, timeout=WAIT_SECONDS_MAX, trust_env=False)

    def s3(self, pair: Pair = ADMIN, **config: Any) -> Any:
        settings = {"retries": {"max_attempts": 1}, "s3": {"addressing_style": "path"}, "read_timeout": 60, **config}
        client = boto3.client(
            "s3",
            endpoint_url=self.url,
            aws_access_key_id=pair.access_key_id,
            aws_secret_access_key=pair.secret,
            region_name=REGION,
            config=Config(**settings),
            verify=self.certificate or None,
        )
        self._opened.append(client)
        return client

    def repository(self, name: str) -> str:
        """A new one of that name."""
        self.post("/repositories", name=name, storage_namespace=f"local://{name}")
        return name

    def post(self, path: str, **body: Any) -> Any:
        answer = self.rest.post(path, json=body)
        assert answer.is_success, f"{path}: {answer.status_code} {answer.text}"
        return answer.json() if answer.headers.get("content-type", "").startswith("application/json") else answer.text

    def branch(self, repository: str, name: str, source: str = "main") -> str:
        self.post(f"/repositories/{repository}/branches", name=name, source=source)
        return name

    def commit(self, repository: str, branch: str, message: str = "a change") -> str:
        identity: str = self.post(f"/repositories/{repository}/branches/{branch}/commits", message=message)["id"]
        return identity

    def merge(self, repository: str, source: str, target: str = "main") -> str:
        reference: str = self.post(f"/repositories/{repository}/refs/{source}/merge/{target}")["reference"]
        return reference


def _trusting(certificate: str) -> Any:
    import ssl

    return ssl.create_default_context(cafile=certificate)


@contextlib.contextmanager
def running(folder: Path, *arguments: str, **environment: str) -> Iterator[Live]:
    server = Live(folder, *arguments, environment=environment)
    try:
        yield server.start()
    finally:
        server.close()


def begun(server: Live, key: str, body: bytes, sent: int) -> socket.socket:
    """An upload that has sent so many bytes of its body."""
    client = connected(server)
    head = signed(server, "PUT", f"/lake/main/{key}", body=body)
    client.sendall(head + b"Content-Length: %d\r\n\r\n" % len(body) + body[:sent])
    return client
