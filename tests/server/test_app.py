"""The whole server: who gets which request, the first administrator, the server key, restarts, workers."""

import concurrent.futures
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from botocore.exceptions import BotoCoreError, ClientError

from lsmfs.auth.keys import Pair
from lsmfs.installation import open_installation
from refstore.records import Branch
from tests.aio import aio
from tests.gateway.raw import ask, read
from tests.server.live import ADMIN, WAIT_SECONDS_MAX, Live, begun, running
from tests.servers.missing import missing
from tests.servers.process import accepts_connections

GENERATED = {"LSMFS_ACCESS_KEY_ID": "", "LSMFS_SECRET_ACCESS_KEY": ""}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with running(tmp_path_factory.mktemp("app")) as live:
        live.repository("lake")
        yield live


def put(client: Any, key: str, body: bytes = b"x") -> None:
    client.put_object(Bucket="lake", Key=f"main/{key}", Body=body)


def body_of(client: Any, key: str) -> bytes:
    body: bytes = client.get_object(Bucket="lake", Key=f"main/{key}")["Body"].read()
    return body


def keys_of(client: Any, prefix: str = "main/") -> list[str]:
    pages = client.get_paginator("list_objects_v2").paginate(Bucket="lake", Prefix=prefix)
    return [each["Key"].removeprefix("main/") for page in pages for each in page.get("Contents", [])]


def test_it_is_alive_ready_and_measured(server: Live) -> None:
    assert server.get("/_health").json() == {"status": "alive"}
    assert server.get("/readyz").json() == {"status": "ready"}
    put(server.s3(), "measured")
    metrics = server.get("/metrics").text
    assert 'operation="PutObject"' in metrics
    assert 'operation="ready"' in metrics


def test_what_is_nowhere_is_404_of_the_api(server: Live) -> None:
    answer = server.get("/nowhere")
    assert (answer.status_code, answer.headers["content-type"]) == (404, "application/json")


@pytest.mark.parametrize(
    ("headers", "query"),
    [
        ({"authorization": "AWS4-HMAC-SHA256 Credential=nobody"}, ""),
        ({"authorization": "AWS nobody:c2lnbmF0dXJl"}, ""),
        ({}, "X-Amz-Signature=00"),
        ({}, "x=1&AWSAccessKeyId=nobody&Signature=00&Expires=1"),
        ({"host": "s3.local"}, ""),
        ({"host": "lake.s3.local:8000"}, ""),
        ({"host": "LAKE.S3.LOCAL"}, ""),
    ],
)
def test_what_is_signed_or_for_the_s3_domain_is_answered_by_s3(
    server: Live, headers: dict[str, str], query: str
) -> None:
    answer = httpx.get(f"{server.url}/api/v1/repositories?{query}", headers=headers, trust_env=False)
    assert 400 <= answer.status_code < 500
    assert answer.headers["content-type"] == "application/xml"
    assert "<Error><Code>" in answer.text


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer AWS4-HMAC-SHA256"},
        {"authorization": "Basic AWS"},
        {"host": "s3.local.example"},
        {"host": "nots3.local"},
    ],
)
def test_everything_else_is_answered_by_the_api(server: Live, headers: dict[str, str]) -> None:
    answer = httpx.get(f"{server.url}/api/v1/repositories", headers=headers, trust_env=False)
    assert (answer.status_code, answer.headers["content-type"]) == (401, "application/json")


def test_what_s3_writes_the_api_reads_and_the_other_way_round(server: Live) -> None:
    s3, where = server.s3(), "/repositories/lake/branches/main/objects"
    put(s3, "from s3", b"one")
    assert server.rest.get("/repositories/lake/refs/main/objects", params={"path": "from s3"}).content == b"one"
    answer = server.rest.post(where, params={"path": "from rest"}, content=b"two")
    assert answer.status_code == 201
    assert body_of(s3, "from rest") == b"two"


