"""Commands that look back: `log`, `show`."""

from collections.abc import AsyncIterator
from typing import Annotated

import typer

from lsmfs.cli import show
from lsmfs.cli.session import Session, command
from lsmfs.cli.suggest import find_commit
from lsmfs.cli.times import parse_moment
from lsmfs.cli.uri import check_text, parse_beside, parse_commit
from lsmfs.tree.diff import Difference
from refstore.errors import Invalid

CHANGES_SHOWN_MAX = 100  # by `show`, unless --all: what a person looks through

RevisionArgument = Annotated[
    str, typer.Argument(metavar="URI", help="The version: lsmfs://repository/ and a branch, tag, commit or main~2.")
]


async def log(
    session: Session,
    uri: RevisionArgument,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="How many commits at most.")] = 100,
    since: Annotated[
        str | None, typer.Option("--since", metavar="MOMENT", help="Not before it: 2026-01-31, or 7d for a week.")
    ] = None,
    until_commit: Annotated[
        str | None, typer.Option("--until-commit", metavar="REVISION", help="The last commit to show.")
    ] = None,
    path: Annotated[str | None, typer.Option("--path", help="Only commits that changed this object.")] = None,
    prefix: Annotated[str | None, typer.Option("--prefix", help="Only commits that changed something below.")] = None,
    all_parents: Annotated[bool, typer.Option("--all-parents", help="Also the commits that merges brought.")] = False,
) -> None:
    """Show the commits of a branch or before any revision, the newest first.

    \b
    lsmfs log lsmfs://lake/main --limit 5
    lsmfs log lsmfs://lake/main --since 7d --prefix sensors/
    lsmfs log lsmfs://lake/main --until-commit v1 --all-parents
    """
    name, count = parse_commit(uri), 0
    if path is not None and prefix is not None:
        raise Invalid("--path and --prefix exclude each other: say one of them")
    end = None if until_commit is None else parse_beside(until_commit, name)
    async with session.version(name) as (installation, repository, ref):
        since_us = None if since is None else parse_moment(since, installation.clock.now_us())
        stop_at = None if end is None else await find_commit(repository, end.ref)
        async for identity, found in repository.log(
            ref,
            limit,
            since_us=since_us,
            stop_at=stop_at,
            first_parent=not all_parents,
            path=None if path is None else check_text(path),
            prefix=None if prefix is None else check_text(prefix),
        ):
            session.emit(show.commit_document(identity, found), show.commit_text(identity, found))
            count += 1
    if not count:
        session.note("no commits")


async def show_commit(
    session: Session,
    uri: RevisionArgument,
    everything: Annotated[bool, typer.Option("--all", help=f"Every path, not only {CHANGES_SHOWN_MAX}.")] = False,
) -> None:
    """Show a commit, and the paths that it changed against its first parent.

    With --json the commit is the first line, and each path is a line after it.

    \b
    lsmfs show lsmfs://lake/main
    lsmfs show lsmfs://lake/main~2 --all
    """
    name = parse_commit(uri)
    async with session.repository(name.repository) as (_, repository):
        identity = await find_commit(repository, name.ref)
        commit = await repository.commits.load(identity)
        entries = (await repository.tables.load_run(commit.metarange)).count
        document = {"type": "commit", **show.commit_document(identity, commit), "entries": entries}
        session.emit(document, show.commit_text(identity, commit, entries))
        if commit.parents:
            await _show_changes(session, repository.diff(commit.parents[0], identity), everything)


async def _show_changes(session: Session, changes: AsyncIterator[Difference], everything: bool) -> None:
    count = 0
    async for change in changes:
        if count == CHANGES_SHOWN_MAX and not everything:
            session.warn(f"only {CHANGES_SHOWN_MAX} paths are shown: say --all to see every one")
            return
        session.emit(show.difference_document(change), show.difference_text(change))
        count += 1


def add_to(app: typer.Typer) -> None:
    command(app, "log")(log)
    command(app, "show")(show_commit)
