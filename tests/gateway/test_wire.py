"""What no well-behaved client does, and what all do beneath their libraries: bytes on a socket."""

import hashlib
import hmac
import socket
from typing import Any
from urllib.parse import unquote

import pytest

from tests.gateway.conftest import new_bucket
from tests.gateway.raw import ask, connected, read, send, signed
from tests.gateway.running import ADMIN, Running
from tests.gateway.test_listing import keys
from tests.gateway.test_objects import code_of

UNSIGNED = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
EXPECT = b"Expect: 100-continue\r\n"


def test_a_body_is_asked_for_with_100_only_if_it_is_welcome(either: Running) -> None:
    bucket = new_bucket(either)
    for pair, status, interim in [(ADMIN, 200, (100,)), (ADMIN._replace(secret="wrong"), 403, ())]:
        head = signed(either, "PUT", f"/{bucket}/main/a", body=b"hello", pair=pair)
        with connected(either) as sock:
            sock.sendall(head + EXPECT + b"Content-Length: 5\r\n\r\n")
            if interim:
                assert sock.recv(100).startswith(b"HTTP/1.1 100")
                sock.sendall(b"hello")
            answer = read(sock, "PUT")
        assert (answer.status, answer.interim) == (status, ())
        assert (answer.headers.get("connection") == "close") == (not interim)


@pytest.mark.parametrize(
    "target", ["/{0}/none/a", "/{0}/main/a?tagging", "/none-such/main/a", "/{0}/main/a?uploadId=1&partNumber=1"]
)
def test_after_an_early_refusal_the_connection_is_closed(gateway: Running, bucket: str, target: str) -> None:
    """The client sends no body then: its next request would be taken for the body, and never be answered."""
    head = signed(gateway, "PUT", target.format(bucket), body=b"x" * 100_000)
    with connected(gateway) as sock:
        sock.sendall(head + EXPECT + b"Content-Length: 100000\r\n\r\n")
        answer = read(sock, "PUT")
        assert answer.status in (404, 501)
        assert answer.headers["connection"] == "close"
        assert sock.recv(1) == b""


def test_a_refused_body_that_is_sent_anyway_does_not_spoil_the_connection(gateway: Running, bucket: str) -> None:
    with connected(gateway) as sock:
        body = b"x" * 100_000
        sock.sendall(signed(gateway, "PUT", f"/{bucket}/none/a", body=body) + b"Content-Length: 100000\r\n\r\n" + body)
        assert read(sock, "PUT").status == 404
        sock.sendall(signed(gateway, "HEAD", f"/{bucket}") + b"\r\n")
        assert read(sock, "HEAD").status == 200


@pytest.mark.parametrize("size", [10, 200_000])
def test_a_client_that_disconnects_leaves_nothing(gateway: Running, s3: Any, bucket: str, size: int) -> None:
    identity = s3.create_multipart_upload(Bucket=bucket, Key="main/b")["UploadId"]
    for target in (f"/{bucket}/main/a", f"/{bucket}/main/b?partNumber=1&uploadId={identity}"):
        head = signed(gateway, "PUT", target, body=b"x" * size)
        with connected(gateway) as sock:
            sock.sendall(head + b"Content-Length: %d\r\n\r\n" % size + b"x" * (size - 1))
            sock.shutdown(socket.SHUT_WR)
            assert sock.recv(1) == b""
    assert keys(s3.list_objects_v2(Bucket=bucket, Prefix="main/")) == []
    assert "Parts" not in s3.list_parts(Bucket=bucket, Key="main/b", UploadId=identity)


def test_bodies_of_another_length_than_said(gateway: Running, s3: Any, bucket: str) -> None:
    for decoded in (4, 6):
        headers = {
            "x-amz-decoded-content-length": str(decoded),
            "content-encoding": "aws-chunked",
            "x-amz-trailer": "x-amz-checksum-crc32",
        }
        framed = b"5\r\nhello\r\n0\r\nx-amz-checksum-crc32:NhCmhg==\r\n\r\n"
        answer = ask(gateway, "PUT", f"/{bucket}/main/a", headers, framed, payload=UNSIGNED)
        assert (answer.status, answer.code) == (400, "IncompleteBody")
    headers["x-amz-decoded-content-length"] = "5"
    for bad in (
        framed[:-30],
        framed.replace(b"hello", b"jello"),
        b"zz\r\n" + framed,
        framed.replace(b"crc32:", b"sha1:"),
    ):
        answer = ask(gateway, "PUT", f"/{bucket}/main/a", headers, bad, payload=UNSIGNED)
        assert answer.status == 400
    assert code_of(s3.head_object, Bucket=bucket, Key="main/a") == (404, "404")
    assert ask(gateway, "PUT", f"/{bucket}/main/a", headers, framed, payload=UNSIGNED).status == 200
    assert s3.get_object(Bucket=bucket, Key="main/a")["Body"].read() == b"hello"


