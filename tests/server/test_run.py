"""The running server, as a process of its own, with a tiny application: starting, stopping, dying, bad clients."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path

import pytest

from tests.servers.process import free_port

WAIT_SECONDS_MAX = 30.0


class Running:
    """A server under test."""

    def __init__(self, process: subprocess.Popen[str], data: Path) -> None:
        self.process = process
        self.data = data
        self.lines: list[str] = []
        self.ports: list[int] = []

    def wait_until_listening(self, count: int = 1) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))
            if found := re.fullmatch(r"listening on http://127\.0\.0\.1:(\d+)\n", line):
                self.ports.append(int(found[1]))
                if len(self.ports) == count:
                    return
        raise AssertionError(f"the server ended: {self.lines}")

    def get(self, path: str, method: str = "GET", body: bytes | None = None) -> tuple[int, bytes]:
        connection = HTTPConnection("127.0.0.1", self.ports[0], timeout=WAIT_SECONDS_MAX)
        with contextlib.closing(connection):
            connection.request(method, path, body)
            response = connection.getresponse()
            return response.status, response.read()

    def pids(self, count: int) -> set[int]:
        """The worker processes, asked until there are so many."""
        found: set[int] = set()
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while len(found) < count:
            assert time.monotonic() < deadline, f"only {found} answer"
            found.add(int(self.get("/pid")[1]))
        return found

    def marks(self) -> list[str]:
        file = self.data / "marks"
        return file.read_text().splitlines() if file.exists() else []

    def wait_for_mark(self, text: str) -> None:
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while text not in self.marks():
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        assert self.process.stdout is not None
        self.lines += self.process.stdout.read().splitlines()  # ends when no process has it open any more
        return self.process.wait(WAIT_SECONDS_MAX)


@contextlib.contextmanager
def started(data: Path, *arguments: str, **environment: str) -> Iterator[Running]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.server.tiny", "--data", str(data), *arguments],
        env={**os.environ, "TMPDIR": str(data.parent), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        yield Running(process, data)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


@contextlib.contextmanager
def listening(data: Path, *arguments: str, **environment: str) -> Iterator[Running]:
    with started(data, "--listen", ":0", *arguments, **environment) as server:
        server.wait_until_listening()
        yield server


def is_running(pid: int) -> bool:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


def wait_until_gone(pid: int) -> None:
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while is_running(pid):
        assert time.monotonic() < deadline, f"{pid} still runs"
        time.sleep(0.02)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_a_slow_request_end_then_closes_the_application(tmp_path: Path, number: signal.Signals) -> None:
    with listening(tmp_path) as server:
        answers: list[tuple[int, bytes]] = []
        client = threading.Thread(target=lambda: answers.append(server.get("/slow")))
        client.start()
        server.wait_for_mark("slow began")
        assert server.end(number) == 0
        client.join()
        assert answers == [(200, b"slow ended")]
        assert server.marks() == ["slow began", "closed 0"]
        assert any("worker 0 has []" in line for line in server.lines)


def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    with listening(tmp_path) as server:
        worker = server.pids(1).pop()
        client = socket.create_connection(("127.0.0.1", server.ports[0]))
        with client:
            client.sendall(b"GET /slow HTTP/1.1\r\nhost: x\r\n\r\n")
            server.wait_for_mark("slow began")
            server.process.send_signal(signal.SIGTERM)
            time.sleep(0.2)  # two signals at once would be one
            assert server.end() == 128 + signal.SIGTERM
        wait_until_gone(worker)
        assert server.marks() == ["slow began"]


def test_a_killed_worker_is_replaced_and_the_others_serve_on(tmp_path: Path) -> None:
    with listening(tmp_path, "--workers", "2") as server:
        first = server.pids(2)
        victim = min(first)
        os.kill(victim, signal.SIGKILL)
        wait_until_gone(victim)
        second = server.pids(2)
        assert len(first & second) == 1
        status, text = server.get("/metrics/")
        assert status == 200
        counted = re.search(rb'lsmfs_requests_total\{operation="pid",status="200"\} (\d+)', text)
        assert counted is not None
        assert int(counted[1]) >= 4, "what the dead worker counted is not lost"
        assert server.end() == 0
        assert any("worker ended, is replaced" in line for line in server.lines)
        assert sorted(server.marks()) == ["closed 0", "closed 1"]


def test_what_a_killed_server_left_is_removed_by_the_next_and_nothing_else(tmp_path: Path) -> None:
    def folders() -> set[str]:
        return {path.name for path in tmp_path.glob("lsmfs-metrics-*")}

    with listening(tmp_path / "a") as killed:
        left = folders()
        killed.process.kill()
        killed.process.wait()
    assert folders() == left
    with listening(tmp_path / "b") as first:
        kept = folders()
        assert not kept & left
        with listening(tmp_path / "c") as second:
            assert kept < folders()
            assert second.end() == 0
        assert folders() == kept
        assert first.end() == 0
    assert folders() == set()


def test_workers_end_when_the_process_that_started_them_is_killed(tmp_path: Path) -> None:
    with listening(tmp_path, "--workers", "2") as server:
        workers = server.pids(2)
        server.process.kill()
        for worker in workers:
            wait_until_gone(worker)
        assert sorted(server.marks()) == ["closed 0", "closed 1"]


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_port_in_use_is_named(tmp_path: Path, workers: str) -> None:
    with listening(tmp_path / "a", "--workers", workers) as server:
        address = f"127.0.0.1:{server.ports[0]}"
        with started(tmp_path / "b", "--listen", address, "--workers", workers) as second:
            output, _ = second.process.communicate(timeout=WAIT_SECONDS_MAX)
        assert second.process.returncode == 7
        assert f"error: {address} is in use" in output
        assert server.get("/pid")[0] == 200


def test_an_application_that_cannot_start_is_told_in_one_line(tmp_path: Path) -> None:
    with started(tmp_path, "--listen", ":0", "--quickstart", LSMFS_LOGGING_LEVEL="NONE") as server:
        output, _ = server.process.communicate(timeout=WAIT_SECONDS_MAX)
    assert (server.process.returncode, output) == (7, "error: the ref store is down: start it\n")


def test_two_addresses_serve_the_same(tmp_path: Path) -> None:
    first, second = free_port(), free_port()
    file = tmp_path / "server.yaml"
    file.write_text(
        f"gateways: {{s3: {{listen_address: '127.0.0.1:{first}'}}}}\napi: {{listen_address: '127.0.0.1:{second}'}}\n"
    )
    with started(tmp_path / "data", "--config", str(file)) as server:
        server.wait_until_listening(2)
        assert server.ports == [first, second]
        answers = {server.get("/pid")}
        server.ports.reverse()
        assert {server.get("/pid")} == answers


def test_headers_that_are_too_large_are_refused_in_one_piece_and_in_many(tmp_path: Path) -> None:
    with listening(tmp_path, LSMFS_LIMITS_HEADER_BYTES_MAX="4096") as server:
        head = b"GET /pid HTTP/1.1\r\nhost: x\r\nx-long: " + b"x" * 5000
        for pieces in ([head + b"\r\n\r\n"], [head[:3000], head[3000:]]):
            with socket.create_connection(("127.0.0.1", server.ports[0]), WAIT_SECONDS_MAX) as client:
                for piece in pieces:
                    client.sendall(piece)
                    time.sleep(0.05)
                assert client.recv(1000).startswith(b"HTTP/1.1 431 ")
        assert server.get("/echo", "POST", b"x" * 100_000) == (200, b"100000")
        assert b"lsmfs_requests_total" in server.get("/metrics/")[1]


def test_a_client_that_says_nothing_or_takes_nothing_is_cut_off(tmp_path: Path) -> None:
    limits = {"LSMFS_LIMITS_HEADER_SECONDS_MAX": "0.3", "LSMFS_LIMITS_BODY_IDLE_SECONDS_MAX": "0.3"}
    with listening(tmp_path, **limits) as server:
        with socket.create_connection(("127.0.0.1", server.ports[0]), WAIT_SECONDS_MAX) as silent:
            assert _rest(silent) == b""
        with socket.create_connection(("127.0.0.1", server.ports[0]), WAIT_SECONDS_MAX) as slow:
            slow.sendall(b"GET /pid HTTP/1.1\r\nhost")
            assert _rest(slow) == b""
        with socket.create_connection(("127.0.0.1", server.ports[0]), WAIT_SECONDS_MAX) as idle:
            idle.sendall(b"GET /large HTTP/1.1\r\nhost: x\r\n\r\n")
            time.sleep(1.5)
            assert len(_rest(idle)) < 32 * 1024 * 1024
        assert server.get("/pid")[0] == 200


def _rest(client: socket.socket) -> bytes:
    """All that comes until the connection ends, be it by a reset."""
    data = bytearray()
    with contextlib.suppress(ConnectionResetError):
        while piece := client.recv(1024 * 1024):
            data += piece
    return bytes(data)


def test_no_answer_names_the_server(tmp_path: Path) -> None:
    with listening(tmp_path) as server, socket.create_connection(("127.0.0.1", server.ports[0])) as client:
        client.sendall(b"GET /broken HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        answer = _rest(client).lower()
        assert answer.startswith(b"http/1.1 500")
        assert b"server: " not in answer
        assert b"uvicorn" not in answer
        assert b"reason" not in answer


def test_a_log_file_is_opened_again_on_sighup(tmp_path: Path) -> None:
    file = tmp_path / "log"
    with listening(tmp_path / "data", LSMFS_LOGGING_OUTPUT=str(file)) as server:
        server.get("/pid")
        file.rename(tmp_path / "log.1")
        server.process.send_signal(signal.SIGHUP)
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while not (file.exists() and "/pid" in file.read_text()):
            assert time.monotonic() < deadline
            server.get("/pid")
