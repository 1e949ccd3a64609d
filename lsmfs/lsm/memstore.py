"""What a writer holds until it is flushed: batches of operations that are acknowledged together.

A batch is a list in the order of arrival; sorting happens once, at the flush, in columns. That costs a put one append,
where a sorted structure would cost it a search.
"""

import asyncio
from dataclasses import dataclass, field

import pyarrow as pa

from lsmfs.lsm import records
from lsmfs.model import Entry
from refstore.errors import Conflict
from refstore.store import Absent

Operation = tuple[bytes, Entry | None]
"""A key and its new entry; None deletes it."""

OPERATION_WEIGHT = 200  # bytes counted for an operation beside its key: a usual entry
EXTENT_WEIGHT = 100  # bytes counted for an extent beside its address


@dataclass(slots=True)
class Condition:
    """Operation number `at` of its batch may be done only if the key is absent, or has this etag."""

    at: int
    expected: str | Absent
    done: "asyncio.Future[None]"

    def refusal(self, key: bytes, current: Entry | None) -> Conflict | None:
        """Why the operation may not be done, given what is there."""
        if isinstance(self.expected, Absent):
            return None if current is None else Conflict(f"{key.decode()!r} exists, with etag {current.etag!r}")
        if current is None:
            return Conflict(f"{key.decode()!r} does not exist, expected etag {self.expected!r}")
        if current.etag != self.expected:
            return Conflict(f"{key.decode()!r} has etag {current.etag!r}, expected {self.expected!r}")
        return None


@dataclass(slots=True)
class Batch:
    """Operations that are flushed as one Table, or one unit staged whole."""

    operations: list[Operation] = field(default_factory=list)
    waiters: list["asyncio.Future[None]"] = field(default_factory=list)
    conditions: list[Condition] = field(default_factory=list)
    unit: "pa.Table | str | None" = None  # rows to write, or the name of a layer that is stored already
    weight: int = 0
    number: int = 0  # among the batches of its writer, from 1, when it is closed

    def waiter(self) -> "asyncio.Future[None]":
        """A future that is done with the batch. Each caller has its own: one that is shared needs a shield against the
        cancellation of any of them, and a shield wakes three callbacks where this wakes one."""
        waiter = asyncio.get_running_loop().create_future()
        self.waiters.append(waiter)
        return waiter

    def add(self, key: bytes, entry: Entry | None) -> int:
        """Take the operation; what it weighs."""
        self.operations.append((key, entry))
        weight = len(key) + OPERATION_WEIGHT
        if entry is not None and (entry.metadata or entry.rest):
            weight += _unusual_weight(entry)
        self.weight += weight
        return weight


def _unusual_weight(entry: Entry) -> int:
    """What few entries have, and may be most of their bytes."""
    facts = sum(len(name) + len(value) for name, value in (entry.metadata or {}).items())
    return facts + sum(len(extent.address) + EXTENT_WEIGHT for extent in entry.rest)


def rows_of(operations: list[Operation]) -> pa.Table:
    """Sorted, each key once: the last operation on a key stays."""
    last = dict(operations)
    return records.from_entries([(key, last[key]) for key in sorted(last)])
