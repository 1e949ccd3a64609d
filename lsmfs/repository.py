"""A repository: one short method per verb of the user.

async with await Repository.open(store, refs, "lake") as repo:
    async with repo.writer("main") as w:
        await w.put("tables/a/1.parquet", entry)
    entry = await repo.get("main", "tables/a/1.parquet")
    await repo.commit("main", "first load")
"""

import asyncio
import os
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import msgspec
import pyarrow as pa

from lsmfs.clock import Clock, SystemClock
from lsmfs.lsm.branches import BranchReader
from lsmfs.lsm.cache import DiskCache
from lsmfs.lsm.listing import PAGE_MAX, Page, list_page
from lsmfs.lsm.run import EMPTY_RUN, Run
from lsmfs.lsm.tables import Tables
from lsmfs.lsm.view import LayerGone, View, check_moved
from lsmfs.lsm.writer import Writer
from lsmfs.model import Entry, check_branch_name, check_repository_name, key_of
from lsmfs.objectstore.store import ObjectStore
from lsmfs.settings import Settings
from lsmfs.tree.commits import Commit, Commits
from lsmfs.tree.committer import Committed, Committer
from refstore.errors import AlreadyExists, Conflict, Corrupt, Invalid, NotFound
from refstore.records import Branch, CommitId, Create
from refstore.refs import Refs
from refstore.store import ABSENT, Store

REPOSITORIES = "repositories"  # the partition that lists them
THREADS = max(2, min(8, os.cpu_count() or 2))  # that encode and merge; more than processors only cost cache
VIEWS_MAX = 64  # branches whose opened layers are kept between reads
VIEW_TRIES_MAX = 10  # a view whose layers go while it is opened: each time the branch has moved


class RefStore(Store, Refs, Protocol):
    """What a repository needs of a ref store."""


class RepositoryRecord(msgspec.Struct, frozen=True):
    name: str
    default_branch: str
    created_us: int