def test_http_chunks_without_a_length_are_a_body(gateway: Running, s3: Any, bucket: str) -> None:
    head = signed(gateway, "PUT", f"/{bucket}/main/a", body=b"hello")
    chunks = b"Transfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n"
    assert send(gateway, head + chunks, "PUT").status == 200
    assert s3.get_object(Bucket=bucket, Key="main/a")["Body"].read() == b"hello"


def test_a_body_needs_a_length(gateway: Running, bucket: str) -> None:
    answer = send(gateway, signed(gateway, "PUT", f"/{bucket}/main/a") + b"\r\n", "PUT")
    assert (answer.status, answer.code) == (411, "MissingContentLength")


def test_a_length_and_chunks_together_are_refused(gateway: Running, s3: Any, bucket: str) -> None:
    head = signed(gateway, "PUT", f"/{bucket}/main/a", body=b"hello")
    both = b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"
    assert send(gateway, head + both, "PUT").status == 400
    assert code_of(s3.head_object, Bucket=bucket, Key="main/a") == (404, "404")


@pytest.mark.parametrize(
    "path",
    [
        "a//b",
        "//",
        "/a",
        "a/",
        ".",
        "..",
        "a/../b",
        "./a",
        "a%2Fb",
        "a%252Fb",
        "a%20b",
        "a+b",
        "%C3%BC",
        "a%0Ab",
        "~a*'()",
        "x" * 1024,
    ],
)
def test_keys_are_taken_literally(gateway: Running, s3: Any, bucket: str, path: str) -> None:
    assert ask(gateway, "PUT", f"/{bucket}/main/{path}", {}, path.encode()).status == 200
    assert ask(gateway, "GET", f"/{bucket}/main/{path}").body == path.encode()
    assert keys(s3.list_objects_v2(Bucket=bucket, Prefix="main/")) == [f"main/{unquote(path)}"]
    assert s3.get_object(Bucket=bucket, Key=f"main/{unquote(path)}")["Body"].read() == path.encode()


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("a%00b", "InvalidURI"),
        ("x" * 1025, "KeyTooLongError"),
        ("%FF", "InvalidURI"),
        ("%C3", "InvalidURI"),
        ("a%zz", "InvalidURI"),
    ],
)
def test_keys_that_cannot_be(gateway: Running, bucket: str, path: str, code: str) -> None:
    for method in ("PUT", "GET", "DELETE"):
        answer = ask(gateway, method, f"/{bucket}/main/{path}", {}, b"x" if method == "PUT" else b"")
        assert (answer.status, answer.code) == (400, code)


def test_errors_carry_the_id_of_the_request(gateway: Running, bucket: str) -> None:
    answer = ask(gateway, "GET", f"/{bucket}/main/none%3Cx%3E")
    identity = answer.headers["x-amz-request-id"]
    assert answer.headers["content-type"] == "application/xml"
    assert f"<RequestId>{identity}</RequestId>".encode() in answer.body
    assert b"&lt;x&gt;" in answer.body
    assert ask(gateway, "GET", f"/{bucket}").headers["x-amz-request-id"] != identity


def test_errors_of_head_have_no_body(gateway: Running, bucket: str) -> None:
    with connected(gateway) as sock:
        for _ in range(2):  # the second answer begins right after the first one's head
            sock.sendall(signed(gateway, "HEAD", f"/{bucket}/main/none") + b"\r\n")
            answer = read(sock, "HEAD")
            assert (answer.status, answer.body) == (404, b"")
            assert "x-amz-request-id" in answer.headers


def test_anonymous_requests_are_refused(gateway: Running, bucket: str) -> None:
    for method, target in [
        ("GET", "/"),
        ("GET", f"/{bucket}/main/a"),
        ("PUT", f"/{bucket}/main/a"),
        ("OPTIONS", f"/{bucket}"),
    ]:
        request = f"{method} {target} HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n".encode()
        answer = send(gateway, request, method)
        assert (answer.status, answer.code) == (403, "AccessDenied")


def test_a_second_host_or_authorization_is_refused(gateway: Running, bucket: str) -> None:
    head = signed(gateway, "GET", f"/{bucket}")
    for second in (b"Host: other\r\n", b"Authorization: AWS a:b\r\n", b"X-Amz-Date: 20200101T000000Z\r\n"):
        assert send(gateway, head + second + b"\r\n").status == 400


