"""Bugs, planted one at a time into the production code by tests: the simulation must catch each of them.

They are the weaker conditions of the source documents, the traps that the design names, and the usual mistakes of such
a system. None exists outside this file.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from compactor import executor
from lsmfs import paths
from lsmfs.lsm import appends, boundary, build, view, writer
from lsmfs.lsm.appender import Appender
from lsmfs.lsm.branches import BranchReader
from lsmfs.lsm.run import EMPTY_RUN, Run
from lsmfs.lsm.tables import Tables
from lsmfs.lsm.writer import Writer
from lsmfs.transaction import Transaction
from lsmfs.tree import merger
from lsmfs.tree.branching import Branching
from lsmfs.tree.clocks import before
from lsmfs.tree.commits import Commit, Commits
from lsmfs.tree.committer import Committed, Committer
from refstore import refs
from refstore.errors import Conflict, NoChanges, NotFound, OutcomeUnknown, Unavailable, WriterUnknown
from refstore.records import (
    Advance,
    Append,
    Branch,
    CommitId,
    Delete,
    Mark,
    Replace,
    Reset,
    Seal,
    SealId,
    StashLayers,
    TakeStash,
)

replaced = msgspec.structs.replace


def compaction_checks_l2_only(patch: pytest.MonkeyPatch) -> None:
    """Seed 001, word for word: a commit that took the same tables in between is not noticed."""

    def weak(branch: Branch, change: Replace) -> Branch:
        if branch.l2 != change.old:
            raise Conflict("l2 changed")
        l1 = tuple(table for table in branch.l1 if table not in change.tables)
        return replaced(branch, version=branch.version + 1, l1=l1, l2=change.new)

    patch.setattr(refs, "_replace", weak)


def compaction_clears_l1(patch: pytest.MonkeyPatch) -> None:
    """Instead of removing the prefix that it merged."""
    strict = refs._replace
    patch.setattr(refs, "_replace", lambda branch, change: replaced(strict(branch, change), l1=()))


def compaction_drops_tombstones(patch: pytest.MonkeyPatch) -> None:
    async def dropping(
        tables: Tables, lower: Run, layers: Sequence[str | Run], generation: int, shape: build.Shape, **_: bool
    ) -> Run:
        return await build.apply_layers(tables, lower, layers, generation, shape, drop_tombstones=True)

    patch.setattr(executor, "apply_layers", dropping)


def commit_checks_base_only(patch: pytest.MonkeyPatch) -> None:
    """Seed 001, word for word: no seal; a compaction during the commit leaves old records above the new base."""
    seen: dict[str, Branch] = {}

    async def commit(
        self: Committer, name: str, message: str, committer: str, metadata: dict[str, str], allow_empty: bool = False
    ) -> Committed:
        branch = await self._branches.read(name)
        if not (branch.l1 or branch.l2):
            raise NoChanges("nothing")
        parent = await self._commits.load(branch.base_commit)
        layers = [
            await self._tables.load_run(name) if paths.is_run(name) else name  # type: ignore[arg-type]
            for name in view.stack(branch.l1, branch.l2)
        ]
        base, shape = await self._tables.load_run(parent.metarange), self._settings.shape
        run = await build.apply_layers(self._tables, base, layers, branch.floor, shape, drop_tombstones=True)
        metarange = await self._tables.save_run(run, branch.floor)
        made = Commit((branch.base_commit,), metarange, message, committer, self._clock.now_us(), parent.generation + 1)
        identity = await self._commits.save(made)
        seen[identity] = branch
        change = Advance(
            incarnation=branch.incarnation, old=branch.base_commit, new=identity, seals=(), generation=branch.floor
        )
        await self.change(name, change)
        return Committed(identity, made, raced=False)

    def advance(branch: Branch, change: Advance) -> Branch:
        if branch.base_commit != change.old:
            raise Conflict("base changed")
        read = seen[change.new]
        l1 = tuple(table for table in branch.l1 if table not in read.l1)
        l2 = None if branch.l2 == read.l2 else branch.l2
        return replaced(branch, version=branch.version + 1, base_commit=change.new, l1=l1, l2=l2)

    patch.setattr(Committer, "commit", commit)
    patch.setattr(refs, "_advance", advance)


def two_commits_at_once_both_advance(patch: pytest.MonkeyPatch) -> None:
    """Without looking whether the base and the seals are those that the commit was built on."""

    def blind(branch: Branch, change: Advance) -> Branch:
        sealed = branch.sealed[len(change.seals) :]
        return replaced(branch, version=branch.version + 1, base_commit=change.new, sealed=sealed)

    patch.setattr(refs, "_advance", blind)


def appends_have_no_sequence(patch: pytest.MonkeyPatch) -> None:
    """An append whose answer was lost and that is repeated is done twice."""
    strict = refs._append

    def append(branch: Branch, change: Append) -> Branch:
        mark = branch.writers.get(change.writer, Mark(0, 0))
        return strict(branch, replaced(change, seq=mark.seq + 1, opened_at=branch.version))

    patch.setattr(refs, "_append", append)


def unknown_appends_are_made_anew(patch: pytest.MonkeyPatch) -> None:
    """The writer guesses that a lost answer means that nothing was done."""
    once = Appender._append_once

    async def guessing(self: Appender, *arguments: Any) -> None:
        try:
            await once(self, *arguments)
        except OutcomeUnknown as error:
            await self.begin_life()
            raise Unavailable(str(error)) from None

    patch.setattr(Appender, "_append_once", guessing)


def dropped_writers_append_again(patch: pytest.MonkeyPatch) -> None:
    """One that was dropped with an answer outstanding opens a new life and appends the same again."""
    once = Appender._append_once

    async def forgetting(self: Appender, *arguments: Any) -> None:
        try:
            await once(self, *arguments)
        except WriterUnknown as error:
            await self.begin_life()
            raise Unavailable(str(error)) from None

    patch.setattr(Appender, "_append_once", forgetting)


def unknown_appends_are_not_settled(patch: pytest.MonkeyPatch) -> None:
    """The next append has the sequence number of one that may have been done."""

    async def forget(self: Appender, deadline: float) -> bool:
        self._unsettled = False
        return False

    patch.setattr(Appender, "_settle", forget)


def failed_uploads_let_later_batches_overtake(patch: pytest.MonkeyPatch) -> None:
    """They append under the same sequence number as an earlier batch, and one of the two is lost."""
    patch.setattr(writer, "_follow", lambda before, after: after.set_result(None))


def dropped_writers_raise_no_fence(patch: pytest.MonkeyPatch) -> None:
    """A late copy of a dropped writer's first append begins a second life."""
    strict = refs._remember
    patch.setattr(refs, "_remember", lambda branch, *arguments: (strict(branch, *arguments)[0], branch.fence))


