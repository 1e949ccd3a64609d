"""Who lives in the simulated world: writers, compactors, committers, readers and a collector, all production code.

An actor is a coroutine over one `Client`. It takes its time, does its part, and tells `Truth` what it began and what
was answered. Errors of the documented kinds end an operation; anything else ends the simulation.
"""

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable

import pyarrow as pa

from compactor.executor import compact
from compactor.planner import Triggers, plan
from lsmfs import paths
from lsmfs.lsm.writer import Writer
from lsmfs.model import Entry
from refstore.errors import Conflict, DirtyBranch, Invalid, NoChanges, NotFound, Unavailable
from refstore.records import Branch, RaiseFloor
from refstore.store import ABSENT, Absent
from tests.sim import users
from tests.sim.stored import GROWN
from tests.sim.truth import BRANCH, REPOSITORY, Content, Operation, Violation
from tests.sim.world import Client, Profile, World

Actor = Callable[[World, Client], Awaitable[None]]

KEYS = [f"{folder}/{number}".encode() for folder in "ab" for number in range(5)]
SWAPPED_KEYS = [b"c/0", b"c/1"]  # written under a condition only: a chain of values, each expecting the one before
GROWN_KEYS = [GROWN + b"0", GROWN + b"1"]  # appended to, and now and then deleted
GARBAGE_AGE = 2  # generations


async def writer(world: World, client: Client) -> None:
    """A few writers one after the other, each with several operations under way at once."""
    while True:
        try:
            async with client.repository.writer(BRANCH) as opened:
                count = world.weather.profile.operations
                tasks = [asyncio.ensure_future(_write(world, opened, number)) for number in range(count)]
                await asyncio.gather(*tasks)
        except Unavailable:
            pass
        await _pause(world.rng)


async def _write(world: World, opened: Writer, number: int) -> None:
    rng = world.rng
    await asyncio.sleep(rng.random() * world.weather.profile.spread_seconds)
    weights = (6, 3, 3, 1, 4 * world.weather.profile.users)
    kind = rng.choices(["put", "delete", "swap", "unit", "grow"], weights)[0]
    try:
        if kind == "unit":
            await _stage(world, opened)
        elif kind == "swap":
            await _swap(world, opened)
        elif kind == "grow":
            await _grow(world, opened)
        else:
            fresh = kind == "put" and rng.random() < 0.2  # beyond the last key: the last range is the open one
            key = f"d/{number}-{world.truth.version:04}".encode() if fresh else rng.choice(KEYS)
            await put(world, opened, key, kind == "delete")
    except (Unavailable, Conflict):
        return  # not acknowledged: it may or may not be there


def _begin(world: World, opened: Writer, key: bytes, delete: bool, expected: str | Absent | None = None) -> Operation:
    """The number is given just before the writer takes the operation, so numbers are in the writer's order."""
    number = world.next_number()
    etag = None if delete else f"v{number}"
    operation = Operation(opened.session, number, key, etag, expected, world.truth.version)
    world.truth.begin(operation)
    return operation


def _entry(operation: Operation) -> Entry:
    return Entry(f"mem://{operation.etag}", operation.number, operation.etag or "")


async def put(world: World, opened: Writer, key: bytes, delete: bool) -> None:
    operation = _begin(world, opened, key, delete)
    if delete:
        await opened.delete(key)
    else:
        await opened.put(key, _entry(operation))
    world.truth.acknowledge(operation)


async def _swap(world: World, opened: Writer) -> None:
    key = world.rng.choice(SWAPPED_KEYS)
    expected = world.truth.main.state.get(key) or ABSENT
    operation = _begin(world, opened, key, False, expected)
    await opened.put(key, _entry(operation), expected)
    world.truth.acknowledge(operation)


async def _grow(world: World, opened: Writer) -> None:
    key, delete = world.rng.choice(GROWN_KEYS), world.rng.random() < 0.2
    operation = _begin(world, opened, key, delete)
    if delete:
        await opened.delete(key)
    else:
        await opened.append(key, f"{operation.etag};".encode())
    world.truth.acknowledge(operation)


async def _stage(world: World, opened: Writer) -> None:
    """An atomic unit: `Truth` compares whole states, so half of it would be seen."""
    keys = sorted(world.rng.sample(KEYS, world.rng.randrange(2, 7)))
    operations = [_begin(world, opened, key, False) for key in keys]
    rows = {
        "key": [operation.key.decode() for operation in operations],
        "address": [f"mem://{operation.etag}" for operation in operations],
        "etag": [operation.etag for operation in operations],
    }
    await opened.stage(pa.table(rows))
    for operation in operations:
        world.truth.acknowledge(operation)


async def compactor(world: World, client: Client) -> None:
    repository = client.repository
    while True:
        await _pause(world.rng)
        try:
            branch = await repository.refs.read(REPOSITORY, BRANCH)
            await client.life.breathe()
            work = plan(branch, 0, Triggers(tables_min=1, tables_max=world.rng.randrange(1, 6)))
            if work is not None:
                await compact(repository, work)
        except Unavailable:
            continue


