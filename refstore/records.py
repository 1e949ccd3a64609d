"""The branch record and the changes to it, as data.

    Branch { name, incarnation, version, view,
             base_commit, l1: [table id], l2: run id | none,
             sealed: [ {id, l1, l2} ], oldest first
             writers: {writer id: (last seq, version of its last append)}, fence, floor,
             aside: {hidden, line, write, stashes} }

    read order: l1 newest to oldest -> l2 -> sealed newest to oldest (each: its l1, its l2) -> base_commit

`version` grows by one with every change and never goes back. `view` is the version of the last change that altered
what readers see. `fence`: a writer the record does not know may only begin if it opened the branch at this version
or later. `floor` is the garbage collection generation below which nothing new may be referenced. `aside` has what
few changes touch: drivers keep it as one value.

A change is a frozen struct; the journal is the list of changes, and replaying it gives the head. What each change
does, and under which condition, is in `refs`.
"""

from typing import NewType

import msgspec

TableId = NewType("TableId", str)
RunId = NewType("RunId", str)
CommitId = NewType("CommitId", str)
SealId = NewType("SealId", int)
WriterId = NewType("WriterId", str)


class Seal(msgspec.Struct, frozen=True):
    """Layers frozen by a commit that has begun. Its id is the branch version that made it, so it never repeats."""

    id: SealId
    l1: tuple[TableId, ...]
    l2: RunId | None


class Mark(msgspec.Struct, frozen=True, array_like=True):
    """How far a writer has come: its last sequence number, and the branch version that append made."""

    seq: int
    version: int


class Stash(msgspec.Struct, frozen=True):
    """Layers put aside, oldest first: those that were sealed, then l1 and l2 as a seal of their own. Its id is the
    version that made it; `base` is where the branch was."""

    id: int
    base: CommitId
    layers: tuple[Seal, ...]
    message: str = ""
    created_us: int = 0


class Aside(msgspec.Struct, frozen=True):
    """`line`: the version at which the branch came to a commit that was not made on it. The commits made since are one
    line of history, each the first child of the one before. `write`: the id of the last reset or stash, for repeats."""

    hidden: bool = False
    line: int = 1
    write: str = ""
    stashes: tuple[Stash, ...] = ()


class Branch(msgspec.Struct, frozen=True):
    """One branch, at one version."""

    name: str
    incarnation: str
    version: int
    view: int
    base_commit: CommitId
    l1: tuple[TableId, ...] = ()
    l2: RunId | None = None
    sealed: tuple[Seal, ...] = ()
    writers: dict[WriterId, Mark] = {}
    fence: int = 0
    floor: int = 0
    aside: Aside = Aside()

    @property
    def line(self) -> str:
        """The name of the line that its next commit continues; no other branch or life ever has the same."""
        return f"{self.incarnation}.{self.aside.line}"

    @property
    def is_dirty(self) -> bool:
        """Whether anything is not committed yet."""
        return bool(self.l1 or self.l2 or self.sealed)


class Change(msgspec.Struct, frozen=True, tag_field="change", kw_only=True):
    """The root of all changes. `incarnation` is the life of the branch that the change is meant for."""

    incarnation: str
    actor: str = ""


class Create(Change, frozen=True, tag="create"):
    """A new branch name begins a life."""

    base_commit: CommitId
    floor: int = 0
    hidden: bool = False


class Append(Change, frozen=True, tag="append"):
    """A writer's next table goes to the tail of l1: the only change of these that readers can see."""

    writer: WriterId
    seq: int
    opened_at: int
    table: TableId
    generation: int
    expected_view: int | None = None


class Replace(Change, frozen=True, tag="replace"):
    """A compactor's run takes the place of l2 and of a prefix of l1."""

    tables: tuple[TableId, ...]
    old: RunId | None
    new: RunId
    generation: int


class SealLayers(Change, frozen=True, tag="seal"):
    """A committer freezes l1 and l2 as they are now."""


class Advance(Change, frozen=True, tag="advance"):
    """A commit that holds the oldest seals becomes the base."""

    old: CommitId
    new: CommitId
    seals: tuple[SealId, ...]
    generation: int


class Move(Change, frozen=True, tag="move"):
    """A merge: the base of a branch with nothing staged becomes another commit, and readers see it. `jump`: the commit
    was not made on this branch, it is a fast-forward."""

    old: CommitId
    new: CommitId
    expected_view: int
    generation: int
    jump: bool = False


class Reset(Change, frozen=True, tag="reset"):
    """Everything staged goes; a hard reset (`base`) also takes the branch to another commit. `clean`: only if nothing
    is staged. `write` is an id of this very change: one that was done is answered as done."""

    write: str
    base: CommitId | None = None
    clean: bool = False


class StashLayers(Change, frozen=True, tag="stash"):
    """Everything staged is put aside."""

    write: str
    message: str = ""
    created_us: int = 0


class TakeStash(Change, frozen=True, tag="take"):
    """A stash comes back to a branch with nothing staged, or is dropped."""

    write: str
    stash: int
    drop: bool = False


class Retire(Change, frozen=True, tag="retire"):
    """A writer that lost the answer to append `seq` settles it: either it was done, or it never will be."""

    writer: WriterId
    seq: int


class RaiseFloor(Change, frozen=True, tag="floor"):
    """A garbage collector begins: nothing made before this generation may be referenced any more."""

    floor: int


class Delete(Change, frozen=True, tag="delete"):
    """The branch name's life ends; if it is still at that version, if one is given."""

    expected_version: int | None = None


class Restore(Change, frozen=True, tag="restore"):
    """A deleted branch lives again, under a new incarnation, as `branch` says it was."""

    branch: Branch


BranchChange = (
    Create
    | Append
    | Replace
    | SealLayers
    | Advance
    | Move
    | Reset
    | StashLayers
    | TakeStash
    | Retire
    | RaiseFloor
    | Delete
    | Restore
)


class Event(msgspec.Struct, frozen=True):
    """One journal entry: which branch came to which version by which change."""

    branch: str
    version: int
    change: BranchChange


encode = msgspec.json.Encoder(order="deterministic").encode
decode_branch = msgspec.json.Decoder(Branch).decode
decode_aside = msgspec.json.Decoder(Aside).decode
decode_change = msgspec.json.Decoder(BranchChange).decode
decode_event = msgspec.json.Decoder(Event).decode
