"""Processes that merge into one branch at once, on local files and SQLite: all come through, no range is written twice.

Each has changed a directory of its own, and the branch has changed the same ranges meanwhile, so that every merge has a
range to write. Whoever loses a race goes on with what it has.
"""

import asyncio
import multiprocessing
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from lsmfs.installation import Configuration, Installation
from lsmfs.lsm.build import Shape
from lsmfs.lsm.run import Run
from lsmfs.model import Entry
from lsmfs.objectstore.memory import MemoryStore
from lsmfs.objectstore.store import ANYTHING, Body, Precondition, Span, Tag
from lsmfs.objectstore.wrapper import WrapperStore
from lsmfs.repository import Repository
from lsmfs.settings import Settings
from refstore.drivers.memory import MemoryRefStore
from refstore.errors import NotFound
from refstore.records import Advance, Branch, BranchChange, Move
from tests.aio import aio
from tests.lsm.support import RefWrapper, another_client, entry, memory_repository, put_all, visible

CONTENDERS, KEYS = 8, 200
SETTINGS = Settings(shape=Shape(rows_mean=16, weight_max=1 << 20))
SECONDS_MAX = 120

Content = dict[bytes, Entry]


class Told(NamedTuple):
    """What a process that merged tells."""

    commit: str
    ranges_put: list[str]
    moves_tried: int


class NamedPuts(WrapperStore):
    """A store that notes the names of ranges that are put."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.ranges: list[str] = []

    async def put(self, name: str, body: Body, expected: Precondition = ANYTHING) -> Tag:
        if "/ranges/" in name:
            self.ranges.append(name.rpartition("/")[2].removesuffix(".parquet"))
        return await self.inner.put(name, body, expected)


async def merge_at_signal(folder: Path, source: str, begin: Any) -> Told:
    async with Installation(folder, Configuration(), {}) as installation:
        store, refs = NamedPuts(installation.store), RefWrapper(installation.refs)
        async with await Repository.open(store, refs, "repo", settings=SETTINGS) as repository:
            begin.wait(SECONDS_MAX)
            commit, _ = await repository.merge(source, "main")
        return Told(commit, store.ranges, refs.calls["move"])


def contend(folder: Path, source: str, begin: Any, answers: Any) -> None:
    answers.put(asyncio.run(merge_at_signal(folder, source, begin)))


def race(folder: Path, sources: list[str]) -> list[Told]:
    context = multiprocessing.get_context("spawn")
    begin, answers = context.Barrier(len(sources)), context.Queue()
    processes = [context.Process(target=contend, args=(folder, source, begin, answers)) for source in sources]
    try:
        for process in processes:
            process.start()
        told = [answers.get(timeout=SECONDS_MAX) for _ in processes]
        for process in processes:
            process.join(SECONDS_MAX)
        return told
    finally:
        for process in processes:
            process.kill()


def keys_of(directory: int) -> list[bytes]:
    return [f"dir-{directory}/k{number:05}".encode() for number in range(KEYS)]


def two_keys(run: Run, directory: int) -> tuple[bytes, bytes]:
    """Two keys of a range that lies within a directory; neither of them ends the range."""
    names = keys_of(directory)
    for low, high in zip(run.min_keys, run.max_keys, strict=True):
        inside = [key for key in names if low <= key < high]
        if low in names and high in names and len(inside) > 1:
            return inside[0], inside[1]
    raise AssertionError("no range of a directory has three keys")


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[Repository]:
    async with Installation(folder, Configuration(), {}) as installation:
        try:
            repository = await installation.repository("repo", settings=SETTINGS)
        except NotFound:
            repository = await installation.create("repo", settings=SETTINGS)
        async with repository:
            yield repository


async def run_at(repository: Repository, ref: str) -> Run:
    commit = await repository.commits.load(await repository.resolve(ref))
    return await repository.tables.load_run(commit.metarange)


async def prepare(folder: Path) -> tuple[Content, Run]:
    """Branches that each changed a key of a directory of their own, and main, which changed another key of the same
    range. What all of it together says, and main's run."""
    content: Content = {key: entry(1) for directory in range(CONTENDERS) for key in keys_of(directory)}
    async with opened(folder) as repository:
        await put_all(repository, content)
        await repository.commit("main", "base")
        run = await run_at(repository, "main")
        pairs = [two_keys(run, directory) for directory in range(CONTENDERS)]
        for directory, (theirs, _) in enumerate(pairs):
            await repository.create_branch(f"dev-{directory}", "main")
            await put_all(repository, {theirs: entry(2)}, f"dev-{directory}")
            await repository.commit(f"dev-{directory}", "one key")
        ours = {key: entry(3) for _, key in pairs}
        await put_all(repository, ours)
        await repository.commit("main", "a key of each of their ranges")
        return content | ours | {key: entry(2) for key, _ in pairs}, await run_at(repository, "main")


