"""Commands about what is staged on a branch: `reset` drops it, the group `stash` puts it aside and brings it back."""

from typing import Annotated

import typer

from lsmfs.cli import show
from lsmfs.cli.branches import BranchArgument
from lsmfs.cli.objects import DELIMITER
from lsmfs.cli.session import Session, YesOption, command, group
from lsmfs.cli.suggest import find_commit
from lsmfs.cli.uri import Uri, check_text, parse_beside, parse_branch, parse_uri, without_path
from lsmfs.client.verbs import Repository
from refstore.errors import DirtyBranch, Invalid, NoChanges, NotFound
from refstore.records import Branch, Stash

NewestArgument = Annotated[int | None, typer.Argument(metavar="[ID]", help="Which stash [the newest].")]


async def reset(
    session: Session,
    uri: Annotated[str, typer.Argument(metavar="URI", help="A branch, a path on it, or a folder, which ends with /.")],
    to: Annotated[str | None, typer.Option("--to", metavar="REVISION", help="Take the branch to this commit.")] = None,
    force: Annotated[bool, typer.Option("--force", help="With --to: also drop what is staged.")] = False,
    yes: YesOption = False,
) -> None:
    """Drop what is staged on a branch, at one path of it, or in a folder: it shows its newest commit again there.
    With --to the branch itself goes to another commit; those after it are on the branch no longer.

    \b
    lsmfs reset lsmfs://lake/main
    lsmfs reset lsmfs://lake/main/sensors/
    lsmfs reset lsmfs://lake/main --to main~2
    """
    name = parse_uri(uri)
    if to is not None:
        await _reset_to(session, without_path(name), to, force, yes)
        return
    if force:
        raise Invalid("--force is for --to REVISION: what is staged goes in any case")
    where = f"{name.short}/{name.path}" if name.path else name.short
    async with session.branch(name) as (_, repository, branch):
        if not branch.is_dirty:
            raise NoChanges(f"nothing is staged on {name.short}: there is nothing to drop")
        await session.confirm(f"Drop what is staged {'at' if name.path else 'on'} {show.printable(where)}?", yes)
        await _reset(repository, name)
    document = {"repository": name.repository, "branch": name.ref, "path": name.path, "base_commit": branch.base_commit}
    session.emit(document, f"{show.printable(where)} is as in {branch.base_commit} again")


async def _reset(repository: Repository, name: Uri) -> None:
    if not name.path:
        await repository.reset(name.ref)
    elif name.path.endswith(DELIMITER):
        await repository.reset(name.ref, prefix=name.path)
    else:
        await repository.reset(name.ref, path=name.path)


async def _reset_to(session: Session, name: Uri, revision: str, force: bool, yes: bool) -> None:
    origin = parse_beside(revision, name)
    async with session.branch(name) as (_, repository, branch):
        commit = await find_commit(repository, origin.ref)
        if branch.is_dirty and not force:
            raise DirtyBranch(
                f"{name.short} has changes that are not committed: commit or stash them, or say --force to drop them"
            )
        if branch.is_dirty:
            await session.confirm(f"Drop what is staged on {name.short}?", yes)
        await repository.hard_reset(name.ref, commit, force)
    document = {"repository": name.repository, "branch": name.ref, "base_commit": commit, "was": branch.base_commit}
    session.emit(document, f"{name.short} is at {commit}, it was at {branch.base_commit}")


async def push(
    session: Session,
    uri: BranchArgument,
    message: Annotated[str, typer.Option("--message", "-m", help="What it is, for the list.")] = "",
) -> None:
    """Put aside everything that is staged on a branch.

    \b
    lsmfs stash push lsmfs://lake/main -m "half of the new sensors"
    """
    name = parse_branch(uri)
    async with session.branch(name) as (_, repository, _):
        stash = await repository.stash(name.ref, check_text(message))
    session.emit(_document(name, stash), f"put aside what was staged on {name.short}, as stash {stash.id}")


async def list_stashes(session: Session, uri: BranchArgument) -> None:
    """List what was put aside, the newest first.

    \b
    lsmfs stash list lsmfs://lake/main
    """
    name = parse_branch(uri)
    async with session.branch(name) as (_, repository, _):
        stashes = await repository.stashes(name.ref)
    for stash in reversed(stashes):
        told = f"{stash.id:>6}  {show.time_text(stash.created_us)}  {stash.base[:12]}  {show.printable(stash.message)}"
        session.emit(_document(name, stash), told.rstrip())
    if not stashes:
        session.note(f"{name.short} has no stashes")


def _document(name: Uri, stash: Stash) -> dict[str, object]:
    return {
        "repository": name.repository,
        "branch": name.ref,
        "id": stash.id,
        "message": stash.message,
        "created": show.time_text(stash.created_us),
        "base_commit": stash.base,
    }


async def pop(session: Session, uri: BranchArgument, stash: NewestArgument = None) -> None:
    """Bring back what was put aside, to a branch with nothing staged. It may be at another commit by now.

    \b
    lsmfs stash pop lsmfs://lake/main
    """
    name = parse_branch(uri)
    async with session.branch(name) as (_, repository, branch):
        found = _find(name, branch, stash)
        try:
            await repository.pop_stash(name.ref, found.id)
        except DirtyBranch:
            told = f"{name.short} has changes that are not committed: commit them, or `lsmfs stash push` them, first"
            raise DirtyBranch(told) from None
    session.emit(_document(name, found), f"stash {found.id} is staged on {name.short} again")


async def drop(
    session: Session,
    uri: BranchArgument,
    stash: Annotated[int, typer.Argument(metavar="ID", help="Which stash, as `stash list` has it.")],
    yes: YesOption = False,
) -> None:
    """Drop what was put aside.

    \b
    lsmfs stash drop lsmfs://lake/main 7
    """
    name = parse_branch(uri)
    async with session.branch(name) as (_, repository, branch):
        found = _find(name, branch, stash)
        await session.confirm(f"Drop stash {found.id} of {name.short}?", yes)
        await repository.drop_stash(name.ref, found.id)
    session.emit(_document(name, found), f"dropped stash {found.id} of {name.short}")


def _find(name: Uri, branch: Branch, wanted: int | None) -> Stash:
    stashes = branch.aside.stashes
    for stash in reversed(stashes):
        if wanted in (None, stash.id):
            return stash
    if not stashes:
        raise NotFound(f"{name.short} has no stashes")
    raise NotFound(f"{name.short} has no stash {wanted}: there is {', '.join(str(stash.id) for stash in stashes)}")


def add_to(app: typer.Typer) -> None:
    command(app, "reset")(reset)
    stash = group(app, "stash", "Put aside what is staged on a branch, and bring it back.")
    command(stash, "push")(push)
    command(stash, "list")(list_stashes)
    command(stash, "pop")(pop)
    command(stash, "drop")(drop)
