"""Commands about branches: `status`, `commit`, and the group `branch`."""

import getpass
from typing import Annotated

import typer

from lsmfs import paths
from lsmfs.cli import show
from lsmfs.cli.objects import MetaOption
from lsmfs.cli.session import Session, command, group
from lsmfs.cli.suggest import find_branch, find_commit
from lsmfs.cli.uri import Uri, check_text, parse_beside, parse_branch, parse_name, parse_pairs, parse_repository
from lsmfs.lsm.run import EMPTY_RUN
from lsmfs.repository import Repository
from lsmfs.tree.committer import Committed
from refstore.errors import Invalid, NoChanges
from refstore.records import Branch

BranchArgument = Annotated[str, typer.Argument(metavar="URI", help="The branch: lsmfs://repository/branch.")]
CommitterOption = Annotated[str | None, typer.Option("--committer", help="Who commits [the user's name].")]


async def status(session: Session, uri: BranchArgument) -> None:
    """Show what a branch is made of, and whether anything is not committed.

    \b
    lsmfs status lsmfs://lake/main
    lsmfs branch show lsmfs://lake/main
    """
    name = parse_branch(uri)
    async with session.branch(name) as (_, repository, branch):
        document = await _describe(repository, branch)
    rows = [(key.replace("_", " "), value) for key, value in document.items() if key != "dirty"]
    state = "changes to commit" if branch.is_dirty else "nothing to commit"
    session.emit(document, show.fields([*rows, ("state", state)]))


async def _describe(repository: Repository, branch: Branch) -> dict[str, object]:
    l2 = await repository.tables.load_run(branch.l2) if branch.l2 else EMPTY_RUN
    tables = [paths.parse_table(name) for name in branch.l1 if not paths.is_run(name)]
    return {
        "repository": repository.name,
        "branch": branch.name,
        "version": branch.version,
        "base_commit": branch.base_commit,
        "l1_tables": len(branch.l1),
        "l1_bytes": sum(table.size_bytes for table in tables),
        "l2_ranges": len(l2),
        "l2_records": l2.count,
        "l2_tombstones": l2.tombstones,
        "l2_bytes": l2.size_bytes,
        "seals": len(branch.sealed),
        "writers": len(branch.writers),
        "dirty": branch.is_dirty,
    }


async def commit(
    session: Session,
    uri: BranchArgument,
    message: Annotated[str, typer.Option("--message", "-m", help="What was done, for those who read the log.")],
    meta: MetaOption = None,
    committer: CommitterOption = None,
    allow_empty: Annotated[bool, typer.Option("--allow-empty", help="Also when nothing has changed.")] = False,
) -> None:
    """Make a commit of everything that is staged on a branch.

    \b
    lsmfs commit lsmfs://lake/main -m "first load" --meta source=sensors
    """
    name, metadata = parse_branch(uri), parse_pairs(meta or [])
    who = committer_name(committer)
    async with session.branch(name) as (_, repository, _):
        done = await _committed(repository, name, check_message(message), who, metadata, allow_empty)
    document = {**show.commit_document(done.id, done.commit), "branch": name.ref, "raced": done.raced}
    told = "another commit holds these changes already:" if done.raced else "committed"
    session.emit(document, f"{told} {done.id} on {name.short}")


async def _committed(
    repository: Repository, name: Uri, message: str, committer: str, metadata: dict[str, str], allow_empty: bool
) -> Committed:
    try:
        return await repository.commit(name.ref, message, committer, metadata, allow_empty)
    except NoChanges as error:
        raise NoChanges(f"{error}: put or stage something first, or say --allow-empty") from None


def check_message(message: str) -> str:
    if not message.strip():
        raise Invalid("the message is empty: say -m MESSAGE")
    return check_text(message)


def committer_name(given: str | None) -> str:
    """Who commits: the user, if nobody is named."""
    if given is not None:
        return check_text(given)
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        return ""


async def create(
    session: Session,
    uri: BranchArgument,
    start: Annotated[
        str | None, typer.Option("--from", metavar="REVISION", help="Where it begins [the default branch].")
    ] = None,
) -> None:
    """Create a branch at a commit. Nothing is copied, and what is staged elsewhere is not on it.

    \b
    lsmfs branch create lsmfs://lake/dev
    lsmfs branch create lsmfs://lake/repair --from main~2
    """
    name = parse_name(uri, "a branch")
    async with session.repository(name.repository) as (_, repository):
        origin = parse_beside(start or repository.record.default_branch, name)
        branch = await repository.create_branch(name.ref, await find_commit(repository, origin.ref))
        document = {"repository": name.repository, "branch": name.ref, "base_commit": branch.base_commit}
        session.emit(document, f"created branch {name.short} at {branch.base_commit}")
        await note_staged(session, repository, origin)


async def note_staged(session: Session, repository: Repository, *origins: Uri) -> None:
    """Remind of changes that were not taken along, for only commits were."""
    for origin in origins:
        branch = await find_branch(repository, origin.ref)
        if branch is not None and branch.is_dirty:
            session.note(f"what is staged on {origin.short} is left out: commit it first to have it, too")


async def list_branches(
    session: Session,
    repository: Annotated[str, typer.Argument(metavar="REPOSITORY", help="Its name.")],
    prefix: Annotated[str, typer.Option("--prefix", help="Only names that begin with it.")] = "",
) -> None:
    """List the branches of a repository.

    \b
    lsmfs branch list lake --prefix dev
    """
    count = 0
    async with session.repository(parse_repository(repository)) as (_, opened):
        async for branch in opened.list_branches(check_text(prefix)):
            session.emit(*_listed(opened, branch))
            count += 1
    if not count:
        session.note(f"no branch of {repository} begins with {prefix}")


def _listed(repository: Repository, branch: Branch) -> tuple[dict[str, object], str]:
    is_default = branch.name == repository.record.default_branch
    document = {
        "repository": repository.name,
        "branch": branch.name,
        "base_commit": branch.base_commit,
        "default": is_default,
        "dirty": branch.is_dirty,
    }
    marks = ["default"] * is_default + ["changes to commit"] * branch.is_dirty
    return document, f"{branch.base_commit[:12]}  {branch.name}" + (f"  ({', '.join(marks)})" if marks else "")


async def delete(session: Session, uri: BranchArgument) -> None:
    """Delete a branch, with what is staged on it. Its commits stay: the answer says where it was.

    \b
    lsmfs branch delete lsmfs://lake/dev
    """
    name = parse_branch(uri)
    async with session.branch(name) as (_, repository, branch):
        await repository.delete_branch(name.ref)
    document = {"repository": name.repository, "branch": name.ref, "base_commit": branch.base_commit}
    session.emit({**document, "dirty": branch.is_dirty}, f"deleted branch {name.short}, it was at {branch.base_commit}")
    if branch.is_dirty:
        session.note("what was staged on it is gone")


def add_to(app: typer.Typer) -> None:
    command(app, "status")(status)
    command(app, "commit")(commit)
    branch = group(app, "branch", "Create, list, show and delete branches.")
    command(branch, "create")(create)
    command(branch, "list")(list_branches)
    command(branch, "show")(status)
    command(branch, "delete")(delete)
