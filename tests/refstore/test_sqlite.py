"""What is SQLite's own: files that cannot be used and say why, shared transactions, and what survives."""

import asyncio
import os
import resource
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, asynccontextmanager, closing, contextmanager
from pathlib import Path

import pytest

from refstore.drivers import sqlite_file
from refstore.drivers.sqlite import SqliteRefStore
from refstore.drivers.sqlite_file import APPLICATION_ID, BATCH_JOBS_MAX, SCHEMA_VERSION
from refstore.errors import Conflict, Corrupt, Invalid, OutcomeUnknown, Unavailable, WriterUnknown
from refstore.refs import replay
from tests.aio import aio
from tests.conformance.refstore_histories import append, create, delete
from tests.refstore.openers import open_in_processes

NOBODY = 65534


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "refs.db"


def opened(path: Path) -> aclosing[SqliteRefStore]:
    return aclosing(SqliteRefStore(str(path)))


async def fill(path: Path, branches: int = 1) -> None:
    async with opened(path) as store:
        await asyncio.gather(*(store.change("r", f"b{number:03d}", create()) for number in range(branches)))


class TestFilesThatCannotBeUsed:
    def test_a_file_that_is_no_database_is_corrupt(self, path: Path) -> None:
        path.write_text("not a database, but long enough to have a header of one hundred bytes" * 10)
        with pytest.raises(Corrupt, match="recover"):
            SqliteRefStore(str(path))

    @aio
    async def test_a_damaged_database_is_corrupt_to_readers_and_writers(self, path: Path) -> None:
        await fill(path, branches=200)
        page = 4096
        body = path.read_bytes()
        path.write_bytes(body[:page] + b"\x5a" * (len(body) - page))  # the schema stands, what it leads to does not
        async with opened(path) as store:
            for verb in (
                store.read("r", "b100"),
                store.change("r", "b100", append(1)),
                store.change("r", "new", create()),
                store.set("r", b"k", b"v"),
                store.get("r", b"k"),
            ):
                with pytest.raises(Corrupt):
                    await verb

    @aio
    async def test_a_damaged_record_is_corrupt_and_harms_no_other(self, path: Path) -> None:
        await fill(path, branches=2)
        with closing(sqlite3.connect(path)) as second, second:
            second.execute("UPDATE branch SET record = '{\"name\": 1}' WHERE name = 'b000'")
            second.execute("UPDATE journal SET event = X'FF' WHERE branch = 'b000'")
        async with opened(path) as store:
            bad, good = store.change("r", "b000", append(1)), store.change("r", "b001", append(1))
            outcomes = await asyncio.gather(bad, good, return_exceptions=True)
            assert isinstance(outcomes[0], Corrupt)
            assert (await store.read("r", "b001")).l1 == ("w-1",)
            for verb in (store.read("r", "b000"), store.events("r"), anext(store.branches("r"))):
                with pytest.raises(Corrupt):
                    await verb

    def test_a_schema_of_another_release_is_invalid_and_left_as_it_is(self, path: Path) -> None:
        with closing(sqlite3.connect(path)) as other:
            other.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
        with pytest.raises(Invalid, match=rf"schema {SCHEMA_VERSION + 1}.*release"):
            SqliteRefStore(str(path))
        with closing(sqlite3.connect(path)) as other:
            assert other.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,)

    @pytest.mark.parametrize(
        "script",
        [
            "CREATE TABLE photo (id INTEGER)",
            "CREATE TABLE item (id INTEGER); CREATE TABLE branch (id INTEGER)",
            "CREATE TABLE item (id INTEGER); CREATE TABLE branch (id INTEGER); CREATE TABLE journal (id INTEGER)",
            "CREATE VIEW one AS SELECT 1",
            "PRAGMA application_id = 7",
            f"PRAGMA application_id = 7; PRAGMA user_version = {SCHEMA_VERSION}",
            f"CREATE TABLE photo (id INTEGER); PRAGMA user_version = {SCHEMA_VERSION}",
        ],
    )
    def test_a_database_of_another_program_is_invalid_and_not_touched(self, path: Path, script: str) -> None:
        with closing(sqlite3.connect(path)) as other:
            other.executescript(script)
        before = path.read_bytes()
        with pytest.raises(Invalid, match=r"another program.*name another file"):
            SqliteRefStore(str(path))
        assert path.read_bytes() == before
        assert [file.name for file in path.parent.iterdir()] == [path.name]

    @aio
    async def test_a_database_is_marked_as_ours_also_one_made_before_there_was_a_mark(self, path: Path) -> None:
        await fill(path)
        with closing(sqlite3.connect(path)) as second:
            assert second.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)
            second.execute("PRAGMA application_id = 0")
        async with opened(path) as store:
            assert (await store.read("r", "b000")).name == "b000"
        with closing(sqlite3.connect(path)) as second:
            assert second.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)

    def test_a_missing_directory_is_unavailable_and_says_so(self, tmp_path: Path) -> None:
        with pytest.raises(Unavailable, match="does its directory exist"):
            SqliteRefStore(str(tmp_path / "none" / "refs.db"))

    def test_a_read_only_file_is_unavailable_and_says_so(self) -> None:
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory, "refs.db")
            asyncio.run(fill(path))
            path.chmod(0o444)
            Path(directory).chmod(0o555)
            with as_nobody(), pytest.raises(Unavailable, match=str(path)) as caught:
                SqliteRefStore(str(path))
            assert "writ" in str(caught.value)
            Path(directory).chmod(0o755)


