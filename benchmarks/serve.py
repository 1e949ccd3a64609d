"""The server: REST stat and list, small and large S3 objects, a million entries in one request.

Server and client share this machine's processors, as their baselines do: the same worker around an application that
does nothing of ours (`baseline_app`), asked by the same client. Names of objects differ from request to request.
"""

import base64
import hashlib
import io
import re
import time
from collections.abc import Iterable
from pathlib import Path

import msgspec
import pyarrow as pa
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from benchmarks import data
from benchmarks.report import Figure, at_least, at_most, figure
from benchmarks.serving import ACCESS_KEY, BASELINE, SECRET, Started, answer, drive, served
from benchmarks.workspace import Workspace

API = "/api/v1/repositories/lake"
STAT_CONNECTIONS, PUT_CONNECTIONS = 32, 64
REQUESTS, LISTS, PAGE = 20_000, 500, 1000
ENTRIES, BULK_ENTRIES = 100_000, 1_000_000
SMALL_BYTES, LARGE_BYTES, LARGE_COUNT = 4096, 64 * 1024 * 1024, 4
UNSIGNED = "UNSIGNED-PAYLOAD"
LIST_MICROSECONDS_MAX = 3
GROWTH_MIB_MAX = 64
_USER = b"authorization: basic " + base64.b64encode(f"{ACCESS_KEY}:{SECRET}".encode())


async def measure_rest(workspace: Workspace) -> list[Figure]:
    """http-stat, http-list, rest-stage-bulk."""
    count, lists = workspace.scaled(REQUESTS), max(32, workspace.scaled(LISTS))
    async with served(workspace.folder("http-empty"), factory=BASELINE) as server:
        empty = await _best(workspace, server, [_get("/empty")] * count, STAT_CONNECTIONS)
    async with served(workspace.folder("http")) as server:
        await _create(server)
        await _stage(server, data.puts(data.sequence(0, max(PAGE, workspace.scaled(ENTRIES)))))
        path = data.key_of(1).decode()
        stat = await _best(workspace, server, [_get(f"{API}/refs/main/objects/stat?path={path}")] * count)
        one = _get(f"{API}/refs/main/objects/ls?amount={PAGE}")
        listed = await _best(workspace, server, [one] * lists) / lists
        bare = _bare_encoding((await answer(server.port, one))[1])
        rows = workspace.scaled(BULK_ENTRIES)
        bulk = await _stage(server, data.puts(data.sequence(0, rows), seed=1))
    over = (listed - bare) / PAGE * 1e6
    return [
        figure(
            *("http-stat", count / stat, "1/s", count / empty, empty / stat, at_least(0.4)),
            "an empty Starlette handler on the same server",
            f"{STAT_CONNECTIONS} connections",
        ),
        figure(
            *("http-list", listed / PAGE * 1e6, "us/entry", bare / PAGE * 1e6, over, at_most(LIST_MICROSECONDS_MAX)),
            "encoding the same answer; the ratio is the difference in us",
            f"pages of {PAGE}, {STAT_CONNECTIONS} connections",
        ),
        figure(
            *("rest-stage-bulk", rows / bulk, "1/s", 300_000, rows / bulk / 300_000, at_least(1)),
            "300,000 entries a second",
            f"{rows:,} entries in one Arrow request",
        ),
    ]


