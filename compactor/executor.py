"""Carries out one plan: merge, save, and replace if the layers are still those that were read.

Any number of executors may work on one branch: `replace` lets one of them win, the others' work becomes garbage.
"""

import time
from typing import NamedTuple

from compactor.planner import Plan
from lsmfs import paths
from lsmfs.lsm.build import apply_layers
from lsmfs.lsm.run import EMPTY_RUN
from lsmfs.repository import Repository
from refstore.errors import Conflict, Corrupt, NotFound
from refstore.records import Branch, Replace, RunId


class Compacted(NamedTuple):
    branch: Branch
    tables: int
    records: int
    ranges_kept: int
    ranges_written: int
    seconds: float


async def compact(repository: Repository, plan: Plan) -> Compacted | None:
    """What was done, or None if somebody else changed the layers first."""
    started = time.perf_counter()
    tables, generation = repository.tables, plan.branch.floor
    try:
        lower = await tables.load_run(plan.l2) if plan.l2 else EMPTY_RUN
        layers = [await tables.load_run(RunId(name)) if paths.is_run(name) else name for name in reversed(plan.tables)]
        run = await apply_layers(tables, lower, layers, generation, repository.settings.shape, drop_tombstones=False)
        change = Replace(
            incarnation=plan.branch.incarnation,
            actor="compactor",
            tables=plan.tables,
            old=plan.l2,
            new=await tables.save_run(run, generation),
            generation=generation,
        )
        branch = await repository.refs.change(repository.name, plan.branch.name, change)
    except Conflict:
        return None  # the branch moved on: whoever moved it has the newer plan
    except NotFound as error:
        if await _has_moved(repository, plan.branch):
            return None
        version = plan.branch.version
        raise Corrupt(f"branch {plan.branch.name!r} at version {version} refers to it, but: {error}") from error
    repository.branches.observe(branch)
    kept = len(set(lower.files) & set(run.files))
    seconds = time.perf_counter() - started
    return Compacted(branch, len(plan.tables), run.count, kept, len(run) - kept, seconds)


async def _has_moved(repository: Repository, before: Branch) -> bool:
    """Whether the branch is gone or another one: only then may its layers be gone too."""
    try:
        now = await repository.branches.read(before.name)
    except NotFound:
        return True
    return (now.incarnation, now.version) != (before.incarnation, before.version)
