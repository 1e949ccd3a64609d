"""Diffs as pages: from any place on, in time that depends on the page; many changes below a delimiter are one line.

A `Source` gives differences from a key on. A prefix with many changes is passed by asking the source again from beyond
it, after `SKIP_MAX` of them were read and left out.
"""

from collections.abc import AsyncIterator, Callable

from msgspec import UNSET

from lsmfs.api import wire
from lsmfs.api.paging import limit_of, listed
from lsmfs.lsm.records import beyond
from lsmfs.model import Entry
from lsmfs.repository import Repository
from lsmfs.tree.diff import Difference, differences
from lsmfs.tree.diff import diff as diff_runs
from refstore.records import CommitId

Source = Callable[[bytes], AsyncIterator[Difference]]
SKIP_MAX = 1000  # read and left out cost less than to open windows of ranges again
CONTENT_TYPE = "application/octet-stream"


def staged(repository: Repository, branch: str, prefix: str) -> Source:
    """What is staged on a branch and differs from its newest commit."""
    stop = beyond(prefix.encode())
    return lambda start: differences(repository._staged(branch, start, stop))


async def committed(repository: Repository, left: CommitId, right: CommitId, prefix: str) -> Source:
    """What differs between two commits."""
    runs = [await repository.tables.load_run((await repository.commits.load(side)).metarange) for side in (left, right)]
    stop = beyond(prefix.encode())
    return lambda start: differences(diff_runs(repository.tables, runs[0], runs[1], start, stop))


async def page(
    source: Source, prefix: str, after: str, delimiter: str, amount: int, with_right: bool = False
) -> wire.Diffs:
    limit, results = limit_of(amount), list[wire.Diff]()
    start = _start(prefix.encode(), after.encode(), delimiter.encode())
    while start is not None:
        start = await _part(source, start, prefix.encode(), delimiter.encode(), limit + 1, results, with_right)
    more = len(results) > limit
    del results[limit:]
    return listed(results, results[-1].path if more else None)


def _start(prefix: bytes, after: bytes, delimiter: bytes) -> bytes | None:
    if not after:
        return prefix
    group = _group(after, prefix, delimiter) if after.startswith(prefix) else None
    return max(prefix, after + b"\0") if group is None else beyond(group)


async def _part(
    source: Source, start: bytes, prefix: bytes, delimiter: bytes, limit: int, results: list[wire.Diff], right: bool
) -> bytes | None:
    """Add differences from a key on; where to go on, if that is beyond a prefix of many."""
    skipped, last = 0, b""
    async for difference in source(start):
        if last and difference.key.startswith(last):
            skipped += 1
            if skipped == SKIP_MAX:
                return beyond(last)
            continue
        if len(results) == limit:
            return None
        group = _group(difference.key, prefix, delimiter)
        last, skipped = group or b"", 0
        results.append(_line(difference, right) if group is None else _changed_prefix(group))
    return None


def _group(key: bytes, prefix: bytes, delimiter: bytes) -> bytes | None:
    at = key.find(delimiter, len(prefix)) if delimiter else -1
    return None if at < 0 else key[: at + len(delimiter)]


def _changed_prefix(group: bytes) -> wire.Diff:
    return wire.Diff("prefix_changed", group.decode(), "common_prefix")


def _line(difference: Difference, with_right: bool) -> wire.Diff:
    kind, key, before, after = difference
    entry = after or before
    assert entry is not None
    right = _right(after) if with_right and after is not None else UNSET
    return wire.Diff(kind, key.decode(), "object", entry.size_bytes, right)  # type: ignore[arg-type]


def _right(entry: Entry) -> wire.RightStat:
    kind = entry.content_type or CONTENT_TYPE
    return wire.RightStat(entry.etag, entry.mtime_us // 1_000_000, kind, entry.metadata or {})
