"""Deleting a repository: first it is marked, so that nobody opens it; then its branches, items and objects go, and its
record last. Whoever calls this again, after a crash or at the same time, goes on with what is left."""

import asyncio
from collections.abc import Callable

import msgspec

from lsmfs.clock import Clock
from lsmfs.objectstore.store import ObjectStore
from lsmfs.policy import REPOSITORIES, Policy, RepositoryRecord, read_record
from refstore.errors import BranchReplaced, NotFound
from refstore.records import Delete
from refstore.refs import Refs
from refstore.store import Store

DELETES_AT_ONCE = 32
NAMES_AT_ONCE = 1000  # a page of a bucket
EVENTS_AT_ONCE = 1000
# Of items, each a partition `<repository>/<kind>`.
KINDS = ("tags", "clocks", "deleted", "imports", "secrets", "uploads")


async def delete_repository(
    objects: ObjectStore, store: Store, refs: Refs, name: str, clock: Clock, tell: Callable[[int], None] | None = None
) -> int:
    """How many objects went; `tell` hears of each batch. `NotFound`."""
    record, _ = await read_record(store, name)
    await Policy(store, record, clock).change(_marked)
    await _delete_branches(refs, name)
    for kind in KINDS:
        async for item in store.scan(f"{name}/{kind}"):
            await store.delete(f"{name}/{kind}", item.key)
    while events := await refs.events(name, EVENTS_AT_ONCE):
        await refs.trim(name, events)
    gone = await _delete_objects(objects, f"{name}/", tell)
    await store.delete(REPOSITORIES, name.encode())
    return gone


def _marked(record: RepositoryRecord) -> RepositoryRecord:
    return msgspec.structs.replace(record, deleting=True)


async def _delete_branches(refs: Refs, name: str) -> None:
    async for branch in refs.branches(name):
        try:
            await refs.change(name, branch.name, Delete(incarnation=branch.incarnation))
        except (NotFound, BranchReplaced):
            continue  # another one that deletes was first


async def _delete_objects(objects: ObjectStore, prefix: str, tell: Callable[[int], None] | None) -> int:
    """Until a look finds nothing: a writer may upload something before it is told that its branch is gone."""
    gone = 0
    while names := await _first_names(objects, prefix):
        for start in range(0, len(names), DELETES_AT_ONCE):
            await asyncio.gather(*(objects.delete(each) for each in names[start : start + DELETES_AT_ONCE]))
        gone += len(names)
        if tell is not None:
            tell(len(names))
    return gone


async def _first_names(objects: ObjectStore, prefix: str) -> list[str]:
    """So few that a repository of millions of objects is deleted in little memory."""
    names: list[str] = []
    async for info in objects.list(prefix):
        names.append(info.name)
        if len(names) == NAMES_AT_ONCE:
            break
    return names
