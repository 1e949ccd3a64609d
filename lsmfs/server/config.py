"""The server's configuration: every key there is, with its default, and what the keys together must satisfy.

    logging:     format text|json, level DEBUG|INFO|WARN|ERROR|NONE, output "-" or a file
    metadata:    db.type sqlite|redis|dynamodb|bucket, and db.<type>.* for that one
    blockstore:  type local|s3|gs|azure, and <type>.* for that one
    gateways:    s3.listen_address, s3.domain_name, s3.region
    api:         listen_address
    listen, data, workers, cache_bytes_max, services, limits, blocks, auth, tls

`config_file` reads them from YAML and the environment; `config_stores` makes of them what opens an installation.

Promises: a configuration is a value and never changes; a secret in it is not shown by printing it, only by
`Secret.reveal`. One port serves everything: `listen`, or the gateway's and the API's if they are given.
"""

from collections.abc import Iterator
from typing import Literal, NamedTuple

import msgspec

LISTEN_DEFAULT = "127.0.0.1:8000"
HOST_DEFAULT = "127.0.0.1"  # of ":8000": who wants the whole network to reach it says 0.0.0.0
MEBIBYTE = 1024 * 1024


class Secret:
    """A text that is not shown."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return "***"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)


class Part(msgspec.Struct, frozen=True):
    """Some keys under one name."""


class Logging(Part, frozen=True):
    format: Literal["text", "json"] = "text"
    level: Literal["DEBUG", "INFO", "WARN", "ERROR", "NONE"] = "INFO"
    output: str = "-"


class Sqlite(Part, frozen=True):
    path: str | None = None
    """[refs.db in the data folder]"""


class Redis(Part, frozen=True):
    url: str | None = None
    """redis://host:6379/0?wait_replicas=1, without a password"""
    username: str | None = None
    password: Secret | None = None


class Dynamodb(Part, frozen=True):
    table: str | None = None
    region: str | None = None
    endpoint: str | None = None
    create_table: bool = False


class Db(Part, frozen=True):
    type: Literal["sqlite", "redis", "dynamodb", "bucket"] = "sqlite"
    sqlite: Sqlite = Sqlite()
    redis: Redis = Redis()
    dynamodb: Dynamodb = Dynamodb()


class Metadata(Part, frozen=True):
    db: Db = Db()


class Local(Part, frozen=True):
    path: str | None = None
    """[objects in the data folder]"""


class Credentials(Part, frozen=True):
    access_key_id: str | None = None
    access_secret_key: Secret | None = None
    session_token: Secret | None = None


class S3(Part, frozen=True):
    bucket: str | None = None
    prefix: str = ""
    region: str = "us-east-1"
    endpoint: str | None = None
    profile: str | None = None
    credentials_file: str | None = None
    credentials: Credentials = Credentials()
    ordered: bool | None = None
    """Whether it lists names in byte order [Amazon does, a foreign endpoint is not believed to]."""


class Gs(Part, frozen=True):
    url: str | None = None
    """gs://bucket/prefix"""
    credentials_file: str | None = None


class Azure(Part, frozen=True):
    url: str | None = None
    """az://container/prefix?account=..."""
    account_key: Secret | None = None
    sas_token: Secret | None = None


class Blockstore(Part, frozen=True):
    type: Literal["local", "s3", "gs", "azure"] = "local"
    local: Local = Local()
    s3: S3 = S3()
    gs: Gs = Gs()
    azure: Azure = Azure()


class S3Gateway(Part, frozen=True):
    listen_address: str | None = None
    domain_name: str = "s3.local"
    region: str = "us-east-1"


class Gateways(Part, frozen=True):
    s3: S3Gateway = S3Gateway()


Texts = tuple[str, ...]


class Api(Part, frozen=True):
    listen_address: str | None = None
    allowed_namespaces: Texts = ()
    """URLs below which users may have a repository of their own stored."""
    allowed_imports: Texts = ()
    """URLs below which entries may refer to objects that are not ours."""


class Services(Part, frozen=True):
    compactor: bool = True
    """Whether the server also compacts; `lsmfs compactor` does it apart."""


class Limits(Part, frozen=True):
    body_bytes_in_flight_max: int = 256 * MEBIBYTE
    """Bodies being taken in by one worker, together: 32 of the 8 MiB that one body holds."""
    header_bytes_max: int = 64 * 1024
    """A request line and its headers. S3 allows 8 KiB of headers; presigned URLs and cookies come on top."""
    header_seconds_max: float = 30.0
    """From a connection's or request's first byte to the end of its headers."""
    body_idle_seconds_max: float = 60.0
    """Without a byte of the body; then the upload counts as aborted."""
    keep_alive_seconds: int = 75
    """Above the 60 s for which load balancers keep a connection."""
    connections_max: int = 4096
    """Of one worker: more get 503."""
    shutdown_seconds_max: int = 30
    """For requests under way when told to stop; Kubernetes waits 30 s unless told otherwise."""


class Blocks(Part, frozen=True):
    size_bytes: int = 64 * MEBIBYTE
    """0: a body is one object, for those who read the store directly."""


