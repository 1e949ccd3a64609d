"""branch, diff, merge, contended-merge and log: version control costs what changed, not what is there.

Contended merges are made by processes of their own, which are clients that share nothing but the stores.
"""

import asyncio
import multiprocessing
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks import bare, data
from benchmarks.commit import BASE
from benchmarks.report import Figure, at_most, figure
from benchmarks.workspace import REPOSITORY, Workspace, opened, settle, timed
from lsmfs import paths
from lsmfs.installation import Configuration, Installation
from lsmfs.lsm.run import Run
from lsmfs.lsm.sections import sections
from lsmfs.objectstore.counting import CountingStore
from lsmfs.objectstore.store import ANYTHING, Body, Precondition, Tag
from lsmfs.objectstore.wrapper import WrapperStore
from lsmfs.repository import Repository
from lsmfs.tree.diff import apart
from lsmfs.tree.diff import diff as diff_runs

DIFF_CHANGES, DIFF_SHARE = 10_000, 0.01
MERGE_CHANGES = 100_000
CONTENDERS, CONTENDER_CHANGES = 8, 6_250
COMMITS = 1000
BRANCH_BAR, DIFF_BAR, MERGE_BAR = at_most(2), at_most(1.5), at_most(2)
CONTENDED_BAR, WRITES_BAR = at_most(3), at_most(1)
LOG_BAR = at_most(0.01)  # a scan and a few reads, whatever the number of commits
SECONDS_MAX = 600  # that a contender may take before it is given up


async def measure_branch(workspace: Workspace) -> list[Figure]:
    """A new branch of a large repository, beside one of an empty repository."""
    large = await workspace.copy(await workspace.base(workspace.scaled(BASE)))
    seconds = [await _create_branches(folder, 20 * workspace.repeats) for folder in (workspace.folder("empty"), large)]
    empty, full = seconds
    against = "the same in an empty repository"
    return [figure("branch", full * 1e3, "ms", empty * 1e3, full / empty, BRANCH_BAR, against)]


async def _create_branches(folder: Path, count: int) -> float:
    """The median of seconds for one."""
    async with opened(folder) as repository:
        await repository.list("main", limit=1)
        each = [(await timed(repository.create_branch(f"branch-{number}", "main")))[0] for number in range(count)]
    return float(np.median(each))


async def measure_diff(workspace: Workspace) -> list[Figure]:
    """Changes in one stretch of a hundredth of the keys, beside reading the ranges that differ."""
    base = workspace.scaled(BASE)
    folder = await workspace.copy(await workspace.base(base))
    stretch = max(1, int(base * DIFF_SHARE))
    numbers = base // 2 + data.spread(min(workspace.scaled(DIFF_CHANGES), stretch), stretch, 0)
    async with opened(folder) as repository:
        await _commit(repository, "main", numbers, 7)
        left, right = [await _run(repository, ref) for ref in ("main~", "main")]
        ours, theirs = [], []
        for _ in range(workspace.repeats):
            ours.append((await timed(_count(repository, left, right)))[0])
            files = [_path(folder, file) for run in apart(left, right) for file in run.files]
            theirs.append((await timed(asyncio.to_thread(bare.read_all, files)))[0])
    against = f"polars reading the {len(files)} ranges that differ"
    return [figure("diff", min(ours) * 1e3, "ms", min(theirs) * 1e3, min(ours) / min(theirs), DIFF_BAR, against)]


async def measure_merge(workspace: Workspace) -> list[Figure]:
    """Changes on both sides, spread over the whole base, without a conflict; beside the bare libraries."""
    source, changes = await _two_sides(workspace)
    ours, theirs, less = [], [], []
    for number in range(min(2, workspace.repeats)):
        workspace.say(f"merge: {number + 1} of {min(2, workspace.repeats)}")
        folder = await workspace.copy(source)
        async with opened(folder) as repository:
            runs = [await _run(repository, ref) for ref in ("main~", "dev", "main")]
            settle()
            ours.append((await timed(repository.merge("dev", "main")))[0])
        workspace.say("merge: the bare libraries")
        theirs.append(await _bare_merge(workspace, folder, runs))
        less.append(await _bare_update(workspace, folder, runs[2], changes))
    against = "polars read of the three sides + joins, pyarrow write of the touched ranges, no fsync"
    note = (
        f"{min(ours) / min(less):.2f} x reading and writing the destination alone ({min(less):.1f} s), with the "
        "changes given; the engine also looks for conflicts and removals, hashes, verifies and fsyncs"
    )
    return [figure("merge", min(ours), "s", min(theirs), min(ours) / min(theirs), MERGE_BAR, against, note)]


