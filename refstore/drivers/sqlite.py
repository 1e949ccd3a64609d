"""A ref store in one SQLite file: the embedded default, for any number of processes of one machine.

- A change is one `BEGIN IMMEDIATE` transaction that reads the record, applies the pure change, and writes the record
  and its event; changes of one process that wait together share a transaction and its fsync (`sqlite_file.Writer`).
- A read runs on the calling thread: it touches no disk in the common case and takes less time than a thread hop.
  The record is decoded only if its version is not the one decoded last.
"""

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any, TypeVar

import msgspec

from refstore.drivers.keys import PAGE_ITEMS_MAX, check_key, check_value, event_id, prefix_stop
from refstore.drivers.sqlite_file import Writer, connect, translated
from refstore.errors import Conflict, Corrupt, NotFound
from refstore.records import Branch, BranchChange, Event, decode_branch, decode_event, encode
from refstore.refs import apply, event_of
from refstore.store import ABSENT, Absent, Item

T = TypeVar("T")

BRANCHES_CACHED_MAX = 1024  # decoded records of some 20 KB at most in common use: 20 MB

# The record comes only if it is not the version we have: a large one is not even read from its overflow pages.
READ = (
    "SELECT CASE WHEN incarnation = ? AND version = ? THEN NULL ELSE record END "
    "FROM branch WHERE repository = ? AND name = ?"
)
WRITE = (
    "INSERT INTO branch (repository, name, incarnation, version, record) VALUES (?, ?, ?, ?, ?) ON CONFLICT DO UPDATE "
    "SET incarnation = excluded.incarnation, version = excluded.version, record = excluded.record"
)
LOG = "INSERT INTO journal (repository, branch, incarnation, version, event) VALUES (?, ?, ?, ?, ?)"
PUT = "INSERT INTO item (partition, key, value) VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET value = excluded.value"
# Text bounds would compare as text; a NULL bound means that there is none.
SCAN = (
    "SELECT key, value FROM item WHERE partition = ? AND key >= ? AND (? IS NULL OR key < ?) ORDER BY key LIMIT "
    f"{PAGE_ITEMS_MAX}"
)
LIST = (
    "SELECT name, record FROM branch WHERE repository = ? AND name > ? AND substr(name, 1, ?) = ? "
    f"ORDER BY name LIMIT {PAGE_ITEMS_MAX}"
)
TRIM = "DELETE FROM journal WHERE repository = ? AND branch = ? AND incarnation = ? AND version = ?"