class Repository:
    def __init__(
        self,
        store: ObjectStore,
        refs: RefStore,
        record: RepositoryRecord,
        clock: Clock | None = None,
        settings: Settings | None = None,
        disk: DiskCache | None = None,
        threads: bool = True,
    ) -> None:
        self.name = record.name
        self.record = record
        self.store = store
        self.refs = refs
        self.clock = clock or SystemClock()
        self.settings = settings or Settings()
        self._executor = ThreadPoolExecutor(THREADS, "lsmfs") if threads else None
        self.tables = Tables(store, self.name, disk, self._executor, threads)
        self.commits = Commits(store, self.name)
        self.branches = BranchReader(refs, self.name)
        self._views: OrderedDict[str, View] = OrderedDict()

    @staticmethod
    async def create(
        store: ObjectStore,
        refs: RefStore,
        name: str,
        default_branch: str = "main",
        clock: Clock | None = None,
        settings: Settings | None = None,
        disk: DiskCache | None = None,
        threads: bool = True,
    ) -> "Repository":
        """A new repository with its first commit and its default branch. Repeating an interrupted creation ends it."""
        check_repository_name(name)
        check_branch_name(default_branch)
        clock = clock or SystemClock()
        record = RepositoryRecord(name, default_branch, clock.now_us())
        try:
            await refs.set_if(REPOSITORIES, name.encode(), msgspec.json.encode(record), ABSENT)
        except Conflict:
            existing = await Repository.open(store, refs, name, clock, settings, disk, threads)
            try:
                await existing.branches.read(existing.record.default_branch)
            except NotFound:
                await existing._begin()
                return existing
            raise AlreadyExists(f"repository {name!r} exists already") from None
        repository = Repository(store, refs, record, clock, settings, disk, threads)
        await repository._begin()
        return repository

    @staticmethod
    async def open(
        store: ObjectStore,
        refs: RefStore,
        name: str,
        clock: Clock | None = None,
        settings: Settings | None = None,
        disk: DiskCache | None = None,
        threads: bool = True,
    ) -> "Repository":
        data = await refs.get(REPOSITORIES, name.encode())
        if data is None:
            raise NotFound(f"repository {name!r} does not exist: create it with `lsmfs init`")
        try:
            record = msgspec.json.decode(data, type=RepositoryRecord)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise Corrupt(f"the record of repository {name!r} cannot be read: {error}") from None
        return Repository(store, refs, record, clock, settings, disk, threads)

    async def _begin(self) -> None:
        run = await self.tables.save_run(EMPTY_RUN, 0)
        commit = Commit((), run, "Repository created", "lsmfs", self.record.created_us, 0)
        base = await self.commits.save(commit)
        create = Create(incarnation=self.clock.new_id(), base_commit=base)
        await self.refs.change(self.name, self.record.default_branch, create)

    async def __aenter__(self) -> "Repository":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Release threads; the stores belong to the caller."""
        if self._executor is not None:
            await asyncio.to_thread(self._executor.shutdown)

    def writer(self, branch: str, actor: str = "") -> Writer:
        """A write client for the branch: `async with repo.writer("main") as w`."""
        check_branch_name(branch)
        return Writer(
            self.tables,
            self.refs,
            self.branches,
            lambda: self.view(branch),
            branch,
            self.clock,
            self.settings.writer,
            self.settings.shape,
            actor,
        )

    async def view(self, branch: str) -> View:
        """What the branch shows now: every write acknowledged before this call is in it."""
        for _ in range(VIEW_TRIES_MAX):
            record = await self.branches.read(branch)
            known = self._views.get(branch)
            if known is not None and _same(known.branch, record):
                return known
            try:
                view = await View.open(self.tables, record, await self._base(record))
            except LayerGone as gone:
                await check_moved(self.branches, record, gone)
                continue
            self._keep_view(branch, view)
            return view
        raise Conflict(f"branch {branch!r} moved {VIEW_TRIES_MAX} times while it was opened: try again")

    def _keep_view(self, branch: str, view: View) -> None:
        self._views[branch] = view
        self._views.move_to_end(branch)
        while len(self._views) > VIEWS_MAX:
            self._views.popitem(last=False)

    async def get(self, branch: str, path: str | bytes) -> Entry:
        """The entry at the path; `NotFound`."""
        key = key_of(path)
        while True:
            view = await self.view(branch)
            try:
                entry = await view.get(key)
            except LayerGone as gone:
                await check_moved(self.branches, view.branch, gone)
                continue
            if entry is None:
                raise NotFound(f"{key.decode()!r} does not exist on branch {branch!r}")
            return entry

    async def get_many(self, branch: str, paths: Iterable[str | bytes]) -> dict[bytes, Entry]:
        """The entries of those paths that exist, all at one version."""
        keys = [key_of(path) for path in paths]
        while True:
            view = await self.view(branch)
            try:
                return await view.get_many(keys)
            except LayerGone as gone:
                await check_moved(self.branches, view.branch, gone)

    async def list(
        self, branch: str, prefix: str = "", delimiter: str = "", after: str = "", limit: int = PAGE_MAX
    ) -> Page:
        """A page of entries and common prefixes in byte order of the path."""
        while True:
            view = await self.view(branch)
            try:
                return await list_page(view, _utf8(prefix), _utf8(delimiter), _utf8(after), limit)
            except LayerGone as gone:
                await check_moved(self.branches, view.branch, gone)

    async def scan(self, branch: str, prefix: str = "", after: str = "") -> AsyncIterator[pa.Table]:
        """Every live record as Arrow tables in key order. If the branch moves on and layers go, it goes on from the
        last key with what the branch shows then."""
        start = _utf8(after) + b"\0" if after else b""
        while True:
            view = await self.view(branch)
            try:
                async for rows in view.scan(_utf8(prefix), start):
                    yield rows
                    start = rows["key"][-1].as_py().encode() + b"\0"
                return
            except LayerGone as gone:
                await check_moved(self.branches, view.branch, gone)

    async def commit(
        self,
        branch: str,
        message: str,
        committer: str = "",
        metadata: dict[str, str] | None = None,
        allow_empty: bool = False,
    ) -> Committed:
        """Everything acknowledged on the branch before this call becomes a commit; `NoChanges` if there is nothing."""
        check_branch_name(branch)
        work = Committer(self.tables, self.commits, self.refs, self.branches, self.clock, self.settings)
        return await work.commit(branch, message, committer, metadata or {}, allow_empty)

    async def log(self, branch: str, limit: int = 100) -> AsyncIterator[tuple[CommitId, Commit]]:
        """Commits from the newest, by first parent."""
        identity = (await self.branches.read(branch)).base_commit
        for _ in range(limit):
            try:
                commit = await self.commits.load(identity)
            except NotFound as error:
                raise Corrupt(f"commit {identity} is gone, though branch {branch!r} descends from it") from error
            yield identity, commit
            if not commit.parents:
                return
            identity = commit.parents[0]

    async def _base(self, branch: Branch) -> Run:
        try:
            commit = await self.commits.load(branch.base_commit)
            return await self.tables.load_run(commit.metarange)
        except NotFound as error:
            raise LayerGone(str(error)) from error


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise Invalid(f"{text!r} is not UTF-8: {error.reason} at character {error.start}") from None


def _same(known: Branch, now: Branch) -> bool:
    return known.version == now.version and known.incarnation == now.incarnation
