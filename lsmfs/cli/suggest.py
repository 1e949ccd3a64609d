"""A name that is not there: the error says which names are, so that a typing mistake costs one look."""

import difflib
from collections.abc import AsyncIterator, Sequence

from lsmfs.installation import Installation
from lsmfs.repository import Repository
from refstore.errors import NotFound
from refstore.records import Branch

NAMES_MAX = 1000  # compared with what was typed: some 10 ms; an installation with more has a naming scheme
NAMES_SHOWN_MAX = 5


async def open_repository(installation: Installation, name: str) -> Repository:
    """The repository of that name; `NotFound` with the names that are near."""
    try:
        return await installation.repository(name)
    except NotFound:
        names = await _first(installation.names())
        advice = advice_on(name, names) or f"create it with `lsmfs init {name}`"
        raise NotFound(f"repository {name!r} does not exist: {advice}") from None


async def read_branch(repository: Repository, name: str) -> Branch:
    """The branch as it is now; `NotFound` with the names that are near."""
    try:
        return await repository.branches.read(name)
    except NotFound:
        names = await _first(branch.name async for branch in repository.refs.branches(repository.name))
        advice = advice_on(name, names) or "it has no branches"
        raise NotFound(f"branch {name!r} does not exist in repository {repository.name!r}: {advice}") from None


def advice_on(name: str, names: Sequence[str]) -> str:
    """What to type instead; nothing if there is nothing."""
    near = difflib.get_close_matches(name, names, 1)
    if near:
        return f"did you mean {near[0]!r}?"
    shown = ", ".join(names[:NAMES_SHOWN_MAX])
    more = ", ..." if len(names) > NAMES_SHOWN_MAX else ""
    return f"there is {shown}{more}" if names else ""


async def _first(names: AsyncIterator[str]) -> list[str]:
    found: list[str] = []
    async for name in names:
        found.append(name)
        if len(found) == NAMES_MAX:
            break
    return found