class SqliteRefStore:
    """`Store` and `Refs` over one file, which is created if it is not there."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._writer = Writer(path)
        self._reader = connect(path)
        self._decoded: dict[tuple[str, str], Branch] = {}

    async def get(self, partition: str, key: bytes) -> bytes | None:
        check_key(key)
        row = self._one("SELECT value FROM item WHERE partition = ? AND key = ?", (partition, key))
        return row[0] if row else None

    async def scan(self, partition: str, start: bytes = b"", prefix: bytes = b"") -> AsyncIterator[Item]:
        stop = prefix_stop(prefix)
        start = max(start, prefix)
        while True:
            page = self._all(SCAN, (partition, start, stop, stop))
            for key, value in page:
                yield Item(key, value)
            if len(page) < PAGE_ITEMS_MAX:
                return
            start = page[-1][0] + b"\0"

    async def set(self, partition: str, key: bytes, value: bytes) -> None:
        check_value(key, value)
        await self._writer.run(lambda connection: connection.execute(PUT, (partition, key, value)))

    async def delete(self, partition: str, key: bytes) -> None:
        check_key(key)
        delete = "DELETE FROM item WHERE partition = ? AND key = ?"
        await self._writer.run(lambda connection: connection.execute(delete, (partition, key)))

    async def set_if(self, partition: str, key: bytes, value: bytes, expected: bytes | Absent) -> None:
        check_value(key, value)

        def job(connection: sqlite3.Connection) -> None:
            row = connection.execute("SELECT value FROM item WHERE partition = ? AND key = ?", (partition, key))
            (actual,) = row.fetchone() or (ABSENT,)
            if actual != expected:
                raise Conflict(f"the value of {key!r} is not the expected one: read it again")
            connection.execute(PUT, (partition, key, value))

        await self._writer.run(job)

    async def read(self, repository: str, name: str) -> Branch:
        with self._translating():
            branch = self._load(self._reader, repository, name)
        if branch is None:
            raise NotFound(f"branch {name!r} does not exist")
        self._keep(repository, name, branch)
        return branch

    async def branches(self, repository: str, after: str = "", prefix: str = "") -> AsyncIterator[Branch]:
        while True:
            page = self._all(LIST, (repository, after, len(prefix), prefix))
            for _, record in page:
                yield self._decoded_by(decode_branch, record)
            if len(page) < PAGE_ITEMS_MAX:
                return
            after = page[-1][0]

    async def change(self, repository: str, name: str, change: BranchChange) -> Branch:
        def job(connection: sqlite3.Connection) -> tuple[Branch | None, Branch | None]:
            before = self._load(connection, repository, name)
            after = apply(before, name, change)
            if after is None or after is not before:
                self._store(connection, repository, name, after, event_of(name, before, after, change))
            return before, after

        before, after = await self._writer.run(job)
        if after is None:
            assert before is not None  # apply refuses to delete what is not there
            self._decoded.pop((repository, name), None)
            return before
        self._keep(repository, name, after)
        return after

    async def events(self, repository: str, limit: int = 1000) -> list[Event]:
        rows = self._all("SELECT event FROM journal WHERE repository = ? ORDER BY seq LIMIT ?", (repository, limit))
        return [self._decoded_by(decode_event, event) for (event,) in rows]

    async def trim(self, repository: str, events: list[Event]) -> None:
        rows = [(repository, *event_id(event)) for event in events]
        await self._writer.run(lambda connection: connection.executemany(TRIM, rows))

    async def aclose(self) -> None:
        await asyncio.to_thread(self._close)  # closing may move the log into the file, which takes disk time

    def _close(self) -> None:
        self._reader.close()
        self._writer.close()

    def _load(self, connection: sqlite3.Connection, repository: str, name: str) -> Branch | None:
        known = self._decoded.get((repository, name))
        seen = (known.incarnation, known.version) if known else ("", 0)
        row = connection.execute(READ, (*seen, repository, name)).fetchone()
        if row is None:
            return None
        return known if row[0] is None else self._decoded_by(decode_branch, row[0])

    def _decoded_by(self, decode: Callable[[bytes], T], record: bytes) -> T:
        try:
            return decode(record)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise Corrupt(f"{self._path} holds a record that cannot be read: {error}; recover it") from error

    def _keep(self, repository: str, name: str, branch: Branch) -> None:
        """Only what is committed may come here: a version that was rolled back will be made again, differently."""
        if len(self._decoded) >= BRANCHES_CACHED_MAX and (repository, name) not in self._decoded:
            self._decoded.pop(next(iter(self._decoded)))
        self._decoded[repository, name] = branch

    @staticmethod
    def _store(connection: sqlite3.Connection, repository: str, name: str, branch: Branch | None, event: Event) -> None:
        if branch is None:
            connection.execute("DELETE FROM branch WHERE repository = ? AND name = ?", (repository, name))
        else:
            row = (repository, name, branch.incarnation, branch.version, encode(branch))
            connection.execute(WRITE, row)
        connection.execute(LOG, (repository, *event_id(event), encode(event)))

    def _one(self, query: str, values: Sequence[object]) -> Any:
        with self._translating():
            return self._reader.execute(query, values).fetchone()

    def _all(self, query: str, values: Sequence[object]) -> list[Any]:
        with self._translating():
            return self._reader.execute(query, values).fetchall()

    @contextlib.contextmanager
    def _translating(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise translated(error, self._path) from error


__all__ = ["SqliteRefStore"]
