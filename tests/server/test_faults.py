"""Bad clients against the whole server: slow, half gone, absurd or hostile. Each is answered clearly or cut off; the
others notice nothing, nothing half done is shown, and nothing of ours is told."""

import contextlib
import hashlib
import re
import socket
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from tests.gateway.raw import Response, ask, connected, fetch, read, send, signed
from tests.server.live import ADMIN, WAIT_SECONDS_MAX, Live, begun, running

MEBIBYTE = 1024 * 1024
SLOW_CLIENTS = 60  # of 8 MiB each: more than one worker takes in at once


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with running(tmp_path_factory.mktemp("faults")) as live:
        live.repository("lake")
        yield live
        assert live.get("/_health").status_code == 200
        assert "Traceback" not in live.log.read_text()


@pytest.fixture(scope="module")
def s3(server: Live) -> Any:
    return server.s3()


def keys_under(s3: Any, prefix: str) -> list[str]:
    found = s3.list_objects_v2(Bucket="lake", Prefix=f"main/{prefix}")
    return [each["Key"] for each in found.get("Contents", [])]


def in_flight(server: Live) -> float:
    found = re.search(r"^lsmfs_requests_in_flight(?:\{[^}]*\})? ([\d.e+]+)$", server.get("/metrics").text, re.MULTILINE)
    assert found, "there is no such gauge"
    return float(found[1]) - 1  # this one


def wait_until_idle(server: Live) -> None:
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while in_flight(server) > 0:
        assert time.monotonic() < deadline, f"{in_flight(server)} requests never end"
        time.sleep(0.05)


def test_uploads_that_dribble_keep_nobody_else_waiting(server: Live, s3: Any) -> None:
    with contextlib.ExitStack() as stack:
        slow = [
            stack.enter_context(begun(server, f"slow/{number}", bytes(8 * MEBIBYTE), 1))
            for number in range(SLOW_CLIENTS)
        ]
        steady = stack.enter_context(begun(server, "steady", b"steady", 1))
        for number in range(5):
            for client in slow:
                client.sendall(b"\0")
            s3.put_object(Bucket="lake", Key=f"main/others/{number}", Body=b"x" * 100_000)
            assert len(s3.get_object(Bucket="lake", Key=f"main/others/{number}")["Body"].read()) == 100_000
            steady.sendall(b"steady"[number + 1 : number + 2])
        assert keys_under(s3, "others/") == [f"main/others/{number}" for number in range(5)]
        assert read(steady).status == 200
    wait_until_idle(server)
    assert keys_under(s3, "slow/") == []
    assert s3.get_object(Bucket="lake", Key="main/steady")["Body"].read() == b"steady"


def test_downloads_that_nobody_takes_keep_nobody_else_waiting(server: Live, s3: Any) -> None:
    s3.put_object(Bucket="lake", Key="main/large", Body=bytes(16 * MEBIBYTE))
    with contextlib.ExitStack() as stack:
        for _ in range(SLOW_CLIENTS):
            client = stack.enter_context(connected(server))
            client.sendall(signed(server, "GET", "/lake/main/large") + b"\r\n")
        for number in range(5):
            s3.put_object(Bucket="lake", Key=f"main/beside/{number}", Body=b"x")
        assert len(s3.get_object(Bucket="lake", Key="main/large")["Body"].read()) == 16 * MEBIBYTE
        assert len(keys_under(s3, "beside/")) == 5
    wait_until_idle(server)


def test_clients_that_go_away_leave_nothing(server: Live, s3: Any) -> None:
    for number in range(20):
        client = begun(server, f"aborted/{number}", bytes(3 * MEBIBYTE), number * 150_000)
        if number % 2:  # a reset, not an end
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        client.close()
    wait_until_idle(server)
    assert keys_under(s3, "aborted/") == []


