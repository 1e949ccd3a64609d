"""Requests to one server: a pool of connections that stay open, credentials, and retries.

Promises:
- What only reads is repeated until `RETRY_SECONDS_MAX` have passed, so a server that is restarted is not noticed. The
  server's Retry-After is respected. An endpoint that has never answered is told at once: it is more often a mistake.
- What changes something is received at most once: it is only sent again where no connection was made. In the end that
  is `Unavailable`; a lost answer is `OutcomeUnknown`.
- Bodies are streamed both ways. Redirects are not followed, so credentials go nowhere else. No secret is in a message.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import TypeVar
from urllib.parse import quote

import httpx
import msgspec

from lsmfs.client import wire
from lsmfs.client.endpoint import API, is_loopback, parse_endpoint
from lsmfs.client.failures import error_of
from lsmfs.clock import Clock, SystemClock
from refstore.errors import Error, Invalid, OutcomeUnknown, Unavailable

CONNECTIONS_MAX = 64  # as many requests of one client are under way; others wait for their turn
IDLE_SECONDS_MAX = 4.0  # less than a server waits (5 s): a connection that it is about to close is not used again
CONNECT_SECONDS_MAX = 10.0
ANSWER_SECONDS_MAX = 300.0  # without a byte: a merge or a commit of millions of entries says nothing until it is done
RETRY_SECONDS_MAX = 15.0  # a server is restarted in less
RETRY_AFTER_SECONDS_MAX = 5.0
BACKOFF_SECONDS = 0.1
BACKOFF_SECONDS_MAX = 2.0
FAILURE_BYTES_MAX = 16 * 1024 * 1024  # of an error's body: that of a merge has a thousand clashes
PASSING = (429, 502, 503, 504)

T = TypeVar("T")
Query = Mapping[str, object]
Content = bytes | AsyncIterator[bytes]


def path_of(*parts: str) -> str:
    """A path of these parts, whatever is in them."""
    return "".join(f"/{quote(_utf8(part), safe='').replace('.', '%2E')}" for part in parts)


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise Invalid(f"{text!r} is not UTF-8: {error.reason} at character {error.start}") from None


class Transport:
    def __init__(
        self,
        endpoint: str,
        access_key_id: str,
        secret_access_key: str,
        trust_environment: bool = False,
        clock: Clock | None = None,
    ) -> None:
        self.endpoint = parse_endpoint(endpoint)
        self.clock = clock or SystemClock()
        self._has_answered = False
        self._client = httpx.AsyncClient(
            base_url=self.endpoint + API,
            auth=httpx.BasicAuth(access_key_id, secret_access_key),
            headers={"accept-encoding": "identity"},  # ranges and sizes are of the bytes as they are
            limits=httpx.Limits(
                max_connections=CONNECTIONS_MAX,
                max_keepalive_connections=CONNECTIONS_MAX,
                keepalive_expiry=IDLE_SECONDS_MAX,
            ),
            timeout=httpx.Timeout(ANSWER_SECONDS_MAX, connect=CONNECT_SECONDS_MAX, pool=None),
            # Without TLS there is nothing to verify, and to load certificates takes longer than most requests.
            verify=self.endpoint.startswith("https:"),
            trust_env=trust_environment and not is_loopback(self.endpoint),
        )

    async def aclose(self) -> None:
        await self._client.aclose()

    async def read(self, path: str, kind: type[T], query: Query | None = None, body: object = None) -> T:
        """What a request answers that changes nothing."""
        method = "GET" if body is None else "POST"
        async with self.stream(method, path, query, _encoded(body), _json(body), repeatable=True) as response:
            return self._decoded(await self._whole(response), kind)

    async def change(
        self,
        method: str,
        path: str,
        kind: type[T],
        query: Query | None = None,
        body: object = None,
        content: Content | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> T:
        """What a request answers that changes something; `kind` is None where it answers nothing."""
        sent = _encoded(body) if content is None else content
        async with self.stream(method, path, query, sent, {**_json(body), **(headers or {})}) as response:
            data = await self._whole(response)
        return self._decoded(data, kind) if kind is not type(None) else None

    async def lines(self, path: str, kind: type[T], query: Query) -> AsyncIterator[T]:
        """The values of an answer that has one on each line."""
        decoder = msgspec.json.Decoder(kind)
        async with self.stream("GET", path, query, repeatable=True) as response:
            held = b""
            async for piece in self.pieces(response):
                *lines, held = (held + piece).split(b"\n")
                for line in lines:
                    yield self._decoded(line, kind, decoder)
            if held:
                raise self._broken_off()

    @contextlib.asynccontextmanager
    async def stream(
        self,
        method: str,
        path: str,
        query: Query | None = None,
        content: Content | None = None,
        headers: Mapping[str, str] | None = None,
        repeatable: bool = False,
    ) -> AsyncIterator[httpx.Response]:
        """An answer that is none of an error, whose body is not yet read."""
        response = await self._answered(method, path, query, content, headers, repeatable)
        try:
            if response.status_code >= 300:
                raise await self._failed(response)
            self._has_answered = True
            yield response
        finally:
            await response.aclose()

    async def pieces(self, response: httpx.Response) -> AsyncIterator[bytes]:
        """The body of an answer as it comes; `Unavailable` if it breaks off."""
        try:
            async for piece in response.aiter_raw():
                yield piece
        except httpx.TransportError as error:
            raise self._broken_off() from error

    async def wait(self, attempt: int, response: httpx.Response | None = None) -> None:
        """Before a request is repeated: as long as the server says, else longer each time."""
        said = "" if response is None else response.headers.get("retry-after", "")
        seconds = min(BACKOFF_SECONDS_MAX, BACKOFF_SECONDS * 2.0 ** min(attempt, 16))
        seconds *= 0.5 + self.clock.jitter() / 2
        if said.isascii() and said.isdigit():
            seconds = max(seconds, min(float(said[:9]), RETRY_AFTER_SECONDS_MAX))
        await asyncio.sleep(seconds)

    async def _answered(
        self,
        method: str,
        path: str,
        query: Query | None,
        content: Content | None,
        headers: Mapping[str, str] | None,
        repeatable: bool,
    ) -> httpx.Response:
        deadline, attempt = self.clock.monotonic() + RETRY_SECONDS_MAX, 0
        while True:
            request = self._client.build_request(
                method, self.endpoint + API + path, params=_parameters(query), content=content, headers=headers
            )
            response, is_last = None, self.clock.monotonic() > deadline
            try:
                response = await self._client.send(request, stream=True)
            except httpx.TransportError as error:
                is_unsent = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)
                may_repeat = repeatable or (is_unsent and not isinstance(content, AsyncIterator))
                if is_last or not may_repeat or not self._has_answered:
                    raise self._lost(error, repeatable or is_unsent) from error
            if response is not None:
                if is_last or not repeatable or response.status_code not in PASSING:
                    return response
                await response.aclose()
            await self.wait(attempt, response)
            attempt += 1

    def _lost(self, error: httpx.TransportError, is_undone: bool) -> Error:
        if isinstance(error, httpx.UnsupportedProtocol | httpx.LocalProtocolError):
            return Invalid(f"{self.endpoint}: the request cannot be sent: {error}")
        if is_undone:
            why = str(error) or type(error).__name__
            return Unavailable(f"{self.endpoint} does not answer ({why}): is the server running, is this its address?")
        return OutcomeUnknown(
            f"{self.endpoint} did not answer to its end: whether it was done is not known, look before you repeat it"
        )

    def _broken_off(self) -> Error:
        return Unavailable(f"an answer of {self.endpoint} broke off: try again")

    async def _failed(self, response: httpx.Response) -> Error:
        data = b""
        with contextlib.suppress(Unavailable):
            async for piece in self.pieces(response):
                data += piece
                if len(data) > FAILURE_BYTES_MAX:
                    break
        name = response.headers.get(wire.ERROR_HEADER, "")
        return error_of(response.status_code, name, data, self.endpoint)

    async def _whole(self, response: httpx.Response) -> bytes:
        return b"".join([piece async for piece in self.pieces(response)])

    def _decoded(self, data: bytes, kind: type[T], decoder: "msgspec.json.Decoder[T] | None" = None) -> T:
        try:
            return msgspec.json.decode(data, type=kind) if decoder is None else decoder.decode(data)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            raise Unavailable(
                f"{self.endpoint} answers as no lsmfs server of this version does ({error}): correct the endpoint, or "
                "use the server's version"
            ) from None


def _encoded(body: object) -> bytes | None:
    if body is None:
        return None
    try:
        return msgspec.json.encode(body)
    except (msgspec.MsgspecError, UnicodeEncodeError, TypeError) as error:
        raise Invalid(f"it cannot be sent as JSON: {error}") from None


def _json(body: object) -> dict[str, str]:
    return {} if body is None else {"content-type": "application/json"}


def _parameters(query: Query | None) -> dict[str, str]:
    found = {}
    for name, value in (query or {}).items():
        if value is not None:
            text = str(value).lower() if isinstance(value, bool) else str(value)
            _utf8(text)
            found[name] = text
    return found
