"""What goes wrong between a client and its server: keys, addresses, servers that are away or restarted, cut answers."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from lsmfs.client import connect
from lsmfs.client.arrow import read_tables
from lsmfs.client.transport import FAILURE_BYTES_MAX
from lsmfs.model import Entry
from refstore.errors import Denied, Invalid, NotFound, OutcomeUnknown, Unavailable
from tests.aio import aio
from tests.client.served import ADMIN, Served, serving, without_settings
from tests.servers.process import free_port

MIB = 1024 * 1024
WAIT_SECONDS_MAX = 60.0


@contextlib.contextmanager
def answering(*answers: bytes) -> Iterator[tuple[str, list[bytes]]]:
    """The URL of something that answers each connection's first request with the next bytes, and closes it; and the
    requests that came."""
    listener = socket.create_server(("127.0.0.1", 0))
    requests: list[bytes] = []

    def serve() -> None:
        for answer in answers:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                requests.append(connection.recv(65536))
                with contextlib.suppress(ConnectionError):  # the client may have had enough
                    connection.sendall(answer)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", requests
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


def http(status: int, body: bytes = b"", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status} X", f"content-length: {len(body)}", "connection: close", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


PAGE = msgspec.json.encode({"records": [], "has_more": False})


async def pieces(count: int, size: int = MIB) -> AsyncIterator[bytes]:
    for number in range(count):
        yield bytes([number % 251]) * size


async def first_name(url: str, *key: str) -> str | None:
    async with connect(url, *(key or ADMIN)) as lake:
        return await anext(lake.names(), None)


@aio
async def test_a_wrong_key_is_denied_and_no_secret_is_told(server: Served) -> None:
    for key in ((ADMIN[0], "wrong-secret"), ("NOBODY", ADMIN[1])):
        with pytest.raises(Denied, match="does not know this access key id") as caught:
            await first_name(server.url, *key)
        assert key[1] not in str(caught.value)


@aio
async def test_what_is_not_allowed_is_denied(server: Served) -> None:
    async with server.client() as lake:
        await lake.create("lake")
    if "vera" not in server.keys:
        server.add_user("vera", "Viewers")
    async with connect(server.url, *server.keys["vera"]) as lake, await lake.repository("lake") as repo:
        assert (await repo.list("main")).items == []
        for work in (
            repo.put_object("main", "k", pieces(1)),
            repo.commit("main", "x"),
            repo.create_branch("dev", "main"),
            repo.merge("main", "main"),
            repo.set_metadata({}),
            lake.create("pond"),
            lake.delete("lake"),
        ):
            with pytest.raises(Denied):
                await work
        async with repo.writer("main") as writer:
            with pytest.raises(Denied):
                await writer.put("k", Entry("s3://raw/x", 1))
            with pytest.raises(Denied):
                await writer.delete("k")
            with pytest.raises(Denied):
                await writer.stage(pa.table({"key": ["k"], "kind": pa.array([1], pa.uint8())}))


@aio
async def test_an_address_that_nobody_listens_on_is_told() -> None:
    with pytest.raises(Unavailable, match="is the server running"):
        await first_name(f"http://127.0.0.1:{free_port()}")


@aio
async def test_something_that_is_no_lsmfs_server_is_told() -> None:
    for answer in (http(200, b"<html>"), http(404, b"<html>"), http(301, b"", "location: http://x/"), http(405)):
        with answering(answer) as (url, _), pytest.raises(Unavailable, match="no lsmfs server"):
            await first_name(url)


@aio
async def test_a_redirect_is_not_followed_with_the_key() -> None:
    with answering(http(200, PAGE)) as (other, leaked):
        with answering(http(307, b"", f"location: {other}/")) as (url, _), pytest.raises(Unavailable):
            await first_name(url)
        assert leaked == []
        assert await first_name(other) is None  # it would have answered


@aio
async def test_a_reading_request_waits_as_the_server_says_and_is_repeated() -> None:
    waited: list[float] = []
    with answering(http(503, b"{}", "retry-after: 3"), http(200, PAGE)) as (url, requests):
        async with connect(url, *ADMIN) as lake:
            real = asyncio.sleep

            async def sleep(seconds: float) -> None:
                waited.append(seconds)
                await real(0)

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(asyncio, "sleep", sleep)
                assert [name async for name in lake.names()] == []
    assert len(requests) == 2
    assert waited == [3.0]


@aio
async def test_a_change_is_sent_once_and_a_lost_answer_is_told_as_unknown() -> None:
    with answering(b"", http(204)) as (url, requests):
        async with connect(url, *ADMIN) as lake:
            with pytest.raises(OutcomeUnknown, match="look before you repeat it"):
                await lake.delete("lake")
        assert len(requests) == 1
        await first_change(url)  # which is answered: so a second request would have been seen
        assert len(requests) == 2


async def first_change(url: str) -> None:
    async with connect(url, *ADMIN) as lake:
        with contextlib.suppress(Unavailable):
            await lake.delete("lake")


@aio
async def test_an_endless_error_answer_is_not_held_whole() -> None:
    body = b'{"message": "' + b"x" * (2 * FAILURE_BYTES_MAX) + b'"}'
    with answering(http(400, body)) as (url, _), pytest.raises(Unavailable):
        await first_name(url)


def stream(rows: int) -> bytes:
    sink = pa.BufferOutputStream()
    table = pa.table({"key": [f"{number:05}" for number in range(rows)]})
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=100)
    return bytes(sink.getvalue())


@aio
async def test_an_arrow_stream_is_read_in_any_pieces_and_a_cut_one_is_noticed() -> None:
    data = stream(250)

    async def in_pieces(size: int, end: int) -> AsyncIterator[bytes]:
        for start in range(0, end, size):
            yield data[start : min(start + size, end)]

    for size in (1, 7, 1000, len(data)):
        tables = [table async for table in read_tables(in_pieces(size, len(data)))]
        assert [len(table) for table in tables] == [100, 100, 50]
        assert pa.concat_tables(tables)["key"].to_pylist()[249] == "00249"
    for end in (0, 4, 100, len(data) // 2, len(data) - 1):
        with pytest.raises(Unavailable):
            _ = [table async for table in read_tables(in_pieces(1000, end))]


@aio
async def test_no_bytes_make_an_arrow_stream_of_nonsense() -> None:
    async def one(data: bytes) -> AsyncIterator[bytes]:
        yield data

    data = stream(10)
    for at in range(0, len(data), 3):
        changed = data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :]
        with contextlib.suppress(Unavailable):
            _ = [table async for table in read_tables(one(changed))]


@aio
async def test_names_with_anything_in_them_reach_the_server_as_they_are(server: Served) -> None:
    async with server.client() as lake, await lake.create("lake") as repo:
        for path in ("a b", "a+b", "a%2Fb", "../x", "?q=1&r", "ä/ö#", "a\nb", "."):
            entry = await repo.put_object("main", path, pieces(1, 3))
            assert await repo.get("main", path) == entry
            assert len(b"".join([each async for each in repo.read_object("main", path, entry)])) == 3
        for ref in ("..", ".", "a/b", "%2e%2e", "ä"):
            with pytest.raises((NotFound, Invalid)):
                await repo.resolve(ref)


def test_reads_go_on_while_the_server_is_restarted(tmp_path: Path) -> None:
    async def main(server: Served) -> None:
        async with server.client() as lake, await lake.create("lake") as repo:
            entry = await repo.put_object("main", "large", pieces(24))
            await repo.commit("main", "first")
            source = repo.read_object("main", "large", entry)
            got = [await anext(source)]
            await asyncio.to_thread(server.stop, signal.SIGKILL)
            starting = asyncio.create_task(asyncio.to_thread(server.start))
            await asyncio.sleep(0)
            assert await repo.get("main", "large") == entry  # asked while nobody answers
            await starting
            got += [piece async for piece in source]
            body = b"".join([piece async for piece in pieces(24)])
            assert b"".join(got) == body

    with serving(tmp_path / "server") as server:
        asyncio.run(main(server))


CLIENT = """
import asyncio, resource, sys
from lsmfs.client import connect

