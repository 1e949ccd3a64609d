"""put: single awaited puts from a thousand tasks, each durable before it returns, beside SlateDB doing the same.

SlateDB's Python binding is awaited as its documentation says: `await (await db.put(key, value)).await_durable()`. Its
`flush_interval` decides how long a put waits for company, so a short trial chooses the best of three values.
"""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from benchmarks import data
from benchmarks.report import Figure, at_least, figure
from benchmarks.workspace import Workspace, opened, settle
from lsmfs.model import Entry

PUTS, TASKS = 200_000, 1000
TRIAL_PUTS = 20_000
INTERVALS = ("100ms", "20ms", "5ms")  # the first is SlateDB's default
BAR = at_least(10)

Put = Callable[[bytes, Entry], Awaitable[None]]


async def measure(workspace: Workspace) -> list[Figure]:
    puts, trial = workspace.scaled(PUTS), workspace.scaled(TRIAL_PUTS)
    items = _items(puts)
    ours = 0.0
    for _ in range(min(3, workspace.repeats)):
        workspace.say(f"put: {puts:,} puts")
        ours = max(ours, await _our_rate(workspace, items))
    rates = {}
    for interval in INTERVALS:
        workspace.say(f"put: SlateDB with flush_interval={interval}")
        rates[interval] = await _slatedb_rate(workspace.folder("slatedb"), items[:trial], interval)
    best = max(rates, key=lambda interval: rates[interval])
    workspace.say(f"put: SlateDB, {puts:,} puts with flush_interval={best}")
    theirs = max(rates[best], await _slatedb_rate(workspace.folder("slatedb"), items, best))
    note = f"SlateDB with flush_interval={best}, the best of {', '.join(INTERVALS)}"
    return [figure("put", ours, "puts/s", theirs, ours / theirs, BAR, "slatedb", note)]


def _items(count: int) -> list[tuple[bytes, Entry]]:
    """In no order: tasks do not write sorted keys."""
    numbers = data.sequence(0, count)
    keys = [key.encode() for key in data.keys(numbers).to_pylist()]
    return [(keys[at], data.entry(at)) for at in (numbers * 7919 % count).tolist()]


async def _our_rate(workspace: Workspace, items: list[tuple[bytes, Entry]]) -> float:
    settle()
    async with opened(workspace.folder("put")) as repository, repository.writer("main") as writer:
        rate = await _rate(writer.put, items)
        present = await repository.get_many("main", [key for key, _ in items[:: max(1, len(items) // 100)]])
        assert present, "nothing of what was put can be read"
        return rate


async def _slatedb_rate(folder: Path, items: list[tuple[bytes, Entry]], interval: str) -> float:
    from slatedb.uniffi import DbBuilder, ObjectStore, Settings

    settle()
    settings = Settings.default()
    settings.set("flush_interval", json.dumps(interval))
    builder = DbBuilder(str(folder.absolute()).lstrip("/"), ObjectStore.resolve("file:///"))
    builder.with_settings(settings)
    database = await builder.build()
    encode = msgspec.msgpack.Encoder().encode

    async def put(key: bytes, entry: Entry) -> None:
        handle = await database.put(key, encode(entry))
        await handle.await_durable()

    try:
        return await _rate(put, items)
    finally:
        await database.shutdown()


async def _rate(put: Put, items: list[tuple[bytes, Entry]]) -> float:
    """Puts a second when every task awaits its own one by one."""

    async def task(share: list[tuple[bytes, Entry]]) -> None:
        for key, entry in share:
            await put(key, entry)

    started = time.perf_counter()
    await asyncio.gather(*(task(items[start::TASKS]) for start in range(TASKS)))
    return len(items) / (time.perf_counter() - started)
