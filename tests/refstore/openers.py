"""Processes that open one new SQLite file at the same moment."""

import asyncio
import multiprocessing
from multiprocessing.synchronize import Barrier

from refstore.drivers.sqlite import SqliteRefStore

JOIN_SECONDS_MAX = 60.0


def open_in_processes(path: str, processes: int) -> None:
    """Each opens the file when all are ready, and writes a key of its own."""
    context = multiprocessing.get_context("spawn")
    start = context.Barrier(processes)
    openers = [context.Process(target=_open, args=(start, path, number)) for number in range(processes)]
    for opener in openers:
        opener.start()
    for opener in openers:
        opener.join(JOIN_SECONDS_MAX)
        if opener.is_alive():
            opener.kill()
            opener.join()
    assert [opener.exitcode for opener in openers] == [0] * processes


def _open(start: Barrier, path: str, number: int) -> None:
    start.wait(JOIN_SECONDS_MAX)
    asyncio.run(_write(path, number))


async def _write(path: str, number: int) -> None:
    store = SqliteRefStore(path)
    await store.set("partition", b"%d" % number, b"value")
    await store.aclose()
