"""Operations: the rows of the API's table, and the call of one.

A row says which `Action` the operation needs, or by name that it needs none (`Open`): a row without either cannot be
made. `Call.check` is the only way to the authority from here, and `app` calls it for every row before its handler.
"""

import asyncio
import enum
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from lsmfs.api.answers import Answer, ApiError, ClientGone, Stream
from lsmfs.asgi import Receive
from lsmfs.auth import Action, Authority, Directory, Identity, Resource
from lsmfs.repository import Repository
from refstore.errors import Invalid

if TYPE_CHECKING:
    from lsmfs.server.lake import Lake

BULK_AT_ONCE = 2  # bodies of rows in memory: others wait
JSON_BYTES_MAX = 4 * 1024 * 1024  # 1,000 paths of 1 KiB to delete, each byte escaped, and room


class Open(enum.Enum):
    """Operations that no permission is asked for."""

    TO_ALL = "anybody, also without credentials"
    TO_USERS = "whoever has credentials: it is about themselves"


class Raw(enum.Enum):
    """Bodies that are no JSON; the handler reads them."""

    OBJECT = "an object's bytes, as they are or as the part `content` of multipart/form-data"
    ROWS = "an Arrow IPC stream or a Parquet file"
    BYTES = "bytes"


class Options(msgspec.Struct, frozen=True):
    """What the server's configuration says of the API."""

    blockstore_type: str = "local"
    allowed_namespaces: tuple[str, ...] = ()
    """URLs under which a user may have a repository stored; none: in the installation's own store only."""
    allowed_imports: tuple[str, ...] = ()
    """URLs below which entries may refer to objects that are not ours: imports, links, rows."""
    secure_cookies: bool = False
    """Whether the browser may send cookies over TLS only."""
    bulk_bytes_max: int = 512 * 1024 * 1024
    """Of one body of rows, and of what it becomes in memory."""


@dataclass(frozen=True, slots=True)
class Services:
    """What handlers work with."""

    lake: "Lake"
    authority: Authority
    directory: Directory
    options: Options
    imports: dict[str, Any] = field(default_factory=dict)
    """Those under way in this process, by id."""
    bulk: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(BULK_AT_ONCE))


class Call:
    """One request, at the handler."""

    __slots__ = ("_receive", "body", "headers", "identity", "path", "query", "raw_headers", "services")

    def __init__(
        self, services: Services, path: dict[str, str], raw_headers: list[tuple[bytes, bytes]], receive: Receive
    ) -> None:
        self.services = services
        self.path = path
        self.raw_headers = raw_headers
        self.headers = dict(raw_headers)
        self._receive = receive
        self.identity = Identity("", "")
        self.query: Any = None
        self.body: Any = None

    @property
    def lake(self) -> "Lake":
        return self.services.lake

    async def check(self, action: Action, resource: Resource) -> None:
        """`Denied`, audited, if the caller may not."""
        await self.services.authority.check(self.identity, action, resource)

    async def allows(self, action: Action, resource: Resource) -> bool:
        return await self.services.authority.allows(self.identity, action, resource)

    async def repository(self) -> Repository:
        return await self.services.lake.repository(self.path["repository"])

    async def stream(self) -> AsyncIterator[bytes]:
        """The body as it comes; `ClientGone` if it does not come to its end."""
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            if piece := message.get("body", b""):
                yield piece
            if not message.get("more_body", False):
                return

    async def read_json(self, kind: Any, empty: bytes) -> Any:
        pieces, size = [], 0
        async for piece in self.stream():
            size += len(piece)
            if size > JSON_BYTES_MAX:
                raise ApiError(413, f"the body has more than {JSON_BYTES_MAX} bytes")
            pieces.append(piece)
        try:
            return msgspec.json.decode(b"".join(pieces) or empty, type=kind)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            raise Invalid(f"the body is wrong: {error}") from None

    def header(self, name: bytes) -> str:
        return self.headers.get(name, b"").decode("latin-1")


Handler = Callable[[Call], Awaitable["Answer | Stream | object"]]


class NoQuery(msgspec.Struct, frozen=True):
    pass


@dataclass(frozen=True, slots=True)
class Operation:
    """A row. A handler gives an answer, or a value that becomes JSON; None is no body."""

    name: str
    method: str
    path: str
    action: Action | Open
    handler: Handler
    answer: Any = None
    """The type of the JSON answer; None if there is no body, a text says which other content it is."""
    status: int = 200
    query: type[msgspec.Struct] = NoQuery
    body: Any = None
    """The type of the JSON body, or what else it is."""
    optional_body: bool = False
    resource: Callable[[Call], Resource] | None = None
    """What the action is done to; by default what the path and the query name."""
    also: tuple[int, ...] = ()
    """Statuses beside those that every operation can have."""

    def __post_init__(self) -> None:
        if not isinstance(self.action, Action | Open):
            raise TypeError(f"{self.name}: say which Action it needs, or that it is Open to whom")

    def resource_of(self, call: Call) -> Resource:
        if self.resource is not None:
            return self.resource(call)
        assert isinstance(self.action, Action)
        return _RESOURCES[self.action.kind](call)


def _object(call: Call) -> Resource:
    path, query = call.path, call.query
    ref = path["branch"] if "branch" in path else path["ref"]
    return Resource(path["repository"], ref, query.path if hasattr(query, "path") else query.prefix)


_RESOURCES: dict[str, Callable[[Call], Resource]] = {
    "installation": lambda call: Resource(),
    "repository": lambda call: Resource(call.path["repository"]),
    "branch": lambda call: Resource(call.path["repository"], call.path["branch"]),
    "tag": lambda call: Resource(call.path["repository"], call.path["tag"]),
    "object": _object,
}


def entity(kind: str, name: str = "") -> Callable[[Call], Resource]:
    """The user, group or policy that a part of the path names; of a list all of them."""
    return lambda call: Resource(entity=f"{kind}/{call.path[name] if name else ''}")
