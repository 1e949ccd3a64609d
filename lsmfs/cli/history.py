"""Commands that look back: `log`, `show`, `diff`. What differs is told while it is found, a line for each path."""

from collections import Counter
from collections.abc import AsyncIterator
from typing import Annotated

import typer

from lsmfs.cli import show
from lsmfs.cli.branches import note_staged
from lsmfs.cli.session import Session, command
from lsmfs.cli.suggest import find_commit, read_branch
from lsmfs.cli.uri import Uri, check_text, parse_beside, parse_branch, parse_commit
from lsmfs.repository import Repository
from lsmfs.tree.diff import NAMES, Difference

CHANGES_SHOWN_MAX = 100  # by `show`, unless --all: what a person looks through

RevisionArgument = Annotated[
    str, typer.Argument(metavar="URI", help="The version: lsmfs://repository/ and a branch, tag, commit or main~2.")
]


async def log(
    session: Session,
    uri: RevisionArgument,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="How many commits at most.")] = 100,
) -> None:
    """Show the commits of a branch or before any revision, the newest first.

    \b
    lsmfs log lsmfs://lake/main --limit 5
    lsmfs log lsmfs://lake/v1
    """
    name = parse_commit(uri)
    async with session.version(name) as (_, repository, ref):
        async for identity, found in repository.log(ref, limit):
            session.emit(show.commit_document(identity, found), show.commit_text(identity, found))


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


async def diff(
    session: Session,
    left: Annotated[str, typer.Argument(metavar="URI", help="Before: a version, or a branch alone.")],
    right: Annotated[
        str | None, typer.Argument(metavar="REVISION", help="After: a version in the same repository.")
    ] = None,
    prefix: Annotated[str, typer.Option("--prefix", help="Only paths that begin with it.")] = "",
    stat: Annotated[bool, typer.Option("--stat", help="Only how many paths, and their bytes.")] = False,
) -> None:
    """Show what differs between two versions: + added, - removed, ~ changed. With a branch alone, what is staged on it.

    \b
    lsmfs diff lsmfs://lake/main dev
    lsmfs diff lsmfs://lake/main~2 main --prefix sensors/ --stat
    lsmfs diff lsmfs://lake/main
    """
    name = parse_branch(left) if right is None else parse_commit(left)
    other = None if right is None else parse_beside(right, name)
    async with session.repository(name.repository) as (_, repository):
        found = await _differences(repository, name, other, check_text(prefix))
        count = await (_emit_totals if stat else _emit_each)(session, found)
        if other is not None:
            await note_staged(session, repository, *dict.fromkeys((name, other)))
    if not count:
        session.note(f"nothing is staged on {name.short}" if other is None else "no differences")


async def _differences(repository: Repository, left: Uri, right: Uri | None, prefix: str) -> AsyncIterator[Difference]:
    if right is None:
        await read_branch(repository, left.ref)
        return repository.diff_uncommitted(left.ref, prefix)
    return repository.diff(await find_commit(repository, left.ref), await find_commit(repository, right.ref), prefix)


async def _emit_each(session: Session, found: AsyncIterator[Difference]) -> int:
    count = 0
    async for each in found:
        session.emit(show.difference_document(each), show.difference_text(each))
        count += 1
    return count


async def _emit_totals(session: Session, found: AsyncIterator[Difference]) -> int:
    paths, before, after = (Counter[str](dict.fromkeys(NAMES, 0)) for _ in range(3))
    async for each in found:
        paths[each.type] += 1
        before[each.type] += each.before.size_bytes if each.before else 0
        after[each.type] += each.after.size_bytes if each.after else 0
    totals = {"paths": paths, "bytes_before": before, "bytes_after": after}
    document = {name: {column: total[name] for column, total in totals.items()} for name in NAMES}
    rows = [(name, *(f"{total[name]:,}" for total in totals.values())) for name in NAMES]
    session.emit(document, show.table(("", *(column.replace("_", " ") for column in totals)), rows))
    return paths.total()


def add_to(app: typer.Typer) -> None:
    command(app, "log")(log)
    command(app, "show")(show_commit)
    command(app, "diff")(diff)
