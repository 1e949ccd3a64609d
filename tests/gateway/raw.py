"""Requests signed by botocore and sent byte by byte, so that a test can send what no client would."""

import http.client
import socket
import ssl
from typing import NamedTuple, Protocol
from urllib.parse import urlsplit

from botocore.auth import S3SigV4Auth, S3SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from lsmfs.auth.keys import Pair
from tests.gateway.running import ADMIN, REGION


class Served(Protocol):
    """A gateway alone, or a whole server."""

    @property
    def port(self) -> int: ...

    @property
    def url(self) -> str: ...


class Response(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes
    interim: tuple[int, ...] = ()

    @property
    def code(self) -> str:
        """Of the error in the body."""
        return self.body.partition(b"<Code>")[2].partition(b"</Code>")[0].decode()


class _Auth(S3SigV4Auth):
    """With a given x-amz-content-sha256, or that of the body."""

    def __init__(self, credentials: Credentials, payload: str) -> None:
        super().__init__(credentials, "s3", REGION)
        self._payload = payload

    def payload(self, request: AWSRequest) -> str:
        return self._payload or str(super().payload(request))


def signed(
    running: Served,
    method: str,
    target: str,
    headers: dict[str, str] | None = None,
    body: bytes = b"",
    pair: Pair = ADMIN,
    host: str = "",
    presigned: int = 0,
    payload: str = "",
) -> bytes:
    """The head of a request; `target` is path and query as they are sent."""
    host = host or f"127.0.0.1:{running.port}"
    asked = AWSRequest(method, f"http://{host}{target}", data=b"" if presigned else body, headers=headers or {})
    credentials = Credentials(*pair)
    if presigned:
        S3SigV4QueryAuth(credentials, "s3", REGION, presigned).add_auth(asked)
    else:
        _Auth(credentials, payload).add_auth(asked)
    url = urlsplit(str(asked.url))
    target = url.path + (f"?{url.query}" if url.query else "")
    lines = [f"{method} {target} HTTP/1.1", f"Host: {host}"]
    lines += [f"{name}: {value}" for name, value in asked.headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n"


def connected(running: Served) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", running.port), timeout=30)
    if running.url.startswith("https"):
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return context.wrap_socket(sock)
    return sock


def ask(
    running: Served,
    method: str,
    target: str,
    headers: dict[str, str] | None = None,
    body: bytes = b"",
    pair: Pair = ADMIN,
    host: str = "",
    payload: str = "",
) -> Response:
    """Sign, send, and read the answer."""
    head = signed(running, method, target, headers, body, pair, host, payload=payload)
    if body and not any(name.lower() == "content-length" for name in headers or ()):
        head += b"Content-Length: %d\r\n" % len(body)
    elif not body and method in ("PUT", "POST"):
        head += b"Content-Length: 0\r\n"
    return send(running, head + b"Connection: close\r\n\r\n" + body, method)


def send(running: Served, request: bytes, method: str = "GET") -> Response:
    with connected(running) as sock:
        sock.sendall(request)
        return read(sock, method)


def fetch(method: str, url: str, body: bytes = b"") -> Response:
    """A URL as it is, without a signature of ours."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=30)
    try:
        connection.request(method, f"{parts.path}?{parts.query}", body)
        answer = connection.getresponse()
        headers = {name.lower(): value for name, value in answer.getheaders()}
        return Response(answer.status, headers, answer.read())
    finally:
        connection.close()


def read(sock: socket.socket, method: str = "GET") -> Response:
    """One answer; interim ones before it are only counted."""
    stream, interim = sock.makefile("rb"), []
    while True:
        line = stream.readline()
        if not line:
            raise ConnectionError("closed without an answer")
        status = int(line.split()[1])
        headers: dict[str, str] = {}
        while (line := stream.readline().strip()) != b"":
            name, _, value = line.partition(b":")
            headers[name.decode().lower()] = value.strip().decode("latin-1")
        if status >= 200:
            break
        interim.append(status)
    if method == "HEAD" or status in (204, 304):
        body = b""
    elif "content-length" in headers:
        body = stream.read(int(headers["content-length"]))
    elif headers.get("transfer-encoding") == "chunked":
        body = b""
        while (size := int(stream.readline(), 16)) > 0:
            body += stream.read(size)
            stream.readline()
    else:
        body = stream.read()
    return Response(status, headers, body, tuple(interim))
