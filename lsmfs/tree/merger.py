"""The merger: what a commit has and a branch has not becomes a commit of the branch.

Flow:
1. The merge base is the best common ancestor; without changes since then there is nothing to merge.
2. The three-way merge of the metaranges (`merge`) gives a new one; conflicts end it here.
3. A commit with two parents is saved (one if squashed), and the branch moves to it, if it is where it was and has
   nothing staged.

Another commit or merge may win the race at 3. Then the merge goes on with what it has: its result as the source and
the old destination as the base, so a range that only this merge touches is written once, however many retries there
are. Retries are bounded, and wait a little longer each time, so that nobody starves.
"""

import asyncio
from collections.abc import Iterable
from typing import NamedTuple

from lsmfs import paths
from lsmfs.lsm.run import Run
from lsmfs.tree.changer import BranchChanger
from lsmfs.tree.clocks import following
from lsmfs.tree.commits import Commit, check_words
from lsmfs.tree.hints import Hint
from lsmfs.tree.history import merge_base
from lsmfs.tree.log import between
from lsmfs.tree.merge import Strategy, merge_runs
from refstore.errors import BranchReplaced, Conflict, DirtyBranch, Invalid, NoChanges, NotFound
from refstore.records import Branch, CommitId, Move

BACKOFF_SECONDS_MAX = 1.0
HISTORY_READ = 100  # commits that are read together on the way to the merge base


class Words(NamedTuple):
    """What a person says of a commit."""

    message: str
    committer: str = ""
    metadata: dict[str, str] = {}  # noqa: RUF012, it is never changed


class Plan(NamedTuple):
    """How to merge."""

    strategy: Strategy
    squash: bool = False
    fast_forward: bool = False
    hint: Hint | None = None


class Preview(NamedTuple):
    """A merge that nobody sees: what the branch has, and what it would have."""

    branch: Branch
    below: Run
    merged: Run


