"""The commit graph: best common ancestors. Takes the lookup as a function, so that a test uses a dict.

A commit's generation is greater than those of its parents. Walking both histories from the highest generation down, a
commit is looked at only after all of its descendants in the walk, so the first one that both sides reach is a best
common ancestor: none of its descendants is common. All commits of one generation are loaded together.
"""

from collections.abc import Awaitable, Callable, Iterable

from lsmfs.tree.commits import Commit
from refstore.records import CommitId

Load = Callable[[Iterable[CommitId]], Awaitable[dict[CommitId, Commit]]]

LEFT, RIGHT = 1, 2


async def merge_base(left: CommitId, right: CommitId, load: Load) -> CommitId | None:
    """A best common ancestor of two commits, which may be one of them; None if their histories are unrelated."""
    sides: dict[CommitId, int] = {left: LEFT}
    sides[right] = sides.get(right, 0) | RIGHT
    waiting = await load(sides)
    while waiting:
        highest = max(commit.generation for commit in waiting.values())
        level = {identity: commit for identity, commit in waiting.items() if commit.generation == highest}
        common = sorted(identity for identity in level if sides[identity] == LEFT | RIGHT)
        if common:
            return common[0]
        for identity, commit in level.items():
            del waiting[identity]
            for parent in commit.parents:
                sides[parent] = sides.get(parent, 0) | sides[identity]
        missing = {parent for commit in level.values() for parent in commit.parents} - waiting.keys()
        waiting |= await load(missing)
    return None
