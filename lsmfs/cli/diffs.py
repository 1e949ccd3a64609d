"""The command `diff`: what differs is told while it is found, a line for each path; or counted."""

from collections.abc import AsyncIterator
from typing import Annotated

import typer

from lsmfs.cli import show
from lsmfs.cli.branches import note_staged
from lsmfs.cli.session import Session, command
from lsmfs.cli.suggest import find_commit, read_branch
from lsmfs.cli.uri import Uri, check_text, parse_beside, parse_branch, parse_commit
from lsmfs.client.verbs import Repository
from lsmfs.tree.diff import Difference
from lsmfs.tree.summary import Summary
from refstore.errors import Invalid

DOTS = "..."


async def diff(
    session: Session,
    left: Annotated[str, typer.Argument(metavar="URI", help="Before: a version; or main...dev; or a branch alone.")],
    right: Annotated[
        str | None, typer.Argument(metavar="REVISION", help="After: a version in the same repository.")
    ] = None,
    prefix: Annotated[str, typer.Option("--prefix", help="Only paths that begin with it.")] = "",
    stat: Annotated[bool, typer.Option("--stat", help="Only how many paths, and their bytes.")] = False,
    by: Annotated[
        str, typer.Option("--by", metavar="DELIMITER", help="The same for each folder: --by / for the first level.")
    ] = "",
) -> None:
    """Show what differs between two versions: + added, - removed, ~ changed. With three dots, what the second one has
    changed since they parted, which is what a merge would bring. With a branch alone, what is staged on it.

    \b
    lsmfs diff lsmfs://lake/main dev
    lsmfs diff lsmfs://lake/main...dev --by /
    lsmfs diff lsmfs://lake/main~2 main --prefix sensors/ --stat
    lsmfs diff lsmfs://lake/main
    """
    left, right, is_since = _sides(left, right)
    name = parse_branch(left) if right is None else parse_commit(left)
    other = None if right is None else parse_beside(right, name)
    if stat and by:
        raise Invalid("--stat and --by exclude each other: say one of them")
    check_text(prefix + by)
    async with session.repository(name.repository) as (_, repository):
        await _check_names(repository, name, other)
        if stat or by:
            found = await _summaries(repository, name, other, is_since, prefix, by)
            count = _emit_summaries(session, found, bool(by))
        else:
            count = await _emit_each(session, _differences(repository, name, other, is_since, prefix))
        if other is not None:
            await note_staged(session, repository, *dict.fromkeys((name, other)))
    if not count:
        session.note(f"nothing is staged on {name.short} that differs" if other is None else "no differences")


def _sides(left: str, right: str | None) -> tuple[str, str | None, bool]:
    """The two versions, and whether three dots are between them; no name has two dots in it."""
    before, dots, after = left.partition(DOTS)
    if not dots:
        return left, right, False
    if right is not None or not after:
        raise Invalid(f"{left!r}: three dots stand between two versions, such as lake/main{DOTS}dev")
    return before, after, True


async def _check_names(repository: Repository, left: Uri, right: Uri | None) -> None:
    """A wrong name is told with those that are near."""
    if right is None:
        await read_branch(repository, left.ref)
    else:
        await find_commit(repository, left.ref)
        await find_commit(repository, right.ref)


def _differences(
    repository: Repository, left: Uri, right: Uri | None, is_since: bool, prefix: str
) -> AsyncIterator[Difference]:
    if right is None:
        return repository.diff_uncommitted(left.ref, prefix)
    return repository.diff(left.ref, right.ref, prefix, is_since)


async def _summaries(
    repository: Repository, left: Uri, right: Uri | None, is_since: bool, prefix: str, delimiter: str
) -> dict[str, Summary]:
    if right is not None:
        return await repository.diff_summary(left.ref, right.ref, prefix, delimiter, is_since)
    return await repository.uncommitted_summary(left.ref, prefix, delimiter)


async def _emit_each(session: Session, found: AsyncIterator[Difference]) -> int:
    count = 0
    async for each in found:
        session.emit(show.difference_document(each), show.difference_text(each))
        count += 1
    return count


def _emit_summaries(session: Session, found: dict[str, Summary], is_by_folder: bool) -> int:
    """One line for all, or one for each folder and for each path that is in none, as `ls` shows them."""
    if not is_by_folder:
        (total,) = found.values() or [Summary()]
        session.emit(total._asdict(), show.summary_text([("", total)]))
    elif session.json:
        for name, part in sorted(found.items()):
            session.emit({"prefix": name, **part._asdict()}, "")
    elif found:
        session.emit({}, show.summary_text(sorted(found.items())))
    return len(found)


def add_to(app: typer.Typer) -> None:
    command(app, "diff")(diff)
