"""branch, diff, merge and contended-merge: version control costs what changed, not what is there."""

import asyncio
from pathlib import Path

import numpy as np

from benchmarks import bare, data
from benchmarks.commit import BASE
from benchmarks.report import Figure, at_most, figure
from benchmarks.workspace import Workspace, opened, settle, timed
from lsmfs import paths
from lsmfs.lsm.run import Run
from lsmfs.repository import Repository
from lsmfs.tree.diff import apart
from lsmfs.tree.diff import diff as diff_runs

DIFF_CHANGES, DIFF_SHARE = 10_000, 0.01
MERGE_CHANGES = 100_000
CONTENDERS = 8
BRANCH_BAR, DIFF_BAR, MERGE_BAR, WRITES_BAR = at_most(2), at_most(1.5), at_most(2), at_most(1)


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
            files = [folder / "objects" / paths.layer_path("bench", f) for run in apart(left, right) for f in run.files]
            theirs.append((await timed(asyncio.to_thread(bare.read_all, files)))[0])
    against = f"polars reading the {len(files)} ranges that differ"
    return [figure("diff", min(ours) * 1e3, "ms", min(theirs) * 1e3, min(ours) / min(theirs), DIFF_BAR, against)]


async def measure_merge(workspace: Workspace) -> list[Figure]:
    """Changes on both sides, spread over the whole base, without a conflict; beside the bare libraries."""
    base = workspace.scaled(BASE)
    folder = await workspace.copy(await workspace.base(base))
    count = workspace.scaled(MERGE_CHANGES)
    ours, theirs = data.spread(count, base, 0), data.spread(count, base, 1)
    async with opened(folder) as repository:
        await repository.create_branch("dev", "main")
        await _commit(repository, "main", ours, 11)
        await _commit(repository, "dev", np.setdiff1d(theirs, ours), 12)
        changes = data.puts(np.setdiff1d(theirs, ours), 12)
        into = await _run(repository, "main")
        settle()
        seconds, _ = await timed(repository.merge("dev", "main"))
    files = [folder / "objects" / paths.layer_path("bench", file) for file in into.files]
    target = workspace.folder("merge-bare")
    settle()
    work = asyncio.to_thread(bare.merge_ranges, files, bare.by_range(into, changes), target, 2)
    bare_seconds, _ = await timed(work)
    against = "polars read + join, pyarrow write of the touched ranges, no fsync"
    return [figure("merge", seconds, "s", bare_seconds, seconds / bare_seconds, MERGE_BAR, against)]


async def measure_contended(workspace: Workspace) -> list[Figure]:
    """Merges of disjoint stretches into one branch at once: how often each changed range is written."""
    base = workspace.scaled(BASE) // 10
    folder = await workspace.copy(await workspace.base(base))
    share = base // CONTENDERS
    async with opened(folder) as repository:
        for number in range(CONTENDERS):
            await repository.create_branch(f"dev-{number}", "main")
            await _commit(repository, f"dev-{number}", number * share + data.sequence(0, max(1, share // 100)), number)
        before = len(await _stored_ranges(repository))
        alone, _ = await timed(repository.merge("dev-0", "main"))
        together = asyncio.gather(*(repository.merge(f"dev-{n}", "main") for n in range(1, CONTENDERS)))
        seconds, _ = await timed(together)
        after = len(await _stored_ranges(repository))
    written = (after - before) / CONTENDERS
    note = f"{CONTENDERS - 1} merges at once took {seconds / alone:.1f} x one alone; ranges were stored by the commits"
    return [figure("contended-merge", written, "ranges", 1, written, WRITES_BAR, "one write for each merge", note)]


async def _stored_ranges(repository: Repository) -> list[str]:
    return [info.name async for info in repository.store.list(f"{repository.name}/ranges/")]


async def _commit(repository: Repository, branch: str, numbers: data.Numbers, seed: int) -> None:
    async with repository.writer(branch) as writer:
        await writer.stage(data.puts(numbers, seed))
    await repository.commit(branch, f"{len(numbers)} changes")


async def _run(repository: Repository, ref: str) -> Run:
    commit = await repository.commits.load(await repository.resolve(ref))
    return await repository.tables.load_run(commit.metarange)


async def _count(repository: Repository, left: Run, right: Run) -> int:
    return sum([len(rows) async for rows, _ in diff_runs(repository.tables, left, right)])
