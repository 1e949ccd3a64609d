"""Commands about a branch as a whole: `status`, `commit`, `log`."""

import getpass
from typing import Annotated

import typer

from lsmfs import paths
from lsmfs.cli import show
from lsmfs.cli.session import Session, command
from lsmfs.cli.uri import Uri, check_text, parse_branch, parse_pairs
from lsmfs.lsm.run import EMPTY_RUN
from lsmfs.repository import Repository
from lsmfs.tree.committer import Committed
from refstore.errors import Invalid, NoChanges
from refstore.records import Branch

BranchArgument = Annotated[str, typer.Argument(metavar="URI", help="The branch: lsmfs://repository/branch.")]


async def status(session: Session, uri: BranchArgument) -> None:
    """Show what a branch is made of, and whether anything is not committed.

    \b
    lsmfs status lsmfs://lake/main
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
    meta: Annotated[list[str] | None, typer.Option("--meta", metavar="KEY=VALUE", help="May be repeated.")] = None,
    committer: Annotated[str | None, typer.Option("--committer", help="Who commits [the user's name].")] = None,
    allow_empty: Annotated[bool, typer.Option("--allow-empty", help="Also when nothing has changed.")] = False,
) -> None:
    """Make a commit of everything that is staged on a branch.

    \b
    lsmfs commit lsmfs://lake/main -m "first load" --meta source=sensors
    """
    name, metadata = parse_branch(uri), parse_pairs(meta or [])
    if not message.strip():
        raise Invalid("the message is empty: say -m MESSAGE")
    who = _user_name() if committer is None else check_text(committer)
    async with session.branch(name) as (_, repository, _):
        done = await _committed(repository, name, message, who, metadata, allow_empty)
    document = {**show.commit_document(done.id, done.commit), "branch": name.branch, "raced": done.raced}
    told = "another commit holds these changes already:" if done.raced else "committed"
    session.emit(document, f"{told} {done.id} on {name.repository}/{name.branch}")


async def _committed(
    repository: Repository, name: Uri, message: str, committer: str, metadata: dict[str, str], allow_empty: bool
) -> Committed:
    try:
        return await repository.commit(name.branch, check_text(message), committer, metadata, allow_empty)
    except NoChanges as error:
        raise NoChanges(f"{error}: put or stage something first, or say --allow-empty") from None


def _user_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        return ""


async def log(
    session: Session,
    uri: BranchArgument,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="How many commits at most.")] = 100,
) -> None:
    """Show the commits of a branch, the newest first.

    \b
    lsmfs log lsmfs://lake/main --limit 5
    """
    name = parse_branch(uri)
    async with session.branch(name) as (_, repository, _):
        async for identity, found in repository.log(name.branch, limit):
            session.emit(show.commit_document(identity, found), show.commit_text(identity, found))


def add_to(app: typer.Typer) -> None:
    command(app, "status")(status)
    command(app, "commit")(commit)
    command(app, "log")(log)
