"""The SQLite database file: how it is opened, its schema, its errors in our words, and its one writing thread.

    item     (partition, key) -> value
    branch   (repository, name) -> incarnation, version, record
    journal  seq -> repository, branch, incarnation, version, event;   seq only grows, in any process

`application_id` says that a file is ours. Before anything is changed in one, it must be so marked, or be empty, or have
our tables (releases before the mark did not set it): somebody else's database is left as it is.

The file is in WAL mode, so readers never wait for writers, and `synchronous` is FULL, so a commit is one fsync of the
log and what is acknowledged survives a power cut. WAL needs shared memory between the processes that use the file:
it must be on a local disk, not on a network file system.
"""

import asyncio
import contextlib
import sqlite3
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from refstore.errors import Corrupt, Error, Invalid, OutcomeUnknown, Unavailable

APPLICATION_ID = 0x6C736D66  # "lsmf"
SCHEMA_VERSION = 1
TABLES = {"item", "branch", "journal"}
SCHEMA = f"""
BEGIN IMMEDIATE;
CREATE TABLE item (partition TEXT NOT NULL, key BLOB NOT NULL, value BLOB NOT NULL, PRIMARY KEY (partition, key));
CREATE TABLE branch (
    repository TEXT NOT NULL, name TEXT NOT NULL, incarnation TEXT NOT NULL, version INTEGER NOT NULL,
    record BLOB NOT NULL, PRIMARY KEY (repository, name));
CREATE TABLE journal (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, repository TEXT NOT NULL, branch TEXT NOT NULL,
    incarnation TEXT NOT NULL, version INTEGER NOT NULL, event BLOB NOT NULL);
CREATE INDEX journal_by_event ON journal (repository, branch, incarnation, version);
CREATE INDEX journal_by_repository ON journal (repository, seq);
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {SCHEMA_VERSION};
COMMIT;
"""

BUSY_SECONDS_MAX = 10.0  # another process's transaction is one fsync long; a thousand of them may queue before us
BATCH_JOBS_MAX = 128  # jobs that share one transaction: about 10 ms of work, so nobody waits long for the others

T = TypeVar("T")


def connect(path: str) -> sqlite3.Connection:
    """A connection in autocommit mode to the file, which is created if it is not there."""
    try:
        connection = sqlite3.connect(path, timeout=BUSY_SECONDS_MAX, isolation_level=None, check_same_thread=False)
    except sqlite3.Error as error:
        raise translated(error, path) from error
    try:
        _prepare(connection, path)
    except sqlite3.Error as error:
        connection.close()
        raise translated(error, path) from error
    except Error:
        connection.close()
        raise
    return connection


def _prepare(connection: sqlite3.Connection, path: str) -> None:
    _check_ours(connection, path)
    _turn_wal_on(connection)
    connection.execute("PRAGMA synchronous = FULL")
    if _version(connection) == 0:
        try:
            connection.executescript(SCHEMA)
        except sqlite3.OperationalError:  # another process made it between our look and our lock
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            if _version(connection) == 0:
                raise
    version = _version(connection)
    if version != SCHEMA_VERSION:
        raise Invalid(
            f"{path} has ref store schema {version}, this program knows {SCHEMA_VERSION}: use the lsmfs release that "
            "wrote it, or another file"
        )
    if _application(connection) != APPLICATION_ID:  # of a release before the mark
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")


def _check_ours(connection: sqlite3.Connection, path: str) -> None:
    """`Invalid` for somebody else's database. In one transaction: another process may be making the file."""
    connection.execute("BEGIN")
    try:
        application, version = _application(connection), _version(connection)
        tables = "SELECT name FROM sqlite_master WHERE type IN ('table', 'view')"
        names = {name for (name,) in connection.execute(tables)}
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
    is_unmarked = application == 0 and (not names or (version > 0 and names >= TABLES))
    if application == APPLICATION_ID or is_unmarked:
        return
    raise Invalid(f"{path} is the database of another program, and is left as it is: name another file for the refs")