async def committer(world: World, client: Client) -> None:
    truth, stored = world.truth, world.truth.stored
    while True:
        await _pause(world.rng)
        began, takes, client.refs.sealed = truth.version, truth.main.takes, None
        try:
            done = await client.repository.commit(BRANCH, "sim", allow_empty=world.rng.random() < 0.1)
            content = stored.layer(done.commit.metarange)
            if client.refs.sealed is not None:
                truth.check_committed(client.refs.sealed, done.id)
        except NoChanges:
            if truth.main.takes > takes:
                continue  # an old seal that came back may have been committed alone, by whoever made it
            content = stored.content(truth.main.record.base_commit)
        except (Unavailable, Conflict):
            continue
        truth.check_read("commit", content, began)


async def merger(world: World, client: Client) -> None:
    """Branches off, changes its own folder there, and merges back. The destination is often dirty, so it commits."""
    repository, rng = client.repository, world.rng
    while True:
        await _pause(rng)
        name = f"side-{world.next_number()}"
        try:
            await repository.create_branch(name, BRANCH)
            async with repository.writer(name) as opened:
                for _ in range(rng.randrange(1, 4)):
                    key = f"{rng.choice('ms')}/{rng.randrange(4)}"
                    await opened.put(key, Entry("mem://side", 0, f"{name}-{world.next_number()}"))
            await repository.commit(name, "on the side")
            for _ in range(3):
                await _merge(world, client, name)
        except (Unavailable, Conflict, Invalid):
            continue  # also a conflict of contents: two mergers share the folder


async def _merge(world: World, client: Client, name: str) -> None:
    try:
        await client.repository.merge(name, BRANCH, fast_forward=world.rng.random() < 0.5)
    except DirtyBranch:
        with contextlib.suppress(NoChanges):
            await client.repository.commit(BRANCH, "before the merge")


async def reader(world: World, client: Client) -> None:
    """Several readers in one process, so that they share lookups."""
    readers = [asyncio.ensure_future(_read(world, client)) for _ in range(3)]
    try:
        await asyncio.gather(*readers)
    finally:
        for task in readers:
            task.cancel()


async def _read(world: World, client: Client) -> None:
    repository, rng, truth = client.repository, world.rng, world.truth
    newest = 0
    while True:
        await asyncio.sleep(rng.random() * 1.0)
        began = truth.version
        try:
            key = rng.choice(KEYS + SWAPPED_KEYS + GROWN_KEYS)
            truth.check_read("get", await _get(world, client, key), began, key)
            began = truth.version
            prefix = rng.choice(["", "a/", "b/"])
            page = await repository.list(BRANCH, prefix)
            found: Content = {key: truth.stored.value(key, entry) for key, entry in page.items}
            truth.check_read("list", found, began, prefix.encode())
            seen = await repository.branches.read(BRANCH)
        except Unavailable:
            continue
        if seen.version < newest:
            raise Violation(f"a reader saw version {seen.version} after {newest}")
        newest = seen.version


async def _get(world: World, client: Client, key: bytes) -> Content:
    try:
        return {key: world.truth.stored.value(key, await client.repository.get(BRANCH, key))}
    except NotFound:
        return {}


async def collector(world: World, client: Client) -> None:
    """A small garbage collector of one branch's tables: raise the floor, and with the answer's live set in hand delete
    what is unreferenced and two generations behind."""
    repository = client.repository
    while True:
        await asyncio.sleep(0.3 + world.rng.random())
        try:
            branch = await repository.branches.read(BRANCH)
            raised = RaiseFloor(incarnation=branch.incarnation, floor=branch.floor + 1)
            await _sweep(world, client, await repository.refs.change(REPOSITORY, BRANCH, raised))
        except Unavailable:
            continue


async def _sweep(world: World, client: Client, branch: Branch) -> None:
    aside = [seal for stash in branch.aside.stashes for seal in stash.layers]
    live = {*branch.l1, *(name for seal in (*branch.sealed, *aside) for name in seal.l1)}
    folder = f"{REPOSITORY}/tables/"
    store = client.repository.store
    names = [info.name.removeprefix(folder).removesuffix(".parquet") async for info in store.list(folder)]
    for name in names:
        old = name not in live and paths.generation_of(name) <= branch.floor - GARBAGE_AGE
        if old and world.truth.stored.facts(name).get("lsmfs.branch") == BRANCH:
            await store.delete(paths.layer_path(REPOSITORY, name))


async def _pause(rng: random.Random) -> None:
    await asyncio.sleep(rng.random() * 1.5)


def actors_of(profile: Profile) -> list[Actor]:
    return [
        *[writer] * profile.writers,
        *[reader] * profile.readers,
        *[compactor] * 2,
        *[committer] * 3,
        *[merger] * profile.mergers,
        *[users.user, users.user, users.brancher, users.brancher, users.transactor] * profile.users,
        collector,
    ]
