"""The guided tour: the whole of lsmfs on the embedded default, in some seconds, in a folder of its own.

Each step says what it does, shows a progress bar if there is somebody to see it, and is timed. Ctrl-C ends it at any
step; the temporary folder goes in any case.
"""

import contextlib
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from lsmfs import paths
from lsmfs.blocks import ALONE, Bodies
from lsmfs.cli import show
from lsmfs.cli.load import FOLDERS, path_of, put_all, tasks_for
from lsmfs.cli.progress import Meter, metered
from lsmfs.cli.session import Session
from lsmfs.installation import FILE, Configuration, Installation, create_installation, open_installation
from lsmfs.model import Entry
from lsmfs.repository import Repository
from refstore.errors import AlreadyExists, Corrupt

REPOSITORY, BRANCH = "tour", "main"
SAMPLE = 1000
DELETED = 10
BODY = b"One small object: every entry of the tour refers to it.\n"

Compact = Callable[[Repository, str], Awaitable[int]]


@dataclass(frozen=True, slots=True)
class Step:
    step: str
    what: str
    count: int
    seconds: float


@contextlib.contextmanager
def folder(given: Path | None, keep: bool) -> Iterator[tuple[Path, bool]]:
    """Where the tour goes, and whether it stays: a folder that was named does."""
    if given is not None:
        if (given / FILE).exists():
            raise AlreadyExists(f"{given} is an installation already: the tour makes its own, leave --data out")
        yield given, True
    elif keep:
        yield Path(tempfile.mkdtemp(prefix="lsmfs-tour-")), True
    else:
        with tempfile.TemporaryDirectory(prefix="lsmfs-tour-") as name:
            yield Path(name), False


async def walk(session: Session, place: Path, entries: int, compact: Compact) -> list[Step]:
    """Take every step; what was done."""
    began = time.perf_counter()
    create_installation(place, Configuration())
    async with (
        open_installation(place, session.environment) as installation,
        await installation.create(REPOSITORY, BRANCH) as repository,
    ):
        created = Step("init", f"repository {REPOSITORY!r} on local files and SQLite", 1, time.perf_counter() - began)
        _tell(session, created)
        guide = Guide(session, installation, repository, entries, [created])
        await guide.put()
        await guide.look()
        await guide.compact(compact)
        await guide.commit()
        await guide.get()
        await guide.scan()
        await guide.list()
        await guide.delete()
        return guide.steps