@contextmanager
def as_nobody() -> Iterator[None]:
    """Root may write everywhere, so for a while we are somebody else."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(before)


class TestLocks:
    @aio
    async def test_a_lock_that_another_process_keeps_is_unavailable_to_writers_only(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sqlite_file, "BUSY_SECONDS_MAX", 0.1)
        await fill(path)
        async with opened(path) as store:
            with locked_by_another_process(path):
                with pytest.raises(Unavailable, match="locked by another process") as caught:
                    await store.change("r", "b000", append(1))
                assert not isinstance(caught.value, OutcomeUnknown)
                assert (await store.read("r", "b000")).l1 == ()
            assert (await store.change("r", "b000", append(1))).l1 == ("w-1",)

    def test_a_new_file_that_another_process_has_locked_is_unavailable(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sqlite_file, "BUSY_SECONDS_MAX", 0.1)
        with locked_by_another_process(path), pytest.raises(Unavailable, match="locked by another process"):
            SqliteRefStore(str(path))

    def test_processes_that_make_the_same_new_file_at_once_all_get_it(self, path: Path) -> None:
        open_in_processes(str(path), processes=3)
        with closing(sqlite3.connect(path)) as second:
            assert second.execute("SELECT count(*) FROM item").fetchone() == (3,)

    def test_threads_that_make_the_same_new_file_at_once_all_get_it(self, tmp_path: Path) -> None:
        with ThreadPoolExecutor(8) as threads:
            for number in range(5):
                start = threading.Barrier(8)
                list(threads.map(open_at_once, [(start, str(tmp_path / f"{number}.db"))] * 8))


def open_at_once(start_and_path: tuple[threading.Barrier, str]) -> None:
    start, path = start_and_path
    start.wait()
    sqlite_file.connect(path).close()


@contextmanager
def locked_by_another_process(path: Path) -> Iterator[None]:
    program = (
        "import sqlite3, sys; c = sqlite3.connect(sys.argv[1], isolation_level=None); "
        "c.execute('BEGIN EXCLUSIVE'); print('locked', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", program, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"locked\n"
        try:
            yield
        finally:
            process.kill()


class TestFullDisks:
    @aio
    async def test_a_file_that_may_not_grow_is_unavailable_and_goes_on_when_it_may(self, path: Path) -> None:
        async with opened(path) as store:
            await store.change("r", "main", create())
            connection = store._writer._connection
            (pages,) = connection.execute("PRAGMA page_count").fetchone()
            connection.execute(f"PRAGMA max_page_count = {pages}")
            with pytest.raises(Unavailable, match="disk is full") as caught:
                await store.set("r", b"k", bytes(100_000))
            assert not isinstance(caught.value, OutcomeUnknown)
            connection.execute(f"PRAGMA max_page_count = {pages + 1000}")
            await store.set("r", b"k", bytes(100_000))
            assert (await store.change("r", "main", append(1))).l1 == ("w-1",)

    @aio
    async def test_a_commit_that_the_system_refuses_is_undone_or_of_unknown_outcome(self, path: Path) -> None:
        async with opened(path) as store:
            await store.change("r", "main", create())
            with largest_file(path.with_name("refs.db-wal").stat().st_size), pytest.raises(Unavailable):
                await store.change("r", "main", append(1))
            seen = (await store.read("r", "main")).l1
            async with opened(path) as second:
                assert (await second.read("r", "main")).l1 == seen
                assert (await second.change("r", "main", append(1))).l1 == ("w-1",)
                assert len(await second.events("r")) == 2


@contextmanager
def largest_file(size_bytes: int) -> Iterator[None]:
    """No file of this process may grow past this size: a write that would fails, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


