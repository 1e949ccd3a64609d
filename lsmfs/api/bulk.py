"""Bulk: millions of entries staged by one request as one atomic unit, and all entries of a ref in one answer.

A request's rows say where bytes are. What they may refer to: bytes of this repository, by whoever may read all of it,
since packs hold many objects; and places below `allowed_imports`. Keys are checked like those of single writes, each
one unless the caller's permissions are the same for all. Who may write below a prefix only says that prefix.
"""

import asyncio
import io
import re
import tempfile
from collections.abc import AsyncIterator, Iterable
from typing import IO, Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from lsmfs.api import places
from lsmfs.api.answers import Answer, ApiError, Stream, stream
from lsmfs.api.operations import Call, Operation, Raw
from lsmfs.api.rows import read_rows
from lsmfs.api.writes import check_writable, written
from lsmfs.auth import Action, Permission, Resource
from lsmfs.auth.permissions import Rights, covered, matcher
from lsmfs.lsm import records
from lsmfs.model import Extent
from refstore.errors import Invalid

ARROW = "application/vnd.apache.arrow.stream"
WRITE_BYTES = 1024 * 1024  # to the temporary file at once: a thread's turn costs little beside it
_UNSOUND = r"(^|/)\.\.(/|$)|[\x00-\x1f?#\\]|%2[eE]|%00"
_extents = msgspec.json.Decoder(list[Extent]).decode


class StageQuery(Struct, frozen=True):
    prefix: str = ""


class EntriesQuery(Struct, frozen=True):
    prefix: str = ""
    after: str = ""


class Staged(Struct, frozen=True):
    rows: int


async def stage(call: Call) -> Staged:
    """Rows as `lsmfs.lsm.records` says; all keys begin with `prefix`."""
    await check_writable(call, call.query.prefix or "-")
    async with call.services.bulk:
        with tempfile.TemporaryFile() as file:
            size = await _received(call, file)
            table = await asyncio.to_thread(read_rows, file, size, call.services.options.bulk_bytes_max)
        await _check(call, table)
        await written(call, lambda writer: writer.stage(table))
    return Staged(len(table))


async def _received(call: Call, file: IO[bytes]) -> int:
    held, size, limit = bytearray(), 0, call.services.options.bulk_bytes_max
    async for piece in call.stream():
        held += piece
        size += len(piece)
        if size > limit:
            raise ApiError(413, f"the body has more than {limit} bytes: send the rows in parts")
        if len(held) >= WRITE_BYTES:
            await asyncio.to_thread(file.write, bytes(held))
            held.clear()
    file.write(held)
    file.flush()
    return size


class Parts(NamedTuple):
    """What of a table is checked."""

    puts: Any
    deletions: Any
    addresses: Any


async def _check(call: Call, table: pa.Table) -> None:
    """`Invalid` or `Denied` if the caller may not stage these rows."""
    parts = await asyncio.to_thread(_parts, table, call.query.prefix)
    await _check_keys(call, Action.WRITE_OBJECT, parts.puts)
    await _check_keys(call, Action.DELETE_OBJECT, parts.deletions)
    for addresses in parts.addresses:
        await _check_addresses(call, addresses)


def _parts(table: pa.Table, prefix: str) -> Parts:
    if "key" not in table.column_names:
        raise Invalid("the table has no column 'key'")
    keys, names = table["key"], table.column_names
    if not pc.all(pc.fill_null(pc.starts_with(keys, prefix), False)).as_py():
        raise Invalid(f"not all keys begin with the prefix {prefix!r}")
    deletions, rest = keys.slice(0, 0), table
    if "kind" in names:
        is_deletion = pc.fill_null(pc.equal(table["kind"], records.TOMBSTONE), False)
        deletions, rest = keys.filter(is_deletion), table.filter(pc.invert(is_deletion))
    addresses = [rest["address"].drop_null()] if "address" in names else []
    if "extents" in names:
        addresses.append(_extent_addresses(rest["extents"].drop_null()))
    return Parts(rest["key"], deletions, addresses)


async def _check_keys(call: Call, action: Action, keys: Any) -> None:
    if not len(keys):
        return
    directory, user = call.services.directory, call.identity.user
    roles = await directory.effective_roles(await directory.user(user))
    permissions = [permission for role in roles for permission in role.permissions]
    repository, branch = call.path["repository"], call.path["branch"]
    if _same_for_all(permissions, action, repository, branch):
        await call.check(action, Resource(repository, branch, keys[0].as_py()))
        return
    rights = Rights(permissions, user)
    for chunk in keys.chunks:
        for key in chunk.to_pylist():
            if not rights.allow(action, Resource(repository, branch, key)):
                await call.check(action, Resource(repository, branch, key))
        await asyncio.sleep(0)


