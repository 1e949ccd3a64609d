"""stage: one Arrow table as one atomic unit, beside pyarrow alone writing the same rows to the same number of files."""

import asyncio

from benchmarks import bare, data
from benchmarks.report import Figure, at_most, figure
from benchmarks.workspace import Workspace, opened, settle, timed
from lsmfs.lsm.run import Run
from refstore.records import RunId

ROWS = 1_000_000
BAR = at_most(1.6)


async def measure(workspace: Workspace) -> list[Figure]:
    rows = data.puts(data.sequence(0, workspace.scaled(ROWS)))
    ours, theirs = [], []
    repeats = 2 * workspace.repeats
    for number in range(repeats):
        workspace.say(f"stage: {len(rows):,} rows, {number + 1} of {repeats}")
        settle()
        async with opened(workspace.folder("stage")) as repository, repository.writer("main") as writer:
            seconds, _ = await timed(writer.stage(rows))
            ours.append(seconds)
            name = (await repository.branches.read("main")).l1[-1]
            counts = [len(rows)]
            if name.startswith("u"):
                staged: Run = await repository.tables.load_run(RunId(name))
                counts = bare.counts_of(staged)
        settle()
        work = asyncio.to_thread(bare.write_files, rows, counts, workspace.folder("stage-bare"))
        theirs.append((await timed(work))[0])
    rate = len(rows) / min(ours)
    ratio = min(ours) / min(theirs)
    return [figure("stage", rate, "rows/s", len(rows) / min(theirs), ratio, BAR, "pyarrow alone, no fsync")]
