"""The key-value store beneath everything that changes: five verbs, in partitions.

Promises of every driver:
- A read that begins after a write has succeeded returns that value or a newer one.
- `scan` yields keys in ascending byte order; what is written during a scan may or may not be seen.
- `set_if` is a compare-and-swap on one key, atomic against every other writer of it.
- (partition, key) names a value; a partition needs no creation and is never read together with another.

A driver raises `Unavailable` when the store cannot be reached and nothing was changed, `OutcomeUnknown` when a
change was sent and its answer was lost. It never retries a change by itself: only the caller knows if that is safe.
"""

from collections.abc import AsyncIterator
from enum import Enum
from typing import Final, NamedTuple, Protocol


class Absent(Enum):
    """The one value that says "must not exist": never None, which could be a forgotten argument."""

    ABSENT = "absent"


ABSENT: Final = Absent.ABSENT

KEY_BYTES_MAX = 1024  # a DynamoDB sort key, the tightest of the drivers
VALUE_BYTES_MAX = 256 * 1024  # DynamoDB's item holds 400 KB; the rest is room for the journal


class Item(NamedTuple):
    key: bytes
    value: bytes


class Store(Protocol):
    async def get(self, partition: str, key: bytes) -> bytes | None:
        """The value, or None if there is none."""
        ...

    def scan(self, partition: str, start: bytes = b"", prefix: bytes = b"") -> AsyncIterator[Item]:
        """Items with key >= start that begin with prefix, in ascending byte order of key, fetched page by page."""
        ...

    async def set(self, partition: str, key: bytes, value: bytes) -> None:
        """Store the value, whatever was there."""
        ...

    async def delete(self, partition: str, key: bytes) -> None:
        """Remove the key; no error if it is not there."""
        ...

    async def set_if(self, partition: str, key: bytes, value: bytes, expected: bytes | Absent) -> None:
        """Store the value if what is there equals `expected`; `Conflict` if not."""
        ...

    async def aclose(self) -> None:
        """Release connections. No verb may be called after."""
        ...