def writes_are_acknowledged_early(patch: pytest.MonkeyPatch) -> None:
    """When the table is uploaded, before it is appended."""
    append = Writer._append

    async def hurried(self: Writer, *arguments: Any) -> None:
        self._early = [*getattr(self, "_early", []), asyncio.ensure_future(append(self, *arguments))]  # type: ignore[attr-defined]

    patch.setattr(Writer, "_append", hurried)


def reads_use_a_cached_branch(patch: pytest.MonkeyPatch) -> None:
    fresh = BranchReader.read

    async def stale(self: BranchReader, name: str) -> Branch:
        return self._latest.get(name) or await fresh(self, name)

    patch.setattr(BranchReader, "read", stale)


def reads_join_the_lookup_already_sent(patch: pytest.MonkeyPatch) -> None:
    """It may have looked before the write that this read must see."""
    sent: dict[tuple[int, str], asyncio.Future[Branch]] = {}

    async def joining(self: BranchReader, name: str) -> Branch:
        place = (id(self), name)
        if place not in sent:
            sent[place] = asyncio.ensure_future(self._lookup(name))
            sent[place].add_done_callback(lambda done: sent.pop(place, None))
        return await asyncio.shield(sent[place])

    patch.setattr(BranchReader, "read", joining)


def conditions_do_not_hold_the_view(patch: pytest.MonkeyPatch) -> None:
    """Check, then append: two writers may both win."""
    strict = refs._append
    patch.setattr(refs, "_append", lambda branch, change: strict(branch, replaced(change, expected_view=None)))


