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
from lsmfs.lsm.records import beyond
from lsmfs.lsm.run import EMPTY_RUN, Run
from lsmfs.lsm.tables import Tables
from lsmfs.lsm.view import LayerGone, View, check_moved, commit_as_branch, layer_names
from lsmfs.lsm.writer import Writer
from lsmfs.model import Entry, check_branch_name, check_repository_name, key_of
from lsmfs.objectstore.store import ObjectStore
from lsmfs.paths import is_run
from lsmfs.settings import Settings
from lsmfs.tree.changer import BranchChanger
from lsmfs.tree.commits import Commit, Commits
from lsmfs.tree.committer import Committed, Committer
from lsmfs.tree.diff import Difference, diff_layers, differences
from lsmfs.tree.diff import diff as diff_runs
from lsmfs.tree.merge import Strategy
from lsmfs.tree.merger import Merger, Words
from lsmfs.tree.revision import is_commit_id, one_commit, parse_revision, walk_back
from lsmfs.tree.tags import Tags
from refstore.errors import AlreadyExists, BranchReplaced, Conflict, Corrupt, Denied, Invalid, NotFound
from refstore.records import Branch, CommitId, Create, Delete, RunId
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
        self.tags = Tags(refs, self.name)
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
            lambda: self._branch_view(branch),
            branch,
            self.clock,
            self.settings.writer,
            self.settings.shape,
            actor,
        )

    async def view(self, ref: str) -> View:
        """What a branch shows now, every write acknowledged before this call included; or what a commit holds."""
        revision = parse_revision(ref)
        if revision.is_plain and not is_commit_id(ref):
            try:
                return await self._branch_view(ref)
            except NotFound:
                pass  # it is no branch
        branch = commit_as_branch(await self.resolve(ref))
        try:
            return View(self.tables, branch, [], await self._base(branch))
        except LayerGone as gone:
            raise Corrupt(f"{branch.name}: {gone}, though it refers to it") from gone

    async def _branch_view(self, branch: str) -> View:
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

    async def get(self, ref: str, path: str | bytes) -> Entry:
        """The entry at the path, on a branch or at any revision; `NotFound`."""
        key = key_of(path)
        while True:
            view = await self.view(ref)
            try:
                entry = await view.get(key)
            except LayerGone as gone:
                await check_moved(self.branches, view.branch, gone)
                continue
            if entry is None:
                raise NotFound(f"{key.decode()!r} does not exist on {ref!r}")
            return entry

    async def get_many(self, ref: str, paths: Iterable[str | bytes]) -> dict[bytes, Entry]:
        """The entries of those paths that exist, all at one version."""
        keys = [key_of(path) for path in paths]
        while True:
            view = await self.view(ref)
            try:
                return await view.get_many(keys)
            except LayerGone as gone:
                await check_moved(self.branches, view.branch, gone)

    async def list(
        self, ref: str, prefix: str = "", delimiter: str = "", after: str = "", limit: int = PAGE_MAX
    ) -> Page:
        """A page of entries and common prefixes in byte order of the path."""
        while True:
            view = await self.view(ref)
            try:
                return await list_page(view, _utf8(prefix), _utf8(delimiter), _utf8(after), limit)
            except LayerGone as gone:
                await check_moved(self.branches, view.branch, gone)

    async def scan(self, ref: str, prefix: str = "", after: str = "") -> AsyncIterator[pa.Table]:
        """Every live record as Arrow tables in key order. If the branch moves on and layers go, it goes on from the
        last key with what the branch shows then."""
        start = _utf8(after) + b"\0" if after else b""
        while True:
            view = await self.view(ref)
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

    async def resolve(self, ref: str) -> CommitId:
        """The commit that a revision names: of a branch its newest one, without what is staged."""
        revision = parse_revision(ref)
        start = await self._named(revision.name)
        return await walk_back(revision, start, self._parents)

    async def _named(self, name: str) -> CommitId:
        if is_commit_id(name):
            try:
                await self.commits.load(CommitId(name))
            except NotFound:
                raise NotFound(f"there is no commit {name}") from None
            return CommitId(name)
        try:
            return (await self.branches.read(name)).base_commit
        except NotFound:
            tag = await self.tags.find(name)
        return tag or one_commit(name, await self.commits.beginning_with(name))

    async def _parents(self, commit: CommitId) -> tuple[CommitId, ...]:
        return (await self.commits.load(commit)).parents

    async def log(self, ref: str, limit: int = 100) -> AsyncIterator[tuple[CommitId, Commit]]:
        """Commits from the newest, by first parent."""
        identity = await self.resolve(ref)
        for _ in range(limit):
            try:
                commit = await self.commits.load(identity)
            except NotFound as error:
                raise Corrupt(f"commit {identity} is gone, though {ref!r} descends from it") from error
            yield identity, commit
            if not commit.parents:
                return
            identity = commit.parents[0]

    async def create_branch(self, name: str, ref: str) -> Branch:
        """A new branch at the commit that the revision names; in constant time, whatever is in it. `AlreadyExists`."""
        check_branch_name(name)
        base = await self.resolve(ref)
        floor = (await self.branches.read(self.record.default_branch)).floor
        create = Create(incarnation=self.clock.new_id(), base_commit=base, floor=floor)
        return await self._changer().change(name, create)

    def list_branches(self, prefix: str = "", after: str = "") -> AsyncIterator[Branch]:
        """Branches in ascending order of their names."""
        return self.refs.branches(self.name, after, prefix)

    async def delete_branch(self, name: str) -> None:
        """End the branch, with what is staged on it; `NotFound`, `Denied` for the default branch."""
        if name == self.record.default_branch:
            raise Denied(f"{name!r} is the default branch of repository {self.name!r}: it cannot be deleted")
        branch = await self.branches.read(check_branch_name(name))
        try:
            await self._changer().change(name, Delete(incarnation=branch.incarnation))
        except (NotFound, BranchReplaced):
            return  # by us, if an answer was lost, or by somebody else meanwhile
        finally:
            self._views.pop(name, None)

    async def diff(self, left: str, right: str, prefix: str = "") -> AsyncIterator[Difference]:
        """What differs between two revisions, in order of the path; of a branch its newest commit counts."""
        runs = [await self._run(await self.resolve(ref)) for ref in (left, right)]
        start = _utf8(prefix)
        async for difference in differences(diff_runs(self.tables, runs[0], runs[1], start, beyond(start))):
            yield difference

    async def diff_uncommitted(self, branch: str, prefix: str = "") -> AsyncIterator[Difference]:
        """What is staged on a branch and differs from its newest commit."""
        view, start = await self._branch_view(branch), _utf8(prefix)
        names = layer_names(view.branch)
        layers = [await self.tables.load_run(RunId(name)) if is_run(name) else name for name in names]
        pairs = diff_layers(self.tables, view.base, layers, self.settings.shape, start, beyond(start))
        async for difference in differences(pairs):
            yield difference

    async def merge(
        self,
        source: str,
        branch: str,
        message: str = "",
        committer: str = "",
        metadata: dict[str, str] | None = None,
        strategy: str | dict[str, str] | None = None,
        squash: bool = False,
    ) -> tuple[CommitId, Commit]:
        """Merge what a revision has into a branch. `strategy` decides conflicts: "source-wins" or "dest-wins", or one
        of them for each prefix. `MergeConflict`, `DirtyBranch`, `NoChanges`."""
        if source == check_branch_name(branch):
            raise Invalid(f"{branch!r} cannot be merged into itself")
        words = Words(message or f"Merge {source!r} into {branch!r}", committer, metadata or {})
        rules = Strategy({"": strategy} if isinstance(strategy, str) else strategy)
        return await self._merger().merge(await self.resolve(source), branch, words, rules, squash)

    async def revert(
        self, branch: str, ref: str, parent: int | None = None, message: str = "", committer: str = ""
    ) -> tuple[CommitId, Commit]:
        """Undo on a branch what a commit did; of a merge say against which parent. `MergeConflict`, `NoChanges`."""
        before, identity, commit = await self._step(ref, parent)
        words = Words(message or f"Revert {commit.message!r}", committer, {"lsmfs.reverts": identity})
        return await self._merger().bring(identity, before, branch, words, Strategy())

    async def cherry_pick(
        self, branch: str, ref: str, parent: int | None = None, message: str = "", committer: str = ""
    ) -> tuple[CommitId, Commit]:
        """Do on a branch what a commit did; of a merge say against which parent. `MergeConflict`, `NoChanges`."""
        before, identity, commit = await self._step(ref, parent)
        words = Words(message or commit.message, committer, {**commit.metadata, "lsmfs.picked": identity})
        return await self._merger().bring(before, identity, branch, words, Strategy())

    async def _step(self, ref: str, parent: int | None) -> tuple[CommitId, CommitId, Commit]:
        """A commit, and the parent that it is seen as a step from."""
        identity = await self.resolve(ref)
        commit = await self.commits.load(identity)
        if len(commit.parents) > 1 and parent is None:
            raise Invalid(f"{ref!r} is a merge: say which parent its changes are counted from, 1 or 2")
        if not 1 <= (parent or 1) <= len(commit.parents):
            raise Invalid(f"{ref!r} has {len(commit.parents)} parents, there is no parent {parent or 1}")
        return commit.parents[(parent or 1) - 1], identity, commit

    def _merger(self) -> Merger:
        return Merger(self.tables, self.commits, self.refs, self.branches, self.clock, self.settings)

    def _changer(self) -> BranchChanger:
        return BranchChanger(self.tables, self.commits, self.refs, self.branches, self.clock, self.settings)

    async def _run(self, commit: CommitId) -> Run:
        return await self.tables.load_run((await self.commits.load(commit)).metarange)

    async def _base(self, branch: Branch) -> Run:
        try:
            return await self._run(branch.base_commit)
        except NotFound as error:
            raise LayerGone(str(error)) from error


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise Invalid(f"{text!r} is not UTF-8: {error.reason} at character {error.start}") from None


def _same(known: Branch, now: Branch) -> bool:
    return known.version == now.version and known.incarnation == now.incarnation