class Auth(Part, frozen=True):
    server_key: Secret | None = None
    server_key_file: str | None = None
    """[made in the data folder at the first start]"""


class Tls(Part, frozen=True):
    certificate_file: str | None = None
    key_file: str | None = None


class ServerConfig(Part, frozen=True):
    """All of it."""

    listen: str | None = None
    """HOST:PORT [127.0.0.1:8000]"""
    data: str = "lsmfs-data"
    workers: int = 1
    cache_bytes_max: int = 2 * 1024 * MEBIBYTE
    logging: Logging = Logging()
    metadata: Metadata = Metadata()
    blockstore: Blockstore = Blockstore()
    gateways: Gateways = Gateways()
    api: Api = Api()
    services: Services = Services()
    limits: Limits = Limits()
    blocks: Blocks = Blocks()
    auth: Auth = Auth()
    tls: Tls = Tls()

    @property
    def addresses(self) -> list["Address"]:
        """Where to listen: each address that is given, once; else the default."""
        given = (self.listen, self.gateways.s3.listen_address, self.api.listen_address)
        return list(dict.fromkeys(parse_address(text) for text in given if text)) or [parse_address(LISTEN_DEFAULT)]


class Address(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """HOST:PORT, [V6]:PORT or :PORT; `ValueError` with what to write."""
    host, colon, port = text.rpartition(":")
    is_bracketed = host.startswith("[") and host.endswith("]")
    if not colon or not (port.isascii() and port.isdigit()) or int(port) > 65535 or (":" in host and not is_bracketed):
        raise ValueError("is no address: write HOST:PORT, as 127.0.0.1:8000 or [::1]:8000")
    return Address(host.strip("[]") or HOST_DEFAULT, int(port))


# A key and what is wrong with its value. `config_file` knows in which line the key stands.
Complaint = tuple[str, str]


class Wrong(Exception):
    """A complaint on its way to whoever knows the line."""

    def __init__(self, key: str, words: str) -> None:
        super().__init__(f"{key}: {words}")
        self.complaint: Complaint = key, words


_POSITIVE = (
    "workers",
    "limits.body_bytes_in_flight_max",
    "limits.header_bytes_max",
    "limits.header_seconds_max",
    "limits.body_idle_seconds_max",
    "limits.keep_alive_seconds",
    "limits.connections_max",
    "limits.shutdown_seconds_max",
)
_NOT_NEGATIVE = ("cache_bytes_max", "blocks.size_bytes")
_ADDRESSES = ("listen", "gateways.s3.listen_address", "api.listen_address")
WORKERS_MAX = 256  # more than any machine has cores: a number mistyped


def value_of(config: Part, key: str) -> object:
    """The value of a key such as `logging.level`."""
    value: object = config
    for name in key.split("."):
        value = getattr(value, name)
    return value


def complaints(config: ServerConfig) -> Iterator[Complaint]:
    """What no single value is wrong about, or a value's type does not say."""
    for key in _POSITIVE:
        if not value_of(config, key) > 0:  # type: ignore[operator]
            yield key, "must be more than 0"
    for key in _NOT_NEGATIVE:
        if not value_of(config, key) >= 0:  # type: ignore[operator]
            yield key, "must not be negative"
    if config.workers > WORKERS_MAX:
        yield "workers", f"must be at most {WORKERS_MAX}"
    for key in _ADDRESSES:
        text = value_of(config, key)
        try:
            parse_address(str(text or LISTEN_DEFAULT))
        except ValueError as error:
            yield key, f"{text!r} {error}"
    yield from _missing(config)
    yield from _pairs(config)


def _missing(config: ServerConfig) -> Iterator[Complaint]:
    """What the chosen store needs and has no default."""
    db, blocks = config.metadata.db, config.blockstore
    needed = {
        ("metadata.db", "redis"): ("url",),
        ("metadata.db", "dynamodb"): ("table", "region"),
        ("blockstore", "s3"): ("bucket",),
        ("blockstore", "gs"): ("url",),
        ("blockstore", "azure"): ("url",),
    }
    for where, kind in (("metadata.db", db.type), ("blockstore", blocks.type)):
        for name in needed.get((where, kind), ()):
            key = f"{where}.{kind}.{name}"
            if not value_of(config, key):
                yield f"{where}.type", f"{kind} needs {key}: add it"


def _pairs(config: ServerConfig) -> Iterator[Complaint]:
    given = config.blockstore.s3.credentials
    if bool(given.access_key_id) != bool(given.access_secret_key):
        yield "blockstore.s3.credentials", "access_key_id and access_secret_key go together: give both, or none"
    elif given.session_token and not given.access_key_id:
        yield "blockstore.s3.credentials.session_token", "needs access_key_id and access_secret_key: add them"
    if bool(config.tls.certificate_file) != bool(config.tls.key_file):
        yield "tls", "certificate_file and key_file go together: give both, or none"
    if config.auth.server_key and config.auth.server_key_file:
        yield "auth", "server_key and server_key_file say the same twice: give one"
