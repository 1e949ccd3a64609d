"""Commands about branches: `status`, `commit`, and the group `branch`."""

import getpass
from typing import Annotated

import typer

from lsmfs import paths
from lsmfs.cli import rules, show
from lsmfs.cli.objects import MetaOption
from lsmfs.cli.session import Session, YesOption, command, group
from lsmfs.cli.suggest import advice_on, find_branch, find_commit
from lsmfs.cli.uri import Uri, check_text, parse_beside, parse_branch, parse_name, parse_pairs, parse_repository
from lsmfs.client.verbs import Repository
from lsmfs.lsm.run import EMPTY_RUN
from lsmfs.tree.branching import Deleted
from lsmfs.tree.committer import Committed
from refstore.errors import Invalid, NoChanges, NotFound
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
        "stashes": len(branch.aside.stashes),
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
    who = committer_name(session, committer)
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


def committer_name(session: Session, given: str | None) -> str:
    """Who commits: the user, if nobody is named; over a server, who the server knows the key's owner to be."""
    if session.server:
        if given is not None:
            raise Invalid("a server writes down the user whose key it is: leave --committer out")
        return ""
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
    hidden: Annotated[bool, typer.Option("--hidden", help="Not listed unless asked for; not restored.")] = False,
) -> None:
    """Create a branch at a commit. Nothing is copied, and what is staged elsewhere is not on it.

    \b
    lsmfs branch create lsmfs://lake/dev
    lsmfs branch create lsmfs://lake/repair --from main~2
    """
    name = parse_name(uri, "branch")
    async with session.repository(name.repository) as (_, repository):
        origin = parse_beside(start or repository.record.default_branch, name)
        branch = await repository.create_branch(name.ref, await find_commit(repository, origin.ref), hidden)
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
    everything: Annotated[bool, typer.Option("--all", help="Also those that are hidden.")] = False,
    deleted: Annotated[bool, typer.Option("--deleted", help="Those that `branch restore` brings back.")] = False,
) -> None:
    """List the branches of a repository.

    \b
    lsmfs branch list lake --prefix dev
    lsmfs branch list lake --deleted
    """
    count, check = 0, check_text(prefix)
    async with session.repository(parse_repository(repository)) as (_, opened):
        if deleted:
            async for each in opened.deleted_branches():
                if each.branch.name.startswith(check):
                    session.emit(*_listed_deleted(opened, each))
                    count += 1
        else:
            async for branch in opened.list_branches(check, hidden=everything):
                session.emit(*_listed(opened, branch))
                count += 1
    if not count:
        what = "deleted branch" if deleted else "branch"
        session.note(f"no {what} of {repository} begins with {prefix}" if prefix else f"{repository} has no {what}")


def _listed(repository: Repository, branch: Branch) -> tuple[dict[str, object], str]:
    is_default = branch.name == repository.record.default_branch
    document = {
        "repository": repository.name,
        "branch": branch.name,
        "base_commit": branch.base_commit,
        "default": is_default,
        "dirty": branch.is_dirty,
        "hidden": branch.aside.hidden,
    }
    marks = ["default"] * is_default + ["hidden"] * branch.aside.hidden + ["changes to commit"] * branch.is_dirty
    return document, f"{branch.base_commit[:12]}  {branch.name}" + (f"  ({', '.join(marks)})" if marks else "")


def _listed_deleted(repository: Repository, deleted: Deleted) -> tuple[dict[str, object], str]:
    branch, when = deleted.branch, show.time_text(deleted.deleted_us)
    document = {
        "repository": repository.name,
        "branch": branch.name,
        "base_commit": branch.base_commit,
        "deleted": when,
        "dirty": branch.is_dirty,
    }
    mark = "  (with changes to commit)" if branch.is_dirty else ""
    return document, f"{branch.base_commit[:12]}  {when}  {branch.name}{mark}"


async def delete(session: Session, uri: BranchArgument, yes: YesOption = False) -> None:
    """Delete a branch, with what is staged on it. Its commits stay, and `branch restore` brings it back for some time.

    \b
    lsmfs branch delete lsmfs://lake/dev
    """
    name = parse_branch(uri)
    async with session.branch(name) as (_, repository, branch):
        if branch.is_dirty:
            await session.confirm(f"{name.short} has changes that are not committed. Delete it with them?", yes)
        await repository.delete_branch(name.ref)
    document = {"repository": name.repository, "branch": name.ref, "base_commit": branch.base_commit}
    session.emit({**document, "dirty": branch.is_dirty}, f"deleted branch {name.short}, it was at {branch.base_commit}")
    if not branch.aside.hidden:
        session.note(f"`lsmfs branch restore {name.short}` brings it back")
    elif branch.is_dirty:
        session.note("what was staged on it is gone")


async def restore(session: Session, uri: BranchArgument) -> None:
    """Bring back a branch that was deleted, as it was, with what was staged on it.

    \b
    lsmfs branch restore lsmfs://lake/dev
    """
    name = parse_name(uri, "branch")
    async with session.repository(name.repository) as (_, repository):
        try:
            branch = await repository.restore_branch(name.ref)
        except NotFound:
            names = list(dict.fromkeys([each.branch.name async for each in repository.deleted_branches()]))
            advice = advice_on(name.ref, names) or "there is none"
            raise NotFound(f"repository {name.repository!r} has no deleted branch {name.ref!r}: {advice}") from None
    document = {"repository": name.repository, "branch": name.ref, "base_commit": branch.base_commit}
    state = "with what was staged on it" if branch.is_dirty else "nothing is staged on it"
    session.emit({**document, "dirty": branch.is_dirty}, f"{name.short} is at {branch.base_commit} again, {state}")


def add_to(app: typer.Typer) -> None:
    command(app, "status")(status)
    command(app, "commit")(commit)
    branch = group(app, "branch", "Create, list, show, delete, restore and protect branches.")
    command(branch, "create")(create)
    command(branch, "list")(list_branches)
    command(branch, "show")(status)
    command(branch, "delete")(delete)
    command(branch, "restore")(restore)
    command(branch, "protect")(rules.protect)
    command(branch, "rules")(rules.rules)
