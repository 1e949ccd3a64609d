"""The OpenAPI document, made from the table of operations and the structs that it names, so it cannot say otherwise."""

import re
from collections.abc import Iterable
from typing import Any

import msgspec

from lsmfs.api.operations import JSON_BYTES_MAX, NoQuery, Open, Operation, Raw
from lsmfs.api.wire import Error

TITLE = "lsmfs"
COMMON = (400, 401, 403, 404, 409, 503)
RAW: dict[Raw, list[str]] = {
    Raw.OBJECT: ["application/octet-stream"],
    Raw.ROWS: ["application/vnd.apache.arrow.stream", "application/vnd.apache.parquet"],
    Raw.BYTES: ["application/octet-stream"],
}
WORDS = {
    304: "It has the etag that the caller knows.",
    400: "The request cannot be right.",
    401: "No credentials, or wrong ones.",
    403: "Not allowed.",
    404: "Not there.",
    409: "There already, or changed by somebody else.",
    410: "It was there, and is not any more.",
    412: "The condition does not hold.",
    413: "Too large.",
    416: "The object has no such bytes.",
    503: "Not now: try again.",
}
BINARY = {"type": "string", "format": "binary"}


def document(operations: Iterable[Operation], base: str) -> bytes:
    operations = tuple(operations)
    kinds = [Error, *(kind for operation in operations for kind in _kinds(operation))]
    schemas, components = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    by_kind = dict(zip(map(repr, kinds), schemas, strict=True))
    found: dict[str, dict[str, Any]] = {}
    for operation in operations:
        found.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation, by_kind, components)
    return msgspec.json.encode(
        {
            "openapi": "3.1.0",
            "info": {"title": TITLE, "version": "1"},
            "servers": [{"url": base}],
            "security": [{"basic": []}, {"bearer": []}],
            "paths": found,
            "components": {
                "schemas": components,
                "securitySchemes": {
                    "basic": {"type": "http", "scheme": "basic"},
                    "bearer": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"},
                },
            },
        }
    )


def _kinds(operation: Operation) -> list[Any]:
    body = [] if operation.body is None or isinstance(operation.body, Raw) else [operation.body]
    answer = [] if operation.answer is None or isinstance(operation.answer, str) else [operation.answer]
    return [operation.query, *body, *answer]


def _operation(operation: Operation, schemas: dict[str, Any], components: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "operationId": operation.name,
        "parameters": [*_path_parameters(operation.path), *_query_parameters(operation.query, schemas, components)],
        "responses": _responses(operation, schemas),
    }
    if operation.action is Open.TO_ALL:
        found["security"] = []
    if isinstance(operation.body, Raw):
        found["requestBody"] = {
            "required": False,
            "content": {kind: {"schema": BINARY} for kind in RAW[operation.body]},
        }
    elif operation.body is not None:
        content = {"application/json": {"schema": schemas[repr(operation.body)]}}
        found["requestBody"] = {"required": not operation.optional_body, "content": content}
        found["description"] = f"The body has up to {JSON_BYTES_MAX} bytes."
    return found


def _path_parameters(path: str) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in re.findall(r"\{(\w+)\}", path)
    ]


def _query_parameters(
    kind: type[msgspec.Struct], schemas: dict[str, Any], components: dict[str, Any]
) -> list[dict[str, Any]]:
    if kind is NoQuery:
        return []
    schema = components[schemas[repr(kind)]["$ref"].rpartition("/")[2]]
    required = schema.get("required", [])
    return [
        {"name": name, "in": "query", "required": name in required, "schema": inner}
        for name, inner in schema["properties"].items()
    ]


def _responses(operation: Operation, schemas: dict[str, Any]) -> dict[str, Any]:
    error = {"application/json": {"schema": schemas[repr(Error)]}}
    found: dict[str, Any] = {str(operation.status): {"description": "Done."}}
    if isinstance(operation.answer, str):
        found[str(operation.status)]["content"] = {operation.answer: {"schema": BINARY}}
    elif operation.answer is not None:
        content = {"application/json": {"schema": schemas[repr(operation.answer)]}}
        found[str(operation.status)]["content"] = content
    statuses = [*COMMON, *operation.also, *((413,) if operation.body is not None else ())]
    for status in statuses:
        if status < 400:
            content = {} if status == 304 else {"content": found[str(operation.status)].get("content", {})}
            found[str(status)] = {"description": WORDS.get(status, "A part of it."), **content}
        elif operation.method == "HEAD":
            found[str(status)] = {"description": WORDS[status]}
        else:
            found[str(status)] = {"description": WORDS[status], "content": error}
    return found