def test_keys_from_the_environment_are_the_administrators_and_the_secret_is_not_told(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        assert server.told["access_key_id"] == ADMIN.access_key_id
        assert ADMIN.secret not in str(server.told) + server.log.read_text()
        assert server.rest.get("/user").json()["user"]["id"] == "admin"


def test_generated_keys_are_told_once_and_there_is_one_first_administrator(tmp_path: Path) -> None:
    server = Live(tmp_path, environment=GENERATED)
    try:
        told = server.start().told
        pair = Pair(told["access_key_id"], told["secret_access_key"])
        with server.client(pair) as client:
            assert client.get("/user").json()["user"]["id"] == "admin"
        server.stop()
        assert pair.secret not in server.log.read_text()
        again = Live(tmp_path)  # with keys in the environment, which come too late
        try:
            assert again.start().told.keys() == {"listening"}
            assert again.rest.get("/user").status_code == 401
            with again.client(pair) as client:
                assert client.get("/user").status_code == 200
        finally:
            again.close()
    finally:
        server.close()


def refusal(folder: Path, **environment: str) -> str:
    """What the server says that does not start."""
    command = [sys.executable, "-m", "lsmfs", "run", "--data", str(folder / "data"), "--listen", "127.0.0.1:0"]
    told = Live(folder, environment=environment).environment()
    ended = subprocess.run(command, env=told, capture_output=True, text=True, timeout=WAIT_SECONDS_MAX)
    assert ended.returncode != 0
    assert "Traceback" not in ended.stderr
    return ended.stdout + ended.stderr


def test_half_a_pair_of_keys_is_refused(tmp_path: Path) -> None:
    assert "belong together" in refusal(tmp_path, LSMFS_SECRET_ACCESS_KEY="")


def test_the_server_key_is_made_once_for_its_owner_only(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        file = server.data / "server.key"
        first = file.read_bytes()
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert len(first.strip()) >= 32
        server.stop()
        server.start()
        assert file.read_bytes() == first
        assert server.rest.get("/user").status_code == 200
        server.stop()
        file.write_text("another key, which decrypts nothing\n")
        assert "server key" in refusal(tmp_path)
        file.write_bytes(first)
        file.chmod(0o644)
        assert "chmod 600" in refusal(tmp_path)


def test_users_keys_and_objects_outlive_the_server(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        server.repository("lake")
        server.post("/auth/users", id="ann")
        made = server.post("/auth/users/ann/credentials")
        assert server.rest.put("/auth/groups/Developers/members/ann").status_code == 201
        pair = Pair(made["access_key_id"], made["secret_access_key"])
        put(server.s3(pair), "hers", b"of ann")
        assert server.stop() == 0
        server.start()
        assert body_of(server.s3(pair), "hers") == b"of ann"
        with server.client(pair) as client:
            assert client.get("/user").json()["user"]["id"] == "ann"
        for path in ("refs.db", "server.log"):
            data = (server.data / path if path == "refs.db" else server.log).read_bytes()
            assert pair.secret.encode() not in data


@aio
async def wait_until_compacted(data: Path) -> None:
    async with open_installation(data, {}) as installation, await installation.repository("lake") as repository:
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        branch: Branch = await repository.branches.read("main")
        while branch.l2 is None:
            assert time.monotonic() < deadline, f"nothing was compacted: {branch.l1}"
            time.sleep(0.1)  # noqa: ASYNC251  this loop has nothing else to do
            branch = await repository.branches.read("main")


def test_the_server_compacts_while_it_serves(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        server.repository("lake")  # which came after the compactor began
        s3 = server.s3()
        for number in range(24):
            put(s3, f"{number:02d}")
        wait_until_compacted(server.data)
        assert keys_of(s3) == [f"{number:02d}" for number in range(24)]


def test_the_compactor_can_be_left_to_others(tmp_path: Path) -> None:
    with running(tmp_path, LSMFS_SERVICES_COMPACTOR="false") as server:
        assert server.get("/readyz").status_code == 200
        server.stop()
        assert "compactions" not in server.log.read_text()


class Load:
    """Clients that put until they are told to stop, or nobody answers any more; what was acknowledged."""

    def __init__(self, server: Live, clients: int = 4) -> None:
        self.acknowledged: dict[str, bytes] = {}
        self._server = server
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._put, args=(number,)) for number in range(clients)]
        for thread in self._threads:
            thread.start()

    def _put(self, client: int) -> None:
        s3, number = self._server.s3(), 0
        while not self._stop.is_set():
            key, body = f"{client}/{number:05d}", f"{client} {number}".encode() * 50
            try:
                put(s3, key, body)
            except (BotoCoreError, ClientError):
                return
            self.acknowledged[key] = body
            number += 1

    def wait_for(self, count: int) -> None:
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while len(self.acknowledged) < count:
            assert time.monotonic() < deadline, f"only {len(self.acknowledged)} of {count}"
            time.sleep(0.01)

    def end(self) -> dict[str, bytes]:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        return self.acknowledged


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_graceful_stop_under_load_loses_nothing_acknowledged(tmp_path: Path, workers: str) -> None:
    with running(tmp_path, "--workers", workers) as server:
        server.repository("lake")
        load = Load(server)
        load.wait_for(40)
        assert server.stop() == 0
        acknowledged = load.end()
        server.start()
        s3 = server.s3()
        assert set(acknowledged) <= set(keys_of(s3))
        assert {key: body_of(s3, key) for key in acknowledged} == acknowledged


def test_a_graceful_stop_lets_an_upload_end_and_keeps_it(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        server.repository("lake")
        body = b"0123456789" * 10_000
        with begun(server, "late", body, 50_000) as client:
            wait_until(lambda: "lsmfs_requests_in_flight 2.0" in server.get("/metrics").text)  # it, and this one
            server.process.send_signal(signal.SIGTERM)
            wait_until(lambda: not accepts_connections(server.port))
            client.sendall(body[50_000:])
            assert read(client).status == 200
        assert server.wait() == 0
        server.start()
        assert body_of(server.s3(), "late") == body


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def workers_of(server: Live) -> set[int]:
    """Their process ids: the children of the one that was started."""
    found = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text()
    return {int(pid) for pid in found.split()}


def test_what_one_worker_acknowledged_every_worker_shows(tmp_path: Path) -> None:
    with running(tmp_path, "--workers", "2") as server:
        server.repository("lake")

        def check(number: int) -> bool:
            put(server.s3(), f"{number:03d}", b"%d" % number)  # a client of its own: another connection
            return body_of(server.s3(), f"{number:03d}") == b"%d" % number

        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            assert all(pool.map(check, range(40)))
        for _ in range(8):
            assert len(keys_of(server.s3())) == 40


def test_a_killed_worker_is_replaced_and_nothing_is_lost(tmp_path: Path) -> None:
    with running(tmp_path, "--workers", "2") as server:
        server.repository("lake")
        put(server.s3(), "before")
        before = workers_of(server)
        assert len(before) == 2
        for victim in before:
            os.kill(victim, signal.SIGKILL)
        wait_until(lambda: len(workers_of(server) - before) == 2)
        put(server.s3(), "after")  # connections wait for the next worker
        assert keys_of(server.s3()) == ["after", "before"]


def test_the_bucket_may_be_in_the_hosts_name(server: Live) -> None:
    put(server.s3(), "by host", b"found")
    for host in ("lake.s3.local", f"lake.s3.local:{server.port}"):
        answer = ask(server, "GET", "/main/by%20host", host=host)
        assert (answer.status, answer.body) == (200, b"found"), host


@pytest.mark.parametrize("arguments", [(), ("--quickstart",)])
def test_the_commands_that_it_says_to_try_work(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    if shutil.which("curl") is None:
        missing("no curl on this machine")
    live = Live(tmp_path, *arguments, environment=GENERATED)
    command = [each for each in live.command() if each != "--json"]
    with subprocess.Popen(
        command, env=live.environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            assert process.stdout is not None
            lines = [line.strip() for line in iter(process.stdout.readline, "try:\n")]
            tried = [process.stdout.readline().strip() for _ in range(3)]
            assert any(line.startswith("secret access key") for line in lines)
            (tmp_path / "README.md").write_text("to be read")
            path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
            environment = {"PATH": path, "HOME": str(tmp_path), "AWS_DEFAULT_REGION": "us-east-1"}
            done = subprocess.run(
                ["sh", "-e", "-c", "\n".join(tried)],
                env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=WAIT_SECONDS_MAX,
            )  # fmt: skip
            assert done.returncode == 0, done.stderr
            assert re.search(r" 10 README\.md$", done.stdout, re.MULTILINE)
            name = "quickstart" if arguments else "lake"
            assert f'"id":"{name}"' in done.stdout.replace(" ", "")
        finally:
            process.terminate()
