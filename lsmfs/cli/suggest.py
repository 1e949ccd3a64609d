"""A name that is not there: the error says which names are, so that a typing mistake costs one look."""

import difflib
from collections.abc import AsyncIterator, Sequence
from typing import TypeVar

from lsmfs.cli.uri import not_a_branch
from lsmfs.client.verbs import Repositories, Repository
from lsmfs.tree.revision import is_commit_id, parse_revision
from refstore.errors import Invalid, NotFound
from refstore.records import Branch, CommitId

NAMES_MAX = 1000  # compared with what was typed: some 10 ms; an installation with more has a naming scheme
NAMES_SHOWN_MAX = 5

R = TypeVar("R")


async def open_repository(installation: Repositories[R], name: str) -> R:
    """The repository of that name; `NotFound` with the names that are near."""
    try:
        return await installation.repository(name)
    except NotFound:
        await check_repository(installation, name)
        raise  # it is being deleted


async def check_repository(installation: Repositories[R], name: str) -> None:
    """Also one that is being deleted is there; `NotFound` with the names that are near."""
    try:
        await installation.record(name)
    except NotFound:
        names = await _first(installation.names())
        advice = advice_on(name, names) or f"create it with `lsmfs init {name}`"
        raise NotFound(f"repository {name!r} does not exist: {advice}") from None


async def read_branch(repository: Repository, name: str) -> Branch:
    """The branch as it is now; `NotFound` with the names that are near, `Invalid` if it is a tag or a commit."""
    try:
        return await repository.branches.read(name)
    except NotFound:
        if await _is_commit(repository, name):
            raise not_a_branch(name) from None
        names = await _first(branch.name async for branch in repository.list_branches())
        advice = advice_on(name, names) or "it has no branches"
        raise NotFound(f"branch {name!r} does not exist in repository {repository.name!r}: {advice}") from None


async def find_branch(repository: Repository, ref: str) -> Branch | None:
    """The branch that the revision names, if it names one."""
    if not parse_revision(ref).is_plain or is_commit_id(ref):
        return None
    try:
        return await repository.branches.read(ref)
    except NotFound:
        return None


async def find_version(repository: Repository, ref: str) -> str:
    """What to read for a revision: a branch's name, for it shows what is staged, too; or else the id of the commit,
    which stays the same while the branch moves on. `NotFound` with the names that are near."""
    if await find_branch(repository, ref) is not None:
        return ref
    return await find_commit(repository, ref)


async def find_commit(repository: Repository, ref: str) -> CommitId:
    """The commit that a revision names; `NotFound` with the names that are near."""
    try:
        return await repository.resolve(ref)
    except NotFound:
        name = parse_revision(ref).name
        if name != ref and await _is_commit(repository, name):
            raise  # its steps lead too far
        branches = await _first(branch.name async for branch in repository.list_branches())
        names = [*branches, *await _first(tag async for tag, _ in repository.tags.all())]
        where = f"repository {repository.name!r} has no branch, tag or commit {name!r}"
        raise NotFound(f"{where}: {advice_on(name, names)}") from None


async def find_tag(repository: Repository, name: str) -> CommitId:
    """The commit that a tag names; `NotFound` with the names that are near."""
    found = await repository.tags.find(name)
    if found is None:
        advice = advice_on(name, await _first(tag async for tag, _ in repository.tags.all())) or "it has no tags"
        raise NotFound(f"tag {name!r} does not exist in repository {repository.name!r}: {advice}")
    return found


async def _is_commit(repository: Repository, name: str) -> bool:
    try:
        await repository.resolve(name)
    except (NotFound, Invalid):
        return False
    return True


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