def test_a_connection_half_closed_within_the_body_is_an_aborted_upload(server: Live, s3: Any) -> None:
    with begun(server, "half/cut", bytes(100_000), 50_000) as client:
        client.shutdown(socket.SHUT_WR)
        answered = b"".join(iter(lambda: client.recv(65536), b""))
    assert not answered.startswith(b"HTTP/1.1 2")
    wait_until_idle(server)
    assert keys_under(s3, "half/") == []


def test_a_connection_half_closed_after_the_request_has_all_or_nothing(server: Live, s3: Any) -> None:
    with begun(server, "whole/object", b"x" * 100_000, 100_000) as client:
        client.shutdown(socket.SHUT_WR)
        answered = b"".join(iter(lambda: client.recv(65536), b""))
    wait_until_idle(server)
    assert answered == b"" or answered.startswith(b"HTTP/1.1 200 ")
    assert answered == b"" or keys_under(s3, "whole/")
    for key in keys_under(s3, "whole/"):
        assert s3.get_object(Bucket="lake", Key=key)["Body"].read() == b"x" * 100_000


RANGES = (
    ("bytes=0-", 206), ("bytes=-1", 206), ("bytes=9-9", 206), ("bytes=0-9999999999999999999", 206),
    ("bytes=-9999999999999999999", 206), ("bytes=10-", 416), ("bytes=9999999999999999999-", 416),
    ("bytes=-0", 416), ("bytes=5-2", 200), ("bytes=a-b", 200), ("bytes=--1", 200), ("bytes=0-1,3-4", 200),
    ("bytes=" + "0-0," * 5000 + "1-1", 200), ("octets=0-1", 200), ("bytes=0x0-0x5", 200), ("bytes=٣-٤", 200),
    ("bytes=", 200), ("=", 200), ("bytes=+1-2", 200), ("bytes=1_0-", 200),
    ("bytes=0-" + "9" * 4000, 200), ("bytes=-" + "9" * 4000, 200),
)  # fmt: skip


@pytest.mark.parametrize(("ranged", "status"), RANGES, ids=[each[0][:24] for each in RANGES])
def test_absurd_ranges(server: Live, s3: Any, ranged: str, status: int) -> None:
    s3.put_object(Bucket="lake", Key="main/ranged", Body=b"0123456789")
    answer = send(
        server,
        signed(server, "GET", "/lake/main/ranged") + b"Range: " + ranged.encode() + b"\r\nConnection: close\r\n\r\n",
    )
    assert answer.status == status
    assert status == 416 or answer.body in b"0123456789"
    where = f"{server.url}/api/v1/repositories/lake/refs/main/objects?path=ranged"
    api = httpx.get(where, headers={b"range": ranged.encode()}, auth=httpx.BasicAuth(*ADMIN), trust_env=False)
    assert api.status_code in (200, 206, 400, 416)
    assert api.status_code >= 400 or api.content in b"0123456789"


@pytest.mark.parametrize("number", ["0", "-1", "10001", "99999999999999999999", "1.0", "1e3", "%31%00", "", "x", "١"])
def test_part_numbers_that_are_none(server: Live, s3: Any, number: str) -> None:
    identity = s3.create_multipart_upload(Bucket="lake", Key="main/parts")["UploadId"]
    target = f"/lake/main/parts?partNumber={quote(number, safe='%')}&uploadId={identity}"
    answer = ask(server, "PUT", target, body=b"part")
    assert (answer.status, answer.code) == (400, "InvalidArgument")
    s3.abort_multipart_upload(Bucket="lake", Key="main/parts", UploadId=identity)


def completed(server: Live, identity: str, parts: list[tuple[object, str]]) -> Response:
    listed = "".join(f"<Part><PartNumber>{n}</PartNumber><ETag>{etag}</ETag></Part>" for n, etag in parts)
    body = f"<CompleteMultipartUpload>{listed}</CompleteMultipartUpload>".encode()
    return ask(server, "POST", f"/lake/main/parts?uploadId={identity}", body=body)


