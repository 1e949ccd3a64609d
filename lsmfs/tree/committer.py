"""The committer: what is staged on a branch becomes a commit.

Flow:
1. Seal: what is in l1 and l2 is frozen. Writers and compactors go on above it. Constant time.
2. Build: the sealed layers are applied to the base's metarange, range by range; untouched ranges are kept by reference.
3. Save: ranges, metarange and commit object are in the bucket.
4. Advance: the branch's base becomes the commit and the seals go, if both are what was built on. Constant time.

Another commit may win the race at 4. Then the seals that are left, if any, are applied to the new base (overlapping);
if none is left, the other commit holds all of these changes, and is the answer (disjoint). A crash anywhere leaves a
branch that reads as before; whatever is sealed is finished by the next commit.
"""

from typing import NamedTuple

from lsmfs import paths
from lsmfs.lsm.build import apply_layers
from lsmfs.lsm.run import Run
from lsmfs.lsm.view import stack
from lsmfs.tree.changer import BranchChanger
from lsmfs.tree.clocks import following
from lsmfs.tree.commits import Commit, check_words
from refstore.errors import BranchReplaced, Conflict, Corrupt, LayersFull, NoChanges, NotFound
from refstore.records import Advance, Branch, CommitId, RunId, Seal, SealLayers


class Committed(NamedTuple):
    """The commit that holds the changes; `raced` if it is another committer's."""

    id: CommitId
    commit: Commit
    raced: bool


class Committer(BranchChanger):
    async def commit(
        self, name: str, message: str, committer: str, metadata: dict[str, str], allow_empty: bool = False
    ) -> Committed:
        check_words(message, committer, metadata)
        branch = await self._seal(name)
        if not branch.sealed and not allow_empty:
            raise NoChanges(f"no changes: branch {name!r} has nothing to commit")
        mine, write = {seal.id for seal in branch.sealed}, branch.aside.write
        for _ in range(self._settings.commit_tries_max):
            take = tuple(seal for seal in branch.sealed if seal.id in mine)
            if mine and not take:
                return Committed(branch.base_commit, await self._commits.load(branch.base_commit), raced=True)
            try:
                done = await self._attempt(branch, take, message, committer, metadata, allow_empty)
            except (Conflict, NotFound) as error:
                branch = await self._moved(branch, error)
                if branch.aside.write != write:
                    raise Conflict(f"branch {name!r} was reset or stashed during the commit: try again") from None
                continue
            if done is None:
                raise NoChanges(f"no changes: what is staged on branch {name!r} equals its last commit")
            return done
        raise Conflict(f"branch {name!r}: {self._settings.commit_tries_max} other commits were first: try again")

    async def _moved(self, before: Branch, error: Conflict | NotFound) -> Branch:
        """The branch as it is after a race was lost. What is missing though nobody moved is corruption."""
        branch = await self._branches.read(before.name)
        if branch.incarnation != before.incarnation:
            raise BranchReplaced(f"branch {before.name!r} was deleted and created again during the commit") from error
        if branch.version == before.version and isinstance(error, NotFound):
            raise Corrupt(f"branch {before.name!r} at version {before.version} refers to it, but: {error}") from error
        return branch

    async def _seal(self, name: str) -> Branch:
        """The branch with everything that is staged now sealed; at the cap of seals, finish those first."""
        branch = await self._branches.read(name)
        for _ in range(self._settings.commit_tries_max):
            if not (branch.l1 or branch.l2):
                return branch
            try:
                return await self.change(name, SealLayers(incarnation=branch.incarnation))
            except LayersFull:
                branch = await self._finish_sealed(branch)
        raise Conflict(f"branch {name!r}: other commits seal faster than this one can finish them: try again")

    async def _finish_sealed(self, branch: Branch) -> Branch:
        """Commit what others have sealed and left; if somebody else is doing it, so much the better."""
        try:
            await self._attempt(branch, branch.sealed, "Finish interrupted commits", "lsmfs", {}, False)
        except (Conflict, NotFound) as error:
            return await self._moved(branch, error)
        return await self._branches.read(branch.name)

    async def _attempt(
        self,
        branch: Branch,
        take: tuple[Seal, ...],
        message: str,
        committer: str,
        metadata: dict[str, str],
        allow_empty: bool,
    ) -> Committed | None:
        """Build on the base as it is and advance; None if nothing changed (the seals go, the base stays)."""
        parent = await self._commits.load(branch.base_commit)
        base = await self._tables.load_run(parent.metarange)
        run = await self._apply(base, take, branch.floor)
        unchanged = run.content_hash() == base.content_hash()
        if unchanged and not allow_empty:
            await self._advance(branch, branch.base_commit, take)
            return None
        metarange = parent.metarange if unchanged else await self._tables.save_run(run, branch.floor)
        commit = Commit(
            parents=(branch.base_commit,),
            metarange=metarange,
            message=message,
            committer=committer,
            created_us=self._clock.now_us(),
            generation=parent.generation + 1,
            metadata=metadata,
            clock=following(parent.clock, branch.line),
        )
        await self.retrying(lambda: self._commits.save(commit))
        await self._advance(branch, commit.id, take)
        return Committed(commit.id, commit, raced=False)

    async def _apply(self, base: Run, take: tuple[Seal, ...], generation: int) -> Run:
        names = [name for seal in reversed(take) for name in stack(seal.l1, seal.l2)]
        layers = [await self._tables.load_run(RunId(name)) if paths.is_run(name) else name for name in names]
        return await apply_layers(self._tables, base, layers, generation, self._settings.shape, drop_tombstones=True)

    async def _advance(self, branch: Branch, commit: CommitId, take: tuple[Seal, ...]) -> None:
        change = Advance(
            incarnation=branch.incarnation,
            old=branch.base_commit,
            new=commit,
            seals=tuple(seal.id for seal in take),
            generation=branch.floor,
        )
        try:
            await self.change(branch.name, change)
        except Conflict:
            # An answer may have been lost and others may have committed on top since: look before saying "lost".
            if commit == branch.base_commit or not await self._is_ancestor(branch.name, commit):
                raise
