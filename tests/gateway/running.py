"""A gateway that runs: uvicorn in a thread, over an installation in a folder, with an administrator's key."""

import asyncio
import contextlib
import datetime
import ipaddress
import ssl
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import boto3
import uvicorn
import uvloop
from botocore.config import Config
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from lsmfs.auth import Authority, Permission
from lsmfs.auth.keys import Pair
from lsmfs.blocks import Layout
from lsmfs.clock import SystemClock
from lsmfs.gateway.app import Gateway
from lsmfs.installation import Configuration, create_installation, open_installation
from lsmfs.objectstore.faulting import FaultingStore, Plan
from lsmfs.repository import Repository
from lsmfs.server.lake import Lake

ADMIN = Pair("LSFSADMINISTRATOR", "an-administrators-secret")
REGION = "us-east-1"
DOMAIN = "s3.lake.test"
T = TypeVar("T")


def no_fault(*_: object) -> None:
    """Everything goes well."""


class Running:
    """Started on entry, on a free port of the loopback address."""

    def __init__(self, folder: Path, tls: bool = False, layout: Layout | None = None) -> None:
        self.folder = folder
        self.port = 0
        self.plan: Plan = no_fault
        self._certificate = certificate(folder) if tls else None
        self._layout = layout
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: uvloop.run(self._serve()), daemon=True)
        self._failure: BaseException | None = None
        self.lake: Lake
        self.authority: Authority
        self.loop: asyncio.AbstractEventLoop
        self._stop: asyncio.Event

    def __enter__(self) -> "Running":
        self._thread.start()
        assert self._ready.wait(60), "the server did not start"
        if self._failure is not None:
            raise self._failure
        return self

    def __exit__(self, *_: object) -> None:
        self.loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(60)
        assert not self._thread.is_alive(), "the server did not stop"
        if self._failure is not None:
            raise self._failure

    async def _serve(self) -> None:
        try:
            await self._run()
        except BaseException as error:
            self._failure = error
            self._ready.set()

    async def _run(self) -> None:
        self.loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        create_installation(self.folder, Configuration())
        clock = SystemClock()
        async with open_installation(self.folder, {}) as installation:
            installation.store = FaultingStore(installation.store, lambda *call: self.plan(*call))
            self.lake = Lake(installation, self._layout)
            self.authority = Authority(installation.refs, b"k" * 32, clock)
            await self.authority.setup("admin", ADMIN)
            gateway = Gateway(self.lake, self.authority, [DOMAIN], REGION, clock)
            config = uvicorn.Config(
                gateway,
                host="127.0.0.1",
                port=0,
                loop="none",
                http="httptools",
                ws="none",
                lifespan="off",
                log_level="error",
                ssl_certfile=self._certificate,
                ssl_keyfile=self._certificate,
            )
            server = uvicorn.Server(config)
            server.capture_signals = _Nothing  # type: ignore[method-assign,assignment]
            serving = asyncio.create_task(server.serve())
            while not server.started:
                assert not serving.done(), "uvicorn ended"
                await asyncio.sleep(0.01)
            self.port = server.servers[0].sockets[0].getsockname()[1]
            self._ready.set()
            await self._stop.wait()
            server.should_exit = True
            await serving
            await gateway.aclose()
            await self.authority.aclose()
            await self.lake.aclose()

    @contextlib.contextmanager
    def failing(self, plan: Plan) -> Iterator[None]:
        """The object store fails as planned meanwhile."""
        self.plan = plan
        try:
            yield
        finally:
            self.plan = no_fault

    def do(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run something in the server's loop."""
        return asyncio.run_coroutine_threadsafe(work(), self.loop).result(60)

    def create(self, name: str, storage: str = "") -> str:
        async def create() -> None:
            await (await self.lake.installation.create(name, storage=storage)).aclose()

        self.do(create)
        return name

    def user(self, name: str, *permissions: Permission) -> Pair:
        """A user with these permissions; the key."""

        async def create() -> Pair:
            directory = self.authority.directory
            await directory.create_user(name)
            await directory.create_role(f"{name}-role", permissions)
            await directory.attach_role_to_user(f"{name}-role", name)
            info, secret = await directory.create_key(name)
            return Pair(info.access_key_id, secret)

        return self.do(create)

    def on(self, name: str, work: Callable[[Repository], Awaitable[T]]) -> T:
        """Do something to a repository, beside S3."""

        async def run() -> T:
            return await work(await self.lake.repository(name))

        return self.do(run)

    @property
    def url(self) -> str:
        return f"{'http' if self._certificate is None else 'https'}://127.0.0.1:{self.port}"

    def client(self, pair: Pair = ADMIN, **config: Any) -> Any:
        settings = {"retries": {"max_attempts": 1}, "s3": {"addressing_style": "path"}, "read_timeout": 60, **config}
        return boto3.client(
            "s3",
            endpoint_url=self.url,
            aws_access_key_id=pair.access_key_id,
            aws_secret_access_key=pair.secret,
            region_name=REGION,
            config=Config(**settings),
            verify=None if self._certificate is None else self._certificate,
        )


class _Nothing:
    """Signals belong to pytest: uvicorn runs in a thread."""

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


def certificate(folder: Path) -> str:
    """A certificate for 127.0.0.1, and its key, in one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False)
        .sign(key, hashes.SHA256())
    )
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "certificate.pem"
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    file.write_bytes(private + signed.public_bytes(serialization.Encoding.PEM))
    ssl.create_default_context(cafile=str(file))
    return str(file)