def test_lists_of_parts_that_cannot_be(server: Live, s3: Any) -> None:
    identity = s3.create_multipart_upload(Bucket="lake", Key="main/parts")["UploadId"]
    first, second = b"a" * 5 * MEBIBYTE, b"b"
    for body in (b"replaced", second, first):  # the last one of a number counts
        number = 2 if body == second else 1
        s3.upload_part(Bucket="lake", Key="main/parts", UploadId=identity, PartNumber=number, Body=body)
    a, b = (hashlib.md5(body, usedforsecurity=False).hexdigest() for body in (first, second))
    old = hashlib.md5(b"replaced", usedforsecurity=False).hexdigest()
    for parts, code in (
        ([(1, a), (1, a)], "InvalidPartOrder"),
        ([(2, b), (1, a)], "InvalidPartOrder"),
        ([(1, old), (2, b)], "InvalidPart"),
        ([(1, a), (3, b)], "InvalidPart"),
        ([], "MalformedXML"),
    ):
        answer = completed(server, identity, list(parts))
        assert (answer.status, answer.code) == (400, code), parts
    for wrong in ("0", "-1", "10001", "9" * 5000, "one", ""):
        assert completed(server, identity, [(wrong, a)]).status == 400, wrong
    assert completed(server, identity, [(number, a) for number in range(1, 10_002)]).status == 400
    assert keys_under(s3, "parts") == []
    assert completed(server, identity, [(1, a), (2, b)]).status == 200
    assert s3.get_object(Bucket="lake", Key="main/parts")["Body"].read() == first + second


INJECTED = ("a\r\nX-Evil: 1", "a\nX-Evil: 1", "a\rX-Evil: 1", "a\0b", "a\r\n\r\n<script>", "\x7f\x01")


@pytest.mark.parametrize("text", INJECTED)
@pytest.mark.parametrize(
    "name", ["response-content-disposition", "response-content-type", "response-cache-control", "response-expires"]
)
def test_overrides_cannot_add_headers(server: Live, s3: Any, name: str, text: str) -> None:
    s3.put_object(Bucket="lake", Key="main/overridden", Body=b"x")
    answer = ask(server, "GET", f"/lake/main/overridden?{name}={quote(text)}")
    assert (answer.status, answer.code) == (400, "InvalidArgument")
    check_nothing_was_added(answer)


@pytest.mark.parametrize("text", INJECTED)
@pytest.mark.parametrize("name", ["x-amz-meta-note", "content-type", "cache-control", "content-disposition"])
def test_stored_headers_cannot_add_headers(server: Live, s3: Any, name: str, text: str) -> None:
    """As the bytes come on the wire: what ends a line ends the header, and other controls are refused."""
    head = signed(server, "PUT", "/lake/main/stored", body=b"x") + f"{name}: {text}\r\n".encode()
    answer = send(server, head + b"Content-Length: 1\r\nConnection: close\r\n\r\nx")
    assert answer.status < 500
    check_nothing_was_added(answer)
    if answer.status == 200:
        check_nothing_was_added(ask(server, "GET", "/lake/main/stored"))


def linked(server: Live, **more: Any) -> httpx.Response:
    """An object that was put beside the server, and is now linked with these properties."""
    where, row = "/repositories/lake/branches/main/staging/backing", {"path": "linked"}
    address = server.rest.get(where, params=row).json()["physical_address"]
    (server.data / "objects" / "lake" / "data" / address.rpartition("/")[2]).write_bytes(b"x")
    body = {"staging": {"physical_address": address}, "checksum": "9dd4e461268c8034f5c8564e155c67a6", "size_bytes": 1}
    return server.rest.put(where, params=row, json={**body, **more})


