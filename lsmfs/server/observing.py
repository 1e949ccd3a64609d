"""What is done with every request, around the application: an id, a line in the log, counts, and patience with bodies.

For each request, in this order:
1. It gets an id: the client's X-Request-Id if that is sound, else a new one. It is in `logs.request_id`, in
   scope["state"]["request_id"], and goes out as X-Request-Id.
2. The application answers. It may write into scope["state"]: `operation` (one of its fixed names, for the counts) and
   `user` (for the log).
   While it reads a body, that is admitted (`admission`); `Unavailable` comes out of `receive` if it is not.
3. A body that stays away for `body_idle_seconds_max` counts as a client that has gone.
4. What the application raises before it began to answer is answered with 500 and nothing of the reason; it is logged.
5. One line and the counts, also if the client went away (status 499 where nothing was answered).
"""

import asyncio
import re
import time
from os import urandom

import structlog

from lsmfs.asgi import Application, Message, Receive, Scope, Send
from lsmfs.server.admission import FIRST_BYTES, Admission
from lsmfs.server.config import Limits
from lsmfs.server.logs import Log, loggable_path, request_id
from lsmfs.server.metrics import Metrics

log = structlog.get_logger("server")

OTHER = "other"  # the operation of a request that the application did not name
CLIENT_GONE = 499  # as nginx has it
FAILED = 500
_SOUND_ID = re.compile(rb"[A-Za-z0-9._-]{8,64}")
_FAILURE = b"an error of the server: its log tells more under the id in X-Request-Id\n"


class Observed:
    """The application, observed."""

    def __init__(self, application: Application, log: Log, metrics: Metrics, limits: Limits) -> None:
        self.admission = Admission(limits.body_bytes_in_flight_max)
        self._application = application
        self._log = log
        self._metrics = metrics
        self._idle_seconds_max = limits.body_idle_seconds_max

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._application(scope, receive, send)
            return
        request = _Request(scope, receive, send, self._idle_seconds_max, self.admission)
        token = request_id.set(request.identity)
        self._metrics.in_flight.inc()
        try:
            await self._application(scope, request.receive, request.send)
        except asyncio.CancelledError:
            request.is_cut = True
            raise
        except Exception:
            await self._failed(request)
        finally:
            self._metrics.in_flight.dec()
            if request.weight:
                self.admission.leave(request.weight)
            self._ended(request)
            request_id.reset(token)

    async def _failed(self, request: "_Request") -> None:
        if request.is_gone:
            return  # what it raised is that its client went away
        log.exception("request failed", path=loggable_path(request.scope["path"]))
        if request.status:
            # Starlette answers, then raises. An answer that is not complete uvicorn ends by closing the connection.
            request.is_cut = not request.is_answered
            return
        length = str(len(_FAILURE)).encode()
        headers = [(b"content-type", b"text/plain"), (b"content-length", length)]
        await request.send({"type": "http.response.start", "status": FAILED, "headers": headers})
        await request.send({"type": "http.response.body", "body": _FAILURE})

    def _ended(self, request: "_Request") -> None:
        seconds = time.perf_counter() - request.began
        state = request.scope["state"]
        status = request.status or (FAILED if request.is_cut else CLIENT_GONE)
        self._metrics.answered(state.get("operation", OTHER), status, seconds, request.received, request.sent)
        line = {
            "method": request.scope["method"],
            "path": loggable_path(request.scope["path"]),
            "status": status,
            "seconds": round(seconds, 6),
            "bytes_in": request.received,
            "bytes_out": request.sent,
            "user": state.get("user", ""),
            "operation": state.get("operation", OTHER),
            "request_id": request.identity,
        }
        if request.is_cut:
            line["cut"] = True
        self._log.access(status, line)


class _Request:
    """One request under way."""

    __slots__ = (
        "_admission", "_idle_seconds_max", "_is_complete", "_receive", "_send", "_weight_max",
        "began", "identity", "is_answered", "is_cut", "is_gone", "received", "scope", "sent", "status", "weight",
    )  # fmt: skip

    def __init__(
        self, scope: Scope, receive: Receive, send: Send, idle_seconds_max: float, admission: Admission
    ) -> None:
        self.scope = scope
        self.began = time.perf_counter()
        self.identity = _identity(scope)
        self.status = self.received = self.sent = 0
        self.is_cut = self.is_gone = self.is_answered = self._is_complete = False
        self._receive = receive
        self._send = send
        self._idle_seconds_max = idle_seconds_max
        self._admission: Admission | None = admission
        self._weight_max: int | None = None
        self.weight = 0
        scope.setdefault("state", {})["request_id"] = self.identity

    async def receive(self) -> Message:
        if self._is_complete:
            return await self._receive()  # only the end of the connection is left to come
        if self._admission is not None:
            await self._enter(self._admission)
        try:
            async with asyncio.timeout(self._idle_seconds_max):
                message = await self._receive()
        except TimeoutError:
            message = {"type": "http.disconnect"}
        if message["type"] == "http.request":
            self.received += len(message.get("body", b""))
            self._is_complete = not message.get("more_body", False)
        else:
            self.is_gone = self._is_complete = True
        return message

    async def _enter(self, admission: Admission) -> None:
        """Before each piece of the body, until it has all the room that it can need; nothing if it has no body."""
        if self._weight_max is None:
            self._weight_max = _weight_of(self.scope, admission)
        wanted = min(self._weight_max, max(FIRST_BYTES, 2 * self.received))
        if not self.weight and wanted:
            await admission.enter(wanted)
            self.weight = wanted
        elif wanted > self.weight:
            self.weight += await admission.grow(wanted - self.weight, self._weight_max - self.weight)
        if self.weight == self._weight_max:
            self._admission = None

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message["headers"] = [*message.get("headers", ()), (b"x-request-id", self.identity.encode())]
        else:
            self.sent += len(message.get("body", b""))
            self.is_answered = not message.get("more_body", False)
        await self._send(message)


def _weight_of(scope: Scope, admission: Admission) -> int:
    weight = 0
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit():
            weight = admission.weight_of(int(value[:19]))
        elif name == b"transfer-encoding":
            weight = admission.weight_of(None)
    return weight


def _identity(scope: Scope) -> str:
    for name, value in scope["headers"]:
        if name == b"x-request-id" and _SOUND_ID.fullmatch(value):
            return str(value, "ascii")
    return urandom(8).hex()
