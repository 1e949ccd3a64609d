"""The object store protocol: whole or partial reads, conditional writes, ordered listings.

Promises of every driver:
- A put is atomic: readers see all of it or nothing, and when it has returned, the bytes are durable.
- A read or listing that begins after a put or delete has returned sees it.
- `put` with a condition is atomic against every other writer of that name, in any process.
- `list` yields names in ascending order of their UTF-8 bytes.

Errors: `NotFound` for a name that is not there; `AlreadyExists` when `expected` is ABSENT and the name is taken;
`Conflict` when `expected` is a tag and the object has another one or is gone; `Invalid` for a bad name or span;
`Unavailable` for everything that may pass; `OutcomeUnknown` when a write was sent and its answer was lost; `Denied`
for credentials.
A driver translates foreign errors at one edge and does not retry: `retrying.RetryingStore` does.
"""

from collections.abc import AsyncIterator, Callable
from datetime import datetime
from enum import Enum
from typing import Final, NamedTuple, NewType, Protocol

from refstore.store import ABSENT, Absent

Tag = NewType("Tag", str)
"""What a conditional put compares: an ETag or its like. Opaque; differs whenever the content differs."""


class Anything(Enum):
    """The named value that says "whatever is there"."""

    ANYTHING = "anything"


ANYTHING: Final = Anything.ANYTHING
Precondition = Absent | Anything | Tag
Body = bytes | bytearray | memoryview
LateName = Callable[[], str]
"""A name that follows from the body, so whoever stores the name stores these bytes."""


def name_of(name: str | LateName) -> str:
    return name if isinstance(name, str) else name()


class Span(NamedTuple):
    """Bytes [start, stop) of an object."""

    start: int
    stop: int


class ObjectInfo(NamedTuple):
    name: str
    size_bytes: int
    tag: Tag
    modified: datetime


class ObjectStore(Protocol):
    async def get(self, name: str, span: Span | None = None) -> bytes:
        """The bytes, or those of the span; a span that does not lie within the object is `Invalid`."""
        ...

    async def get_tagged(self, name: str) -> tuple[bytes, Tag]:
        """The bytes and the tag they had: what a compare-and-swap begins with."""
        ...

    def stream(self, name: str, span: Span | None = None) -> AsyncIterator[bytes]:
        """The bytes in pieces of bounded size, for bodies too large to hold."""
        ...

    async def put(self, name: str, body: Body, expected: Precondition = ANYTHING) -> Tag:
        """Store the bytes under the name if the condition holds; the tag of what is stored."""
        ...

    async def put_stream(self, name: "str | LateName", body: AsyncIterator[bytes]) -> Tag:
        """Store a body of any size in bounded memory. Nothing is visible if the body raises. A name that depends on the
        body is a function, asked when all of it has passed."""
        ...

    async def delete(self, name: str) -> None:
        """Remove the name; no error if it is not there."""
        ...

    def list(self, prefix: str = "", after: str = "") -> AsyncIterator[ObjectInfo]:
        """Objects whose name begins with prefix and is > after, in ascending order."""
        ...

    async def head(self, name: str) -> ObjectInfo:
        """Size, tag and time of an object without its bytes."""
        ...

    async def aclose(self) -> None:
        """Release connections and threads."""
        ...


__all__ = [
    "ABSENT",
    "ANYTHING",
    "Absent",
    "Anything",
    "Body",
    "LateName",
    "ObjectInfo",
    "ObjectStore",
    "Precondition",
    "Span",
    "Tag",
    "name_of",
]
