"""The S3 gateway as a plain ASGI application.

Flow of a request:
1. It is read and addressed: bucket and key.
2. Whose signature it claims; the secret is looked up; the signature is verified.
3. The operation is found, and who signed is authorised for it, in one place.
4. Only now is the operation run, and the body asked for, if there is one: who is refused never hears "100 Continue".
5. The answer, or the error as XML with the request's id, is sent. What nobody foresaw is logged and is InternalError.

The server around may have put `request_id` into scope["state"]; `operation` and `user` are put there for its log.
"""

import asyncio
from collections.abc import Coroutine, Sequence

import structlog

from lsmfs.asgi import Message, Receive, Scope, Send
from lsmfs.auth import Authority, Key
from lsmfs.clock import Clock
from lsmfs.gateway import answers
from lsmfs.gateway.addressing import Address, Addressing, Place, check_bucket, place_of
from lsmfs.gateway.answers import Answer, error_answer, send_answer, send_slowly
from lsmfs.gateway.calls import Call, ClientGone
from lsmfs.gateway.errors import S3Error, from_error
from lsmfs.gateway.operations import Operation, operation_of
from lsmfs.gateway.request import Request
from lsmfs.gateway.signatures import Claim, Verified, find_credentials, verify
from lsmfs.server.lake import Lake
from refstore.errors import Corrupt, Error, NotFound

log = structlog.get_logger("gateway")
audit = structlog.get_logger("audit")


class Gateway:
    def __init__(
        self, lake: Lake, authority: Authority, domain_names: Sequence[str], region: str, clock: Clock
    ) -> None:
        self._lake = lake
        self._authority = authority
        self._addressing = Addressing(domain_names)
        self._region = region
        self._clock = clock
        self._tasks: set[asyncio.Task[None]] = set()

    async def aclose(self) -> None:
        """Wait for what nobody waited for. The lake and the authority belong to the caller."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def is_host(self, host: str) -> bool:
        """Whether requests to the host are for the gateway, whatever else they look like."""
        return self._addressing.is_ours(host)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http", f"the gateway answers HTTP, not {scope['type']}"
        state: Scope = scope.setdefault("state", {})
        request_id: str = state.get("request_id") or self._clock.new_id().upper()
        is_head = scope["method"] == "HEAD"
        receive = asked = _Asked(receive)
        started = _Started(send, asked, _is_waiting(scope))
        try:
            call, operation = await self._admitted(scope, receive, request_id, state)
            if operation.is_slow:
                await self._run_slowly(call, operation, started)
            else:
                answer = await operation.handler(call)
                await send_answer(started, answer, request_id, is_head, receive)
        except ClientGone:
            return
        except Exception as error:
            if started.is_started:
                raise
            refusal = _refusal(error, request_id)
            answer = error_answer(refusal, request_id, scope.get("path", ""))
            await send_answer(started, answer, request_id, is_head, receive)

    async def _admitted(self, scope: Scope, receive: Receive, request_id: str, state: Scope) -> tuple[Call, Operation]:
        """The call, if it is what it claims to be and its sender may do it. Nothing of the body has been read."""
        request = Request.from_scope(scope)
        address = self._addressing.of(request)
        claim = find_credentials(request)
        if claim is None:
            raise S3Error("AccessDenied", "Anonymous requests are not allowed: sign the request with an access key.")
        key, verified = await self._verified(claim, request, address)
        state["user"] = key.identity.user
        operation = operation_of(request, address.bucket, address.key)
        state["operation"] = operation.name
        bucket = check_bucket(address.bucket) if address.bucket else ""
        place = place_of(bucket, address.key) if address.key else Place(bucket, "", "", False)
        needed = operation.needs(place, request)
        if needed is not None:
            await self._authority.check(key.identity, *needed)
        call = Call(
            self._lake,
            self._authority,
            self._region,
            request,
            receive,
            request_id,
            bucket,
            place,
            key.identity,
            verified,
            self._later,
        )
        return call, operation

    async def _verified(self, claim: Claim, request: Request, address: Address) -> tuple[Key, Verified]:
        try:
            key = await self._authority.key(claim.access_key_id)
            now = self._clock.now_us() / 1e6
            return key, verify(claim, request, key.secret, now, bucket=address.host_bucket)
        except NotFound:
            refusal = S3Error("InvalidAccessKeyId", extra={"AWSAccessKeyId": claim.access_key_id})
        except S3Error as error:
            refusal = error
        audit.warning("signature refused", access_key_id=claim.access_key_id, code=refusal.code)
        raise refusal

    async def _run_slowly(self, call: Call, operation: Operation, send: Send) -> None:
        """As usual if it is done in time; else with an answer that begins now."""

        async def run() -> Answer:
            return await operation.handler(call)

        work = asyncio.ensure_future(run())
        try:
            await asyncio.wait([work], timeout=answers.PATIENCE_SECONDS)
            if work.done():
                await send_answer(send, work.result(), call.request_id, False, call.receive)
            else:
                resource = call.request.path
                await send_slowly(send, work, call.request_id, resource, lambda e: _refusal(e, call.request_id))
        except asyncio.CancelledError:
            work.cancel()
            raise

    def _later(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.ensure_future(_logged(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _is_waiting(scope: Scope) -> bool:
    """Whether the client sends its body only when it is told to."""
    return scope["method"] in ("PUT", "POST") and any(name == b"expect" for name, _ in scope["headers"])


class _Asked:
    """`receive`, which remembers whether the body was asked for: only then is "100 Continue" sent."""

    __slots__ = ("_receive", "is_asked")

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self.is_asked = False

    async def __call__(self) -> Message:
        self.is_asked = True
        return await self._receive()


class _Started:
    """`send`, which remembers whether an answer has begun: another one cannot be sent then.

    A client that waits for "100 Continue" and is answered without it sends no body, and its next request on the same
    connection would be taken for that body: so the connection is closed."""

    __slots__ = ("_asked", "_is_waiting", "_send", "is_started")

    def __init__(self, send: Send, asked: _Asked, is_waiting: bool) -> None:
        self._send = send
        self._asked = asked
        self._is_waiting = is_waiting
        self.is_started = False

    async def __call__(self, message: Message) -> None:
        if not self.is_started:
            self.is_started = True
            if self._is_waiting and not self._asked.is_asked:
                message["headers"].append((b"connection", b"close"))
        await self._send(message)


def _refusal(error: BaseException, request_id: str) -> S3Error:
    if isinstance(error, ClientGone):  # an answer that began early has nobody to read it
        return S3Error("IncompleteBody")
    refusal = from_error(error)
    if not isinstance(error, Error) or isinstance(error, Corrupt):
        log.error("request failed", request_id=request_id, exc_info=error)
    elif refusal.status >= 500 and refusal.code != "NotImplemented":
        log.warning("request refused", request_id=request_id, reason=str(error))
    return refusal


async def _logged(work: Coroutine[object, object, None]) -> None:
    try:
        await work
    except Error as error:
        log.warning("left undone, and for a sweep to do", reason=str(error))