async def measure_small(workspace: Workspace) -> list[Figure]:
    """s3-put-small with one worker and with two, s3-get-small."""
    count, body = workspace.scaled(REQUESTS), hashlib.sha512(b"small").digest() * (SMALL_BYTES // 64)
    figures: list[Figure] = []
    for workers in (1, 2):
        async with served(workspace.folder(f"s3-base-{workers}"), workers, BASELINE) as server:
            discard = [_request("PUT", "/discard", (b"host: a",), body)] * count
            accepted = await _best(workspace, server, discard, PUT_CONNECTIONS)
            constant = await _best(workspace, server, [_get(f"/constant/{SMALL_BYTES}")] * count, PUT_CONNECTIONS)
        async with served(workspace.folder(f"s3-{workers}"), workers) as server:
            await _create(server)
            puts = [_signed("PUT", f"/lake/main/{n % 100}/{n}", _distinct(body, n)) for n in range(count)]
            stored = await drive(server.port, puts, PUT_CONNECTIONS)
            against = "the same server accepting, hashing and discarding"
            note = f"{PUT_CONNECTIONS} connections, {SMALL_BYTES} bytes, {workers} workers"
            name = "s3-put-small" if workers == 1 else "s3-put-small-2"
            values = (count / stored, "1/s", count / accepted, accepted / stored, at_least(0.3))
            figures.append(figure(name, *values, against, note))
            if workers == 1:
                await _commit(server)
                gets = [_signed("GET", f"/lake/main/{n % 100}/{n}") for n in range(count)]
                read = await _best(workspace, server, gets, PUT_CONNECTIONS)
                values = (count / read, "1/s", count / constant, constant / read, at_least(0.4))
                figures.append(figure("s3-get-small", *values, "the same server answering constant bytes", note))
    return figures


async def measure_stream(workspace: Workspace) -> list[Figure]:
    """s3-stream, to the server and from it, and how much more memory it has then."""
    size = max(16 * 1024 * 1024, workspace.scaled(LARGE_BYTES))
    body = bytes(size)
    async with served(workspace.folder("stream-base"), factory=BASELINE) as server:
        discard = [_request("PUT", "/discard", (b"host: a",), body)] * LARGE_COUNT
        accepted = await _best(workspace, server, discard, 1)
        constant = await _best(workspace, server, [_get(f"/constant/{size}")] * LARGE_COUNT, 1)
    async with served(workspace.folder("stream")) as server:
        await _create(server)
        puts = [_signed("PUT", f"/lake/main/{n}", _distinct(body, n), unsigned=True) for n in range(LARGE_COUNT)]
        await drive(server.port, puts[:1], 1)
        before = _resident_mib(server.pid)
        stored = await drive(server.port, puts, 1)
        read = await _best(workspace, server, [_signed("GET", f"/lake/main/{n}") for n in range(LARGE_COUNT)], 1)
        growth = _resident_mib(server.pid) - before
    mib = size * LARGE_COUNT / 1024**2
    note = f"{LARGE_COUNT} bodies of {size // 1024**2} MiB, each different, one connection"
    return [
        figure(
            *("s3-stream-put", mib / stored, "MiB/s", mib / accepted, accepted / stored, at_least(0.7)),
            *("the same server hashing and discarding", note),
        ),
        figure(
            *("s3-stream-get", mib / read, "MiB/s", mib / constant, constant / read, at_least(0.7)),
            *("the same server sending from memory", note),
        ),
        figure(
            *("s3-stream-memory", growth, "MiB", GROWTH_MIB_MAX, growth / GROWTH_MIB_MAX, at_most(1)),
            *("resident memory after the first body", f"after {2 * LARGE_COUNT} bodies more"),
        ),
    ]


async def _best(workspace: Workspace, server: Started, requests: list[bytes], connections: int = 32) -> float:
    return min([await drive(server.port, requests, connections) for _ in range(workspace.repeats)])


def _get(target: str) -> bytes:
    return _request("GET", target, (b"host: a", _USER))


def _request(method: str, target: str, headers: Iterable[bytes], body: bytes = b"") -> bytes:
    lines = [f"{method} {target} HTTP/1.1".encode(), *headers, b"content-length: %d" % len(body)]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def _signed(method: str, target: str, body: bytes = b"", unsigned: bool = False) -> bytes:
    request = AWSRequest(method, f"http://127.0.0.1{target}", data=body)
    request.headers["x-amz-content-sha256"] = UNSIGNED if unsigned else hashlib.sha256(body).hexdigest()
    S3SigV4Auth(Credentials(ACCESS_KEY, SECRET), "s3", "us-east-1").add_auth(request)
    headers = [f"{name}: {value}".encode() for name, value in request.headers.items()]
    return _request(method, target, [b"host: 127.0.0.1", *headers], body)


def _distinct(body: bytes, number: int) -> bytes:
    return number.to_bytes(8, "big") + body[8:]


def _bare_encoding(answered: bytes) -> float:
    """Seconds to encode the same document, as bare as it can be."""
    document, times = msgspec.json.decode(answered), []
    assert len(document["results"]) == PAGE
    for _ in range(20):
        began = time.perf_counter()
        msgspec.json.encode(document)
        times.append(time.perf_counter() - began)
    return min(times)


async def _create(server: Started) -> None:
    body = msgspec.json.encode({"name": "lake", "storage_namespace": "local://lake"})
    headers = (b"host: a", _USER, b"content-type: application/json")
    status, text = await answer(server.port, _request("POST", "/api/v1/repositories", headers, body))
    assert status == 201, text


async def _commit(server: Started) -> None:
    headers = (b"host: a", _USER, b"content-type: application/json")
    request = _request("POST", f"{API}/branches/main/commits", headers, msgspec.json.encode({"message": "all"}))
    status, text = await answer(server.port, request)
    assert status == 201, text


async def _stage(server: Started, table: pa.Table) -> float:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    headers = (b"host: a", _USER, b"content-type: application/vnd.apache.arrow.stream")
    request = _request("POST", f"{API}/branches/main/stage", headers, sink.getvalue())
    began = time.perf_counter()
    status, text = await answer(server.port, request)
    assert status in (200, 201), text
    return time.perf_counter() - began


def _resident_mib(pid: int) -> float:
    """Of the server's processes together."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    sizes = [re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{each}/status").read_text()) for each in [str(pid), *children]]
    return sum(int(size[1]) for size in sizes if size) / 1024