class Guide:
    """The steps of the tour, in their order."""

    def __init__(
        self, session: Session, installation: Installation, repository: Repository, entries: int, steps: list[Step]
    ) -> None:
        self._session = session
        self._installation = installation
        self._repository = repository
        self._entries = entries
        self.steps = steps

    @contextlib.contextmanager
    def _step(self, name: str, total: int) -> Iterator[tuple[Meter, list[str]]]:
        """Time what is inside; it appends what it did."""
        what: list[str] = []
        began = time.perf_counter()
        with metered(self._session.err, name, total, quiet=self._session.json) as meter:
            yield meter, what
        self.steps.append(Step(name, " ".join(what), total, time.perf_counter() - began))
        _tell(self._session, self.steps[-1])

    async def put(self) -> None:
        tasks = tasks_for(self._entries)
        entry = await self._store_object()
        with self._step("put", self._entries) as (meter, what):
            async with self._repository.writer(BRANCH) as writer:
                await put_all(writer, iter(range(self._entries)), self._entries, entry, meter)
            what.append(f"entries by {tasks} tasks, each acknowledged when it is durable")

    async def _store_object(self) -> Entry:
        async def body() -> AsyncIterator[bytes]:
            yield BODY

        bodies = Bodies(self._repository.store, REPOSITORY, self._installation.clock, ALONE)
        return await bodies.save(body(), content_type="text/plain")

    async def look(self) -> None:
        branch = await self._repository.branches.read(BRANCH)
        size = sum(paths.parse_table(name).size_bytes for name in branch.l1 if not paths.is_run(name))
        if not self._session.json:
            told = (
                f"{len(branch.l1)} tables in l1, {show.bytes_text(size)} in all: group commit made few of many writes"
            )
            self._session.emit({}, f"{'':8}  {told}")

    async def compact(self, compact: Compact) -> None:
        branch = await self._repository.branches.read(BRANCH)
        with self._step("compact", len(branch.l1)) as (meter, what):
            rounds = await compact(self._repository, BRANCH)
            meter.advance(len(branch.l1))
            what.append(f"tables merged into l2 in {rounds} compactions")

    async def commit(self) -> None:
        with self._step("commit", self._entries) as (meter, what):
            done = await self._repository.commit(BRANCH, "the tour's first commit", "tour")
            meter.advance(self._entries)
            what.append(f"entries in commit {done.id[:12]}")

    async def get(self) -> None:
        sample = [path_of(number) for number in range(0, self._entries, max(1, self._entries // SAMPLE))]
        with self._step("get", len(sample)) as (meter, what):
            found = await self._repository.get_many(BRANCH, sample)
            meter.advance(len(found))
            what.append("entries read one by one, all of them there")
        _check("entries read back", len(found), len(sample))

    async def scan(self) -> None:
        count = 0
        with self._step("scan", self._entries) as (meter, what):
            async for rows in self._repository.scan(BRANCH):
                count += len(rows)
                meter.advance(len(rows))
            what.append("entries read in columns")
        _check("entries scanned", count, self._entries)

    async def list(self) -> None:
        folders = min(FOLDERS, self._entries)
        with self._step("list", folders) as (meter, what):
            page = await self._repository.list(BRANCH, "events/", "/")
            meter.advance(len(page.items))
            what.append("folders listed, without touching what is in them")
        _check("folders listed", len(page.items), folders)

    async def delete(self) -> None:
        doomed = [path_of(number) for number in range(DELETED)]
        with self._step("delete", DELETED) as (meter, what):
            async with self._repository.writer(BRANCH) as writer:
                for path in doomed:
                    await writer.delete(path)
                    meter.advance(1)
            what.append("entries deleted, and gone for every reader")
        _check("deleted entries found", len(await self._repository.get_many(BRANCH, doomed)), 0)


def _check(what: str, found: int, expected: int) -> None:
    if found != expected:
        raise Corrupt(f"{what}: {found}, expected {expected}: please report it, with `lsmfs version`")


def _tell(session: Session, step: Step) -> None:
    if not session.json:
        session.emit({}, f"{step.step:8}  {step.count:,} {step.what}")


def summary(steps: list[Step], kept: Path | None) -> str:
    """A table of the steps, and what to try next."""
    rows = [
        (step.step, f"{step.count:,}", show.seconds_text(step.seconds), show.rate_text(step.count, step.seconds))
        for step in steps
    ]
    return f"\n{show.table(('step', 'count', 'seconds', 'rate'), rows)}\n\nTry next:\n{_next(kept)}"


def _next(kept: Path | None) -> str:
    if kept is not None:
        lines = [
            f"export LSMFS_DATA={kept}",
            f"lsmfs ls lsmfs://{REPOSITORY}/{BRANCH}/events/ --limit 5",
            f"lsmfs get lsmfs://{REPOSITORY}/{BRANCH}/{path_of(DELETED)}",
            f"lsmfs status lsmfs://{REPOSITORY}/{BRANCH}",
            f"lsmfs log lsmfs://{REPOSITORY}/{BRANCH}",
        ]
    else:
        lines = [
            "lsmfs init lake",
            "date | lsmfs put - lsmfs://lake/main/now.txt",
            "lsmfs ls lsmfs://lake/main",
            'lsmfs commit lsmfs://lake/main -m "first commit"',
            "lsmfs doctor",
        ]
    return "\n".join(f"  {line}" for line in lines)
