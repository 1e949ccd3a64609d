"""The log: commits from the newest, by first parents or by all, and those alone that changed a part of the tree."""

import heapq
from collections.abc import AsyncIterator

from lsmfs.lsm.run import EMPTY_RUN, Run
from lsmfs.lsm.tables import Tables
from lsmfs.tree.commits import Commit, Commits
from lsmfs.tree.diff import diff
from refstore.errors import Corrupt, NotFound
from refstore.records import CommitId

READ_AT_ONCE = 1000  # commits: some 500 KB of the ref store

Found = tuple[CommitId, Commit]


async def history(
    commits: Commits, tip: CommitId, all_parents: bool, expected: int = READ_AT_ONCE
) -> AsyncIterator[Found]:
    """Every commit after all of its descendants; of all parents, later generations first. `expected` is how many will
    probably be wanted."""
    waiting = [await _next(commits, tip, tip, expected)]
    seen = {tip}
    while waiting:
        _, _, identity, commit = heapq.heappop(waiting)
        yield identity, commit
        for parent in commit.parents if all_parents else commit.parents[:1]:
            if parent not in seen:
                seen.add(parent)
                heapq.heappush(waiting, await _next(commits, parent, identity, expected))


async def _next(
    commits: Commits, identity: CommitId, child: CommitId, expected: int
) -> tuple[int, int, CommitId, Commit]:
    try:
        commit = await commits.load_line(identity, min(expected, READ_AT_ONCE))
    except NotFound as error:
        raise Corrupt(f"commit {identity} is gone, though {child} descends from it") from error
    return -commit.generation, -commit.created_us, identity, commit


async def between(commits: Commits, older: CommitId, newer: CommitId) -> list[Found] | None:
    """The commits after `older` up to `newer`, newest first; None if that does not descend from it by first parents."""
    found: list[Found] = []
    lowest = (await commits.load(older)).generation
    # Generations rise with every commit: after a lost race, when this is asked most often, it is one.
    expected = max(1, (await commits.load(newer)).generation - lowest)
    async for identity, commit in history(commits, newer, all_parents=False, expected=expected):
        if identity == older:
            return found
        if commit.generation <= lowest:
            return None
        found.append((identity, commit))
    return None


async def changes_part(commits: Commits, tables: Tables, commit: Commit, start: bytes, stop: bytes | None) -> bool:
    """Whether the commit changed a key from `start` on and before `stop` against its first parent. Ranges that both
    have or that lie elsewhere are not opened."""
    before = await _run(commits, tables, commit.parents[0]) if commit.parents else EMPTY_RUN
    async for _ in diff(tables, before, await tables.load_run(commit.metarange), start, stop):
        return True
    return False


async def _run(commits: Commits, tables: Tables, identity: CommitId) -> Run:
    return await tables.load_run((await commits.load(identity)).metarange)
