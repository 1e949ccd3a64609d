"""Imports: begun by one request, asked after and cancelled by others, also on other workers.

What is known of one is a record in the ref store, which its worker renews while it works. A worker that dies leaves the
record as it was; the same import begun again goes on where it ended (`lsmfs.imports`). Only places below
`allowed_imports` can be imported, and no manifests: those name places of their own, and `stage` takes them with checks.
"""

import asyncio
import contextlib
import os
from datetime import UTC, datetime
from typing import Annotated, Literal
from urllib.parse import unquote, urlsplit

import msgspec
import structlog
from msgspec import Meta, Struct

from lsmfs.api import places, wire
from lsmfs.api.answers import FAILED
from lsmfs.api.operations import Call, Operation
from lsmfs.auth import Action
from lsmfs.blocks import locate
from lsmfs.imports import Progress, open_source
from lsmfs.model import Entry, check_branch_name, key_of
from lsmfs.repository import Repository
from refstore.errors import Conflict, Error, Invalid, NoChanges, NotFound, Unavailable

SECOND_US = 1_000_000
BEAT_SECONDS = 1.0
CANCELLED = "the import was cancelled"
LOST_SECONDS = 30  # without a beat: its worker is gone
END_TRIES_MAX = 60  # a store that is away for a minute; later the status says that the worker is gone
LOCATIONS_MAX = 100
KEPT_MAX = 1000  # records of one repository: those that have ended go first

log = structlog.get_logger("api")


class ImportLocation(Struct, frozen=True):
    type: Literal["common_prefix", "object"]
    path: Annotated[str, Meta(max_length=2048)]
    destination: Annotated[str, Meta(max_length=1024)]


class ImportCommit(Struct, frozen=True):
    message: Annotated[str, Meta(max_length=10_000)]
    metadata: wire.Metadata | None = None
    date: wire.Second | None = None
    allow_empty: bool = False
    force: bool = False


class ImportCreation(Struct, frozen=True):
    paths: Annotated[list[ImportLocation], Meta(min_length=1, max_length=LOCATIONS_MAX)]
    commit: ImportCommit
    force: bool = False


class ImportStarted(Struct, frozen=True):
    id: str


class ImportQuery(Struct, frozen=True):
    id: str


class ImportStatus(Struct, frozen=True, omit_defaults=True):
    completed: bool
    update_time: datetime
    ingested_objects: int
    metarange_id: str = ""
    commit: wire.Commit | None = None
    error: wire.Error | None = None


class Record(Struct, frozen=True):
    id: str
    branch: str
    beat_us: int
    objects: int = 0
    completed: bool = False
    cancelled: bool = False
    commit: str = ""
    error: str = ""


class Records:
    """The records of one repository's imports."""

    def __init__(self, repository: Repository) -> None:
        self._refs = repository.refs
        self._partition = f"{repository.name}/imports"

    async def find(self, identity: str) -> Record:
        data = await self._refs.get(self._partition, _key(identity))
        if data is None:
            raise NotFound(f"there is no import {identity[:80]!r}")
        return msgspec.json.decode(data, type=Record)

    async def add(self, record: Record) -> None:
        there = [
            msgspec.json.decode(item.value, type=Record)
            async for item in self._refs.scan(self._partition, b"", _key(""))
        ]
        for old in sorted(there, key=lambda each: (not each.completed, each.beat_us))[: max(0, len(there) - KEPT_MAX)]:
            await self._refs.delete(self._partition, _key(old.id))
        await self._refs.set(self._partition, _key(record.id), msgspec.json.encode(record))

    async def swap(self, old: Record, new: Record) -> Record:
        """`Conflict` if it was changed meanwhile."""
        await self._refs.set_if(self._partition, _key(old.id), msgspec.json.encode(new), msgspec.json.encode(old))
        return new


def _key(identity: str) -> bytes:
    return f"request/{identity}".encode()


async def start(call: Call) -> ImportStarted:
    repository, branch = await call.repository(), check_branch_name(call.path["branch"])
    if call.body.commit.date is not None:
        raise Invalid("a commit has the time at which it is made: leave out date")
    await repository.policy.check("stage", branch)
    await repository.policy.check("commit", branch)
    await repository.branches.read(branch)
    locations = [(each.type, _permitted(call, each), each.destination) for each in call.body.paths]
    record = Record(call.lake.clock.new_id(), branch, call.lake.clock.now_us())
    await Records(repository).add(record)
    run, running = _Run(call, repository, record, locations), call.services.imports
    running[record.id] = run
    run.task = asyncio.create_task(run.supervised())
    run.task.add_done_callback(lambda _: running.pop(record.id, None))
    return ImportStarted(record.id)


def _permitted(call: Call, location: ImportLocation) -> str:
    url = places.permitted(location.path, call.services.options.allowed_imports, "api.allowed_imports")
    if location.type == "object":
        key_of(location.destination)
        if location.path.endswith("/"):
            raise Invalid(f"{location.path!r} is no object: its type is common_prefix")
    elif url.startswith("file://") and not os.path.isdir(unquote(urlsplit(url).path)):
        raise Invalid(f"{location.path!r} is no folder: its type is object")
    return url


