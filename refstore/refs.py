"""The rules that keep a branch safe: the changes as pure functions, and the one compare-and-swap loop.

| change  | who       | condition, checked atomically                                | effect                          |
|---|---|---|---|
| append  | writer    | seq == last+1 (== last: done already); a writer not known    | table at the tail of l1         |
|         |           | begins at seq 1 and opened at `fence` or later; l1 below its |                                 |
|         |           | cap; generation >= floor; the view is the expected one, if   |                                 |
|         |           | the append is conditional                                    |                                 |
| replace | compactor | l2 == what it read and l1[:k] == the ids it read;            | l1 loses that prefix, l2 is the |
|         |           | generation >= floor                                          | new run                         |
| seal    | committer | sealed below its cap                                         | (l1, l2) move into sealed       |
| advance | committer | base_commit == what it read and sealed[:k] == the seals it   | base_commit is the new commit,  |
|         |           | consumed; generation >= floor                                | those seals go                  |
| move    | merge     | base_commit and view == what it read; nothing is staged;     | base_commit is the new commit,  |
|         |           | generation >= floor                                          | and readers see it              |
| reset   | user      | nothing is staged, if it says so                             | the layers go; base_commit is   |
|         |           |                                                              | another one, if it says so      |
| stash   | user      | something is staged; stashes below their caps                | the layers move into a stash    |
| take    | user      | the stash is there; nothing is staged, unless it is dropped  | its layers are the branch's     |
| retire  | writer    | append `seq` was not done                                    | writer goes, the fence rises    |
| floor   | collector | none                                                         | older generations are refused;  |
|         |           |                                                              | the answer is the live set      |
| delete  | user      | the version is the expected one, if one is given             | the name has no branch          |
| restore | user      | the name has no branch                                       | it is as it was when deleted    |

Every change names the incarnation it is meant for. Append, advance, move, retire, floor, create and restore, if done,
are answered with the record as it is: that is how a lost answer is repeated safely. So are reset, stash and take, by an
id of their own, until the next of them. A replace that is repeated meets a Conflict, which costs its compactor nothing;
a seal that is repeated seals what has come since.

Only append, move, reset, stash and take change what a reader of the branch sees.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from typing import Protocol

import msgspec

from refstore.errors import (
    AlreadyExists,
    BranchReplaced,
    Conflict,
    DirtyBranch,
    GenerationStale,
    Invalid,
    LayersFull,
    NoChanges,
    NotFound,
    Unavailable,
    ViewChanged,
    WriterUnknown,
)
from refstore.records import (
    Advance,
    Append,
    Aside,
    Branch,
    BranchChange,
    Create,
    Delete,
    Event,
    Mark,
    Move,
    RaiseFloor,
    Replace,
    Reset,
    Restore,
    Retire,
    Seal,
    SealId,
    SealLayers,
    Stash,
    StashLayers,
    TakeStash,
    WriterId,
)

L1_TABLES_MAX = 256  # a table id is about 60 bytes, so l1 stays below 16 KiB of the record
SEALS_MAX = 8  # concurrent commits that have begun and not ended; a seal may hold a full l1
STASHES_MAX = 16
STASHED_TABLES_MAX = 1024  # of all stashes of a branch: 60 KiB of the record
WRITERS_MAX = 64  # writers remembered for lost answers: the least recently appending one goes first
SWAP_TRIES_MAX = 64  # with full jitter up to 50 ms this waits about 1.5 s in all before giving up


def apply(branch: Branch | None, name: str, change: BranchChange) -> Branch | None:
    """The record after the change; the very same object if it was done already; None after a delete.

    Raises the `Conflict`, `NotFound` or `AlreadyExists` that says why it may not be done.
    """
    if isinstance(change, Create):
        return _create(branch, name, change)
    if isinstance(change, Restore):
        return _restore(branch, name, change)
    if branch is None:
        raise NotFound(f"branch {name!r} does not exist")
    if branch.incarnation != change.incarnation:
        raise BranchReplaced(f"branch {name!r} was deleted and created again: open it again")
    match change:
        case Append():
            return _append(branch, change)
        case Replace():
            return _replace(branch, change)
        case SealLayers():
            return _seal(branch)
        case Advance():
            return _advance(branch, change)
        case Move():
            return _move(branch, change)
        case Reset():
            return _reset(branch, change)
        case StashLayers():
            return _stash(branch, change)
        case TakeStash():
            return _take(branch, change)
        case Retire():
            return _retire(branch, change)
        case RaiseFloor():
            return _raise_floor(branch, change)
        case Delete():
            if change.expected_version not in (None, branch.version):
                raise Conflict(f"branch {name!r} is at version {branch.version}, not {change.expected_version}")
            return None


def _create(branch: Branch | None, name: str, change: Create) -> Branch:
    if branch is None:
        aside = Aside(hidden=change.hidden)
        return Branch(name, change.incarnation, 1, 1, change.base_commit, floor=change.floor, aside=aside)
    if branch.incarnation == change.incarnation:
        return branch
    raise AlreadyExists(f"branch {name!r} exists already")


def _restore(branch: Branch | None, name: str, change: Restore) -> Branch:
    if branch is not None:
        return _create(branch, name, Create(incarnation=change.incarnation, base_commit=branch.base_commit))
    old = change.branch
    version = old.version + 1  # seals and stashes are named by versions, which must not come again
    aside = msgspec.structs.replace(old.aside, line=version)
    return msgspec.structs.replace(
        old, incarnation=change.incarnation, version=version, view=version, writers={}, fence=version, aside=aside
    )


def _append(branch: Branch, change: Append) -> Branch:
    mark = branch.writers.get(change.writer)
    if mark is not None and change.seq == mark.seq:
        return branch
    _check_writer(branch, change, mark)
    _check_generation(branch, change.generation)
    if len(branch.l1) >= L1_TABLES_MAX:
        raise LayersFull(f"branch {branch.name!r} has {len(branch.l1)} tables waiting for compaction: run a compactor")
    if change.expected_view not in (None, branch.view):
        raise ViewChanged(f"branch {branch.name!r} changed: view {branch.view}, expected {change.expected_view}")
    version = branch.version + 1
    writers, fence = _remember(branch, change.writer, Mark(change.seq, version))
    l1 = (*branch.l1, change.table)
    return msgspec.structs.replace(branch, version=version, view=version, l1=l1, writers=writers, fence=fence)


def _check_writer(branch: Branch, change: Append, mark: Mark | None) -> None:
    if mark is not None:
        if change.seq != mark.seq + 1:
            raise WriterUnknown(f"writer {change.writer} is at append {mark.seq}, not {change.seq - 1}: open a new one")
    elif change.seq != 1 or change.opened_at < branch.fence:
        raise WriterUnknown(f"branch {branch.name!r} does not know writer {change.writer}: open a new one")


def _check_generation(branch: Branch, generation: int) -> None:
    if generation < branch.floor:
        raise GenerationStale(
            f"made in generation {generation}, branch {branch.name!r} is at {branch.floor}: make again"
        )


def _remember(branch: Branch, writer: WriterId, mark: Mark) -> tuple[dict[WriterId, Mark], int]:
    """The writers with this one's new mark. One that is pushed out raises the fence over its own first append, so
    that a copy of that append which is still under way cannot begin a second life."""
    writers = {**branch.writers, writer: mark}
    fence = branch.fence
    if len(writers) > WRITERS_MAX:
        oldest = min(writers, key=lambda w: writers[w].version)
        fence = max(fence, writers.pop(oldest).version)
    return writers, fence


def _replace(branch: Branch, change: Replace) -> Branch:
    if not change.tables:
        raise Invalid(f"compaction of branch {branch.name!r} takes no table")
    if branch.l2 != change.old or branch.l1[: len(change.tables)] != change.tables:
        raise Conflict(f"the layers of branch {branch.name!r} changed during compaction")
    _check_generation(branch, change.generation)
    return msgspec.structs.replace(
        branch, version=branch.version + 1, l1=branch.l1[len(change.tables) :], l2=change.new
    )


def _seal(branch: Branch) -> Branch:
    if not (branch.l1 or branch.l2):
        return branch
    if len(branch.sealed) >= SEALS_MAX:
        raise LayersFull(f"branch {branch.name!r} has {SEALS_MAX} unfinished commits: finish them first")
    version = branch.version + 1
    sealed = (*branch.sealed, Seal(SealId(version), branch.l1, branch.l2))
    return msgspec.structs.replace(branch, version=version, l1=(), l2=None, sealed=sealed)


def _advance(branch: Branch, change: Advance) -> Branch:
    count = len(change.seals)
    if branch.base_commit != change.old:
        if branch.base_commit == change.new:
            return branch
        raise Conflict(f"branch {branch.name!r} is at commit {branch.base_commit}, not {change.old}")
    if tuple(seal.id for seal in branch.sealed[:count]) != change.seals:
        raise Conflict(f"the seals of branch {branch.name!r} changed during the commit")
    _check_generation(branch, change.generation)
    return msgspec.structs.replace(
        branch, version=branch.version + 1, base_commit=change.new, sealed=branch.sealed[count:]
    )


def _move(branch: Branch, change: Move) -> Branch:
    if branch.base_commit == change.new != change.old:
        return branch
    if branch.base_commit != change.old:
        raise Conflict(f"branch {branch.name!r} is at commit {branch.base_commit}, not {change.old}")
    if branch.is_dirty:
        raise DirtyBranch(f"dirty branch: {branch.name!r} has changes that are not committed: commit them first")
    if branch.view != change.expected_view:
        raise ViewChanged(f"branch {branch.name!r} changed: view {branch.view}, expected {change.expected_view}")
    _check_generation(branch, change.generation)
    version = branch.version + 1
    aside = msgspec.structs.replace(branch.aside, line=version) if change.jump else branch.aside
    return msgspec.structs.replace(branch, version=version, view=version, base_commit=change.new, aside=aside)


def _reset(branch: Branch, change: Reset) -> Branch:
    if branch.aside.write == change.write:
        return branch
    if change.clean and branch.is_dirty:
        raise DirtyBranch(f"dirty branch: {branch.name!r} has changes that are not committed: commit them first")
    version = branch.version + 1
    line = branch.aside.line if change.base in (None, branch.base_commit) else version
    aside = msgspec.structs.replace(branch.aside, write=change.write, line=line)
    base = change.base or branch.base_commit
    return _with_layers(msgspec.structs.replace(branch, base_commit=base, aside=aside), version, ())


def _stash(branch: Branch, change: StashLayers) -> Branch:
    if branch.aside.write == change.write:
        return branch
    if not branch.is_dirty:
        raise NoChanges(f"branch {branch.name!r} has no changes to stash")
    version = branch.version + 1
    layers = (*branch.sealed, Seal(SealId(version), branch.l1, branch.l2))
    stash = Stash(version, branch.base_commit, layers, change.message, change.created_us)
    stashes = (*branch.aside.stashes, stash)
    if len(stashes) > STASHES_MAX:
        raise LayersFull(f"branch {branch.name!r} has {STASHES_MAX} stashes: pop or drop some")
    if sum(len(seal.l1) for each in stashes for seal in each.layers) > STASHED_TABLES_MAX:
        raise LayersFull(f"the stashes of branch {branch.name!r} have too many tables: run a compactor, or drop some")
    aside = msgspec.structs.replace(branch.aside, write=change.write, stashes=stashes)
    return _with_layers(msgspec.structs.replace(branch, aside=aside), version, ())


def _take(branch: Branch, change: TakeStash) -> Branch:
    if branch.aside.write == change.write:
        return branch
    found = [stash for stash in branch.aside.stashes if stash.id == change.stash]
    if not found:
        raise NotFound(f"branch {branch.name!r} has no stash {change.stash}")
    stashes = tuple(stash for stash in branch.aside.stashes if stash.id != change.stash)
    after = msgspec.structs.replace(
        branch, aside=msgspec.structs.replace(branch.aside, write=change.write, stashes=stashes)
    )
    version = branch.version + 1
    if change.drop:
        return msgspec.structs.replace(after, version=version)
    if branch.is_dirty:
        raise DirtyBranch(
            f"dirty branch: {branch.name!r} has changes that are not committed: commit or stash them first"
        )
    return _with_layers(after, version, found[0].layers)


def _with_layers(branch: Branch, version: int, layers: tuple[Seal, ...]) -> Branch:
    """The branch with these layers instead of its own: the newest is l1 and l2, the others are sealed."""
    *sealed, top = layers or (Seal(SealId(version), (), None),)
    return msgspec.structs.replace(branch, version=version, view=version, l1=top.l1, l2=top.l2, sealed=tuple(sealed))


def _retire(branch: Branch, change: Retire) -> Branch:
    mark = branch.writers.get(change.writer)
    if mark is not None and mark.seq >= change.seq:
        return branch
    writers = {writer: other for writer, other in branch.writers.items() if writer != change.writer}
    version = branch.version + 1
    # A copy of its first append that is still under way opened before this; its later ones are refused as unknown.
    fence = version if mark is None else max(branch.fence, mark.version)
    return msgspec.structs.replace(branch, version=version, writers=writers, fence=fence)


def _raise_floor(branch: Branch, change: RaiseFloor) -> Branch:
    if change.floor <= branch.floor:
        return branch
    return msgspec.structs.replace(branch, version=branch.version + 1, floor=change.floor)


class Refs(Protocol):
    """Branch records and their journal. `repository` is the partition."""

    async def read(self, repository: str, name: str) -> Branch:
        """The branch as of now, never older than any answer given before; `NotFound`."""
        ...

    def branches(self, repository: str, after: str = "", prefix: str = "") -> AsyncIterator[Branch]:
        """Branches with name > after that begin with prefix, in ascending order of the name's bytes."""
        ...

    async def change(self, repository: str, name: str, change: BranchChange) -> Branch:
        """Do one change and write its event in the same atomic operation; answers the record after it (for a
        delete: the record before it). Raises what `apply` raises, and `OutcomeUnknown` if the answer was lost."""
        ...

    async def events(self, repository: str, limit: int = 1000) -> list[Event]:
        """The oldest events that were not trimmed: those of one branch life in order of version, without gaps."""
        ...

    async def trim(self, repository: str, events: list[Event]) -> None:
        """Forget these events, which are safe elsewhere. Trimming twice does no harm."""
        ...


