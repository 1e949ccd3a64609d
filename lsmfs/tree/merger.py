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

from lsmfs.lsm.run import Run
from lsmfs.tree.changer import BranchChanger
from lsmfs.tree.commits import Commit, check_words
from lsmfs.tree.history import merge_base
from lsmfs.tree.merge import Strategy, merge_runs
from refstore.errors import BranchReplaced, Conflict, DirtyBranch, Invalid, NoChanges
from refstore.records import Branch, CommitId, Move

BACKOFF_SECONDS_MAX = 1.0


class Words(NamedTuple):
    """What a person says of a commit."""

    message: str
    committer: str = ""
    metadata: dict[str, str] = {}  # noqa: RUF012, it is never changed


class Merger(BranchChanger):
    async def merge(
        self, source: CommitId, name: str, words: Words, strategy: Strategy, squash: bool = False
    ) -> tuple[CommitId, Commit]:
        """Merge a commit into a branch; `DirtyBranch`, `NoChanges`, `MergeConflict`."""
        branch = await self._branches.read(name)
        base = await self._base(source, branch)
        return await self._bring(branch, base, await self._run(source), words, strategy, () if squash else (source,))

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
            if branch.is_dirty:
                raise DirtyBranch(
                    f"dirty branch: {branch.name!r} has changes that are not committed: commit them first"
                )
            below = await self._run(branch.base_commit)
            shape = self._settings.shape
            merged = await merge_runs(self._tables, base, above, below, branch.floor, shape, strategy)
            if not others and merged.content_hash() == below.content_hash():
                raise NoChanges(f"no changes: branch {branch.name!r} has all of it already")
            done = await self._save(branch, merged, words, others)
            try:
                await self._move(branch, done[0])
                return done
            except Conflict:
                floor = branch.floor
                branch = await self._after_race(branch, attempt)
                # What was written below a floor that has risen since may be collected: then all is made again.
                base, above = (below, merged) if branch.floor == floor else wanted
        raise Conflict(f"branch {branch.name!r}: {self._settings.commit_tries_max} others were first: try again")

    async def _base(self, source: CommitId, branch: Branch) -> Run:
        found = await merge_base(source, branch.base_commit, self._load)
        if found is None:
            raise Invalid(f"{source[:12]} and branch {branch.name!r} have no common ancestor: they cannot be merged")
        if found == source:
            raise NoChanges(f"no changes: branch {branch.name!r} has all of {source[:12]} already")
        return await self._run(found)

    async def _load(self, identities: Iterable[CommitId]) -> dict[CommitId, Commit]:
        wanted = sorted(identities)
        return dict(zip(wanted, await asyncio.gather(*map(self._commits.load, wanted)), strict=True))

    async def _run(self, identity: CommitId) -> Run:
        return await self._tables.load_run((await self._commits.load(identity)).metarange)

    async def _save(
        self, branch: Branch, merged: Run, words: Words, others: tuple[CommitId, ...]
    ) -> tuple[CommitId, Commit]:
        parents = (branch.base_commit, *others)
        generations = [commit.generation for commit in (await self._load(parents)).values()]
        commit = Commit(
            parents=parents,
            metarange=await self._tables.save_run(merged, branch.floor),
            message=words.message,
            committer=words.committer,
            created_us=self._clock.now_us(),
            generation=max(generations) + 1,
            metadata=words.metadata,
        )
        return await self.retrying(lambda: self._commits.save(commit)), commit

    async def _move(self, branch: Branch, commit: CommitId) -> None:
        change = Move(
            incarnation=branch.incarnation,
            old=branch.base_commit,
            new=commit,
            expected_view=branch.view,
            generation=branch.floor,
        )
        try:
            await self.change(branch.name, change)
        except (Conflict, DirtyBranch):
            # The answer may have been lost, and others may have come on top since: look before saying "lost".
            if not await self._is_ancestor(branch.name, commit):
                raise

    async def _after_race(self, before: Branch, attempt: int) -> Branch:
        await asyncio.sleep(min(BACKOFF_SECONDS_MAX, 0.01 * 2**attempt) * self._clock.jitter())
        branch = await self._branches.read(before.name)
        if branch.incarnation != before.incarnation:
            raise BranchReplaced(f"branch {before.name!r} was deleted and created again during the merge")
        return branch
