"""What a writer holds until it is flushed: batches of operations that are acknowledged together.

A batch is a list in the order of arrival; sorting happens once, at the flush, in columns. That costs a put one append,
where a sorted structure would cost it a search. What the batch appends to objects becomes one block of bytes then.
"""

import asyncio
import contextlib
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple, cast

import pyarrow as pa

from lsmfs.lsm import records
from lsmfs.lsm.appends import joined, of_extents
from lsmfs.model import Entry, Extent
from refstore.errors import Conflict, Error
from refstore.store import Absent


@dataclass(frozen=True, slots=True)
class Addition:
    """What an append adds to an object: bytes, which become extents of the batch's block, or extents."""

    mtime_us: int
    data: bytes = b""
    extents: tuple[Extent, ...] = ()

    def over(self, below: Entry | None) -> Entry:
        """What the object is then, for conditions. Where its bytes will be, and so its etag, is not known before the
        flush; but nobody can expect an etag that never was, unless it is the MD5 of the only bytes."""
        return joined([of_extents(_placed([self], "", bytearray()), self.mtime_us)], below)


Operation = tuple[bytes, Entry | Addition | None]
"""A key and its new entry, or what is added to it; None deletes it."""

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
    additions: int = 0  # among the operations
    number: int = 0  # among the batches of its writer, from 1, when it is closed

    def waiter(self) -> "asyncio.Future[None]":
        """A future that is done with the batch. Each caller has its own: one that is shared needs a shield against the
        cancellation of any of them, and a shield wakes three callbacks where this wakes one."""
        waiter = asyncio.get_running_loop().create_future()
        self.waiters.append(waiter)
        return waiter

    def add(self, key: bytes, value: Entry | Addition | None) -> int:
        """Take the operation; what it weighs."""
        self.operations.append((key, value))
        weight = len(key) + OPERATION_WEIGHT
        if isinstance(value, Entry):
            if value.metadata or value.rest:
                weight += _unusual_weight(value)
        elif value is not None:
            self.additions += 1
            weight += len(value.data) + sum(len(extent.address) + EXTENT_WEIGHT for extent in value.extents)
        self.weight += weight
        return weight

    def conditional_keys(self) -> set[bytes]:
        return {self.operations[condition.at][0] for condition in self.conditions}

    def decided(self, there: Mapping[bytes, Entry]) -> tuple[list[Operation], list[Error | None]]:
        """The operations that may be done, given what is there, and for each condition why its operation may not."""
        now: dict[bytes, Entry | None] = dict(there)
        keys = self.conditional_keys()
        conditions = {condition.at: condition for condition in self.conditions}
        operations: list[Operation] = []
        refusals: list[Error | None] = []
        for at, (key, value) in enumerate(self.operations):
            condition = conditions.get(at)
            refusal = condition.refusal(key, now.get(key)) if condition else None
            if condition:
                refusals.append(refusal)
            if refusal is None:
                operations.append((key, value))
                if key in keys:
                    now[key] = value.over(now.get(key)) if isinstance(value, Addition) else value
        return operations, refusals

    def finish(self, error: Exception | None) -> None:
        """Tell everybody who waits: done, or why not."""
        for future in (*self.waiters, *(condition.done for condition in self.conditions)):
            # It is done if its caller was cancelled: by Ctrl-C that happens between any two steps, also after a look.
            with contextlib.suppress(asyncio.InvalidStateError):
                if error is None:
                    future.set_result(None)
                else:
                    future.set_exception(error)
                    future.exception()  # nobody may be there to hear it


def _unusual_weight(entry: Entry) -> int:
    """What few entries have, and may be most of their bytes."""
    facts = sum(len(name) + len(value) for name, value in (entry.metadata or {}).items())
    return facts + sum(len(extent.address) + EXTENT_WEIGHT for extent in entry.rest)


class Layout(NamedTuple):
    """A batch as it is stored: its rows, and the block of bytes that their appends refer to."""

    rows: pa.Table
    block: bytes = b""


def laid_out(operations: list[Operation], address: str) -> Layout:
    """Sorted, each key once: the last operation on a key stays, and appends are joined with what is before them. All
    their bytes are one block at that address, those of one key side by side."""
    last = dict(operations)
    if Addition not in set(map(type, last.values())):
        plain = cast("dict[bytes, Entry | None]", last)
        return Layout(records.from_entries([(key, plain[key]) for key in sorted(plain)]))
    below: dict[bytes, Entry | None] = {}
    added: dict[bytes, list[Addition]] = {}
    for key, value in operations:
        if isinstance(value, Addition):
            added.setdefault(key, []).append(value)
        else:
            below[key] = value
            added.pop(key, None)  # nobody will see it
    block, rows, kinds = bytearray(), [], []
    for key in sorted(last):
        entry = below.get(key)
        if key in added:
            entry = joined([of_extents(_placed(added[key], address, block), added[key][-1].mtime_us)], entry)
        rows.append((key, entry))
        kinds.append(records.APPEND if key not in below else records.TOMBSTONE if entry is None else records.PUT)
    return Layout(records.from_entries(rows, kinds), bytes(block))


def _placed(additions: Sequence[Addition], address: str, block: bytearray) -> list[Extent]:
    """The extents of what is added, in order. Bytes go to the end of the block: bytes that follow bytes are one extent,
    so that many small appends to one key leave few."""
    extents: list[Extent] = []
    for are_stored, some in groupby(additions, lambda addition: bool(addition.extents)):
        if are_stored:
            extents += [extent for addition in some for extent in addition.extents]
        else:
            data = b"".join(addition.data for addition in some)
            digest = hashlib.md5(data, usedforsecurity=False).hexdigest()
            extents.append(Extent(address, len(block), len(data), digest))
            block += data
    return extents