def _application(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA application_id").fetchone()[0])


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def _turn_wal_on(connection: sqlite3.Connection) -> None:
    """SQLite does not honour the busy timeout while it changes the journal mode of a new file, so we wait ourselves."""
    deadline = time.monotonic() + BUSY_SECONDS_MAX
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL").fetchone()
            return
        except sqlite3.OperationalError as error:
            if _code(error) != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def _code(error: sqlite3.Error) -> int:
    return int(getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)) & 0xFF  # the rest says where, not what


def translated(error: sqlite3.Error, path: str) -> Error:
    """The one edge where SQLite's errors become ours."""
    match _code(error):
        case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB:
            return Corrupt(f"{path} is not a sound ref store: {error}; stop all writers and recover it")
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return Unavailable(f"{path} was locked by another process for {BUSY_SECONDS_MAX:.0f} s: try again")
        case sqlite3.SQLITE_FULL:
            return Unavailable(f"{path} cannot grow, the disk is full: free some space")
        case sqlite3.SQLITE_READONLY:
            return Unavailable(f"{path} is read-only: make the file and its directory writable")
        case sqlite3.SQLITE_CANTOPEN:
            return Unavailable(f"{path} cannot be opened: does its directory exist, and may we write there?")
        case _:
            return Unavailable(f"{path}: {error}")


class Writer:
    """One thread that runs jobs in transactions. Jobs that wait for it together share a transaction and its fsync,
    each in its own savepoint with its own result."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._connection = connect(path)
        self._jobs: deque[tuple[Callable[[sqlite3.Connection], Any], Future[Any]]] = deque()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="refstore-sqlite")

    async def run(self, job: Callable[[sqlite3.Connection], T]) -> T:
        """What the job returns, when its transaction is durable; what it raises, when it is undone."""
        future: Future[T] = Future()
        self._jobs.append((job, future))
        self._thread.submit(self._drain)  # finds nothing if an earlier call has taken this job along
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        self._thread.shutdown()
        self._connection.close()

    def _drain(self) -> None:
        batch = [self._jobs.popleft() for _ in range(min(len(self._jobs), BATCH_JOBS_MAX))]
        batch = [(job, future) for job, future in batch if future.set_running_or_notify_cancel()]
        if not batch:
            return
        outcomes = self._transact([job for job, _ in batch])
        for (_, future), outcome in zip(batch, outcomes, strict=True):
            if isinstance(outcome, Exception):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)

    def _transact(self, jobs: list[Callable[[sqlite3.Connection], Any]]) -> list[Any]:
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            outcomes = [self._attempt(job) for job in jobs]
        except sqlite3.Error as error:
            self._roll_back()
            return [translated(error, self._path)] * len(jobs)
        try:
            self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            self._roll_back()
            return [self._uncommitted(error)] * len(jobs)
        return outcomes

    def _attempt(self, job: Callable[[sqlite3.Connection], Any]) -> Any:
        self._connection.execute("SAVEPOINT job")
        try:
            outcome = job(self._connection)
        except sqlite3.Error:  # the file or the disk: it concerns the whole transaction
            raise
        except Exception as error:
            self._connection.execute("ROLLBACK TO job")
            outcome = error
        self._connection.execute("RELEASE job")
        return outcome

    def _roll_back(self) -> None:
        if self._connection.in_transaction:  # SQLite may have done so by itself
            with contextlib.suppress(sqlite3.Error):  # the jobs must hear of the first error, or they wait for ever
                self._connection.execute("ROLLBACK")

    def _uncommitted(self, error: sqlite3.Error) -> Error:
        if _code(error) in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_BUSY):
            return translated(error, self._path)
        return OutcomeUnknown(f"{self._path}: the commit failed half way: {error}; read again to see if it was done")


__all__ = ["Writer", "connect", "translated"]
