"""One simulated history: a seed decides everything, and the same seed replays it.

1. The world begins; every actor runs in a process that now and then pauses or crashes, and then begins anew.
2. The weather calms. Requests that are still under way arrive.
3. Everything must progress: writes are acknowledged, l1 is compacted away, a commit holds what is there.

`Truth` checks its invariants after each change. The caps of the branch record are small, so that they are met.
"""

import asyncio
import contextlib
import functools
import random
from collections.abc import Coroutine, Iterator
from typing import Any

import pyarrow as pa
import pytest

from compactor.executor import compact
from compactor.planner import Triggers, plan
from lsmfs.lsm import records, table
from lsmfs.lsm.build import write_run
from lsmfs.lsm.tables import Tables
from lsmfs.objectstore.memory import MemoryStore
from lsmfs.repository import Repository
from refstore import refs
from refstore.errors import NoChanges
from tests.sim import loop
from tests.sim.actors import Actor, actors_of, put
from tests.sim.truth import BRANCH, REPOSITORY, Violation
from tests.sim.users import check_restore, check_stash
from tests.sim.world import LATE_SECONDS_MAX, PROFILES, SETTINGS, STALL_SECONDS_MAX, Client, Profile, World

STORM_SECONDS = 6.0
PROGRESS_SECONDS_MAX = 120.0  # of virtual time in perfect weather: thousands of calls
COMMITS_REBUILT = 4
LOG_MAX = 1000


def run_seed(seed: int, profile: Profile | None = None) -> World:
    """Run the history of this seed; the world at its end. Raises `Violation`."""
    rng = random.Random(seed)
    profile = profile or list(PROFILES.values())[seed % len(PROFILES)]
    world = World(rng, profile)
    with small_caps(profile):
        run_in(world, _history(world, profile))
    return world


def run_in(world: World, history: Coroutine[Any, Any, None]) -> None:
    """Run a history to its end. What was broken first is what is raised, whoever noticed something first."""
    with remembered_decoding():
        try:
            loop.run(history, world.rng)
        except Exception as error:
            raise world.truth.violation or error from None


@contextlib.contextmanager
def small_caps(profile: Profile) -> Iterator[None]:
    caps = {"L1_TABLES_MAX": profile.l1_tables_max, "SEALS_MAX": profile.seals_max, "WRITERS_MAX": profile.writers_max}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in caps.items():
            patch.setattr(refs, name, value)
        yield


@contextlib.contextmanager
def remembered_decoding() -> Iterator[None]:
    """Decoding is a pure function of bytes, and half of a history's time: every process need not do it again."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table, "decode", functools.lru_cache(maxsize=None)(table.decode))
        yield


async def _history(world: World, profile: Profile) -> None:
    await world.begin()
    world.weather.begin()
    await _storm(world, actors_of(profile))
    world.weather.calm()
    await finish(world)


async def finish(world: World) -> None:
    """In perfect weather: what is under way arrives, everything progresses, and the history is sound."""
    await asyncio.sleep(LATE_SECONDS_MAX + STALL_SECONDS_MAX)
    try:
        await asyncio.wait_for(_progress(world), PROGRESS_SECONDS_MAX)
    except TimeoutError:
        raise Violation(f"no progress within {PROGRESS_SECONDS_MAX:.0f} s after the faults ended") from None
    if world.weather.profile.users:
        await check_restore(world)
        await check_stash(world)
    if world.truth.violation:
        raise world.truth.violation
    world.truth.check_journal()
    await check_identities(world)
    await check_logs(world)


async def _storm(world: World, actors: list[Actor]) -> None:
    lives = [asyncio.ensure_future(life) for life in (_watch(world), *(_live(world, actor) for actor in actors))]
    try:
        done, _ = await asyncio.wait(lives, timeout=STORM_SECONDS, return_when=asyncio.FIRST_EXCEPTION)
        for life in done:
            life.result()  # an actor ends by an error only
    finally:
        for life in lives:
            life.cancel()
        await asyncio.gather(*lives, return_exceptions=True)


async def _watch(world: World) -> None:
    await world.truth.broken.wait()
    assert world.truth.violation is not None
    raise world.truth.violation


async def _live(world: World, actor: Actor) -> None:
    """A process that runs the actor, pauses, crashes, and begins anew."""
    while True:
        client = world.client()
        task = asyncio.ensure_future(actor(world, client))
        try:
            await _until_crash(world, client, task)
        finally:
            client.life.dead = True
            task.cancel()


async def _until_crash(world: World, client: Client, task: "asyncio.Future[None]") -> None:
    while world.rng.random() < 0.8:
        done, _ = await asyncio.wait([task], timeout=world.rng.random() * 4)
        if done:
            task.result()
        if world.rng.random() < 0.2:
            client.life.paused_until = asyncio.get_running_loop().time() + world.rng.random() * 8


async def _progress(world: World) -> None:
    repository, truth = world.client().repository, world.truth
    await _compact_all(repository)  # first: at the cap of l1 a writer waits for it
    async with repository.writer(BRANCH) as opened:
        await asyncio.gather(*(put(world, opened, f"z/{number}".encode(), False) for number in range(3)))
    await _compact_all(repository)
    with contextlib.suppress(NoChanges):
        await repository.commit(BRANCH, "the end")
    head = truth.main.record
    if head.is_dirty or truth.stored.content(head.base_commit) != truth.main.state:
        raise Violation(f"the last commit does not hold everything: {head}")


async def _compact_all(repository: Repository) -> None:
    while (work := plan(await repository.branches.read(BRANCH), 0, Triggers(tables_min=1))) is not None:
        if await compact(repository, work) is None:
            raise Violation("a compaction lost a race against nobody")


async def check_identities(world: World) -> None:
    """Every commit's metarange is the one of building the same content from nothing."""
    repository = world.client().repository
    async for identity, commit in repository.log(BRANCH, limit=COMMITS_REBUILT):
        run = await repository.tables.load_run(commit.metarange)
        parts = [await repository.tables.read(file) for file in run.files]
        rows = pa.concat_tables([records.EMPTY, *parts])
        rebuilt = await write_run(Tables(MemoryStore(), REPOSITORY, threads=False), rows, 0, SETTINGS.shape)
        if rebuilt.content_hash() != run.content_hash():
            raise Violation(f"commit {identity}: its metarange depends on its history")


async def check_logs(world: World) -> None:
    """The log of every branch, as a process that knows nothing reads it, is the chain of first parents."""
    for head in world.truth.heads():
        found = [identity async for identity, _ in world.client().repository.log(head.name, limit=LOG_MAX)]
        if found != world.truth.stored.first_parents(head.base_commit):
            raise Violation(f"the log of {head.name!r} is not its history: {found}")


__all__ = ["finish", "run_in", "run_seed"]
