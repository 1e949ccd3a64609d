"""What the tests of imports share: a source that is a list, and a look at what an import leaves behind."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from lsmfs.imports.importer import Importer
from lsmfs.imports.source import Batch, Place
from lsmfs.imports.state import ImportState
from lsmfs.lsm import records
from lsmfs.model import Entry
from lsmfs.reader import RefStore
from lsmfs.repository import Repository
from refstore.records import Append, Branch

BATCH = 20

Do = Callable[[], Awaitable[Branch]]
"""The change that a disturbed ref store was asked for."""


def entry_of(name: str) -> Entry:
    """An entry that only its own key can have."""
    return Entry(f"s3://bucket/{name}", len(name), f"e-{name}", 1_000_000)


def content(names: Sequence[str], prefix: str = "") -> dict[bytes, Entry]:
    return {f"{prefix}{name}".encode(): entry_of(name) for name in names}


@dataclass
class ListSource:
    """The names, in the order given. `fails_at` is the number of the batch before which it fails, once."""

    names: Sequence[str]
    url: str = "s3://bucket/list"
    mark: str = ""
    is_ordered: bool = True
    may_repeat: bool = False
    total: int | None = None
    fails_at: int = -1
    failure: BaseException = field(default_factory=lambda: RuntimeError("planned"))
    between: Callable[[Batch], Awaitable[None]] | None = None
    """What happens after each batch."""
    places: list[Place] = field(default_factory=list)
    """Where it was asked to begin."""

    async def check(self) -> None:
        return

    async def batches(self, prefix: str, place: Place) -> AsyncIterator[Batch]:
        self.places.append(place)
        is_sorted = list(self.names) == sorted(self.names)
        rest = [name for name in self.names if name > place.name] if is_sorted else self.names[place.rows :]
        for number, start in enumerate(range(0, len(rest), BATCH)):
            if number == self.fails_at:
                self.fails_at = -1
                raise self.failure
            batch = Batch(self._rows(rest[start : start + BATCH], prefix))
            yield batch
            if self.between is not None:
                await self.between(batch)

    async def aclose(self) -> None:
        return

    def _rows(self, names: Sequence[str], prefix: str) -> pa.Table:
        return records.from_entries([(f"{prefix}{name}".encode(), entry_of(name)) for name in names])


def names_of(count: int) -> list[str]:
    return [f"d{number % 7}/f{number:05}" for number in range(count)]


SHUFFLED = names_of(300)
SORTED = sorted(SHUFFLED)


async def appended(refs: RefStore, repository: str = "repo") -> list[str]:
    """The layers that were ever appended, by the journal."""
    events = await refs.events(repository, 100_000)
    return [event.change.table for event in events if isinstance(event.change, Append)]


async def leftovers(repository: Repository, identity: str) -> list[bytes]:
    """What the ref store remembers of an import beside its result: nothing, if it has ended."""
    states = [state.id.encode() async for state in Importer(repository).unfinished() if state.id == identity]
    return states + [item.key async for item in repository.refs.scan(f"{repository.name}/imports", prefix=b"chunk/")]


async def only_state(repository: Repository) -> ImportState:
    (state,) = [state async for state in Importer(repository).unfinished()]
    return state