def test_eight_processes_merge_at_once_and_write_each_range_once(tmp_path: Path) -> None:
    expected, before = asyncio.run(prepare(tmp_path))
    told = race(tmp_path, [f"dev-{directory}" for directory in range(CONTENDERS)])

    async def check() -> None:
        async with opened(tmp_path) as repository:
            assert await visible(repository) == expected
            merges = [item async for item in repository.log("main", limit=CONTENDERS)]
            assert {identity for identity, *_ in merges} == {each.commit for each in told}
            assert all(len(commit.parents) == 2 for _, commit, *_ in merges)
            after = await run_at(repository, "main")
        put = [name for each in told for name in each.ranges_put]
        assert len(put) == CONTENDERS
        assert set(put) == set(after.files) - set(before.files)

    asyncio.run(check())
    # Whoever loses has lost to another merge that is done then: nobody tries more often than there are merges.
    assert max(each.moves_tried for each in told) <= CONTENDERS


class Rival(RefWrapper):
    """A ref store in which somebody else commits before each of the first `times` moves and advances of a branch."""

    def __init__(self, inner: Any, times: int) -> None:
        super().__init__(inner)
        self.times = times
        self.rival: Repository | None = None

    async def change(self, repository: str, name: str, change: BranchChange) -> Branch:
        if isinstance(change, Move | Advance) and self.times and self.rival is not None:
            self.times -= 1
            await put_all(self.rival, {f"rival-{self.times}".encode(): entry(9)})
            await self.rival.commit("main", "first")
        return await super().change(repository, name, change)


@pytest.mark.parametrize("verb", ["merge", "commit"])
@aio
async def test_a_lost_race_reads_the_commits_that_came_since_and_not_the_whole_history(verb: str) -> None:
    refs, store = Rival(MemoryRefStore(), 3), NamedGets(MemoryStore())
    rival = await memory_repository(store.inner, refs.inner, SETTINGS)
    for number in range(100):
        await rival.commit("main", f"commit {number}", allow_empty=True)
    await rival.create_branch("dev", "main")
    await put_all(rival, {b"a": entry(1)}, "dev")
    await rival.commit("dev", "a change")
    await put_all(rival, {b"b": entry(1)})
    await rival.commit("main", "another")
    refs.rival = rival
    client = await Repository.open(store, refs, "repo", settings=SETTINGS, threads=False)
    if verb == "merge":
        await client.merge("dev", "main")
    else:
        await put_all(client, {b"c": entry(1)})
        await client.commit("main", "lost to the rival's")
    lost = 3 - refs.times
    assert lost
    assert len([name for name in store.names if "/commits/" in name]) <= 2 + 2 * lost
    assert {b"b", b"rival-2"} <= set(await visible(await another_client(rival)))


class NamedGets(WrapperStore):
    """A store that notes the names of what is read."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.names: list[str] = []

    async def get(self, name: str, span: Span | None = None) -> bytes:
        self.names.append(name)
        return await self.inner.get(name, span)