class _Run:
    """One import under way in this process."""

    def __init__(
        self, call: Call, repository: Repository, record: Record, locations: list[tuple[str, str, str]]
    ) -> None:
        self._lake = call.lake
        self._user = call.identity.user
        self._words = call.body.commit
        self._repository = repository
        self._records = Records(repository)
        self._record = record
        self._locations = locations
        self._done = 0
        self._now = 0
        self.is_cancelled = asyncio.Event()
        self.task: asyncio.Task[None] | None = None

    async def supervised(self) -> None:
        """Work, renewing the record, until it is done or somebody cancels."""
        work, cancelled = asyncio.create_task(self._work()), asyncio.create_task(self.is_cancelled.wait())
        try:
            while not work.done() and not cancelled.done():
                await asyncio.wait({work, cancelled}, timeout=BEAT_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                await self._beat()
            if not work.done():
                work.cancel()
                await asyncio.wait({work})
            await self._end(work)
        finally:
            for task in (work, cancelled):
                task.cancel()
            await asyncio.gather(work, cancelled, return_exceptions=True)

    async def _beat(self) -> None:
        """Renew the record; another worker may have been told to cancel. A store that is away is tried again."""
        try:
            await self._save(objects=self._done + self._now)
        except Conflict:
            await self._look()
        except Unavailable as error:
            log.info("import not renewed", id=self._record.id, error=str(error))

    async def _look(self) -> None:
        """Somebody has changed the record: to cancel, or because the repository is being deleted."""
        try:
            self._record = await self._records.find(self._record.id)
        except NotFound:
            self.is_cancelled.set()
        except Unavailable as error:
            log.info("import not renewed", id=self._record.id, error=str(error))
        if self._record.cancelled:
            self.is_cancelled.set()

    async def _end(self, work: "asyncio.Task[str]") -> None:
        """Write down how it ended. A cancellation that came too late is none."""
        objects = self._done + self._now
        try:
            ended: dict[str, object] = {"commit": await work, "cancelled": False}
        except asyncio.CancelledError:
            ended = {"error": CANCELLED}
        except Error as error:
            ended = {"error": str(error)}
        except Exception:
            log.exception("import failed", repository=self._repository.name, id=self._record.id)
            ended = {"error": FAILED}
        for _ in range(END_TRIES_MAX):
            try:
                self._record = await self._records.find(self._record.id)
                await self._save(completed=True, objects=objects, **ended)
            except NotFound:
                return  # the repository is gone
            except (Conflict, Unavailable) as error:
                log.info("end of import not written", id=self._record.id, error=str(error))
                await asyncio.sleep(BEAT_SECONDS)
                continue
            return

    async def _save(self, **changes: object) -> None:
        new = msgspec.structs.replace(self._record, beat_us=self._lake.clock.now_us(), **changes)
        self._record = await self._records.swap(self._record, new)

    async def _work(self) -> str:
        """The id of the commit."""
        for kind, url, destination in self._locations:
            await (self._folder(url, destination) if kind == "common_prefix" else self._object(url, destination))
            self._done, self._now = self._done + self._now, 0
        try:
            words = self._words
            done = await self._repository.commit(
                self._record.branch, words.message, self._user, words.metadata, words.allow_empty
            )
            return done.id
        except NoChanges:
            return ""

    async def _folder(self, url: str, destination: str) -> None:
        installation = self._lake.installation
        source = open_source(url, installation._environment, installation.store_url, self._lake.clock)
        try:
            await self._repository.import_objects(source, self._record.branch, destination, self._tell)
        finally:
            await source.aclose()

    def _tell(self, progress: Progress) -> None:
        self._now = progress.objects

    async def _object(self, url: str, destination: str) -> None:
        address = url.partition("?")[0]
        container, name = locate(address, self._lake.installation.store_url)
        info = await self._lake.installation.foreign(container).head(name)
        entry = Entry(address, info.size_bytes, info.tag.strip('"'), int(info.modified.timestamp() * SECOND_US))
        async with self._lake.writing(self._repository.name, self._record.branch) as writer:
            await writer.put(destination, entry)
        self._now = 1


async def status(call: Call) -> ImportStatus:
    repository = await call.repository()
    record = await _record(call, repository)
    when = datetime.fromtimestamp(record.beat_us / SECOND_US, UTC)
    error = record.error
    if not record.completed and call.lake.clock.now_us() - record.beat_us > LOST_SECONDS * SECOND_US:
        error = "its worker is gone: begin the same import again, it goes on where it was"
    commit = None
    if record.commit:
        commit = wire.commit_of(record.commit, await repository.commits.load(await repository.resolve(record.commit)))
    metarange = commit.meta_range_id if commit is not None else ""
    told = wire.Error(error) if error else None
    return ImportStatus(record.completed, when, record.objects, metarange, commit, told)


async def cancel(call: Call) -> None:
    """Its worker notices at once, or at its next beat if it is another one. What it has done so far is kept for the
    same import begun again."""
    repository = await call.repository()
    for _ in range(10):
        record = await _record(call, repository)
        if record.completed:
            raise Conflict(f"import {record.id} has ended already")
        with contextlib.suppress(Conflict):
            await Records(repository).swap(record, msgspec.structs.replace(record, cancelled=True))
            if (run := call.services.imports.get(record.id)) is not None:
                run.is_cancelled.set()
            return
    raise Conflict("the import changes all the time: try again")


async def _record(call: Call, repository: Repository) -> Record:
    record = await Records(repository).find(call.query.id)
    if record.branch != call.path["branch"]:
        raise NotFound(f"there is no import {record.id!r} into branch {call.path['branch']!r}")
    return record


AT = "/repositories/{repository}/branches/{branch}/import"
OPERATIONS = (
    Operation("importStart", "POST", AT, Action.IMPORT, start, ImportStarted, 202, body=ImportCreation),
    Operation("importStatus", "GET", AT, Action.IMPORT, status, ImportStatus, query=ImportQuery),
    Operation("importCancel", "DELETE", AT, Action.IMPORT, cancel, status=204, query=ImportQuery),
)
