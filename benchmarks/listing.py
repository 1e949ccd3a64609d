"""list: the first page with a delimiter above a million entries, and the same with a million staged tombstones.

The page shows directories. The base holds a million entries that stay and as many that are deleted: half of those
fill one directory that comes first, the others are the first entries of every directory on the page, so that the page
must pass all of them: one long stretch, and a thousand short ones between living keys.
"""

from pathlib import Path

import pyarrow as pa

from benchmarks import data
from benchmarks.report import Figure, at_most, figure
from benchmarks.workspace import Workspace, opened, timed
from lsmfs.lsm.listing import Page
from lsmfs.lsm.run import Run
from lsmfs.repository import Repository

ENTRIES, TOMBSTONES = 1_000_000, 1_000_000
PAGE = 1000
BAR = at_most(3)


async def measure(workspace: Workspace) -> list[Figure]:
    entries, tombstones = workspace.scaled(ENTRIES), workspace.scaled(TOMBSTONES)
    workspace.say(f"list: a base of {entries + tombstones:,}")
    base = workspace.folder("list")
    doomed = await _build(base, entries, tombstones)
    clean_folder, dirty_folder = await workspace.copy(base), await workspace.copy(base)
    async with opened(clean_folder) as clean, opened(dirty_folder) as dirty:
        async with dirty.writer("main") as writer:
            await writer.stage(data.tombstones(doomed))
        for repository in (clean, dirty):
            await _open_tables(repository)
        first_fast, first_slow = (await timed(_page(clean)))[0], (await timed(_page(dirty)))[0]
        fast, slow = [], []
        for _ in range(2 * workspace.repeats):
            fast.append((await timed(_page(clean)))[0])
            slow.append((await timed(_page(dirty)))[0])
    note = (
        f"{tombstones:,} tombstones, half in one directory, half at the head of each directory of the page; timed on "
        f"pages listed again. The very first page, when no stretch was compared before: {first_slow * 1e3:.1f} ms, "
        f"clean {first_fast * 1e3:.1f} ms, ratio {first_slow / first_fast:.1f}"
    )
    against = "the same page without tombstones"
    ratio = min(slow) / min(fast)
    return [figure("list", min(slow) * 1e3, "ms", min(fast) * 1e3, ratio, BAR, against, note)]


async def _page(repository: Repository) -> Page:
    page = await repository.list("main", "lake/", "/", "", PAGE)
    assert len(page.items) == PAGE, f"a page of {len(page.items)}"
    return page


async def _open_tables(repository: Repository) -> None:
    """Every table of the branch is in memory, and nothing of it was listed yet."""
    for layer in (await repository.view("main")).layers:
        for file in layer.files if isinstance(layer, Run) else []:
            await repository.tables.load(file)


async def _build(folder: Path, entries: int, tombstones: int) -> pa.Array:
    """Commit the base; the keys to delete."""
    folders = max(PAGE + 1, entries // 1000)
    first, heads, rest = (data.sequence(0, count) for count in (tombstones // 2, tombstones - tombstones // 2, entries))
    doomed = [data.keys_in(first * 0, "a", first), data.keys_in(1 + heads % folders, "a", heads)]
    async with opened(folder) as repository:
        async with repository.writer("main") as writer:
            for keys in (*doomed, data.keys_in(1 + rest % folders, "b", rest)):
                await writer.stage(data.puts(data.sequence(0, len(keys))).set_column(0, "key", keys))
        await repository.commit("main", "base")
    return pa.concat_arrays(doomed)
