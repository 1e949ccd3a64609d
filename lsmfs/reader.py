"""A repository as its readers see it: entries, listings, history and differences, on any revision.

Promises: a read of a branch sees every write acknowledged before it began. If layers go while they are read, because
the branch has moved on, the read goes on with what the branch shows then; if it has not moved, that is `Corrupt`.
"""

import asyncio
import os
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, Self

import pyarrow as pa

from lsmfs.clock import Clock, SystemClock
from lsmfs.lsm.branches import BranchReader
from lsmfs.lsm.cache import DiskCache
from lsmfs.lsm.listing import PAGE_MAX, Page, list_page
from lsmfs.lsm.records import beyond
from lsmfs.lsm.run import Run
from lsmfs.lsm.tables import Tables
from lsmfs.lsm.view import LayerGone, View, check_moved, commit_as_branch, layer_names
from lsmfs.model import Entry, check_branch_name, key_of
from lsmfs.objectstore.store import ObjectStore
from lsmfs.paths import is_run
from lsmfs.policy import Policy, RepositoryRecord
from lsmfs.settings import Settings
from lsmfs.tree.branching import Branching, Deleted
from lsmfs.tree.clocks import ClockIndex
from lsmfs.tree.commits import Commit, Commits
from lsmfs.tree.diff import Difference, diff_layers, differences
from lsmfs.tree.diff import diff as diff_runs
from lsmfs.tree.hints import Hints
from lsmfs.tree.log import changes_part, history
from lsmfs.tree.merger import Merger
from lsmfs.tree.revision import is_commit_id, one_commit, parse_revision, walk_back
from lsmfs.tree.summary import Summary, summarise
from lsmfs.tree.tags import Tags
from refstore.errors import Conflict, Corrupt, Invalid, NotFound
from refstore.records import Branch, CommitId, RunId, Stash
from refstore.refs import Refs
from refstore.store import Store

THREADS = max(2, min(8, os.cpu_count() or 2))  # that encode and merge; more than processors only cost cache
VIEWS_MAX = 64  # branches whose opened layers are kept between reads
VIEW_TRIES_MAX = 10  # a view whose layers go while it is opened: each time the branch has moved


class RefStore(Store, Refs, Protocol):
    """What a repository needs of a ref store."""