class TestTransactions:
    @aio
    async def test_every_commit_is_flushed_before_it_is_acknowledged(self, path: Path) -> None:
        async with opened(path) as store:
            for connection in (store._writer._connection, store._reader):
                assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
                assert connection.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL

    @aio
    async def test_changes_that_wait_together_share_a_transaction(self, path: Path) -> None:
        async with opened(path) as store:
            await store.change("r", "main", create())
            commits = count_commits(store)
            async with waiting_writer(store):
                changes = [store.change("r", f"b{number}", create()) for number in range(BATCH_JOBS_MAX + 10)]
                tasks = [asyncio.create_task(change) for change in changes]
                await asyncio.sleep(0)
            await asyncio.gather(*tasks)
            assert len(commits) == 1 + 2  # of what held the writer up; then a full batch, and the rest

    @aio
    async def test_one_that_fails_undoes_itself_and_not_its_neighbours(self, path: Path) -> None:
        def half(connection: sqlite3.Connection) -> None:
            connection.execute("INSERT INTO item VALUES ('r', X'00', X'00')")
            raise WriterUnknown("half way")

        async with opened(path) as store:
            await store.change("r", "main", create())
            commits = count_commits(store)
            async with waiting_writer(store):
                jobs = (
                    store.change("r", "main", append(1)),
                    store.change("r", "main", append(9)),
                    store.set_if("r", b"k", b"v", b"other"),
                    store._writer.run(half),
                    store.change("r", "main", append(2)),
                )
                tasks = [asyncio.ensure_future(job) for job in jobs]
                await asyncio.sleep(0)
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
            assert len(commits) == 2
            kinds = [type(outcome) for outcome in outcomes if isinstance(outcome, Exception)]
            assert kinds == [WriterUnknown, Conflict, WriterUnknown]
            branch = await store.read("r", "main")
            assert branch.l1 == ("w-1", "w-2")
            assert replay(await store.events("r")) == {"main": branch}
            assert [item async for item in store.scan("r")] == []

    @aio
    async def test_a_cancelled_change_that_has_not_begun_is_not_done(self, path: Path) -> None:
        async with opened(path) as store:
            await store.change("r", "main", create())
            async with waiting_writer(store):
                task = asyncio.create_task(store.change("r", "main", append(1)))
                await asyncio.sleep(0)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            assert (await store.change("r", "main", append(1))).version == 2

    @aio
    async def test_closing_waits_for_what_was_asked_before_and_reopening_sees_it(self, path: Path) -> None:
        async with opened(path) as store:
            await store.change("r", "main", create())
            await store.change("r", "gone", create())
            tasks = [asyncio.create_task(store.change("r", "main", append(seq))) for seq in range(1, 21)]
            tasks.append(asyncio.create_task(store.change("r", "gone", delete())))
            await asyncio.sleep(0)
        await asyncio.gather(*tasks)
        assert not path.with_name("refs.db-wal").exists()
        async with opened(path) as store:
            branches = {branch.name: branch async for branch in store.branches("r")}
            assert [len(branch.l1) for branch in branches.values()] == [20]
            assert replay(await store.events("r")) == branches


def count_commits(store: SqliteRefStore) -> list[str]:
    commits: list[str] = []
    store._writer._connection.set_trace_callback(lambda text: commits.append(text) if text == "COMMIT" else None)
    return commits


@asynccontextmanager
async def waiting_writer(store: SqliteRefStore) -> AsyncIterator[None]:
    """Within it the writer's thread is held up by a job of ours, so that everything else waits together."""
    begun, end = threading.Event(), threading.Event()

    def job(_: sqlite3.Connection) -> None:
        begun.set()
        end.wait(60)

    held = asyncio.create_task(store._writer.run(job))
    await asyncio.to_thread(begun.wait, 60)
    try:
        yield
    finally:
        end.set()
        await held
