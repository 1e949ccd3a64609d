"""The server's application: opens the lake, and hands each request to the S3 gateway or to the REST API.

At start, in this order: the installation is opened, the server key is read, the first administrator is made if there is
none (by worker 0, which starts alone), services begin. At the end the same backwards: requests have ended by then,
writers end their last flush, the stores are closed.

    /_health    200 while the process lives
    /readyz     200 if the ref store and the object store answer, else 503
    /metrics    Prometheus
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import msgspec

from lsmfs.api.app import Options, create_api
from lsmfs.asgi import Application, Message, Receive, Scope, Send
from lsmfs.auth import Authority
from lsmfs.blocks import Layout
from lsmfs.gateway.app import Gateway
from lsmfs.installation import Installation
from lsmfs.policy import REPOSITORIES
from lsmfs.server.config import ServerConfig
from lsmfs.server.lake import Lake
from lsmfs.server.routing import Routing
from lsmfs.server.server_key import load_server_key
from lsmfs.server.services import SWEEP_SECONDS, TIDY_SECONDS, compacting, repeating, sweep_uploads
from lsmfs.server.welcome import welcome
from lsmfs.server.worker import Worker
from refstore.errors import Error, NotFound

READY_SECONDS_MAX = 5.0  # a store that takes longer is as good as none
PROBE = "readyz"


def create_app(config: ServerConfig, worker: Worker) -> Application:
    return App(config, worker)


class App:
    def __init__(self, config: ServerConfig, worker: Worker) -> None:
        self._config = config
        self._worker = worker
        self._routing = Routing((config.gateways.s3.domain_name,))
        self._installation: Installation | None = None
        self._gateway: Application = _not_open
        self._api: Application = _not_open

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _run_lifespan(self._open(), scope, receive, send)
        elif scope["type"] != "http":
            await send({"type": "websocket.close"})
        elif self._routing.is_s3(scope):
            await self._gateway(scope, receive, send)
        elif scope["path"] == "/_health":
            await _answer(scope, send, "health", 200, "alive")
        elif scope["path"] == "/readyz":
            problem = await self._problem()
            await _answer(scope, send, "ready", 503 if problem else 200, problem or "ready")
        elif scope["path"] == "/metrics":
            await self._worker.metrics.endpoint(scope, receive, send)
        else:
            await self._api(scope, receive, send)

    @contextlib.asynccontextmanager
    async def _open(self) -> AsyncIterator[dict[str, Any] | None]:
        """Everything that requests need, while inside; what to tell the person at the terminal."""
        config, worker = self._config, self._worker
        async with contextlib.AsyncExitStack() as stack:
            installation = await stack.enter_async_context(worker.open_installation())
            lake = await stack.enter_async_context(
                contextlib.aclosing(Lake(installation, Layout(block_bytes=config.blocks.size_bytes)))
            )
            key = load_server_key(config.auth, installation.folder)
            authority = await stack.enter_async_context(
                contextlib.aclosing(Authority(installation.refs, key, installation.clock))
            )
            await authority.check_server_key()
            s3 = config.gateways.s3
            self._gateway = await stack.enter_async_context(
                contextlib.aclosing(Gateway(lake, authority, (s3.domain_name,), s3.region, installation.clock))
            )
            options = Options(
                config.blockstore.type,
                config.api.allowed_namespaces,
                config.api.allowed_imports,
                secure_cookies=config.tls.certificate_file is not None,
            )
            self._api = create_api(lake, authority, authority.directory, options)
            self._installation = installation
            told = await welcome(lake, authority, worker) if worker.index == 0 else None
            await stack.enter_async_context(repeating(TIDY_SECONDS, lake.close_idle))
            if worker.index == 0 and config.services.compactor:
                await stack.enter_async_context(compacting(installation))
                await stack.enter_async_context(repeating(SWEEP_SECONDS, partial(sweep_uploads, installation)))
            yield told

    async def _problem(self) -> str:
        """Why requests cannot be served now, if so."""
        if self._installation is None:
            return "not open yet"
        try:
            async with asyncio.timeout(READY_SECONDS_MAX):
                await self._installation.refs.get(REPOSITORIES, PROBE.encode())
                with contextlib.suppress(NotFound):
                    await self._installation.store.head(PROBE)
        except TimeoutError:
            return f"a store did not answer in {READY_SECONDS_MAX:g} seconds"
        except Error as error:
            return f"a store does not answer: {type(error).__name__}"  # its text may name hosts
        return ""


async def _run_lifespan(
    opened: contextlib.AbstractAsyncContextManager[dict[str, Any] | None], scope: Scope, receive: Receive, send: Send
) -> None:
    await receive()  # startup
    async with opened as told:
        if told is not None:
            scope["state"]["announcement"] = told
        await send({"type": "lifespan.startup.complete"})
        await receive()  # shutdown
    await send({"type": "lifespan.shutdown.complete"})


async def _not_open(scope: Scope, receive: Receive, send: Send) -> None:
    await _answer(scope, send, "other", 503, "the server is starting")


async def _answer(scope: Scope, send: Send, operation: str, status: int, text: str) -> None:
    scope.setdefault("state", {})["operation"] = operation
    body = msgspec.json.encode({"status": text}) + b"\n"
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    start: Message = {"type": "http.response.start", "status": status, "headers": headers}
    await send(start)
    await send({"type": "http.response.body", "body": body})
