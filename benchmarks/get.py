"""get and get-missing: warm point reads through many layers, beside SQLite looking up a primary key in this process."""

import random
import sqlite3
import time
from pathlib import Path

import msgspec

from benchmarks import data
from benchmarks.report import Figure, at_most, figure
from benchmarks.workspace import Workspace, opened
from compactor.executor import compact
from compactor.planner import Triggers, plan
from lsmfs.lsm.records import entry_at
from lsmfs.repository import Repository
from refstore.errors import NotFound

BASE, TABLES, TABLE_ROWS = 1_000_000, 16, 4000
READS = 20_000
BAR, MISSING_BAR = at_most(6), at_most(0.02)


async def measure(workspace: Workspace) -> list[Figure]:
    base, reads = workspace.scaled(BASE), workspace.scaled(READS)
    workspace.say(f"get: {TABLES} tables of l1 above l2 above a base of {base:,}")
    folder = await workspace.copy(await workspace.base(base))
    choose = random.Random(1)
    present = [data.key_of(choose.randrange(base)) for _ in range(reads)]
    missing = [data.key_of(choose.randrange(base)) + b"-not" for _ in range(reads)]
    lookup = _sqlite(workspace.folder("get-sqlite") / "rows.db", base)
    async with opened(folder) as repository:
        await _layers(repository, base, workspace.scaled(TABLE_ROWS))
        await _read(repository, present)  # warm: every table is open
        ours, theirs = [], []
        for _ in range(workspace.repeats):
            theirs.append(_seconds(lookup, present))
            ours.append(await _read(repository, present))
        opened_before = repository.tables.opened
        missing_seconds = await _miss(repository, missing)
        opened_each = (repository.tables.opened - opened_before) / reads
    lookup.close()
    fast, slow = min(theirs) / reads, min(ours) / reads
    note = f"{TABLES} tables of l1 + l2 + base; a missing key takes {missing_seconds / reads * 1e6:.1f} us"
    return [
        figure("get", slow * 1e6, "us", fast * 1e6, slow / fast, BAR, "an SQLite lookup by primary key", note),
        figure(
            "get-missing", opened_each, "tables/key", TABLES + 2, opened_each, MISSING_BAR, "all layers of the branch"
        ),
    ]


async def _layers(repository: Repository, base: int, rows: int) -> None:
    """An l2 compacted from tables, and then the tables of l1; all of them cover the whole range of keys."""
    async with repository.writer("main") as writer:
        for table in range(2 * TABLES):
            await writer.stage(data.puts(data.spread(rows, base, table), 200 + table))
            if table == TABLES - 1:
                work = plan(await repository.branches.read("main"), 0.0, Triggers())
                assert work is not None
                await compact(repository, work)


async def _read(repository: Repository, keys: list[bytes]) -> float:
    started = time.perf_counter()
    for key in keys:
        await repository.get("main", key)
    return time.perf_counter() - started


async def _miss(repository: Repository, keys: list[bytes]) -> float:
    started = time.perf_counter()
    for key in keys:
        try:
            await repository.get("main", key)
        except NotFound:
            continue
        raise AssertionError(f"{key!r} was never written")
    return time.perf_counter() - started


def _sqlite(path: Path, rows: int) -> sqlite3.Connection:
    """The same keys in a table whose rows are stored in the order of the primary key."""
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA mmap_size = 4000000000")  # its fastest way when all is in memory, as our tables are
    connection.execute("CREATE TABLE entry (key BLOB PRIMARY KEY, value BLOB) WITHOUT ROWID")
    table = data.puts(data.sequence(0, rows))
    value = msgspec.json.encode(entry_at(table, 0))
    keys = (key.encode() for key in table["key"].to_pylist())
    with connection:
        connection.executemany("INSERT INTO entry VALUES (?, ?)", ((key, value) for key in keys))
    return connection


def _seconds(connection: sqlite3.Connection, keys: list[bytes]) -> float:
    started = time.perf_counter()
    for key in keys:
        connection.execute("SELECT value FROM entry WHERE key = ?", (key,)).fetchone()
    return time.perf_counter() - started
