"""commit, commit-scaling and memory: what a commit costs, by the changes it holds and not by the base it stands on.

The commit of a million changes runs in a fresh child process (`benchmarks.child`), which reports its own time and
its own peak of resident memory; `commit` and `memory` are two figures of those runs.
"""

import asyncio
import json
import os
import sys
from pathlib import Path

import msgspec
import numpy as np

from benchmarks import bare, data
from benchmarks.report import Figure, at_most, figure
from benchmarks.workspace import Workspace, opened, settle, timed
from lsmfs import paths
from refstore.records import RunId

BASE, SMALL_BASE = 10_000_000, 1_000_000
CHANGES, UNITS = 1_000_000, 10
ADJACENT = 1000
COMMIT_BAR, SCALING_BAR = at_most(2), at_most(1.3)
RATE_WANTED = 500_000  # changes a second that meet the bar too, whatever the bare libraries do
MEMORY_BAR = at_most(1.5)
GIB = 1024**3


async def measure_commit(workspace: Workspace) -> list[Figure]:
    """Changes spread over the whole base, staged as units that overlap each other: every range is touched."""
    source = await _staged(workspace)
    ours, theirs = [], []
    for number in range(min(2, workspace.repeats)):
        workspace.say(f"commit: {number + 1} of {min(2, workspace.repeats)}")
        ours.append((await _commit_in_child(workspace, source))[0])
        workspace.say("commit: the bare libraries")
        theirs.append(await _bare_seconds(workspace, source))
    changes = workspace.scaled(CHANGES)
    rate, bare_rate = changes / min(ours), changes / min(theirs)
    against = "polars read + merge, pyarrow write of the touched ranges, no fsync"
    note = f"{RATE_WANTED:,} changes/s would meet the bar too; the base has {workspace.scaled(BASE):,} rows"
    row = figure("commit", rate, "changes/s", bare_rate, min(ours) / min(theirs), COMMIT_BAR, against, note)
    return [msgspec.structs.replace(row, met=row.met or rate >= RATE_WANTED)]


async def measure_memory(workspace: Workspace) -> list[Figure]:
    source = await _staged(workspace)
    workspace.say("memory: a commit in a fresh process")
    _, peak, idle = await _commit_in_child(workspace, source)
    note = "resident, mapped files included; the baseline is the same process before it commits"
    return [figure("memory", peak / GIB, "GiB", idle / GIB, peak / GIB, MEMORY_BAR, "before the commit", note)]


async def measure_scaling(workspace: Workspace) -> list[Figure]:
    small, large = workspace.scaled(SMALL_BASE), workspace.scaled(BASE)
    workspace.say("commit-scaling")
    folders = {rows: await workspace.copy(await workspace.base(rows)) for rows in (small, large)}
    seconds: dict[int, list[float]] = {small: [], large: []}
    for number in range(3 * workspace.repeats):
        for rows, folder in folders.items():
            seconds[rows].append(await _commit_adjacent(folder, rows // 2, number, workspace.scaled(ADJACENT)))
    fast, slow = (float(np.median(seconds[rows])) for rows in (small, large))
    against = f"the same on a base of {small:,}"
    return [figure("commit-scaling", slow * 1e3, "ms", fast * 1e3, slow / fast, SCALING_BAR, against)]


async def _commit_adjacent(folder: Path, middle: int, number: int, count: int) -> float:
    """Seconds to commit neighbours in the middle of the base, at a different place each time."""
    first = middle + number * count
    changes = data.puts(data.sequence(first, first + count), seed=1000 + number)
    async with opened(folder) as repository:
        async with repository.writer("main") as writer:
            await writer.stage(changes)
        await repository.list("main", limit=1)  # the branch is in use: its metarange is known
        settle()
        return (await timed(repository.commit("main", "neighbours")))[0]


async def _staged(workspace: Workspace) -> Path:
    """The large base with the changes staged above it; made once."""
    folder = workspace.root / "staged"
    if folder.exists():
        return folder
    base = workspace.scaled(BASE)
    copy = await workspace.copy(await workspace.base(base))
    workspace.say("commit: staging the changes")
    share = workspace.scaled(CHANGES) // UNITS
    async with opened(copy) as repository, repository.writer("main") as writer:
        for unit in range(UNITS):
            await writer.stage(data.puts(data.spread(share, base, unit), 100 + unit))
    copy.rename(folder)
    return folder


async def _commit_in_child(workspace: Workspace, source: Path) -> tuple[float, int, int]:
    """Seconds, bytes resident at the peak, and before the commit."""
    folder = await workspace.copy(source)
    settle()
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "benchmarks.child",
        str(folder),
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,  # Ctrl-C is for us; the child is ended below
    )
    try:
        output, _ = await child.communicate()
    except BaseException:
        child.kill()
        await child.wait()
        raise
    if child.returncode:
        raise RuntimeError(f"the child that commits ended with {child.returncode}")
    answer = json.loads(output)
    return answer["seconds"], answer["peak_bytes"], answer["idle_bytes"]


async def _bare_seconds(workspace: Workspace, source: Path) -> float:
    """Read, merge and write every touched range with polars and pyarrow, on all processors. Finding out which changes
    belong to which range is not counted."""
    async with opened(source) as repository:
        branch = await repository.branches.read("main")
        commit = await repository.commits.load(branch.base_commit)
        base = await repository.tables.load_run(commit.metarange)
        units = [await repository.tables.load_run(RunId(name)) for name in branch.l1 if paths.is_run(name)]
    names = [name for name in branch.l1 if not paths.is_run(name)] + [file for unit in units for file in unit.files]
    merged = bare.read_all([_path(source, name) for name in names])
    changes = bare.by_range(base, merged)
    files = [_path(source, file) for file in base.files]
    folder = workspace.folder("commit-bare")
    settle()
    work = asyncio.to_thread(bare.merge_ranges, files, changes, folder, os.cpu_count() or 1)
    return (await timed(work))[0]


def _path(folder: Path, name: str) -> Path:
    return folder / "objects" / paths.layer_path("bench", name)