async def _two_sides(workspace: Workspace) -> tuple[Path, Any]:
    """A repository whose branches main and dev both moved, and what dev changed."""
    base = workspace.scaled(BASE)
    folder = await workspace.copy(await workspace.base(base))
    count = workspace.scaled(MERGE_CHANGES)
    ours = data.spread(count, base, 0)
    theirs = np.setdiff1d(data.spread(count, base, 1), ours)
    async with opened(folder) as repository:
        await repository.create_branch("dev", "main")
        await _commit(repository, "main", ours, 11)
        await _commit(repository, "dev", theirs, 12)
    return folder, data.puts(theirs, 12)


async def _bare_merge(workspace: Workspace, folder: Path, runs: Sequence[Run]) -> float:
    at = np.stack(sections(*runs), axis=1).tolist()
    files = [[_path(folder, file) for file in run.files] for run in runs]
    work = [
        [names[start:stop] for names, start, stop in zip(files, starts, stops, strict=True)]
        for starts, stops in pairwise(at)
    ]
    target = workspace.folder("merge-bare")
    settle()
    return (await timed(asyncio.to_thread(bare.merge_three_ways, work, target, _processors())))[0]


async def _bare_update(workspace: Workspace, folder: Path, into: Run, changes: Any) -> float:
    files = [_path(folder, file) for file in into.files]
    target = workspace.folder("update-bare")
    settle()
    by_range = bare.by_range(into, changes)
    return (await timed(asyncio.to_thread(bare.merge_ranges, files, by_range, target, _processors())))[0]


class Contender(NamedTuple):
    """What one process that merged tells: when by the clock, how long it computed, how many ranges it put, and
    how often it tried to move the branch."""

    started: float
    ended: float
    processor: float
    ranges_put: int
    tries: int


async def measure_contended(workspace: Workspace) -> list[Figure]:
    """Merges of disjoint directories into one branch at once, which has changed the same ranges elsewhere: each merge
    has ranges of its own to read and write, and nobody else's."""
    source = await _contended(workspace)
    names = [f"dev-{number}" for number in range(CONTENDERS)]
    workspace.say("contended-merge: each alone")
    singles = [contender for name in names for contender in await _race(workspace, source, [name])]
    alone = float(np.mean([_span([contender]) for contender in singles]))
    together, tries, written, needed = [], 0, 0, 0
    for number in range(min(3, workspace.repeats)):
        workspace.say(f"contended-merge: {number + 1} of {min(3, workspace.repeats)}")
        folder = await workspace.copy(source)
        contenders = await _race_in(folder, names)
        together.append(_span(contenders))
        tries = max(tries, sum(contender.tries for contender in contenders))
        written += sum(contender.ranges_put for contender in contenders)
        needed += await _ranges_made(folder, names)
    seconds = float(np.median(together))
    processors = min(CONTENDERS, _processors())
    floor = float(np.mean([contender.processor for contender in singles])) * CONTENDERS / processors / alone
    against = f"one merge alone; {CONTENDERS} at once, each by a process of its own"
    note = (
        f"{seconds / alone / CONTENDERS:.2f} x one alone for each. One alone is {alone * 1e3:.0f} ms, of which its "
        f"process computes so much that {CONTENDERS} of them keep {processors} processors busy for {floor:.1f} x one "
        f"alone, even if none waits or tries again. They tried {tries} times at most to move the branch"
    )
    against_writes = "ranges of the result that no branch had before"
    return [
        figure("contended-merge", seconds, "s", alone, seconds / alone, CONTENDED_BAR, against, note),
        figure("contended-writes", written, "ranges", needed, written / max(1, needed), WRITES_BAR, against_writes),
    ]


async def _contended(workspace: Workspace) -> Path:
    """Branches that each changed a directory of their own, and main, which changed the keys in between."""
    base = workspace.scaled(BASE)
    folder = await workspace.copy(await workspace.base(base))
    share, count = base // CONTENDERS, workspace.scaled(CONTENDER_CHANGES)
    middle = share // 4
    stretches = [number * share + middle + data.sequence(0, 2 * count, 2) for number in range(CONTENDERS)]
    async with opened(folder) as repository:
        for number, stretch in enumerate(stretches):
            await repository.create_branch(f"dev-{number}", "main")
            await _commit(repository, f"dev-{number}", stretch, number)
        await _commit(repository, "main", np.concatenate(stretches) + 1, 99)
    return folder


async def _race(workspace: Workspace, source: Path, names: Sequence[str]) -> list[Contender]:
    return await _race_in(await workspace.copy(source), names)


async def _race_in(folder: Path, names: Sequence[str]) -> list[Contender]:
    """A process for each of the branches; all begin to merge into main at once."""
    settle()
    return await asyncio.to_thread(_contend, folder, names)


