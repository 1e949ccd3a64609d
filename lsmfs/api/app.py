"""The API's ASGI application: finds the operation, identifies the caller, checks the action, calls the handler.

Flow of a request:
1. The path leads through a tree of its parts to the operations there; the method picks one. 404, 405.
2. The caller is identified, unless the operation is open to all. 401.
3. Query and JSON body are decoded. 400.
4. The one check: may the caller do this action on this resource? 403, audited.
5. The handler answers; what it raises becomes a status by the table in `answers`.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from lsmfs.api import (
    branches,
    bulk,
    commits,
    config,
    exact,
    exact_changes,
    groups,
    imports,
    login,
    objects,
    openapi,
    ours,
    policies,
    refs,
    repositories,
    settings,
    staging,
    tags,
    unbuilt,
    uploads,
    users,
)
from lsmfs.api.answers import Answer, ApiError, ClientGone, Stream, error_answer, json_answer
from lsmfs.api.identity import identify
from lsmfs.api.operations import Call, Open, Operation, Options, Raw, Services
from lsmfs.api.params import parse_query, parse_segments
from lsmfs.asgi import Application, Receive, Scope, Send
from lsmfs.auth import Authority, Directory
from refstore.errors import Invalid

if TYPE_CHECKING:
    from lsmfs.server.lake import Lake


BASE = "/api/v1"
OPERATIONS: tuple[Operation, ...] = (
    *config.OPERATIONS,
    *login.OPERATIONS,
    *repositories.OPERATIONS,
    *settings.OPERATIONS,
    *branches.OPERATIONS,
    *tags.OPERATIONS,
    *commits.OPERATIONS,
    *refs.OPERATIONS,
    *objects.OPERATIONS,
    *uploads.OPERATIONS,
    *staging.OPERATIONS,
    *imports.OPERATIONS,
    *bulk.OPERATIONS,
    *ours.OPERATIONS,
    *exact.OPERATIONS,
    *exact_changes.OPERATIONS,
    *users.OPERATIONS,
    *groups.OPERATIONS,
    *policies.OPERATIONS,
    *unbuilt.OPERATIONS,
)


class Node:
    """The operations at one path, and the paths below it."""

    __slots__ = ("below", "methods", "names", "parameter")

    def __init__(self) -> None:
        self.below: dict[str, Node] = {}
        self.parameter: Node | None = None
        self.methods: dict[str, Operation] = {}
        self.names: tuple[str, ...] = ()

    def find(self, parts: list[str], at: int, values: list[str]) -> "Node | None":
        """Words before parameters: a branch named as a word is found all the same, if the rest fits only it."""
        if at == len(parts):
            return self if self.methods else None
        node = self.below.get(parts[at])
        if node is not None and (found := node.find(parts, at + 1, values)) is not None:
            return found
        if self.parameter is None or not parts[at]:
            return None
        values.append(parts[at])
        if (found := self.parameter.find(parts, at + 1, values)) is not None:
            return found
        values.pop()
        return None


def tree_of(operations: Iterable[Operation]) -> Node:
    root = Node()
    for operation in operations:
        node, names = root, []
        for part in operation.path.strip("/").split("/"):
            if part.startswith("{"):
                names.append(part[1:-1])
                node.parameter = node.parameter or Node()
                node = node.parameter
            else:
                node = node.below.setdefault(part, Node())
        if operation.method in node.methods or node.names not in ((), tuple(names)):
            raise ValueError(f"{operation.name}: {operation.method} {operation.path} is there already")
        node.names = tuple(names)
        node.methods[operation.method] = operation
    return root


class Api:
    def __init__(self, services: Services) -> None:
        self._services = services
        self._tree = tree_of(OPERATIONS)
        self._document = openapi.document(OPERATIONS, BASE)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        state = scope.setdefault("state", {})
        try:
            answer = await self._answered(scope, receive, state)
        except ClientGone:
            return
        except Exception as error:
            answer = error_answer(error)
        if scope["method"] == "HEAD":
            answer.body = b""
        await answer.send(receive, send)

    async def _answered(self, scope: Scope, receive: Receive, state: dict[str, Any]) -> Any:
        raw: bytes = scope.get("raw_path") or scope["path"].encode()
        parts = parse_segments(raw.partition(b"?")[0])
        if parts[:3] != ["", "api", "v1"]:
            raise ApiError(404, "there is nothing here: the API is below /api/v1")
        if parts[3:] == ["openapi.json"] and scope["method"] == "GET":
            state["operation"] = "openapi"
            return Answer(200, self._document)
        operation, path = self._found(parts[3:], scope["method"])
        state["operation"] = operation.name
        call = Call(self._services, path, scope["headers"], receive)
        if operation.action is not Open.TO_ALL:
            call.identity = await identify(self._services.authority, operation.method, call.headers)
            state["user"] = call.identity.user
        return await perform(operation, call, scope["query_string"])

    def _found(self, parts: list[str], method: str) -> tuple[Operation, dict[str, str]]:
        values: list[str] = []
        node = self._tree.find(parts, 0, values)
        if node is None:
            raise ApiError(404, "there is no such operation: /api/v1/openapi.json says which there are")
        operation = node.methods.get(method)
        if operation is None:
            raise ApiError(405, f"{method[:20]} is not possible here", {"allow": ", ".join(sorted(node.methods))})
        return operation, dict(zip(node.names, values, strict=True))


async def perform(operation: Operation, call: Call, query: bytes) -> Answer | Stream:
    """Decode, check, and do it."""
    call.query = parse_query(query, operation.query)
    if operation.body is not None and not isinstance(operation.body, Raw):
        call.body = await call.read_json(operation.body, b"{}" if operation.optional_body else b"")
    for value in call.path.values():
        if "\0" in value:
            raise Invalid("a part of the path has a NUL character")
    if not isinstance(operation.action, Open):
        await call.check(operation.action, operation.resource_of(call))
    result = await operation.handler(call)
    if isinstance(result, Answer | Stream):
        return result
    return Answer(operation.status) if result is None else json_answer(result, operation.status)


def create_api(lake: "Lake", authority: Authority, directory: Directory, options: Options | None = None) -> Application:
    """The API of a lake as an ASGI application."""
    return Api(Services(lake, authority, directory, options or Options()))


__all__ = ["BASE", "OPERATIONS", "Options", "create_api"]
