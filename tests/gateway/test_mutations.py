"""Requests that were changed at random, most of them signed as changed: no 5xx, no hang, no traceback.

A seed says it all: the request of a failure can be sent again.
"""

import random
from typing import Any

import pytest

from tests.gateway.raw import Response, connected, read, signed
from tests.gateway.running import Running

REQUESTS = 130  # by each seed
NASTY = [
    "", "0", "-1", "1", "99999999999999999999", "null", "*", '"', "%", "%00", "%2F", "%FF", "..", "//", "\\", "'",
    "<x>", "&", "=", "a" * 300, "é", "bytes=0-0", "bytes=-1", "bytes=5-1", "bytes=0-99999999999999999999",
    "Thu, 01 Jan 1970 00:00:00 GMT", "true", "CRC32", "AAAAAA==", "COPY", "REPLACE", "ENABLED", "url", "2",
    "aws-chunked", "identity", "x,y", "W/\"x\"", "lake/main/a", "/",
]  # fmt: skip
HEADERS = [
    "range", "if-match", "if-none-match", "if-modified-since", "if-range", "content-type", "content-encoding",
    "cache-control", "expires", "content-md5", "x-amz-checksum-crc32", "x-amz-checksum-mode",
    "x-amz-checksum-algorithm", "x-amz-checksum-type", "x-amz-trailer", "x-amz-decoded-content-length",
    "x-amz-copy-source", "x-amz-copy-source-range", "x-amz-metadata-directive", "x-amz-meta-a", "x-amz-meta-",
    "x-amz-tagging", "x-amz-acl", "x-amz-object-attributes", "x-amz-mp-object-size", "x-amz-sdk-checksum-algorithm",
    "x-amz-storage-class", "x-amz-copy-source-if-match", "x-unknown",
]  # fmt: skip
PARAMETERS = [
    "list-type", "prefix", "delimiter", "marker", "max-keys", "start-after", "continuation-token", "encoding-type",
    "fetch-owner", "uploads", "uploadId", "partNumber", "part-number-marker", "max-parts", "key-marker",
    "upload-id-marker", "max-uploads", "delete", "attributes", "location", "versionId", "acl", "tagging", "x-id",
    "response-content-type", "response-expires", "max-buckets",
]  # fmt: skip
BODIES = [
    b"", b"x", b"hello" * 1000, b"<Delete><Object><Key>main/x</Key></Object></Delete>", b"<Delete>", b"\xff\xfe",
    b"<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>x</ETag></Part></CompleteMultipartUpload>",
    b'<?xml version="1.0"?><!DOCTYPE a [<!ENTITY b "c">]><Delete>&b;</Delete>', b"5\r\nhello\r\n0\r\n\r\n",
    b"0\r\n\r\n",
]  # fmt: skip
PAYLOADS = [
    "",
    "UNSIGNED-PAYLOAD",
    "STREAMING-UNSIGNED-PAYLOAD-TRAILER",
    "STREAMING-AWS4-HMAC-SHA256-PAYLOAD",
    "nonsense",
    "0" * 64,
]


@pytest.mark.parametrize("seed", range(4))
def test_changed_requests_are_answered_and_do_no_harm(gateway: Running, s3: Any, bucket: str, seed: int) -> None:
    chance = random.Random(seed)
    s3.put_object(Bucket=bucket, Key="main/kept", Body=b"kept")
    statuses = set()
    for number in range(REQUESTS):
        request, method = changed_request(gateway, chance, bucket)
        answer = answered(gateway, request, method)
        what = f"seed {seed}, request {number}: {request[:2000]!r} -> {answer}"
        assert answer.status < 500 or answer.status == 501, what
        assert b"Traceback" not in answer.body, what
        statuses.add(answer.status)
    assert {200, 400} < statuses, statuses  # else it changes too much to reach anything, or too little
    assert s3.get_object(Bucket=bucket, Key="main/kept")["Body"].read() == b"kept"


def changed_request(gateway: Running, chance: random.Random, bucket: str) -> tuple[bytes, str]:
    """A request that is signed as it is; one in five is damaged after that."""
    method = chance.choice(["GET", "HEAD", "PUT", "POST", "DELETE", "GET", "PUT", "PATCH"])
    ref = chance.choice(["main", "main", "main", "none", "main~1", "..", ""])
    path = chance.choice(["a", "b/c", "", "%2e%2e/a", chance.choice(NASTY)])
    target = chance.choice(
        [f"/{bucket}/{ref}/{path}", f"/{bucket}/{ref}/{path}", f"/{bucket}", f"/{bucket}/", "/", "/no-such/main/a"]
    )
    target = "".join(character if character.isascii() and character not in ' "<>\\?#' else "_" for character in target)
    names = chance.sample(PARAMETERS, chance.choice([0, 0, 1, 1, 2, 3]))
    query = "&".join(f"{name}={_encoded(chance.choice(NASTY))}" for name in names)
    headers = {name: chance.choice(NASTY) for name in chance.sample(HEADERS, chance.choice([0, 0, 1, 1, 2]))}
    headers = {name: value.encode().decode("latin-1") for name, value in headers.items()}
    body = chance.choice(BODIES) if method in ("PUT", "POST") else b""
    payload = chance.choice(PAYLOADS) if chance.random() < 0.3 else ""
    target = target + (f"?{query}" if query else "")
    head = signed(gateway, method, target, headers, body, payload=payload, presigned=60 if chance.random() < 0.1 else 0)
    request = head + b"Content-Length: %d\r\nConnection: close\r\n\r\n" % len(body) + body
    if chance.random() < 0.2:
        at = chance.randrange(len(head))
        request = request[:at] + chance.choice([b"", b"%", b"\0", b"A", b"\xff", b" ", b"&", b";"]) + request[at + 1 :]
    return request, method


def _encoded(value: str) -> str:
    return "".join(f"%{byte:02X}" for byte in value.encode()) if not value.isalnum() else value


def answered(gateway: Running, request: bytes, method: str) -> Response:
    """The answer; a connection that is closed at once is one too, if the request could not even be parsed."""
    with connected(gateway) as sock:
        sock.sendall(request)
        try:
            return read(sock, method)
        except (ConnectionError, ValueError):
            return Response(400, {}, b"")
