"""compact: many small tables of l1 into l2, beside polars and pyarrow reading, sorting and writing the same rows."""

import asyncio
from pathlib import Path

import numpy as np

from benchmarks import bare, data
from benchmarks.report import Figure, at_most, figure
from benchmarks.workspace import Workspace, opened, settle, timed
from compactor.executor import compact
from compactor.planner import Triggers, plan
from lsmfs import paths
from lsmfs.repository import Repository

TABLES, TABLE_ROWS = 64, 16_000
BAR = at_most(1.6)


async def measure(workspace: Workspace) -> list[Figure]:
    rows = workspace.scaled(TABLE_ROWS)
    source = workspace.folder("compact")
    workspace.say(f"compact: staging {TABLES} tables of {rows:,}")
    await _stage(source, rows)
    ours, theirs = [], []
    for number in range(workspace.repeats):
        workspace.say(f"compact: {number + 1} of {workspace.repeats}")
        folder = await workspace.copy(source)
        settle()
        async with opened(folder) as repository:
            branch = await repository.branches.read("main")
            files = [_path(folder, repository, name) for name in reversed(branch.l1)]
            work = plan(branch, 0.0, Triggers(tables_max=TABLES))
            assert work is not None
            seconds, done = await timed(compact(repository, work))
            assert done is not None, "nobody else was there to win the race"
            ours.append(seconds)
            assert done.branch.l2 is not None
            counts = bare.counts_of(await repository.tables.load_run(done.branch.l2))
        settle()
        bare_work = asyncio.to_thread(bare.read_sort_write, files, counts, workspace.folder("compact-bare"))
        theirs.append((await timed(bare_work))[0])
    count = TABLES * rows
    ratio = min(ours) / min(theirs)
    against = "polars read + sort, pyarrow write, no fsync"
    return [figure("compact", count / min(ours), "rows/s", count / min(theirs), ratio, BAR, against)]


async def _stage(folder: Path, rows: int) -> None:
    """Tables that overlap each other everywhere, and every tenth key is in two of them."""
    among = TABLES * rows * 9 // 10
    numbers = np.random.default_rng(1)
    async with opened(folder) as repository, repository.writer("main") as writer:
        for table in range(TABLES):
            chosen = np.sort(numbers.choice(among, rows, replace=False))
            await writer.stage(data.puts(chosen, table))


def _path(folder: Path, repository: Repository, name: str) -> Path:
    return folder / "objects" / paths.layer_path(repository.name, name)
