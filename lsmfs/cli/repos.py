"""Commands about the repositories of an installation: `repos`, and the group `repo`."""

from typing import Annotated

import typer

from lsmfs.cli import show
from lsmfs.cli.objects import MetaOption
from lsmfs.cli.progress import metered
from lsmfs.cli.repositories import absolute_url
from lsmfs.cli.session import Session, YesOption, command, group
from lsmfs.cli.suggest import check_repository
from lsmfs.cli.uri import check_text, parse_pairs, parse_repository
from lsmfs.installation import without_password
from lsmfs.model import check_branch_name
from lsmfs.policy import RepositoryRecord
from refstore.errors import Invalid, NotFound

RepositoryArgument = Annotated[str, typer.Argument(metavar="REPOSITORY", help="Its name.")]


async def list_repositories(session: Session) -> None:
    """List the repositories.

    \b
    lsmfs repos
    lsmfs repo list --json
    """
    count = 0
    async with session.installation() as installation:
        async for record in installation.records():
            marks = ["read-only"] * record.read_only + ["being deleted"] * record.deleting
            told = f"{show.time_text(record.created_us)}  {record.name}/{record.default_branch}"
            session.emit(_document(record), told + (f"  ({', '.join(marks)})" if marks else ""))
            count += 1
    if not count:
        session.note("no repositories yet: create one with `lsmfs init NAME`")


def _document(record: RepositoryRecord) -> dict[str, object]:
    return {
        "repository": record.name,
        "default_branch": record.default_branch,
        "created": show.time_text(record.created_us),
        "read_only": record.read_only,
        "deleting": record.deleting,
        "storage": without_password(record.storage),
        "metadata": record.metadata,
        "rules": [{"pattern": rule.pattern, "blocks": list(rule.blocks)} for rule in record.rules],
    }


async def show_repository(session: Session, repository: RepositoryArgument) -> None:
    """Show what is known of a repository.

    \b
    lsmfs repo show lake
    """
    async with session.repository(parse_repository(repository)) as (_, opened):
        session.emit(_document(opened.record), _text(opened.record))


def _text(record: RepositoryRecord) -> str:
    rows = [
        ("repository", record.name),
        ("default branch", record.default_branch),
        ("created", show.time_text(record.created_us)),
        *([("storage", without_password(record.storage))] if record.storage else []),
        ("state", "read-only" if record.read_only else "writable"),
        *((f"meta {key}", show.printable(value)) for key, value in record.metadata.items()),
        *(("protected", show.rule_text(rule)) for rule in record.rules),
    ]
    return show.fields(rows)


async def create(
    session: Session,
    repository: Annotated[str, typer.Argument(metavar="REPOSITORY", help="Lower case letters, digits and '-'.")],
    default_branch: Annotated[str, typer.Option("--default-branch", help="Its first branch.")] = "main",
    storage: Annotated[
        str, typer.Option("--storage", help="Where its objects go, if not beside those of the others: a store's URL.")
    ] = "",
) -> None:
    """Create a repository in an installation that is there already; `lsmfs init` makes both.

    \b
    lsmfs repo create pond --default-branch trunk
    lsmfs repo create archive --storage s3://cold-bucket/lsmfs
    """
    name = parse_repository(repository)
    check_branch_name(default_branch)
    if session.server and storage and "://" not in storage:
        raise Invalid(f"--storage {storage!r} is a folder here, and the server is elsewhere: say a URL that it allows")
    url = absolute_url(storage) if storage else ""
    async with (
        session.installation() as installation,
        await installation.create(name, default_branch, storage=url) as created,
    ):
        where = f"lsmfs://{name}/{default_branch}"
        session.emit(_document(created.record), f"created repository {name}; its branch is {where}")


async def change(
    session: Session,
    repository: RepositoryArgument,
    read_only: Annotated[
        bool | None, typer.Option("--read-only/--writable", help="Whether changes are refused, within seconds.")
    ] = None,
    meta: MetaOption = None,
    unset: Annotated[
        list[str] | None, typer.Option("--unset", metavar="KEY", help="Without this --meta. May be repeated.")
    ] = None,
) -> None:
    """Change what is known of a repository; what is not said stays.

    \b
    lsmfs repo set lake --read-only
    lsmfs repo set lake --writable --meta owner=ana --unset purpose
    """
    name, metadata, without = parse_repository(repository), parse_pairs(meta or []), unset or []
    check_text("".join(without))
    if read_only is None and not metadata and not without:
        raise Invalid("there is nothing to change: say --read-only, --writable, --meta or --unset")
    async with session.repository(name) as (_, opened):
        if missing := [key for key in without if key not in opened.record.metadata]:
            raise NotFound(f"repository {name!r} has no metadata {', '.join(map(repr, missing))}")
        if metadata or without:
            kept = {key: value for key, value in opened.record.metadata.items() if key not in without}
            await opened.set_metadata(kept | metadata)
        if read_only is not None:
            await opened.set_read_only(read_only)
        session.emit(_document(opened.record), _text(opened.record))


async def delete(session: Session, repository: RepositoryArgument, yes: YesOption = False) -> None:
    """Delete a repository, with every branch, tag, commit and object in it. What is interrupted goes on when the same
    command is given again. Objects elsewhere, which were staged or imported, stay.

    \b
    lsmfs repo delete pond
    """
    name = parse_repository(repository)
    async with session.installation() as installation:
        await check_repository(installation, name)
        await session.confirm(f"Delete repository {name} and everything in it, for good?", yes)
        with metered(session.err, "objects deleted", quiet=session.json) as meter:
            count = await installation.delete(name, meter.advance)
    session.emit({"repository": name, "objects": count}, f"deleted repository {name}: {count} objects")


def add_to(app: typer.Typer) -> None:
    command(app, "repos")(list_repositories)
    repo = group(app, "repo", "Create, list, show, change and delete repositories.")
    command(repo, "list")(list_repositories)
    command(repo, "show")(show_repository)
    command(repo, "create")(create)
    command(repo, "set")(change)
    command(repo, "delete")(delete)
