"""Clocks: where a commit is in the history of first parents, so that a stretch of it is one scan and no chain of reads.

A line is what one branch committed between two jumps (`Branch.line`): each commit the first child of the one before.
A commit's clock has a component (line, number) for each line that its history of first parents runs through, oldest
first; the last one is its own. So, of two commits A and B of which both are known to be in the history of branches, A
is an ancestor of B by first parents if B's clock has A's last component or a later one of the same line.

The index has an item for each commit, keyed by its own component. It is written before the branch moves, so it also has
commits that lost their race: who reads it links what he found by the parents, and whatever is missing (an older
commit, a crash between commit and item, a clock that was cut) he reads from the bucket.
"""

import asyncio
from typing import TYPE_CHECKING

import msgspec

from refstore.records import CommitId
from refstore.store import Store

if TYPE_CHECKING:
    from lsmfs.tree.commits import Commit

Clock = tuple[tuple[str, int], ...]

COMPONENTS_MAX = 16  # older ones are cut: the commit at the cut is read from the bucket, and has its own
ITEM_BYTES_MAX = 8 << 10  # a longer commit is read from the bucket
_DIGITS = 12


def following(clock: Clock, line: str) -> Clock:
    """The clock of a commit on the line whose first parent has this clock."""
    if clock and clock[-1][0] == line:
        return (*clock[:-1], (line, clock[-1][1] + 1))
    return (*clock, (line, 0))[-COMPONENTS_MAX:]


def before(clock: Clock) -> Clock:
    """The clock of the first parent, as far as this one tells."""
    if not clock:
        return ()
    line, number = clock[-1]
    return (*clock[:-1], (line, number - 1)) if number else clock[:-1]


class ClockIndex:
    """The clocks of one repository's commits, in the ref store."""

    def __init__(self, store: Store, repository: str) -> None:
        self._store = store
        self.partition = f"{repository}/clocks"

    async def add(self, identity: CommitId, commit: "Commit") -> None:
        data = msgspec.json.encode(commit)
        if commit.clock and len(data) <= ITEM_BYTES_MAX:
            await self._store.set(self.partition, _key(*commit.clock[-1], identity), data)

    async def until(self, clock: Clock, limit: int) -> dict[CommitId, bytes]:
        """The commits with this clock and the `limit` - 1 before it, with whatever else has the same: one scan for each
        line, all at once."""
        spans: list[tuple[str, int, int]] = []
        for line, number in reversed(clock):
            if limit <= 0:
                break
            spans.append((line, max(0, number + 1 - limit), number))
            limit -= number + 1
        found = await asyncio.gather(*(self._scan(*span) for span in spans))
        return {identity: data for part in found for identity, data in part.items()}

    async def _scan(self, line: str, first: int, last: int) -> dict[CommitId, bytes]:
        end = _key(line, last + 1)
        found = {}
        async for key, data in self._store.scan(self.partition, _key(line, first), f"{line}/".encode()):
            if key >= end:
                break
            found[CommitId(key.rpartition(b"/")[2].decode())] = data
        return found


def _key(line: str, number: int, identity: str = "") -> bytes:
    return f"{line}/{number:0{_DIGITS}x}/{identity}".encode()
