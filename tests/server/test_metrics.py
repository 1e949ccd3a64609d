"""What is observed of every request: its counts, its line in the log, its id; and bodies that stay away."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import structlog

from lsmfs.asgi import Application
from lsmfs.server.config import Limits, Logging
from lsmfs.server.logs import PATH_CHARACTERS_MAX, Log, Output, logging, request_id
from lsmfs.server.metrics import Metrics
from lsmfs.server.observing import Observed

IDLE_SECONDS_MAX = 0.05

JSON = Logging(format="json", level="INFO")


def scope_of(path: str = "/a", headers: list[tuple[bytes, bytes]] | None = None) -> dict[str, Any]:
    return {
        "type": "http",
        "method": "GET",
        "path": path,
        "query_string": b"X-Amz-Signature=hush",
        "headers": headers or [],
        "state": {},
    }


async def answer(scope: Any, receive: Any, send: Any) -> None:
    body = await receive()
    scope["state"].update(operation="stat", user="ann")
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body.get("body", b"") * 2})


class Client:
    """Sends one body, if any, and keeps what is answered."""

    def __init__(self, body: bytes | None = b"abc") -> None:
        self.messages: list[Any] = []
        self._body = body

    async def receive(self) -> dict[str, Any]:
        if self._body is None:
            await asyncio.Event().wait()
        return {"type": "http.request", "body": self._body, "more_body": False}

    async def send(self, message: Any) -> None:
        self.messages.append(message)


def observe(
    tmp_path: Path, application: Application, scope: dict[str, Any], client: Client, settings: Logging = JSON
) -> tuple[list[str], str]:
    """One request; the lines of the log, and the counts."""
    metrics = Metrics()
    file = tmp_path / "log"
    with logging(Logging(settings.format, settings.level, str(file))) as log:
        observed = Observed(application, log, metrics, Limits(body_idle_seconds_max=IDLE_SECONDS_MAX))
        asyncio.run(observed(scope, client.receive, client.send))
    return file.read_text().splitlines(), metrics.text().decode()


def test_a_request_is_counted_and_logged_with_its_id_and_without_its_query(tmp_path: Path) -> None:
    client = Client()
    lines, counts = observe(tmp_path, answer, scope_of(headers=[(b"x-request-id", b"given-by-client")]), client)
    line = json.loads(lines[0])
    del line["timestamp"], line["seconds"]
    assert line == {
        "level": "info",
        "event": "request",
        "method": "GET",
        "path": "/a",
        "status": 200,
        "bytes_in": 3,
        "bytes_out": 6,
        "user": "ann",
        "operation": "stat",
        "request_id": "given-by-client",
    }
    assert (b"x-request-id", b"given-by-client") in client.messages[0]["headers"]
    for expected in (
        'lsmfs_requests_total{operation="stat",status="200"} 1.0',
        'lsmfs_request_seconds_count{operation="stat"} 1.0',
        "lsmfs_request_bytes_total 3.0",
        "lsmfs_response_bytes_total 6.0",
        "lsmfs_requests_in_flight 0.0",
    ):
        assert expected in counts
    assert "lsmfs_errors_total{" not in counts


@pytest.mark.parametrize("unsound", [b"short", b"x" * 65, b"with\nnewline", b"with space", b"\xff" * 10])
def test_an_id_that_is_not_sound_is_not_taken_over(tmp_path: Path, unsound: bytes) -> None:
    lines, _ = observe(tmp_path, answer, scope_of(headers=[(b"x-request-id", unsound)]), Client())
    assert len(json.loads(lines[0])["request_id"]) == 16


def test_an_error_is_answered_without_its_reason_and_logged_with_it(tmp_path: Path) -> None:
    async def broken(scope: Any, receive: Any, send: Any) -> None:
        raise RuntimeError("the reason")

    client = Client()
    lines, counts = observe(tmp_path, broken, scope_of(), client)
    assert client.messages[0]["status"] == 500
    assert b"reason" not in client.messages[1]["body"].replace(b"its log tells more", b"")
    failure, access = (json.loads(line) for line in lines)
    assert "RuntimeError: the reason" in failure["exception"]
    assert failure["request_id"] == access["request_id"]
    assert 'lsmfs_errors_total{operation="other"} 1.0' in counts


def test_a_body_that_stays_away_counts_as_a_client_that_has_gone(tmp_path: Path) -> None:
    seen = []

    async def upload(scope: Any, receive: Any, send: Any) -> None:
        seen.append((await receive())["type"])
        raise ConnectionError("gone")

    lines, counts = observe(tmp_path, upload, scope_of(), Client(None))
    assert seen == ["http.disconnect"]
    assert [json.loads(line)["status"] for line in lines] == [499]
    assert 'status="499"} 1.0' in counts


def test_waiting_for_the_client_to_go_has_no_limit_once_the_body_is_there(tmp_path: Path) -> None:
    class Staying(Client):
        async def receive(self) -> dict[str, Any]:
            body, self._body = self._body, None
            if body is None:
                await asyncio.sleep(4 * IDLE_SECONDS_MAX)
                return {"type": "http.request", "body": b"later", "more_body": False}
            return {"type": "http.request", "body": body, "more_body": False}

    async def waiting(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        assert (await receive())["body"] == b"later"
        await answer(scope, receive, send)

    lines, _ = observe(tmp_path, waiting, scope_of(), Staying())
    assert json.loads(lines[0])["status"] == 200


@pytest.mark.parametrize("form", ["json", "text"])
def test_a_path_cannot_forge_a_line_nor_fill_the_log(tmp_path: Path, form: Any) -> None:
    for path in ("/a\n2026 forged", "/\udcff\x1b[31m", "/" + "x" * 10_000, '/a" status=200'):
        (tmp_path / "log").unlink(missing_ok=True)
        lines, _ = observe(tmp_path, answer, scope_of(path), Client(), Logging(format=form))
        assert len(lines) == 1
        assert len(lines[0]) < PATH_CHARACTERS_MAX + 500
        assert lines[0].isprintable()


@pytest.mark.parametrize(
    ("level", "expected"),
    [("DEBUG", "debug info warn error"), ("INFO", "info warn error"), ("WARN", "warn error"), ("NONE", "")],
)
def test_the_level_decides_which_lines_there_are(tmp_path: Path, level: Any, expected: str) -> None:
    file = tmp_path / "log"
    with logging(Logging("json", level, str(file))):
        log = structlog.get_logger("x")
        for name in ("debug", "info", "warning", "error"):
            getattr(log, name)(name.removesuffix("ing"))
    assert [json.loads(line)["event"] for line in file.read_text().splitlines()] == expected.split()


def test_a_moved_log_file_is_opened_again(tmp_path: Path) -> None:
    file = tmp_path / "log"
    output = Output(str(file))
    output.write(b"one\n")
    file.rename(tmp_path / "log.1")
    output.reopen()
    output.write(b"two\n")
    output.close()
    assert ((tmp_path / "log.1").read_bytes(), file.read_bytes()) == (b"one\n", b"two\n")


def test_a_log_that_cannot_be_written_fails_nobody() -> None:
    output = Output("/dev/full")
    Log(JSON, output).access(200, {"path": "/"})
    assert output.lost == 1
    output.close()


def test_lines_of_a_task_carry_the_id_of_its_request(tmp_path: Path) -> None:
    file = tmp_path / "log"
    with logging(Logging("json", "INFO", str(file))):
        token = request_id.set("r1")
        structlog.get_logger("x").info("inside")
        request_id.reset(token)
        structlog.get_logger("x").info("outside")
    inside, outside = (json.loads(line) for line in file.read_text().splitlines())
    assert inside["request_id"] == "r1"
    assert "request_id" not in outside


def test_the_counts_of_several_processes_are_summed(tmp_path: Path) -> None:
    program = "from lsmfs.server.metrics import Metrics; m = Metrics(); m.answered('stat', 200, 0.1, 5, 7); "
    environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    for _ in range(2):
        subprocess.run([sys.executable, "-c", program], env=environment, check=True)
    (tmp_path / "counter_99999.db").touch()  # of a worker that was killed as it began: /metrics answered 500
    show = program + "print(m.text().decode())"
    text = subprocess.run([sys.executable, "-c", show], env=environment, check=True, capture_output=True).stdout
    assert b'lsmfs_requests_total{operation="stat",status="200"} 3.0' in text
    assert b"lsmfs_response_bytes_total 21.0" in text
