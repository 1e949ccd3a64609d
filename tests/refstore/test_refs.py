"""The pure rules of a branch, whatever is sent in whatever order; and the swap loop that gives up in the end."""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from refstore import refs
from refstore.errors import AlreadyExists, Conflict, Invalid, NotFound, Unavailable
from refstore.records import (
    Append,
    Branch,
    BranchChange,
    Create,
    Event,
    Move,
    Reset,
    Restore,
    Seal,
    StashLayers,
    TakeStash,
    WriterId,
)
from refstore.refs import SWAP_TRIES_MAX, apply, change_by_swap, event_of, replay
from tests.aio import aio
from tests.conformance import refstore_histories as make

TABLES_MAX, SEALS_MAX, STASHES_MAX, WRITERS_MAX = 6, 2, 2, 3  # so low that a history of fifty steps meets them often
SLOTS = st.integers(0, 5)
SLIP = st.sampled_from([0, 0, 0, 0, 0, 0, -1, 1])  # mostly right, sometimes wrong by one


class BranchRules(RuleBasedStateMachine):
    """A branch that writers, compactors, committers and collectors change, rightly and wrongly, with late copies."""

    def __init__(self) -> None:
        super().__init__()
        self.branch: Branch | None = None
        self.journal: list[Event] = []
        self.sent: list[Append] = []  # every append of this life, done or not
        self.slots: dict[int, WriterId] = {}  # the writers that live now
        self.opened: dict[WriterId, int] = {}  # at which version each writer opened the branch
        self.done: set[tuple[str, int]] = set()  # (writer, seq)
        self.retired: set[tuple[str, int]] = set()
        self.seen: list[str] = []  # the tables that readers see, in order
        self.inside: dict[str, list[str]] = {}  # the tables that a run or commit holds
        self.stashed: dict[int, list[str]] = {}  # the tables of each stash
        self.deleted: Branch | None = None
        self.lives, self.names = itertools.count(1), itertools.count(1)

    @initialize()
    def begin(self) -> None:
        self.do(make.create(f"life-{next(self.lives)}"))

    @property
    def head(self) -> Branch:
        assert self.branch is not None
        return self.branch

    def do(self, change: BranchChange) -> bool:
        """Whether it changed the branch; checks what is true of every change."""
        before = self.branch
        try:
            after = apply(before, "main", change)
        except (Conflict, NotFound, AlreadyExists, Invalid):  # anything else would be a bug
            return False
        if after is before:
            return False
        self.journal.append(event_of("main", before, after, change))
        self.branch = after
        if before is not None and after is not None:
            self.check_step(before, after, change)
        if isinstance(change, Create):
            self.sent, self.done, self.retired, self.seen = [], set(), set(), []
            self.slots, self.opened, self.inside, self.stashed = {}, {}, {}, {}
        if isinstance(change, Restore):
            self.sent, self.done, self.retired, self.slots, self.opened = [], set(), set(), {}, {}
        return True

    def check_step(self, before: Branch, after: Branch, change: BranchChange) -> None:
        assert after.version == before.version + 1
        assert after.view == (after.version if _is_seen(change) else before.view)
        assert after.fence >= before.fence
        assert after.floor >= before.floor
        assert after.incarnation == before.incarnation

    @precondition(lambda self: self.branch is None)
    @rule()
    def begin_again(self) -> None:
        assert self.do(make.create(f"life-{next(self.lives)}", floor=2))

    @precondition(lambda self: self.branch is None and self.deleted is not None)
    @rule()
    def restore(self) -> None:
        assert self.deleted is not None
        change = make.restore(self.deleted, f"life-{next(self.lives)}")
        assert self.do(change)
        assert not self.do(change)
        assert self.head.line != self.deleted.line

    @precondition(lambda self: self.branch is not None)
    @rule(slot=SLOTS, slip=SLIP, age=st.integers(0, 5), view=st.none() | SLIP, old=SLIP)
    def append(self, slot: int, slip: int, age: int, view: int | None, old: int) -> None:
        writer = self.writer(slot, age)
        wanted = None if view is None else self.head.view + view
        self.send(writer, self.next_seq(writer) + slip, self.head.floor + old, wanted)

    @precondition(lambda self: self.branch is not None)
    @rule(slots=st.lists(SLOTS, min_size=2, max_size=6))
    def append_several(self, slots: list[int]) -> None:
        """As writers do when all is well; one that is refused gives up, and the next time a new one takes its slot."""
        for slot in slots:
            writer = self.writer(slot, age=0)
            if not self.send(writer, self.next_seq(writer), self.head.floor, None):
                del self.slots[slot]

    def writer(self, slot: int, age: int) -> WriterId:
        """A writer opens once, before it does anything, at a version that was; its id is never used again."""
        if slot not in self.slots:
            self.slots[slot] = WriterId(f"w{next(self.names)}")
            self.opened[self.slots[slot]] = max(1, self.head.version - age)
        return self.slots[slot]

    def next_seq(self, writer: WriterId) -> int:
        mark = self.head.writers.get(writer)
        return mark.seq + 1 if mark else 1

    def send(self, writer: WriterId, seq: int, generation: int, view: int | None) -> bool:
        table = f"t{next(self.names)}"
        change = make.append(seq, writer, self.opened[writer], table, generation, view, self.head.incarnation)
        self.sent.append(change)
        if not self.do(change):
            return False
        self.done.add((writer, seq))
        self.seen.append(table)
        return True

    @precondition(lambda self: self.branch is not None)
    @rule(count=st.integers(0, TABLES_MAX), wrong_run=st.sampled_from([False, False, False, True]), old=SLIP)
    def replace(self, count: int, wrong_run: bool, old: int) -> None:
        tables, l2, new = self.head.l1[:count], self.head.l2, f"r{next(self.names)}"
        self.inside[new] = [*self.inside.get(l2 or "", []), *tables]
        generation = self.head.floor + old
        self.do(make.replace(tables, "r0" if wrong_run else l2, new, generation, self.head.incarnation))

    @precondition(lambda self: self.branch is not None)
    @rule()
    def seal(self) -> None:
        self.do(make.seal(self.head.incarnation))

    @precondition(lambda self: self.branch is not None)
    @rule(count=st.integers(0, SEALS_MAX), wrong_base=st.sampled_from([False, False, False, True]), old=SLIP)
    def advance(self, count: int, wrong_base: bool, old: int) -> None:
        base, new, seals = self.head.base_commit, f"c{next(self.names)}", self.head.sealed[:count]
        self.inside[new] = [*self.inside.get(base, []), *(table for each in seals for table in self.tables_of(each))]
        ids = tuple(each.id for each in seals)
        self.do(make.advance("other" if wrong_base else base, new, ids, self.head.floor + old, self.head.incarnation))

    @precondition(lambda self: self.branch is not None)
    @rule(wrong_base=st.sampled_from([False, False, False, True]), slip=SLIP, old=SLIP)
    def move(self, wrong_base: bool, slip: int, old: int) -> None:
        """A merge brings what another branch had, and only to a branch with nothing staged."""
        base, new = self.head.base_commit, f"c{next(self.names)}"
        self.inside[new] = [*self.inside.get(base, []), f"merged by {new}"]
        head, dirty = self.head, self.head.is_dirty
        view, generation = head.view + slip, head.floor + old
        if self.do(make.move("other" if wrong_base else base, new, view, generation, head.incarnation)):
            assert not dirty
            self.seen = self.inside[new].copy()

    @precondition(lambda self: self.branch is not None)
    @rule(elsewhere=st.booleans(), clean=st.booleans())
    def reset(self, elsewhere: bool, clean: bool) -> None:
        head, dirty = self.head, self.head.is_dirty
        commits = [name for name in self.inside if name.startswith("c")]
        base = commits[len(commits) // 2] if elsewhere and commits else None
        change = make.reset(f"x{next(self.names)}", base, clean, head.incarnation)
        if self.do(change):
            assert not (clean and dirty)
            self.seen = self.inside.get(self.head.base_commit, []).copy()
            assert (self.head.line == head.line) == (base in (None, head.base_commit))
            assert not self.do(change)

    @precondition(lambda self: self.branch is not None)
    @rule()
    def stash(self) -> None:
        change = make.stash(f"x{next(self.names)}", life=self.head.incarnation)
        staged = self.staged(self.head)
        if self.do(change):
            self.stashed[self.head.version] = staged
            self.seen = self.inside.get(self.head.base_commit, []).copy()
            assert not self.do(change)

    @precondition(lambda self: self.branch is not None and self.stashed)
    @rule(drop=st.booleans(), at=st.integers(0, 5))
    def take(self, drop: bool, at: int) -> None:
        number = sorted(self.stashed)[at % len(self.stashed)]
        dirty = self.head.is_dirty
        change = make.take(f"x{next(self.names)}", number, drop, self.head.incarnation)
        if not self.do(change):
            assert dirty
            assert not drop
            return
        staged = self.stashed.pop(number)
        if not drop:
            self.seen += staged
        assert not self.do(change)

    @precondition(lambda self: self.branch is not None)
    @rule(slot=SLOTS, slip=SLIP, age=st.integers(0, 5))
    def retire(self, slot: int, slip: int, age: int) -> None:
        writer = self.writer(slot, age)
        change = make.retire(self.next_seq(writer) + slip, writer, self.head.incarnation)
        if self.do(change):
            del self.slots[slot]
            self.retired |= {(writer, change.seq)} - self.done

    @precondition(lambda self: self.branch is not None)
    @rule(step=st.integers(-1, 2))
    def raise_floor(self, step: int) -> None:
        self.do(make.raise_floor(self.head.floor + step, self.head.incarnation))

    @precondition(lambda self: self.branch is not None and self.head.version > 10)
    @rule()
    def delete(self) -> None:
        self.deleted = self.head
        assert self.do(make.delete(self.head.incarnation))

    @precondition(lambda self: self.branch is not None)
    @rule(
        change=st.sampled_from(
            [make.seal("life-0"), make.delete("life-0"), make.append(1, life="life-0"), make.create("life-0")]
        )
    )
    def another_life(self, change: BranchChange) -> None:
        assert not self.do(change)

    def staged(self, branch: Branch) -> list[str]:
        return [*(table for each in branch.sealed for table in self.tables_of(each)), *self.tables_of(branch)]

    def tables_of(self, layers: Seal | Branch) -> list[str]:
        return [*self.inside.get(layers.l2 or "", []), *layers.l1]

    @invariant()
    def limits_hold(self) -> None:
        if self.branch is not None:
            assert len(self.head.writers) <= WRITERS_MAX
            assert len(self.head.l1) <= TABLES_MAX
            assert len(self.head.sealed) <= SEALS_MAX
            assert len(self.head.aside.stashes) <= STASHES_MAX
            assert self.head.view <= self.head.version

    @invariant()
    def readers_see_every_append_and_merge_once_and_in_order(self) -> None:
        if self.branch is not None:
            assert [*self.inside.get(self.head.base_commit, []), *self.staged(self.head)] == self.seen
            assert [stash.id for stash in self.head.aside.stashes] == sorted(self.stashed)

    @invariant()
    def a_copy_that_comes_late_does_nothing(self) -> None:
        """The network may keep any append and deliver it now: what was done is not done again, and what a writer
        was told will never be done is not done."""
        for change in self.sent:
            if self.branch is not None and (change.writer, change.seq) in self.done | self.retired:
                try:
                    assert apply(self.branch, "main", change) is self.branch, change
                except Conflict:
                    continue

    @invariant()
    def the_journal_leads_to_the_head(self) -> None:
        assert replay(self.journal) == ({} if self.branch is None else {"main": self.branch})


def _is_seen(change: BranchChange) -> bool:
    """Whether readers see it."""
    return isinstance(change, (Append, Move, Reset, StashLayers)) or (isinstance(change, TakeStash) and not change.drop)


@contextmanager
def low_limits() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(refs, "L1_TABLES_MAX", TABLES_MAX)
        patch.setattr(refs, "SEALS_MAX", SEALS_MAX)
        patch.setattr(refs, "STASHES_MAX", STASHES_MAX)
        patch.setattr(refs, "WRITERS_MAX", WRITERS_MAX)
        yield


def test_the_rules_of_a_branch_hold_for_every_history() -> None:
    with low_limits():
        run_state_machine_as_test(
            BranchRules, settings=settings(max_examples=150, stateful_step_count=60, deadline=None)
        )


class TestReplay:
    @pytest.mark.parametrize("lost", [1, 2])
    def test_a_journal_with_a_gap_is_refused(self, lost: int) -> None:
        changes: list[BranchChange] = [make.create(), make.append(1), make.append(1, "other"), make.append(2)]
        events = [Event("main", version, change) for version, change in enumerate(changes, 1)]
        assert len(replay(events)["main"].l1) == 3
        with pytest.raises(Conflict):
            replay([*events[:lost], *events[lost + 1 :]])


class Busy:
    """A swap store in which somebody else is always first, until he has been so often enough."""

    def __init__(self, others: int) -> None:
        self.others, self.loads = others, 0
        self.branch = apply(None, "main", make.create())

    async def load(self, repository: str, name: str) -> tuple[Branch | None, object]:
        self.loads += 1
        return self.branch, self.branch

    async def swap(self, repository: str, name: str, tag: object, new: Branch | None, event: Event) -> None:
        if self.loads <= self.others:
            self.branch = apply(self.branch, name, make.append(self.loads, "other"))
        if tag is not self.branch:
            raise Conflict("somebody else was first")
        self.branch = new


class TestSwapLoop:
    @aio
    async def test_it_tries_again_on_what_the_others_made(self) -> None:
        store = Busy(others=SWAP_TRIES_MAX - 1)
        branch = await change_by_swap(store, "r", "main", make.append(1), jitter=lambda: 0.0)
        assert branch.l1[-1] == "w-1"
        assert len(branch.l1) == SWAP_TRIES_MAX == store.loads

    @aio
    async def test_it_gives_up_after_as_many_tries_as_it_may(self) -> None:
        store = Busy(others=SWAP_TRIES_MAX)
        with pytest.raises(Unavailable, match=f"'main' is too busy: {SWAP_TRIES_MAX} tries"):
            await change_by_swap(store, "r", "main", make.append(1), jitter=lambda: 0.0)
        assert store.loads == SWAP_TRIES_MAX

    @aio
    async def test_what_was_done_already_is_not_swapped(self) -> None:
        store = Busy(others=SWAP_TRIES_MAX)
        assert await change_by_swap(store, "r", "main", make.create(), jitter=lambda: 0.0) is store.branch
        assert store.loads == 1

    @aio
    async def test_a_refusal_ends_it_at_once(self) -> None:
        store = Busy(others=SWAP_TRIES_MAX)
        with pytest.raises(Conflict, match="does not know writer"):
            await change_by_swap(store, "r", "main", make.append(2), jitter=lambda: 0.0)
        assert store.loads == 1