def _same_for_all(permissions: Iterable[Permission], action: Action, repository: str, branch: str) -> bool:
    """Whether what is allowed for one path of the branch is allowed for every one."""
    for permission in permissions:
        patterns = (permission.repositories, repository), (permission.branches, branch)
        fits = all(test is None or test(text) for test, text in ((matcher(p), text) for p, text in patterns))
        if fits and permission.paths.strip("*") and action in covered(permission):
            return False
    return True


def _extent_addresses(texts: Any) -> Any:
    found: set[str] = set()
    for text in texts.to_pylist():
        try:
            found.update(extent.address for extent in _extents(text))
        except msgspec.MsgspecError as error:
            raise Invalid(f"column 'extents': {error}") from None
    return pa.array(sorted(found), pa.string())


async def _check_addresses(call: Call, addresses: Any) -> None:
    if not len(addresses):
        return
    if not pa.types.is_string(addresses.type) and not pa.types.is_large_string(addresses.type):
        raise Invalid(f"the column of addresses is of type {addresses.type}, expected string")
    repository = call.path["repository"]
    allowed = call.services.options.allowed_imports
    if await asyncio.to_thread(_has_own, addresses, repository, allowed):
        await call.check(Action.READ_OBJECT, Resource(repository, "*", "*"))


def _has_own(addresses: Any, repository: str, allowed: tuple[str, ...]) -> bool:
    """Whether some are of the repository's own bytes; `Invalid` or `Denied` if some are neither that nor allowed."""
    is_foreign = pc.match_substring(addresses, "://")
    own = addresses.filter(pc.invert(is_foreign))
    sound = pc.match_substring_regex(own, f"^{re.escape(repository)}/data/[0-9a-zA-Z-]+$")
    if len(own) and not pc.all(sound).as_py():
        wrong = own.filter(pc.invert(sound))[0].as_py()
        raise Invalid(f"{wrong[:200]!r} is no address of this repository's data, and no URL")
    _check_foreign(addresses.filter(is_foreign), allowed)
    return len(own) > 0


def _check_foreign(addresses: Any, allowed: tuple[str, ...]) -> None:
    """In columns for buckets; one by one for what is left: files, which may be links, and what is not allowed."""
    for base in allowed:
        if not base.startswith("file://"):
            below = pc.starts_with(addresses, base.partition("?")[0].rstrip("/") + "/")
            unsound = pc.match_substring_regex(addresses, _UNSOUND)
            addresses = addresses.filter(pc.invert(pc.and_(below, pc.invert(unsound))))
    for address in addresses.to_pylist():
        places.permitted(address, allowed, "allowed_imports")


async def entries(call: Call) -> Answer | Stream:
    """Every entry of a ref, in order of the keys, as an Arrow IPC stream."""
    repository, query = await call.repository(), call.query
    tables = repository.scan(call.path["ref"], query.prefix, query.after)
    return await stream(200, [(b"content-type", ARROW.encode())], _written_stream(tables))


async def _written_stream(tables: AsyncIterator[pa.Table]) -> AsyncIterator[bytes]:
    sink = _Sink()
    rows = await anext(tables, None)  # what cannot be read is told before the stream begins
    schema = pa.schema([field for field in records.SCHEMA if field.name != "kind"])
    with pa.ipc.new_stream(pa.PythonFile(sink, "w"), schema) as writer:
        while rows is not None:
            writer.write_table(rows.select(schema.names))
            yield sink.taken()
            rows = await anext(tables, None)
    yield sink.taken()


class _Sink(io.RawIOBase):
    """A file whose bytes are taken out as they come."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        piece = bytes(data)
        self._pieces.append(piece)
        return len(piece)

    def taken(self) -> bytes:
        pieces, self._pieces = self._pieces, []
        return b"".join(pieces)


OPERATIONS = (
    # The prefix is checked before the body is taken in; keys and addresses are by the handler.
    Operation(
        "stageRows",
        "POST",
        "/repositories/{repository}/branches/{branch}/stage",
        Action.WRITE_OBJECT,
        stage,
        Staged,
        201,
        StageQuery,
        Raw.ROWS,
    ),
    Operation(
        "listEntries",
        "GET",
        "/repositories/{repository}/refs/{ref}/entries",
        Action.LIST_OBJECTS,
        entries,
        ARROW,
        query=EntriesQuery,
    ),
)
