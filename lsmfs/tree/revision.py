"""Revisions: what a user types to name a version.

    NAME            a branch with what is staged on it, a tag, a commit, or the beginning of a commit id
    NAME@           a branch without what is staged on it
    ...~ ...~3      the first parent, three times
    ...^ ...^2      the first parent, the second parent (the branch that was merged)

They may follow one another: `main~2^2`. A name is looked for as a branch, then as a tag, then as a commit.
"""

import re
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from lsmfs.model import COMMIT_ID
from refstore.errors import Invalid, NotFound
from refstore.records import CommitId

_REVISION = re.compile(r"(?P<name>[A-Za-z0-9_][A-Za-z0-9_.-]*)(?P<committed>@?)(?P<steps>(?:[~^][0-9]*)*)")
_STEP = re.compile(r"([~^])([0-9]*)")
STEPS_MAX = 10_000
CANDIDATES_SHOWN = 5

Parents = Callable[[CommitId], Awaitable[tuple[CommitId, ...]]]


def is_commit_id(text: str) -> bool:
    return COMMIT_ID.fullmatch(text) is not None


class Revision(NamedTuple):
    """`parents` has one number for each step back: which parent, from 1."""

    text: str
    name: str
    committed: bool
    parents: tuple[int, ...]

    @property
    def is_plain(self) -> bool:
        """Whether it is a name and nothing else."""
        return not self.committed and not self.parents


def parse_revision(text: str) -> Revision:
    match = _REVISION.fullmatch(text)
    if not match:
        raise Invalid(f"{text!r} is no revision: a branch, a tag or a commit, then perhaps @, ~2 or ^2")
    parents: list[int] = []
    for sign, digits in _STEP.findall(match["steps"]):
        count = int(digits or 1)
        if count > STEPS_MAX:
            raise Invalid(f"{text!r} goes back {count} commits, at most {STEPS_MAX} are allowed")
        parents += [1] * count if sign == "~" else [count] if count else []  # ^0 is the commit itself
    return Revision(text, match["name"], bool(match["committed"]), tuple(parents))


async def walk_back(revision: Revision, start: CommitId, parents_of: Parents) -> CommitId:
    """The commit that the steps of a revision lead to."""
    commit = start
    for number in revision.parents:
        parents = await parents_of(commit)
        if number > len(parents):
            what = f"has {len(parents)} parents" if parents else "is the first of its history"
            raise NotFound(f"{revision.text!r}: commit {commit[:12]} {what}, there is no parent {number}")
        commit = parents[number - 1]
    return commit


def one_commit(text: str, candidates: list[CommitId]) -> CommitId:
    """The only commit whose id begins with the text."""
    if not candidates:
        raise NotFound(f"there is no branch, tag or commit {text!r}")
    if len(candidates) > 1:
        shown = ", ".join(candidate[:16] for candidate in candidates[:CANDIDATES_SHOWN])
        raise Invalid(f"{text!r} is the beginning of several commits: {shown}: give more of it")
    return candidates[0]
