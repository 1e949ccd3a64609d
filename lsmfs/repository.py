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
from lsmfs.imports.importer import Imported, Importer
from lsmfs.imports.source import Source
from lsmfs.imports.work import Tell
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
from lsmfs.policy import BLOCKED, REPOSITORIES, Blocked, Policy, RepositoryRecord, Rule, read_record, with_rule
from lsmfs.settings import Settings
from lsmfs.transaction import Transaction
from lsmfs.tree.branching import Branching, Deleted
from lsmfs.tree.clocks import ClockIndex
from lsmfs.tree.commits import Commit, Commits
from lsmfs.tree.committer import Committed, Committer
from lsmfs.tree.diff import Difference, diff_layers, differences
from lsmfs.tree.diff import diff as diff_runs
from lsmfs.tree.hints import Hints
from lsmfs.tree.log import changes_part, history
from lsmfs.tree.merge import Strategy
from lsmfs.tree.merger import Merger, Plan, Words
from lsmfs.tree.revision import is_commit_id, one_commit, parse_revision, walk_back
from lsmfs.tree.summary import Summary, summarise
from lsmfs.tree.tags import Tags
from refstore.errors import AlreadyExists, Conflict, Corrupt, Denied, Invalid, NotFound
from refstore.records import Branch, CommitId, Create, RunId, Stash
from refstore.refs import Refs
from refstore.store import ABSENT, Store

THREADS = max(2, min(8, os.cpu_count() or 2))  # that encode and merge; more than processors only cost cache
VIEWS_MAX = 64  # branches whose opened layers are kept between reads
VIEW_TRIES_MAX = 10  # a view whose layers go while it is opened: each time the branch has moved


