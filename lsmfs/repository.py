"""A repository: one short method per verb of the user.

async with await Repository.open(store, refs, "lake") as repo:
    async with repo.writer("main") as w:
        await w.put("tables/a/1.parquet", entry)
    entry = await repo.get("main", "tables/a/1.parquet")
    await repo.commit("main", "first load")
"""

from collections.abc import Iterable

import msgspec
import pyarrow as pa

from lsmfs.clock import Clock, SystemClock
from lsmfs.imports.importer import Imported, Importer
from lsmfs.imports.source import Source
from lsmfs.imports.work import Tell
from lsmfs.lsm.cache import DiskCache
from lsmfs.lsm.run import EMPTY_RUN
from lsmfs.lsm.writer import Writer
from lsmfs.model import check_branch_name, check_repository_name
from lsmfs.objectstore.store import ObjectStore
from lsmfs.policy import BLOCKED, REPOSITORIES, Blocked, RepositoryRecord, Rule, read_record, with_rule
from lsmfs.reader import Reader, RefStore, part_of
from lsmfs.settings import Settings
from lsmfs.transaction import Transaction
from lsmfs.tree.commits import Commit
from lsmfs.tree.committer import Committed, Committer
from lsmfs.tree.diff import diff as diff_runs
from lsmfs.tree.merge import Strategy
from lsmfs.tree.merger import Plan, Words
from lsmfs.tree.summary import Summary, summarise
from refstore.errors import AlreadyExists, Conflict, Denied, Invalid, NotFound
from refstore.records import Branch, CommitId, Create, Stash
from refstore.store import ABSENT


class Repository(Reader):
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
        storage: str = "",
    ) -> "Repository":
        """A new repository with its first commit and its default branch. Repeating an interrupted creation ends it.
        `storage` is the URL of `store`, if that is not the installation's own."""
        check_repository_name(name)
        check_branch_name(default_branch)
        clock = clock or SystemClock()
        record = RepositoryRecord(name, default_branch, clock.now_us(), storage=storage)
        try:
            await refs.set_if(REPOSITORIES, name.encode(), msgspec.json.encode(record), ABSENT)
        except Conflict:
            existing = await Repository.open(store, refs, name, clock, settings, disk, threads)
            if existing.record.storage != storage:
                raise AlreadyExists(f"repository {name!r} exists already, with storage elsewhere") from None
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

    async def reset(self, branch: str, prefix: str | None = None, path: str | None = None) -> None:
        """Drop what is staged on a branch: all of it at once, or what is below a prefix, or one path. A part goes as a
        unit that says again what the newest commit has there: writes to that part at the same time may stay."""
        await self.policy.check("stage", branch)
        part = part_of(path, prefix)
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
        if squash and fast_forward:
            raise Invalid("a squashed merge is a commit of its own: squash or fast-forward, not both")
        words = Words(message or f"Merge {source!r} into {branch!r}", committer, metadata or {})
        known = None if hint is None else await self.hints.read(hint)
        plan = Plan(_strategy(strategy), squash, fast_forward, known)
        return await self._merger().merge(await self._source(source, branch), branch, words, plan)

    async def preview_merge(
        self, source: str, branch: str, strategy: str | dict[str, str] | None = None
    ) -> dict[str, Summary]:
        """What a merge would change, as counts and bytes; nothing becomes visible. `MergeConflict`, `DirtyBranch`,
        `NoChanges`. Ranges that it had to write are found by the merge itself."""
        done = await self._merger().preview(await self._source(source, branch), branch, _strategy(strategy))
        return await summarise(diff_runs(self.tables, done.below, done.merged))

    async def merge_hint(self, source: str, branch: str, strategy: str | dict[str, str] | None = None) -> str:
        """Do the work of a merge ahead; the merge itself, given this text, re-uses it, also if the branch has moved on.
        `MergeConflict`, `NoChanges`."""
        await self.policy.check("change")
        hint = await self._merger().hint(await self._source(source, branch), branch, _strategy(strategy))
        return await self.hints.sign(hint)

    async def _source(self, source: str, branch: str) -> CommitId:
        if source == check_branch_name(branch):
            raise Invalid(f"{branch!r} cannot be merged into itself")
        return await self.resolve(source)

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


def _strategy(given: str | dict[str, str] | None) -> Strategy:
    return Strategy({"": given} if isinstance(given, str) else given)