def test_unsigned_headers_cannot_change_what_is_done(gateway: Running, s3: Any, bucket: str) -> None:
    s3.put_object(Bucket=bucket, Key="main/a", Body=b"secret")
    head = signed(gateway, "PUT", f"/{bucket}/main/b", body=b"x")
    for extra in (f"x-amz-copy-source: {bucket}/main/a", "x-amz-meta-a: 1"):
        answer = send(gateway, head + extra.encode() + b"\r\nContent-Length: 1\r\n\r\nx", "PUT")
        assert (answer.status, answer.code) == (403, "AccessDenied")
    assert code_of(s3.head_object, Bucket=bucket, Key="main/b") == (404, "404")


def test_a_presigned_url_cannot_be_changed(gateway: Running, s3: Any, bucket: str) -> None:
    s3.put_object(Bucket=bucket, Key="main/a", Body=b"a")
    head = signed(gateway, "GET", f"/{bucket}/main/a", presigned=60)
    assert send(gateway, head + b"\r\n").body == b"a"
    for old, new in [
        (b"main/a", b"main/b"),
        (b"Expires=60", b"Expires=600"),
        (b"GET", b"DELETE"),
        (b"/main/a?", b"/main/a?tagging&"),
    ]:
        answer = send(gateway, head.replace(old, new, 1) + b"\r\n")
        assert (answer.status, answer.code) == (403, "SignatureDoesNotMatch")


def chunked(head: bytes, *chunks: bytes) -> bytes:
    """Chunks signed one after the other, as AWS documents it, for a request whose head is signed."""
    fields = dict(line.split(": ", 1) for line in head.decode().splitlines()[1:])
    scope = fields["Authorization"].partition("Credential=")[2].partition(",")[0].partition("/")[2]
    key, previous = b"AWS4" + ADMIN.secret.encode(), fields["Authorization"].rpartition("Signature=")[2]
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    body, empty = b"", hashlib.sha256().hexdigest()
    for chunk in (*chunks, b""):
        lines = [
            "AWS4-HMAC-SHA256-PAYLOAD",
            fields["X-Amz-Date"],
            scope,
            previous,
            empty,
            hashlib.sha256(chunk).hexdigest(),
        ]
        previous = hmac.digest(key, "\n".join(lines).encode(), "sha256").hex()
        body += b"%x;chunk-signature=%s\r\n" % (len(chunk), previous.encode()) + chunk + b"\r\n"
    return body


@pytest.mark.parametrize("chunks", [(), (b"hello",), (b"x" * 70_000, b"y")])
def test_signed_chunks_without_a_content_encoding(
    gateway: Running, s3: Any, bucket: str, chunks: tuple[bytes, ...]
) -> None:
    """As Spark sends them, zero-byte markers of folders included."""
    decoded = b"".join(chunks)
    headers, mode = {"x-amz-decoded-content-length": str(len(decoded))}, "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"
    head = signed(gateway, "PUT", f"/{bucket}/main/dir/", headers, payload=mode)
    body = chunked(head, *chunks)
    length = b"Content-Length: %d\r\n\r\n" % len(body)
    if chunks:
        tampered = send(gateway, head + length + body.replace(chunks[-1], b"z" * len(chunks[-1])), "PUT")
        assert (tampered.status, tampered.code) == (403, "SignatureDoesNotMatch")
        assert code_of(s3.head_object, Bucket=bucket, Key="main/dir/") == (404, "404")
    assert send(gateway, head + length + body, "PUT").status == 200
    assert s3.get_object(Bucket=bucket, Key="main/dir/")["Body"].read() == decoded


def test_the_second_version_of_signatures(gateway: Running, bucket: str) -> None:
    s3 = gateway.client(signature_version="s3")
    s3.put_object(Bucket=bucket, Key="main/a b", Body=b"hello", Metadata={"k": "v"})
    assert s3.get_object(Bucket=bucket, Key="main/a b", ResponseContentType="a/b")["ContentType"] == "a/b"
    assert keys(s3.list_objects_v2(Bucket=bucket, Prefix="main/")) == ["main/a b"]
    assert s3.list_objects(Bucket=bucket)["CommonPrefixes"] == [{"Prefix": "main/"}]
    s3.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": "main/a b"}]})
    wrong = gateway.client(ADMIN._replace(secret="wrong"), signature_version="s3")
    assert code_of(wrong.list_objects, Bucket=bucket) == (403, "SignatureDoesNotMatch")
