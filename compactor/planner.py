"""Which tables to merge, and when. Pure: from a branch record and what was seen of it to a plan.

A prefix of l1, the oldest tables, is merged when there are `tables_min` of them, or `bytes_min` in all, or when the
oldest has waited `age_seconds`. Age is what this daemon has seen: the time since it first saw the table at the head of
l1, on its own monotonic clock; nobody's wall clock is trusted.
"""

from dataclasses import dataclass

from lsmfs import paths
from refstore.records import Branch, RunId, TableId


@dataclass(frozen=True, slots=True)
class Triggers:
    tables_min: int = 8
    bytes_min: int = 16 * 1024 * 1024
    age_seconds: float = 60.0
    tables_max: int = 64
    """Tables merged at once; with `bytes_max` this bounds memory, since loose tables are held whole."""
    bytes_max: int = 128 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Plan:
    """Merge these tables, the oldest of l1, into that l2."""

    branch: Branch
    tables: tuple[TableId, ...]
    l2: RunId | None
    reason: str


def size_of(name: TableId) -> int:
    """Bytes held in memory while merging: a run is streamed, so it counts nothing."""
    return 0 if paths.is_run(name) else paths.parse_table(name).size_bytes


def plan(branch: Branch, waited_seconds: float, triggers: Triggers) -> Plan | None:
    """The next compaction of the branch, or None if nothing is due."""
    reason = due(branch, waited_seconds, triggers)
    return Plan(branch, batch(branch, triggers), branch.l2, reason) if reason else None


def due(branch: Branch, waited_seconds: float, triggers: Triggers) -> str | None:
    if not branch.l1:
        return None
    if len(branch.l1) >= triggers.tables_min:
        return "count"
    if sum(map(size_of, branch.l1)) >= triggers.bytes_min:
        return "bytes"
    return "age" if waited_seconds >= triggers.age_seconds else None


def batch(branch: Branch, triggers: Triggers) -> tuple[TableId, ...]:
    """The longest prefix of l1 within the bounds; at least one table, however large."""
    taken: list[TableId] = []
    size = 0
    for table in branch.l1[: triggers.tables_max]:
        size += size_of(table)
        if taken and size > triggers.bytes_max:
            break
        taken.append(table)
    return tuple(taken)