class Merger(BranchChanger):
    async def merge(self, source: CommitId, name: str, words: Words, plan: Plan) -> tuple[CommitId, Commit]:
        """Merge a commit into a branch; `DirtyBranch`, `NoChanges`, `MergeConflict`."""
        branch = await self._branches.read(name)
        base = await self._base(source, branch)
        if plan.fast_forward and base == branch.base_commit:
            try:
                await self._move(branch, source, jump=True)
                return source, await self._commits.load(source)
            except Conflict:  # the branch has moved: it is a merge now
                branch = await self._after_race(branch, 0)
        others = () if plan.squash else (source,)
        changes = await self._hinted(source, branch, plan) or (await self._run(base), await self._run(source))
        return await self._bring(branch, *changes, words, plan.strategy, others)

    async def _hinted(self, source: CommitId, branch: Branch, plan: Plan) -> tuple[Run, Run] | None:
        """The base and source of a merge that was begun before, if they are still good for this one."""
        hint = plan.hint
        if hint is None or (hint.source, hint.into, hint.rules) != (source, branch.name, str(plan.strategy)):
            return None
        if paths.generation_of(hint.merged) < branch.floor:
            return None  # it may be collected
        try:
            if await between(self._commits, hint.below, branch.base_commit) is None:
                return None  # the branch was taken elsewhere
            return await self._run(hint.below), await self._tables.load_run(hint.merged)
        except NotFound:
            return None  # it is collected: the work is done again

    async def hint(self, source: CommitId, name: str, strategy: Strategy) -> Hint:
        """Merge so far as nobody sees it, and keep the result. The branch may have something staged: it is the merge
        later on that needs it clean."""
        branch = await self._branches.read(name)
        base = await self._base(source, branch)
        done = await self._merged(branch, await self._run(base), await self._run(source), strategy)
        merged = await self._tables.save_run(done.merged, done.branch.floor)
        return Hint(source, name, str(strategy), done.branch.base_commit, merged)

    async def preview(self, source: CommitId, name: str, strategy: Strategy) -> Preview:
        """What a merge would make of the branch; `DirtyBranch`, `NoChanges`, `MergeConflict`, as the merge itself."""
        branch = await self._branches.read(name)
        base = await self._base(source, branch)
        _check_clean(branch)
        return await self._merged(branch, await self._run(base), await self._run(source), strategy)

    async def _merged(self, branch: Branch, base: Run, above: Run, strategy: Strategy) -> Preview:
        below = await self._run(branch.base_commit)
        shape = self._settings.shape
        merged = await merge_runs(self._tables, base, above, below, branch.floor, shape, strategy)
        return Preview(branch, below, merged)

    async def ancestor(self, left: CommitId, right: CommitId) -> CommitId:
        """A best common ancestor of two commits."""
        found = await merge_base(left, right, self._load)
        if found is None:
            raise Invalid(f"{left[:12]} and {right[:12]} have no common ancestor")
        return found

    async def bring(
        self, before: CommitId, after: CommitId, name: str, words: Words, strategy: Strategy
    ) -> tuple[CommitId, Commit]:
        """Do to a branch what was done from one commit to another: a cherry-pick, or, the other way round, a revert."""
        branch = await self._branches.read(name)
        return await self._bring(branch, await self._run(before), await self._run(after), words, strategy, ())

    async def _bring(
        self, branch: Branch, base: Run, above: Run, words: Words, strategy: Strategy, others: tuple[CommitId, ...]
    ) -> tuple[CommitId, Commit]:
        """The changes from `base` to `above` on top of the branch; `others` are parents beside its newest commit."""
        check_words(*words)
        wanted = base, above
        for attempt in range(self._settings.commit_tries_max):
            _check_clean(branch)
            _, below, merged = await self._merged(branch, base, above, strategy)
            if not others and merged.content_hash() == below.content_hash():
                raise NoChanges(f"no changes: branch {branch.name!r} has all of it already")
            try:
                await self._check_still_first(branch)
                done = await self._save(branch, merged, words, others)
                await self._move(branch, done[0])
                return done
            except Conflict:
                floor = branch.floor
                branch = await self._after_race(branch, attempt)
                # What was written below a floor that has risen since may be collected: then all is made again.
                base, above = (below, merged) if branch.floor == floor else wanted
        raise Conflict(f"branch {branch.name!r}: {self._settings.commit_tries_max} others were first: try again")

    async def _base(self, source: CommitId, branch: Branch) -> CommitId:
        found = await self.ancestor(source, branch.base_commit)
        if found == source:
            raise NoChanges(f"no changes: branch {branch.name!r} has all of {source[:12]} already")
        return found

    async def _load(self, identities: Iterable[CommitId]) -> dict[CommitId, Commit]:
        wanted = sorted(identities)
        lines = (self._commits.load_line(identity, HISTORY_READ) for identity in wanted)
        return dict(zip(wanted, await asyncio.gather(*lines), strict=True))

    async def _run(self, identity: CommitId) -> Run:
        return await self._tables.load_run((await self._commits.load(identity)).metarange)

    async def _save(
        self, branch: Branch, merged: Run, words: Words, others: tuple[CommitId, ...]
    ) -> tuple[CommitId, Commit]:
        parents = (branch.base_commit, *others)
        loaded = await self._load(parents)
        generations = [commit.generation for commit in loaded.values()]
        commit = Commit(
            parents=parents,
            metarange=await self._tables.save_run(merged, branch.floor),
            message=words.message,
            committer=words.committer,
            created_us=self._clock.now_us(),
            generation=max(generations) + 1,
            metadata=words.metadata,
            clock=following(loaded[branch.base_commit].clock, branch.line),
        )
        return await self.retrying(lambda: self._commits.save(commit)), commit

    async def _move(self, branch: Branch, commit: CommitId, jump: bool = False) -> None:
        change = Move(
            incarnation=branch.incarnation,
            old=branch.base_commit,
            new=commit,
            expected_view=branch.view,
            generation=branch.floor,
            jump=jump,
        )
        try:
            await self.change(branch.name, change)
        except (Conflict, DirtyBranch):
            # The answer may have been lost, and others may have come on top since: look before saying "lost".
            if not await self._is_ancestor(branch.name, commit):
                raise

    async def _check_still_first(self, branch: Branch) -> None:
        """Others may have been first while this was merged: better to know before anything is saved."""
        now = await self._branches.read(branch.name)
        if now.base_commit != branch.base_commit:
            raise Conflict(f"branch {branch.name!r} is at {now.base_commit[:12]}, expected {branch.base_commit[:12]}")

    async def _after_race(self, before: Branch, attempt: int) -> Branch:
        await asyncio.sleep(min(BACKOFF_SECONDS_MAX, 0.01 * 2**attempt) * self._clock.jitter())
        branch = await self._branches.read(before.name)
        if branch.incarnation != before.incarnation:
            raise BranchReplaced(f"branch {before.name!r} was deleted and created again during the merge")
        if branch.aside.write != before.aside.write:  # after a hard reset the merge base may be another one
            raise Conflict(f"branch {before.name!r} was reset or stashed during the merge: try again")
        return branch


def _check_clean(branch: Branch) -> None:
    if branch.is_dirty:
        raise DirtyBranch(f"dirty branch: {branch.name!r} has changes that are not committed: commit them first")