def order_comes_from_ids(patch: pytest.MonkeyPatch) -> None:
    strict = refs._append

    def sorting(branch: Branch, change: Append) -> Branch:
        after = strict(branch, change)
        return after if after is branch else replaced(after, l1=tuple(sorted(after.l1)))

    patch.setattr(refs, "_append", sorting)


def the_floor_is_not_checked(patch: pytest.MonkeyPatch) -> None:
    """A stalled writer refers to a table that garbage collection has taken."""
    patch.setattr(refs, "_check_generation", lambda branch, generation: None)


def a_missing_layer_is_read_as_empty(patch: pytest.MonkeyPatch) -> None:
    load = view.load_layer

    async def lenient(tables: Any, name: str) -> Any:
        try:
            return await load(tables, name)
        except view.LayerGone:
            return EMPTY_RUN

    patch.setattr(view, "load_layer", lenient)


def merges_do_not_hold_the_destination(patch: pytest.MonkeyPatch) -> None:
    """A merge that lost its race moves the branch all the same, over what has come since."""
    patch.setattr(
        refs, "_move", lambda branch, change: replaced(branch, version=branch.version + 1, base_commit=change.new)
    )


def merges_take_the_source_whole(patch: pytest.MonkeyPatch) -> None:
    """What the destination changed since the merge base is lost."""

    async def two_way(tables: Tables, base: Run, source: Run, *_: object) -> Run:
        return source

    patch.setattr(merger, "merge_runs", two_way)


def the_last_range_is_never_reopened(patch: pytest.MonkeyPatch) -> None:
    """Keys beyond it begin a new range, so that the tree's identity depends on its history."""
    patch.setattr(boundary, "ends_after", lambda key, rows_mean: True)


def resets_forget_the_sealed_layers(patch: pytest.MonkeyPatch) -> None:
    """They look at l1 and l2 alone."""
    strict = refs._reset

    def lossy(branch: Branch, change: Reset) -> Branch:
        after = strict(branch, change)
        return after if after is branch else replaced(after, sealed=branch.sealed)

    patch.setattr(refs, "_reset", lossy)


def resets_are_done_again(patch: pytest.MonkeyPatch) -> None:
    """One whose answer was lost is repeated, and takes what has come since."""
    strict = refs._reset
    patch.setattr(
        refs, "_reset", lambda branch, change: strict(replaced(branch, aside=replaced(branch.aside, write="")), change)
    )


def stashes_forget_the_sealed_layers(patch: pytest.MonkeyPatch) -> None:
    """What a commit under way had sealed does not come back."""
    strict = refs._stash

    def lossy(branch: Branch, change: StashLayers) -> Branch:
        after = strict(branch, change)
        if after is branch:
            return branch
        *others, last = after.aside.stashes
        stashes = (*others, replaced(last, layers=last.layers[-1:]))
        return replaced(after, aside=replaced(after.aside, stashes=stashes))

    patch.setattr(refs, "_stash", lossy)


def stashes_come_back_below_what_is_staged(patch: pytest.MonkeyPatch) -> None:
    """Without the look whether something is staged, and in the wrong order: what has come since hides the stash."""
    strict = refs._take

    def below(branch: Branch, change: TakeStash) -> Branch:
        if change.drop or not branch.is_dirty or branch.aside.write == change.write:
            return strict(branch, change)
        after = strict(replaced(branch, l1=(), l2=None, sealed=()), change)
        top = Seal(SealId(after.version), after.l1, after.l2)
        return replaced(after, l1=branch.l1, l2=branch.l2, sealed=(*after.sealed, top, *branch.sealed))

    patch.setattr(refs, "_take", below)


def commits_do_not_notice_a_reset(patch: pytest.MonkeyPatch) -> None:
    """They take the next commit for one that holds their changes, though those were dropped."""
    moved = Committer._moved

    async def forgetting(self: Committer, before: Branch, error: Conflict | NotFound) -> Branch:
        branch = await moved(self, before, error)
        return replaced(branch, aside=replaced(branch.aside, write=before.aside.write))

    patch.setattr(Committer, "_moved", forgetting)