class SwapStore(Protocol):
    """What a driver without native changes offers: read a record with its tag, and swap it by that tag."""

    async def load(self, repository: str, name: str) -> tuple[Branch | None, object]:
        """The record (None if absent) and an opaque tag of this state."""
        ...

    async def swap(self, repository: str, name: str, tag: object, new: Branch | None, event: Event) -> None:
        """Store `new` (None: delete) with its event if the state still has this tag; `Conflict` if not."""
        ...


async def change_by_swap(
    store: SwapStore, repository: str, name: str, change: BranchChange, jitter: Callable[[], float] = random.random
) -> Branch:
    """The one compare-and-swap loop: load, apply, swap; again if somebody else was first."""
    for attempt in range(SWAP_TRIES_MAX):
        branch, tag = await store.load(repository, name)
        changed = apply(branch, name, change)
        if changed is not None and changed is branch:
            return branch
        try:
            await store.swap(repository, name, tag, changed, event_of(name, branch, changed, change))
        except Conflict:
            await asyncio.sleep(min(0.05, 0.002 * 2**attempt) * jitter())
            continue
        result = changed or branch
        assert result is not None
        return result
    raise Unavailable(f"branch {name!r} is too busy: {SWAP_TRIES_MAX} tries lost against other changes")


def event_of(name: str, before: Branch | None, after: Branch | None, change: BranchChange) -> Event:
    """The journal entry of a change; a delete has the version after the last one of that life."""
    if after is not None:
        return Event(name, after.version, change)
    assert before is not None
    return Event(name, before.version + 1, change)


def replay(events: list[Event]) -> dict[str, Branch]:
    """The heads that a journal describes: what recovery and the simulation compare with the records."""
    heads: dict[str, Branch] = {}
    for event in events:
        after = apply(heads.get(event.branch), event.branch, event.change)
        if after is None:
            heads.pop(event.branch)
        elif after.version != event.version:
            raise Conflict(f"journal of {event.branch!r}: version {event.version} follows {after.version - 1}")
        else:
            heads[event.branch] = after
    return heads


__all__ = [
    "L1_TABLES_MAX",
    "SEALS_MAX",
    "SWAP_TRIES_MAX",
    "WRITERS_MAX",
    "Refs",
    "SwapStore",
    "apply",
    "change_by_swap",
    "event_of",
    "replay",
]