class Reader:
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
        self.store = store
        self.refs = refs
        self.clock = clock or SystemClock()
        self.policy = Policy(refs, record, self.clock)
        self.settings = settings or Settings()
        self._executor = ThreadPoolExecutor(THREADS, "lsmfs") if threads else None
        self.tables = Tables(store, self.name, disk, self._executor, threads)
        self.commits = Commits(store, self.name, ClockIndex(refs, self.name))
        self.branches = BranchReader(refs, self.name)
        self.tags = Tags(refs, self.name)
        self.hints = Hints(refs, self.name, self.clock)
        self._views: OrderedDict[str, View] = OrderedDict()

    @property
    def record(self) -> RepositoryRecord:
        """As it was read last; `policy.refresh` reads it again."""
        return self.policy.record

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Release threads; the stores belong to the caller."""
        if self._executor is not None:
            await asyncio.to_thread(self._executor.shutdown)

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

    async def log(
        self,
        ref: str,
        limit: int = 100,
        since_us: int | None = None,
        stop_at: str | None = None,
        first_parent: bool = True,
        path: str | None = None,
        prefix: str | None = None,
    ) -> AsyncIterator[tuple[CommitId, Commit]]:
        """Commits from the newest, at most `limit`: down to the first that is older than `since_us`, or to `stop_at`,
        which is the last one shown; only those that changed the path, or something below the prefix."""
        last = None if stop_at is None else await self.resolve(stop_at)
        part = part_of(path, prefix)
        async for identity, commit in history(self.commits, await self.resolve(ref), not first_parent, limit):
            if limit <= 0 or (since_us is not None and commit.created_us < since_us):
                return
            if part is None or await changes_part(self.commits, self.tables, commit, *part):
                yield identity, commit
                limit -= 1
            if identity == last:
                return

    async def list_branches(self, prefix: str = "", after: str = "", hidden: bool = False) -> AsyncIterator[Branch]:
        """Branches in ascending order of their names; hidden ones only if asked for."""
        async for branch in self.refs.branches(self.name, after, prefix):
            if hidden or not branch.aside.hidden:
                yield branch

    def deleted_branches(self) -> AsyncIterator[Deleted]:
        """The branches that can be restored."""
        return self._branching().deleted(self.refs)

    async def stashes(self, branch: str) -> tuple[Stash, ...]:
        """The stashes of a branch, the latest last."""
        return (await self.branches.read(check_branch_name(branch))).aside.stashes

    async def diff(self, left: str, right: str, prefix: str = "", three_dot: bool = False) -> AsyncIterator[Difference]:
        """What differs between two revisions, in order of the path; of a branch its newest commit counts. `three_dot`:
        what the right one has changed since it left the other."""
        async for difference in differences(self._pairs(left, right, prefix, three_dot)):
            yield difference

    async def diff_summary(
        self, left: str, right: str, prefix: str = "", delimiter: str = "", three_dot: bool = False
    ) -> dict[str, Summary]:
        """The same as counts and bytes, for each directory below the prefix if there is a delimiter."""
        return await summarise(self._pairs(left, right, prefix, three_dot), prefix, delimiter)

    async def _pairs(
        self, left: str, right: str, prefix: str, three_dot: bool
    ) -> AsyncIterator[tuple[pa.Table, pa.Table]]:
        sides = [await self.resolve(ref) for ref in (left, right)]
        if three_dot:
            sides[0] = await self._merger().ancestor(*sides)
        runs = [await self._run(side) for side in sides]
        start = _utf8(prefix)
        async for pair in diff_runs(self.tables, runs[0], runs[1], start, beyond(start)):
            yield pair

    async def diff_uncommitted(self, branch: str, prefix: str = "") -> AsyncIterator[Difference]:
        """What is staged on a branch and differs from its newest commit."""
        start = _utf8(prefix)
        async for difference in differences(self._staged(branch, start, beyond(start))):
            yield difference

    async def uncommitted_summary(self, branch: str, prefix: str = "", delimiter: str = "") -> dict[str, Summary]:
        """The same as counts and bytes, for each directory below the prefix if there is a delimiter."""
        start = _utf8(prefix)
        return await summarise(self._staged(branch, start, beyond(start)), prefix, delimiter)

    async def _staged(self, branch: str, start: bytes, stop: bytes | None) -> AsyncIterator[tuple[pa.Table, pa.Table]]:
        """Pairs of what the newest commit has and what is staged, where they differ. If the branch moves on and layers
        go, it goes on from the last key with what the branch shows then."""
        while True:
            view = await self._branch_view(branch)
            try:
                names = layer_names(view.branch)
                layers = [await self.tables.load_run(RunId(name)) if is_run(name) else name for name in names]
                async for pair in diff_layers(self.tables, view.base, layers, self.settings.shape, start, stop):
                    yield pair
                    start = pair[1]["key"][-1].as_py().encode() + b"\0"
                return
            except NotFound as error:
                await check_moved(self.branches, view.branch, LayerGone(str(error)))

    async def _run(self, commit: CommitId) -> Run:
        return await self.tables.load_run((await self.commits.load(commit)).metarange)

    async def _base(self, branch: Branch) -> Run:
        try:
            return await self._run(branch.base_commit)
        except NotFound as error:
            raise LayerGone(str(error)) from error

    def _merger(self) -> Merger:
        return Merger(self.tables, self.commits, self.refs, self.branches, self.clock, self.settings)

    def _branching(self) -> Branching:
        return Branching(self.tables, self.commits, self.refs, self.branches, self.clock, self.settings)


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise Invalid(f"{text!r} is not UTF-8: {error.reason} at character {error.start}") from None


def part_of(path: str | None, prefix: str | None) -> tuple[bytes, bytes | None] | None:
    """The keys from the first on and before the second; None for all."""
    if path is not None and prefix is not None:
        raise Invalid("give a path or a prefix, not both")
    if path is not None:
        key = key_of(path)
        return key, key + b"\0"
    return None if prefix is None else (_utf8(prefix), beyond(_utf8(prefix)))


def _same(known: Branch, now: Branch) -> bool:
    return known.version == now.version and known.incarnation == now.incarnation
