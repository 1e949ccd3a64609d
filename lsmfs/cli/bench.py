"""A quick measurement of the user's own installation: each verb of lsmfs beside the bare stores below it.

Flow, in a repository with a new name:
1. put      entries by many tasks through one writer        | an object and a ref-store value for each, no lsmfs
2. get      warm reads of single entries                    | gets of those objects
3. list     all entries, page by page                       | a listing of those objects
4. commit   everything staged                               | one object of as many bytes, and one ref-store value

Bare work stops after some seconds, for on a slow store it takes long; rates are compared, not times. Afterwards the
repository's objects and refs are removed. What a bucket as ref store keeps of a deleted branch stays.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import NamedTuple

from rich.console import Console

from lsmfs.cli import show
from lsmfs.cli.load import path_of, put_all, tasks_for
from lsmfs.cli.progress import Meter, metered
from lsmfs.installation import Installation
from lsmfs.model import Entry
from lsmfs.repository import Repository
from refstore.errors import Corrupt

BRANCH = "main"
BARE_SECONDS_MAX = 3.0
BARE_BYTES = 1000  # a usual entry and its name
READERS = 64
GETS_MAX = 20_000
DELETES_AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class Rate:
    count: int
    seconds: float

    @property
    def per_second(self) -> float:
        return self.count / max(self.seconds, 1e-9)


class Measure(NamedTuple):
    step: str
    ours: Rate
    bare: Rate
    beside: str


async def measure(installation: Installation, entries: int, console: Console, quiet: bool) -> list[Measure]:
    """Every measure, in a repository that is removed after; also after a failure or Ctrl-C."""
    name = f"bench-{installation.clock.new_id()}"
    repository = await installation.create(name, BRANCH)
    async with repository:
        try:
            with metered(console, "bench", quiet=quiet) as meter:
                return await Bench(installation, repository, entries, meter).run()
        finally:
            await remove(installation, name)


class Bench:
    def __init__(self, installation: Installation, repository: Repository, entries: int, meter: Meter) -> None:
        self._store, self._refs = installation.store, installation.refs
        self._repository = repository
        self._entries = entries
        self._meter = meter
        self._bare_objects = 0

    async def run(self) -> list[Measure]:
        steps = [
            (self._put, self._bare_put, "object put + ref set"),
            (self._get, self._bare_get, "object get"),
            (self._list, self._bare_list, "object listing"),
            (self._commit, self._bare_commit, "one put of the bytes + ref set"),
        ]
        return [await self._step(ours, bare, beside) for ours, bare, beside in steps]

    async def _step(
        self, ours: Callable[[], Awaitable[int]], bare: Callable[[], Awaitable[int]], beside: str
    ) -> Measure:
        name = ours.__name__.lstrip("_")
        self._meter.describe(name)
        mine = await _timed(ours)
        self._meter.describe(f"{name}, bare")
        return Measure(name, mine, await _timed(bare), beside)

    async def _put(self) -> int:
        entry = Entry(self._bare_name(0), BARE_BYTES, "0" * 32, self._repository.clock.now_us())
        self._meter.describe("put", self._entries)
        async with self._repository.writer(BRANCH) as writer:
            await put_all(writer, iter(range(self._entries)), self._entries, entry, self._meter)
        return self._entries

    async def _bare_put(self) -> int:
        async def put(number: int) -> None:
            await self._store.put(self._bare_name(number), bytes(BARE_BYTES))
            await self._refs.set(self._repository.name, b"%08d" % number, bytes(100))

        self._bare_objects = await _up_to(self._entries, tasks_for(self._entries), put)
        return self._bare_objects

    async def _get(self) -> int:
        async def get(number: int) -> None:
            await self._repository.get(BRANCH, path_of(number))

        await get(0)  # the tables are open from here on
        return await _up_to(min(GETS_MAX, self._entries), READERS, get)

    async def _bare_get(self) -> int:
        async def get(number: int) -> None:
            await self._store.get(self._bare_name(number))

        return await _up_to(self._bare_objects, READERS, get)

    async def _list(self) -> int:
        count, after = 0, ""
        while True:
            page = await self._repository.list(BRANCH, after=after)
            count += len(page.items)
            if page.after is None:
                break
            after = page.after.decode()
        if count != self._entries:
            raise Corrupt(f"a listing showed {count} entries, {self._entries} were written")
        return count

    async def _bare_list(self) -> int:
        return len([info async for info in self._store.list(f"{self._repository.name}/bare/")])

    async def _commit(self) -> int:
        await self._repository.commit(BRANCH, "bench", "bench")
        return self._entries

    async def _bare_commit(self) -> int:
        (_, commit) = await anext(self._repository.log(BRANCH, 1))
        size = (await self._repository.tables.load_run(commit.metarange)).size_bytes
        await self._store.put(f"{self._repository.name}/bare/commit", bytes(size))
        await self._refs.set(self._repository.name, b"commit", bytes(100))
        return self._entries

    def _bare_name(self, number: int) -> str:
        return f"{self._repository.name}/bare/{number:08}"


async def _timed(work: Callable[[], Awaitable[int]]) -> Rate:
    began = time.perf_counter()
    count = await work()
    return Rate(count, time.perf_counter() - began)


async def _up_to(count: int, tasks: int, work: Callable[[int], Awaitable[None]]) -> int:
    """The work for as many numbers from 0 on as there is time for; how many."""
    numbers, deadline = iter(range(count)), time.monotonic() + BARE_SECONDS_MAX

    async def some() -> int:
        done = 0
        while time.monotonic() < deadline and (number := next(numbers, None)) is not None:
            await work(number)
            done += 1
        return done

    return sum(await asyncio.gather(*(some() for _ in range(min(count, tasks)))))


async def remove(installation: Installation, name: str) -> None:
    """Everything of the repository, and what was set beside it for comparison."""
    keys = [item.key async for item in installation.refs.scan(name)]
    for start in range(0, len(keys), DELETES_AT_ONCE):
        await asyncio.gather(*(installation.refs.delete(name, key) for key in keys[start : start + DELETES_AT_ONCE]))
    await installation.delete(name)


def document(each: Measure) -> dict[str, object]:
    return {
        "step": each.step,
        "count": each.ours.count,
        "seconds": each.ours.seconds,
        "per_second": each.ours.per_second,
        "bare": each.beside,
        "bare_count": each.bare.count,
        "bare_seconds": each.bare.seconds,
        "bare_per_second": each.bare.per_second,
        "ratio": each.ours.per_second / each.bare.per_second,
    }


def text(measures: list[Measure]) -> str:
    rows = [
        (
            each.step,
            each.beside,
            f"{each.ours.count:,}",
            show.seconds_text(each.ours.seconds),
            show.rate_text(each.ours.count, each.ours.seconds),
            show.rate_text(each.bare.count, each.bare.seconds),
            f"{each.ours.per_second / each.bare.per_second:.2f}",
        )
        for each in measures
    ]
    return show.table(("step", "beside", "entries", "seconds", "lsmfs", "bare", "ratio"), rows, left=2)
