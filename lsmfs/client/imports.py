"""Imports that a server does: begun by one request and asked after until they have ended.

The server reads the source, if its configuration allows that place, and commits what it imported. What is interrupted
goes on where it was when the same import is begun again.
"""

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from msgspec import Struct

from lsmfs.client.repository import RemoteRepository
from lsmfs.client.transport import path_of
from lsmfs.model import check_branch_name
from refstore.errors import Unavailable

LOOK_SECONDS = 0.2
LOOK_SECONDS_MAX = 2.0


class RemoteImported(NamedTuple):
    """How many objects, and the commit that has them; none if they were there already."""

    objects: int
    commit: str | None


class _Started(Struct):
    id: str


class _Commit(Struct):
    id: str


class _Error(Struct):
    message: str


class _Status(Struct):
    completed: bool
    ingested_objects: int
    commit: _Commit | None = None
    error: _Error | None = None


async def import_objects(
    repository: RemoteRepository,
    url: str,
    branch: str,
    prefix: str,
    message: str,
    metadata: dict[str, str] | None = None,
    tell: Callable[[int], None] | None = None,
) -> RemoteImported:
    """Import what is below a URL, as one unit, and commit it. `tell` is told of objects so far. If this call is
    cancelled, so is the import."""
    path = f"/repositories{path_of(repository.name)}/branches{path_of(check_branch_name(branch))}/import"
    location = {"type": "common_prefix", "path": url, "destination": prefix}
    body = {"paths": [location], "commit": {"message": message, "metadata": metadata}}
    started = await repository.transport.change("POST", path, _Started, body=body)
    try:
        return await _ended(repository, path, started.id, tell)
    except asyncio.CancelledError:
        await repository.transport.change("DELETE", path, type(None), {"id": started.id})
        raise


async def _ended(
    repository: RemoteRepository, path: str, identity: str, tell: Callable[[int], None] | None
) -> RemoteImported:
    seconds = LOOK_SECONDS
    while True:
        status = await repository.transport.read(path, _Status, {"id": identity})
        if tell is not None:
            tell(status.ingested_objects)
        if status.error is not None:
            raise Unavailable(f"the import failed on the server: {status.error.message}")
        if status.completed:
            return RemoteImported(status.ingested_objects, None if status.commit is None else status.commit.id)
        await asyncio.sleep(seconds)
        seconds = min(LOOK_SECONDS_MAX, seconds * 1.5)