def _contend(folder: Path, names: Sequence[str]) -> list[Contender]:
    context = multiprocessing.get_context("spawn")
    begin, answers = context.Barrier(len(names)), context.Queue()
    processes = [context.Process(target=_merge_in_process, args=(folder, name, begin, answers)) for name in names]
    try:
        for process in processes:
            process.start()
        return [answers.get(timeout=SECONDS_MAX) for _ in names]
    finally:
        for process in processes:
            process.join(timeout=10)
            if process.is_alive():
                process.kill()


def _merge_in_process(folder: Path, name: str, begin: Any, answers: Any) -> None:
    answers.put(asyncio.run(_merge_at_signal(folder, name, begin.wait)))


async def _merge_at_signal(folder: Path, name: str, wait: Callable[[], object]) -> Contender:
    async with Installation(folder, Configuration(), {}) as installation:
        store, refs = RangePuts(installation.store), CountedRefs(installation.refs)
        async with await Repository.open(store, refs, REPOSITORY) as repository:
            await repository.list("main", limit=1)  # a client that is in use, as servers are
            store.count = 0
            wait()
            started, computed = time.perf_counter(), time.process_time()
            await repository.merge(name, "main")
            ended, computed = time.perf_counter(), time.process_time() - computed
            return Contender(started, ended, computed, store.count, refs.calls["change"])


class RangePuts(WrapperStore):
    """A store that counts the puts of ranges."""

    count = 0

    async def put(self, name: str, body: Body, expected: Precondition = ANYTHING) -> Tag:
        self.count += name.startswith(f"{REPOSITORY}/ranges/")
        return await self.inner.put(name, body, expected)


def _span(contenders: Sequence[Contender]) -> float:
    """Seconds from the first beginning to the last end."""
    return max(c.ended for c in contenders) - min(c.started for c in contenders)


async def _ranges_made(folder: Path, names: Sequence[str]) -> int:
    """Ranges of main that neither it nor a branch had before the merges."""
    async with opened(folder) as repository:
        before = [await _run(repository, ref) for ref in (*names, f"main~{len(names)}")]
        after = await _run(repository, "main")
    return len(set(after.files) - {file for run in before for file in run.files})


async def measure_log(workspace: Workspace) -> list[Figure]:
    """The log of many commits by a client that has seen none of them: what it asks of the stores, counted."""
    commits = workspace.scaled(COMMITS)
    folder = workspace.folder("log")
    workspace.say(f"log: making {commits:,} commits")
    async with opened(folder) as repository:
        for number in range(commits):
            await repository.commit("main", f"commit {number}", allow_empty=True)
    async with Installation(folder, Configuration(), {}) as installation:
        store, refs = CountingStore(installation.store), CountedRefs(installation.refs)
        async with await Repository.open(store, refs, REPOSITORY) as repository:
            refs.calls.clear()
            seconds, identities = await timed(_log(repository, commits))
            requests = sum(refs.calls.values()) + sum(count.calls for count in store.snapshot().values())
            scans, gets = refs.calls["scan"], store.calls("get")
    async with opened(folder) as repository:
        bare_seconds, _ = await timed(_load_each(repository, identities))
    against = "a request for each commit"
    note = (
        f"{seconds * 1e3:.0f} ms for {len(identities):,} commits with {scans} scans of the ref store and {gets} gets; "
        f"reading the commits one by one takes {bare_seconds * 1e3:.0f} ms"
    )
    return [figure("log", requests, "requests", commits, requests / commits, LOG_BAR, against, note)]


async def _log(repository: Repository, limit: int) -> list[Any]:
    return [identity async for identity, *_ in repository.log("main", limit=limit)]


async def _load_each(repository: Repository, identities: Sequence[Any]) -> None:
    for identity in identities:
        await repository.commits.load(identity)


class CountedRefs:
    """A ref store that counts what is asked of another, by verb. A scan is one, however long it is."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.calls: Counter[str] = Counter()

    def __getattr__(self, verb: str) -> Any:
        self.calls[verb] += 1
        return getattr(self._inner, verb)


def _processors() -> int:
    return os.cpu_count() or 1


def _path(folder: Path, name: str) -> Path:
    return folder / "objects" / paths.layer_path(REPOSITORY, name)


async def _commit(repository: Repository, branch: str, numbers: data.Numbers, seed: int) -> None:
    async with repository.writer(branch) as writer:
        await writer.stage(data.puts(numbers, seed))
    await repository.commit(branch, f"{len(numbers)} changes")


async def _run(repository: Repository, ref: str) -> Run:
    commit = await repository.commits.load(await repository.resolve(ref))
    return await repository.tables.load_run(commit.metarange)


async def _count(repository: Repository, left: Run, right: Run) -> int:
    return sum([len(rows) async for rows, _ in diff_runs(repository.tables, left, right)])
