"""Commands about tags: the group `tag`."""

from typing import Annotated

import typer

from lsmfs.cli.branches import note_staged
from lsmfs.cli.session import Session, command, group
from lsmfs.cli.suggest import find_commit, find_tag
from lsmfs.cli.uri import check_text, parse_beside, parse_name, parse_repository

TagArgument = Annotated[str, typer.Argument(metavar="URI", help="The tag: lsmfs://repository/tag.")]


async def create(
    session: Session,
    uri: TagArgument,
    revision: Annotated[str, typer.Argument(metavar="REVISION", help="The commit: main, main~2, 1a2b3c4d.")],
) -> None:
    """Give a commit a name that never moves.

    \b
    lsmfs tag create lsmfs://lake/v1 main
    """
    name = parse_name(uri, "tag")
    origin = parse_beside(revision, name)
    async with session.repository(name.repository) as (_, repository):
        commit = await find_commit(repository, origin.ref)
        await repository.create_tag(name.ref, commit)
        session.emit({"repository": name.repository, "tag": name.ref, "commit": commit}, f"{name.short} is {commit}")
        await note_staged(session, repository, origin)


async def list_tags(
    session: Session,
    repository: Annotated[str, typer.Argument(metavar="REPOSITORY", help="Its name.")],
    prefix: Annotated[str, typer.Option("--prefix", help="Only names that begin with it.")] = "",
) -> None:
    """List the tags of a repository.

    \b
    lsmfs tag list lake --prefix v
    """
    count = 0
    async with session.repository(parse_repository(repository)) as (_, opened):
        async for tag, commit in opened.tags.all(check_text(prefix)):
            session.emit({"repository": opened.name, "tag": tag, "commit": commit}, f"{commit[:12]}  {tag}")
            count += 1
    if not count:
        session.note(f"no tag of {repository} begins with {prefix}" if prefix else f"{repository} has no tags")


async def delete(session: Session, uri: TagArgument) -> None:
    """Delete a tag. The commit that it names stays.

    \b
    lsmfs tag delete lsmfs://lake/v1
    """
    name = parse_name(uri, "tag")
    async with session.repository(name.repository) as (_, repository):
        commit = await find_tag(repository, name.ref)
        await repository.delete_tag(name.ref)
    document = {"repository": name.repository, "tag": name.ref, "commit": commit}
    session.emit(document, f"deleted tag {name.short}, it was {commit}")


def add_to(app: typer.Typer) -> None:
    tag = group(app, "tag", "Create, list and delete tags: names of commits that never move.")
    command(tag, "create")(create)
    command(tag, "list")(list_tags)
    command(tag, "delete")(delete)