class RefStore(Store, Refs, Protocol):
    """What a repository needs of a ref store."""


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
        record, _ = await read_record(refs, name)
        if record.deleting:
            raise NotFound(f"repository {name!r} is being deleted: `lsmfs repo delete {name}` goes on with it")
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
            lambda: self.policy.check("stage", branch),
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
        await self.policy.check("commit", branch)
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
        part = _part(path, prefix)
        async for identity, commit in history(self.commits, await self.resolve(ref), not first_parent, limit):
            if limit <= 0 or (since_us is not None and commit.created_us < since_us):
                return
            if part is None or await changes_part(self.commits, self.tables, commit, *part):
                yield identity, commit
                limit -= 1
            if identity == last:
                return

    async def protect(self, pattern: str, blocks: Iterable[Blocked] = BLOCKED) -> None:
        """Let nobody stage to or commit to branches of such names; merges stay allowed. Nothing to block ends it."""
        rule = Rule(pattern, tuple(dict.fromkeys(blocks)))
        await self.policy.change(lambda record: with_rule(record, rule))

    async def set_read_only(self, read_only: bool) -> None:
        """Within seconds every client refuses changes, or allows them again."""
        await self.policy.change(lambda record: msgspec.structs.replace(record, read_only=read_only))

    async def set_metadata(self, metadata: dict[str, str]) -> None:
        await self.policy.change(lambda record: msgspec.structs.replace(record, metadata=metadata))

    async def create_branch(self, name: str, ref: str, hidden: bool = False) -> Branch:
        """A new branch at the commit that the revision names; in constant time, whatever is in it. `AlreadyExists`."""
        await self.policy.check("change")
        check_branch_name(name)
        base = await self.resolve(ref)
        if await self.tags.find(name) is not None:
            raise AlreadyExists(f"there is a tag {name!r}: give the branch another name")
        floor = (await self.branches.read(self.record.default_branch)).floor
        return await self._branching().create(name, base, floor, hidden)

    async def list_branches(self, prefix: str = "", after: str = "", hidden: bool = False) -> AsyncIterator[Branch]:
        """Branches in ascending order of their names; hidden ones only if asked for."""
        async for branch in self.refs.branches(self.name, after, prefix):
            if hidden or not branch.aside.hidden:
                yield branch

    async def create_tag(self, name: str, ref: str) -> CommitId:
        """Name a commit for good; to do it again changes nothing. `AlreadyExists` also for a branch of that name."""
        await self.policy.check("change")
        commit = await self.resolve(ref)
        try:
            await self.branches.read(check_branch_name(name))
        except NotFound:
            await self.tags.create(name, commit)
            return commit
        raise AlreadyExists(f"there is a branch {name!r}: give the tag another name")

    async def delete_tag(self, name: str) -> None:
        """`NotFound`."""
        await self.policy.check("change")
        await self.tags.delete(name)

    async def delete_branch(self, name: str) -> None:
        """End the branch, with what is staged on it; `NotFound`, `Denied` for the default branch."""
        await self.policy.check("commit", name)
        if name == self.record.default_branch:
            raise Denied(f"{name!r} is the default branch of repository {self.name!r}: it cannot be deleted")
        try:
            await self._branching().delete(check_branch_name(name), self.refs)
        finally:
            self._views.pop(name, None)

    async def restore_branch(self, name: str) -> Branch:
        """A deleted branch as it was, what was staged on it included; `NotFound`, `AlreadyExists`."""
        await self.policy.check("change")
        return await self._branching().restore(check_branch_name(name), self.refs)

    def deleted_branches(self) -> AsyncIterator[Deleted]:
        """The branches that can be restored."""
        return self._branching().deleted(self.refs)

    async def reset(self, branch: str, prefix: str | None = None, path: str | None = None) -> None:
        """Drop what is staged on a branch: all of it at once, or what is below a prefix, or one path. A part goes as a
        unit that says again what the newest commit has there: writes to that part at the same time may stay."""
        await self.policy.check("stage", branch)
        part = _part(path, prefix)
        if part is None:
            await self._branching().reset(check_branch_name(branch))
            return
        rows = [left async for left, _ in self._staged(branch, *part)]
        if rows:
            async with self.writer(branch) as writer:
                await writer.stage(pa.concat_tables(rows))

    async def hard_reset(self, branch: str, ref: str, force: bool = False) -> Branch:
        """Take a branch to another commit; `DirtyBranch` if something is staged, unless it may be lost (`force`)."""
        await self.policy.check("commit", branch)
        return await self._branching().reset(check_branch_name(branch), await self.resolve(ref), clean=not force)

    async def stash(self, branch: str, message: str = "") -> Stash:
        """Put aside what is staged; no data moves. `NoChanges`."""
        await self.policy.check("stage", branch)
        return await self._branching().stash(check_branch_name(branch), message)

    async def stashes(self, branch: str) -> tuple[Stash, ...]:
        """The stashes of a branch, the latest last."""
        return (await self.branches.read(check_branch_name(branch))).aside.stashes

    async def pop_stash(self, branch: str, number: int | None = None) -> Stash:
        """Bring the latest stash back, or that one, above what the branch has now; `DirtyBranch`, `NotFound`."""
        await self.policy.check("stage", branch)
        return await self._branching().take_stash(check_branch_name(branch), number, drop=False)

    async def drop_stash(self, branch: str, number: int) -> Stash:
        """Forget a stash, and what is in it."""
        await self.policy.check("change")
        return await self._branching().take_stash(check_branch_name(branch), number, drop=True)

    def transaction(
        self,
        branch: str,
        message: str = "",
        committer: str = "",
        metadata: dict[str, str] | None = None,
        strategy: str | dict[str, str] | None = None,
        squash: bool = False,
    ) -> Transaction:
        """Writes that become visible on the branch together: `async with repo.transaction("main") as tx`."""
        return Transaction(self, check_branch_name(branch), message, committer, metadata or {}, strategy, squash)

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

    async def merge(
        self,
        source: str,
        branch: str,
        message: str = "",
        committer: str = "",
        metadata: dict[str, str] | None = None,
        strategy: str | dict[str, str] | None = None,
        squash: bool = False,
        fast_forward: bool = False,
        hint: str | None = None,
    ) -> tuple[CommitId, Commit]:
        """Merge what a revision has into a branch. `strategy` decides conflicts: "source-wins" or "dest-wins", or one
        of them for each prefix. `fast_forward`: if the branch has nothing of its own since, it only moves to the
        source's commit. `hint`: what `merge_hint` gave. `MergeConflict`, `DirtyBranch`, `NoChanges`."""
        await self.policy.check("change")
        if source == check_branch_name(branch):
            raise Invalid(f"{branch!r} cannot be merged into itself")
        if squash and fast_forward:
            raise Invalid("a squashed merge is a commit of its own: squash or fast-forward, not both")
        words = Words(message or f"Merge {source!r} into {branch!r}", committer, metadata or {})
        known = None if hint is None else await self.hints.read(hint)
        plan = Plan(_strategy(strategy), squash, fast_forward, known)
        return await self._merger().merge(await self.resolve(source), branch, words, plan)

    async def preview_merge(
        self, source: str, branch: str, strategy: str | dict[str, str] | None = None
    ) -> dict[str, Summary]:
        """What a merge would change, as counts and bytes; nothing becomes visible. `MergeConflict`, `NoChanges`. Ranges
        that it had to write are found by the merge itself."""
        done = await self._merger().preview(await self.resolve(source), branch, _strategy(strategy))
        return await summarise(diff_runs(self.tables, done.below, done.merged))

    async def merge_hint(self, source: str, branch: str, strategy: str | dict[str, str] | None = None) -> str:
        """Do the work of a merge ahead; the merge itself, given this text, re-uses it, also if the branch has moved on.
        `MergeConflict`, `NoChanges`."""
        await self.policy.check("change")
        return await self.hints.sign(await self._merger().hint(await self.resolve(source), branch, _strategy(strategy)))

    async def revert(
        self, branch: str, ref: str, parent: int | None = None, message: str = "", committer: str = ""
    ) -> tuple[CommitId, Commit]:
        """Undo on a branch what a commit did; of a merge say against which parent. `MergeConflict`, `NoChanges`."""
        await self.policy.check("commit", branch)
        before, identity, commit = await self._step(ref, parent)
        words = Words(message or f"Revert {commit.message!r}", committer, {"lsmfs.reverts": identity})
        return await self._merger().bring(identity, before, branch, words, Strategy())

    async def cherry_pick(
        self, branch: str, ref: str, parent: int | None = None, message: str = "", committer: str = ""
    ) -> tuple[CommitId, Commit]:
        """Do on a branch what a commit did; of a merge say against which parent. `MergeConflict`, `NoChanges`."""
        await self.policy.check("commit", branch)
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

    async def import_objects(
        self, source: Source, branch: str, prefix: str = "", tell: Tell | None = None, once: bool = False
    ) -> Imported:
        """Take what a source has (`lsmfs.imports.open_source`) as one atomic unit, without copying a byte. Called again
        after an interruption it goes on where it was; with `once`, not again after its end."""
        return await Importer(self).run(source, check_branch_name(branch), prefix, tell, once)

    def _merger(self) -> Merger:
        return Merger(self.tables, self.commits, self.refs, self.branches, self.clock, self.settings)

    def _branching(self) -> Branching:
        return Branching(self.tables, self.commits, self.refs, self.branches, self.clock, self.settings)

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


def _strategy(given: str | dict[str, str] | None) -> Strategy:
    return Strategy({"": given} if isinstance(given, str) else given)


def _part(path: str | None, prefix: str | None) -> tuple[bytes, bytes | None] | None:
    """The keys from the first on and before the second; None for all."""
    if path is not None and prefix is not None:
        raise Invalid("give a path or a prefix, not both")
    if path is not None:
        key = key_of(path)
        return key, key + b"\0"
    return None if prefix is None else (_utf8(prefix), beyond(_utf8(prefix)))


def _same(known: Branch, now: Branch) -> bool:
    return known.version == now.version and known.incarnation == now.incarnation