def merges_do_not_notice_a_reset(patch: pytest.MonkeyPatch) -> None:
    """They go on from the old destination, which the branch does not descend from any more."""

    async def forgetting(self: merger.Merger, before: Branch, attempt: int) -> Branch:
        await asyncio.sleep(0.01 * self._clock.jitter())
        return await self._branches.read(before.name)

    patch.setattr(merger.Merger, "_after_race", forgetting)


def the_log_trusts_the_index(patch: pytest.MonkeyPatch) -> None:
    """Of several commits with the same place in a line it takes the one with the highest id: a loser's, perhaps."""
    load = Commits.load_line

    async def trusting(self: Commits, identity: CommitId, limit: int) -> Commit:
        commit = await load(self, identity, limit)
        found = await self._index.until(before(commit.clock), 1)
        return replaced(commit, parents=(max(found), *commit.parents[1:])) if found else commit

    patch.setattr(Commits, "load_line", trusting)


def restored_branches_lose_what_was_staged(patch: pytest.MonkeyPatch) -> None:
    strict = refs._restore
    patch.setattr(
        refs, "_restore", lambda branch, name, change: replaced(strict(branch, name, change), l1=(), l2=None, sealed=())
    )


def deleted_branches_are_kept_as_they_were_read(patch: pytest.MonkeyPatch) -> None:
    """A write between the look and the end of the branch is not restored."""

    async def hurried(self: Branching, name: str, store: Any) -> None:
        branch = await self._branches.read(name)
        await self._keep(store, branch)
        await self.change(name, Delete(incarnation=branch.incarnation))

    patch.setattr(Branching, "delete", hurried)


def transactions_fail_with_their_last_step(patch: pytest.MonkeyPatch) -> None:
    """The hidden branch cannot be deleted: what is published already is called a failure."""

    async def strict(self: Transaction, kind: object, error: object, trace: object) -> None:
        try:
            await self.writer.aclose()
            if error is None:
                await self._publish()
        finally:
            await self._repository.delete_branch(self.branch)

    patch.setattr(Transaction, "__aexit__", strict)


def appends_hide_the_appends_below(patch: pytest.MonkeyPatch) -> None:
    joined = appends.joined
    patch.setattr(appends, "joined", lambda newest_first, below: joined(newest_first[:1], below))


BUGS: dict[Callable[[pytest.MonkeyPatch], None], str] = {
    compaction_checks_l2_only: "mixed",
    compaction_clears_l1: "mixed",
    compaction_drops_tombstones: "mixed",
    commit_checks_base_only: "mixed",
    two_commits_at_once_both_advance: "mixed",
    appends_have_no_sequence: "stormy",
    unknown_appends_are_made_anew: "stormy",
    dropped_writers_append_again: "crowded",
    dropped_writers_raise_no_fence: "crowded",
    unknown_appends_are_not_settled: "timeouts",
    failed_uploads_let_later_batches_overtake: "bursts",
    writes_are_acknowledged_early: "mixed",
    reads_use_a_cached_branch: "mixed",
    reads_join_the_lookup_already_sent: "stalls",
    conditions_do_not_hold_the_view: "mixed",
    order_comes_from_ids: "mixed",
    the_floor_is_not_checked: "stalls",
    a_missing_layer_is_read_as_empty: "stalls",
    the_last_range_is_never_reopened: "mixed",
    merges_do_not_hold_the_destination: "merges",
    merges_take_the_source_whole: "merges",
    resets_forget_the_sealed_layers: "users",
    resets_are_done_again: "users",
    stashes_forget_the_sealed_layers: "users",
    stashes_come_back_below_what_is_staged: "users",
    commits_do_not_notice_a_reset: "users",
    merges_do_not_notice_a_reset: "users",
    the_log_trusts_the_index: "users",
    restored_branches_lose_what_was_staged: "users",
    deleted_branches_are_kept_as_they_were_read: "users",
    transactions_fail_with_their_last_step: "users",
    appends_hide_the_appends_below: "users",
}
"""Each with the profile of histories that is made to find its kind."""
