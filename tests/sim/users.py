"""Users in the simulated world: they reset, stash, revert, hard-reset and transact on the main branch, and create,
delete and restore branches of a few names, while writers, compactors, committers and mergers go on.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from lsmfs.model import Entry
from refstore.errors import AlreadyExists, Conflict, DirtyBranch, Invalid, NotFound, OutcomeUnknown, Unavailable
from tests.sim.truth import BRANCH, Content, Violation
from tests.sim.world import Client, World

REFUSED = (Unavailable, Conflict, Invalid, NotFound, AlreadyExists)
"""What a user may be told: try again, somebody was first, not now, not there, there already."""
NAMES = ["dev-0", "dev-1"]

Step = Callable[[World, Client, str], Awaitable[object]]


async def user(world: World, client: Client) -> None:
    """Of the main branch."""
    while True:
        await asyncio.sleep(world.rng.random() * 0.8)
        step = world.rng.choice([reset, hard_reset, hard_reset, stash, stash, pop, pop, pop, drop, revert, pick])
        try:
            await step(world, client, BRANCH)
        except REFUSED:
            continue


async def brancher(world: World, client: Client) -> None:
    """Of side branches, which have a few names and many lives."""
    steps: list[Step] = [create, create, delete, restore, restore, write, write, read, commit, reset, hard_reset]
    steps += [stash, pop, drop, revert]
    while True:
        await asyncio.sleep(world.rng.random() * 0.6)
        try:
            await world.rng.choice(steps)(world, client, world.rng.choice(NAMES))
        except REFUSED:
            continue


async def transactor(world: World, client: Client) -> None:
    """Whole transactions or nothing, and whoever is told which can rely on it."""
    repository, rng = client.repository, world.rng
    while True:
        await asyncio.sleep(rng.random() * 2)
        transaction = repository.transaction(BRANCH, "together")
        resets = world.truth.main.resets
        try:
            async with transaction:
                for key in rng.sample(["t/0", "t/1", "t/2", "t/3"], 2):
                    await transaction.put(key, side_entry(world))
        except OutcomeUnknown:
            continue
        except REFUSED as error:
            if published(world, transaction.branch) and world.truth.main.resets == resets:
                raise Violation(f"a transaction says that it was not done, but it was: {error!r}") from error
            continue
        if transaction.commit not in world.truth.moved:
            raise Violation(f"a transaction says that it is done as {transaction.commit}, but it is not")


def published(world: World, name: str) -> bool:
    """Whether a branch ever moved to a merge of what was committed on this one."""
    truth = world.truth
    lives = [incarnation for branch, incarnation in truth.lives if branch == name]
    made = {commit for (incarnation, _), commit in truth.committed.items() if incarnation in lives}
    return any(made & {*truth.stored.commit(each).parents[1:]} for each in truth.moved)


def side_entry(world: World) -> Entry:
    return Entry("mem://side", 0, f"u{world.next_number()}")


async def reset(world: World, client: Client, name: str) -> None:
    await client.repository.reset(name)


async def hard_reset(world: World, client: Client, name: str) -> None:
    """Back a little, or to any commit there is."""
    known = sorted({*world.truth.committed.values(), *world.truth.moved})
    ref = f"{name}~{world.rng.randrange(3)}"
    if known and world.rng.random() < 0.5:
        ref = world.rng.choice(known)
    await client.repository.hard_reset(name, ref, force=world.rng.random() < 0.7)


async def stash(world: World, client: Client, name: str) -> None:
    await client.repository.stash(name, "sim")


async def pop(world: World, client: Client, name: str) -> None:
    if await client.repository.stashes(name):
        await clean(client, name)
    await client.repository.pop_stash(name)


async def drop(world: World, client: Client, name: str) -> None:
    found = await client.repository.stashes(name)
    if found and world.rng.random() < 0.3:
        await client.repository.drop_stash(name, found[0].id)


async def revert(world: World, client: Client, name: str) -> None:
    await clean(client, name)
    await client.repository.revert(name, f"{name}~{world.rng.randrange(3)}", parent=1)


async def pick(world: World, client: Client, name: str) -> None:
    known = sorted({*world.truth.committed.values(), *world.truth.moved})
    if known:
        await clean(client, name)
        await client.repository.cherry_pick(name, world.rng.choice(known), parent=1)


async def clean(client: Client, name: str) -> None:
    """Commit what is staged, so that there is a moment in which something can be brought."""
    try:
        await client.repository.commit(name, "before")
    except Invalid:
        return


async def create(world: World, client: Client, name: str) -> None:
    await client.repository.create_branch(name, BRANCH)


async def delete(world: World, client: Client, name: str) -> None:
    await client.repository.delete_branch(name)


async def restore(world: World, client: Client, name: str) -> None:
    await client.repository.restore_branch(name)


async def write(world: World, client: Client, name: str) -> None:
    async with client.repository.writer(name) as opened:
        for _ in range(world.rng.randrange(1, 4)):
            key = f"u/{world.rng.randrange(4)}"
            if world.rng.random() < 0.3:
                await opened.delete(key)
            else:
                await opened.put(key, side_entry(world))


async def commit(world: World, client: Client, name: str) -> None:
    """Sometimes, into the main branch with it."""
    truth, client.refs.sealed = world.truth, None
    done = await client.repository.commit(name, "on the side")
    if client.refs.sealed is not None:
        truth.check_committed(client.refs.sealed, done.id)
    if world.rng.random() < 0.3:
        await client.repository.merge(name, BRANCH, fast_forward=world.rng.random() < 0.5)


async def read(world: World, client: Client, name: str) -> None:
    """What one life of the name showed, if it lived all the time."""
    truth = world.truth
    life = truth.living(name)
    began = life.version if life is not None else 0
    page = await client.repository.list(name)
    if life is not None and life is truth.living(name):
        found: Content = {key: truth.stored.value(key, entry) for key, entry in page.items}
        truth.check_read(f"list of {name!r}", found, began, life=life)


async def check_restore(world: World) -> None:
    """In perfect weather, a branch that is deleted under a writer's hands comes back with every last write."""
    writing, deleting = world.client(), world.client()
    await deleting.repository.create_branch("kept", BRANCH)
    life = world.truth.living("kept")
    assert life is not None
    task = asyncio.ensure_future(write_on(world, writing, "kept"))
    await asyncio.sleep(world.rng.random() * 0.2)
    await deleting.repository.delete_branch("kept")
    await task
    restored = await deleting.repository.restore_branch("kept")
    if world.truth.lives["kept", restored.incarnation].state != life.state:
        raise Violation(f"a branch was deleted at version {life.version}, and is restored as it was before")


async def check_stash(world: World) -> None:
    """In perfect weather, a stash does not come back while something is staged, and then lies above it: the truth
    looks at what each take does."""
    repository = world.client().repository
    await repository.create_branch("stashed", BRANCH)
    async with repository.writer("stashed") as opened:
        await opened.put("u/0", side_entry(world))
        await repository.stash("stashed", "sim")
        await opened.put("u/0", side_entry(world))
    with contextlib.suppress(DirtyBranch):
        await repository.pop_stash("stashed")
    await repository.commit("stashed", "before")
    await repository.pop_stash("stashed")


async def write_on(world: World, client: Client, name: str) -> None:
    """Until there is no such branch."""
    while True:
        try:
            await write(world, client, name)
        except (Conflict, NotFound):
            return


__all__ = ["brancher", "check_restore", "check_stash", "transactor", "user"]