def grown():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

async def body(count):
    for number in range(count):
        yield bytes(1 << 20)

async def main(url, key, secret, count):
    async with connect(url, key, secret) as lake, await lake.repository("lake") as repo:
        await repo.put_object("main", "small", body(1))
        before, size = grown(), 0
        entry = await repo.put_object("main", "large", body(count))
        async for piece in repo.read_object("main", "large", entry):
            size += len(piece)
        assert size == count << 20
        print((grown() - before) // 1024)

asyncio.run(main(*sys.argv[1:4], int(sys.argv[4])))
"""


def test_a_large_object_goes_up_and_down_in_bounded_memory(server: Served) -> None:
    async def create() -> None:
        async with server.client() as lake:
            await lake.create("lake")

    asyncio.run(create())
    arguments = [sys.executable, "-c", CLIENT, server.url, *ADMIN, "256"]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=WAIT_SECONDS_MAX * 3, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 64  # MiB, of 256


def test_an_upload_that_is_interrupted_leaves_nothing(server: Served, tmp_path: Path) -> None:
    async def create() -> None:
        async with server.client() as lake:
            await lake.create("lake")

    async def names() -> list[bytes]:
        async with server.client() as lake, await lake.repository("lake") as repo:
            return [key for key, _ in (await repo.list("main")).items]

    asyncio.run(create())
    environment = {**without_settings(dict(os.environ)), **server.settings()}
    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
        with subprocess.Popen(
            [sys.executable, "-m", "lsmfs", "put", "-", "lake/main/cut"],
            cwd=tmp_path,
            env=environment,
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as process:
            assert process.stdin is not None
            assert process.stderr is not None
            process.stdin.write(bytes(4 * MIB))
            process.stdin.flush()  # so much does not fit into a pipe: it is being sent
            process.send_signal(number)
            assert process.wait(WAIT_SECONDS_MAX) == code
            said = process.stderr.read().decode()
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
        assert said.count("\n") == 1, said
        assert asyncio.run(names()) == []