@pytest.mark.parametrize("text", INJECTED)
def test_what_the_api_stores_cannot_add_headers_to_anybodys_answers(server: Live, s3: Any, text: str) -> None:
    assert linked(server, user_metadata={"note": "fine"}, content_type="text/fine").status_code == 200
    found = s3.head_object(Bucket="lake", Key="main/linked")
    assert (found["Metadata"], found["ContentType"]) == ({"note": "fine"}, "text/fine")
    for more in ({"user_metadata": {"note": text}}, {"user_metadata": {text: "x"}}, {"content_type": text}):
        answer = linked(server, **more)
        assert answer.status_code in (200, 400), answer.text
        for target in ("/lake/main/linked", "/lake/main/linked?response-content-type=text/plain"):
            answer_of_s3 = ask(server, "GET", target)
            assert (answer_of_s3.status, answer_of_s3.body) == (200, b"x")
            check_nothing_was_added(answer_of_s3)
        answer = server.rest.get("/repositories/lake/refs/main/objects", params={"path": "linked"})
        assert (answer.status_code, answer.content) == (200, b"x")
        assert "x-evil" not in answer.headers


def test_names_are_escaped_in_answers(server: Live, s3: Any) -> None:
    key = "<script>&\"'\u2028"
    s3.put_object(Bucket="lake", Key=f"main/odd/{key}", Body=b"x")
    assert keys_under(s3, "odd/") == [f"main/odd/{key}"]
    answer = ask(server, "GET", f"/lake/main/none/{quote(key)}")
    assert answer.status == 404
    assert b"<script>" not in answer.body
    check_nothing_was_added(ask(server, "GET", f"/lake/main/{quote(INJECTED[0])}"))


@pytest.mark.parametrize("identity", ["a b c d e f g", "x" * 65, "short", "inject\tedinject", "<script>alert"])
def test_a_request_id_that_is_not_sound_is_not_repeated(server: Live, identity: str) -> None:
    answer = httpx.get(f"{server.url}/_health", headers={"x-request-id": identity}, trust_env=False)
    assert answer.headers["x-request-id"] != identity
    assert re.fullmatch("[0-9a-f]{16}", answer.headers["x-request-id"])


def test_keys_of_all_lengths(server: Live, s3: Any) -> None:
    longest = "k" * 1024
    s3.put_object(Bucket="lake", Key=f"main/{longest}", Body=b"x")
    assert s3.get_object(Bucket="lake", Key=f"main/{longest}")["Body"].read() == b"x"
    assert keys_under(s3, "kkk") == [f"main/{longest}"]
    for method in ("PUT", "GET", "DELETE"):
        answer = ask(server, method, f"/lake/main/{longest}k")
        assert (answer.status, answer.code) == (400, "KeyTooLongError"), method
    assert ask(server, "GET", f"/lake/main/{'%C3%BC' * 5000}").status == 400
    assert ask(server, "GET", "/lake/main/" + "/" * 9000).status in (400, 404)
    assert ask(server, "GET", "/lake/" + "r" * 2000 + "/x").status in (400, 404)
    assert ask(server, "GET", "/" + "b" * 9000 + "/main/x").status in (400, 404)
    for size in (1025, 20_000):
        put = server.rest.post("/repositories/lake/branches/main/objects", params={"path": "k" * size}, content=b"x")
        assert put.status_code == 400, put.text
    listed = server.rest.get("/repositories/lake/refs/main/objects/ls", params={"prefix": "k" * 20_000})
    assert listed.status_code in (200, 400)


def check_nothing_was_added(answer: Response) -> None:
    assert "x-evil" not in answer.headers
    assert not any("\r" in value or "\n" in value or "\0" in value for value in answer.headers.values())
    assert b"<script>" not in answer.body


def test_a_presigned_url_with_an_injected_override_is_refused_or_harmless(server: Live, s3: Any) -> None:
    s3.put_object(Bucket="lake", Key="main/presigned", Body=b"x")
    url = s3.generate_presigned_url(
        "get_object", {"Bucket": "lake", "Key": "main/presigned", "ResponseContentDisposition": INJECTED[0]}
    )
    check_nothing_was_added(fetch("GET", url))
