"""Many entries, put by many tasks that share one writer: what the tour and the bench write."""

import asyncio
from collections.abc import Iterator

from lsmfs.cli.progress import Meter
from lsmfs.lsm.writer import Writer
from lsmfs.model import Entry

TASKS = 1000
TABLES_MAX = 128  # half of what l1 may hold, since nobody compacts meanwhile
FOLDERS = 100
TELL_EVERY = 1000  # a progress bar costs as much as a put


def path_of(number: int) -> str:
    """Paths as tables in a lake have them: folders by day, files in them."""
    return f"events/day={number % FOLDERS:03}/part-{number:08}.parquet"


def tasks_for(entries: int) -> int:
    """The tasks that put so many entries: each flush is a table with one entry of each task."""
    return max(TASKS, -(-entries // TABLES_MAX))


async def put_all(writer: Writer, numbers: Iterator[int], entries: int, entry: Entry, meter: Meter) -> None:
    """Put an entry under the path of each number."""

    async def put_some() -> None:
        for number in numbers:  # shared: each task takes the next one
            await writer.put(path_of(number), entry)
            if number % TELL_EVERY == TELL_EVERY - 1:
                meter.advance(TELL_EVERY)

    await asyncio.gather(*(put_some() for _ in range(min(entries, tasks_for(entries)))))
