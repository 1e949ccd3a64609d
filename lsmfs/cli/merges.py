"""The command `merge`: what one version has goes to a branch, or each path that both changed is told."""

from enum import StrEnum
from typing import Annotated

import typer

from lsmfs.cli import show
from lsmfs.cli.branches import CommitterOption, check_message, committer_name, note_staged
from lsmfs.cli.objects import MetaOption
from lsmfs.cli.session import Session, command
from lsmfs.cli.suggest import find_branch, find_commit
from lsmfs.cli.uri import Uri, parse_beside, parse_commit, parse_pairs, parse_rules, parse_uri
from lsmfs.repository import Repository
from lsmfs.tree.merge import DEST_WINS, SOURCE_WINS, MergeConflict, Strategy
from refstore.errors import Conflict, DirtyBranch, NoChanges

CLASHES_SHOWN_MAX = 20  # as text: enough to see what kind of paths they are


class Winner(StrEnum):
    SOURCE = SOURCE_WINS
    DEST = DEST_WINS


async def merge(
    session: Session,
    source: Annotated[str, typer.Argument(metavar="URI", help="What to merge: lsmfs://repository/revision.")],
    destination: Annotated[str, typer.Argument(metavar="BRANCH", help="The branch, in the same repository.")],
    message: Annotated[str | None, typer.Option("--message", "-m", help="For those who read the log.")] = None,
    meta: MetaOption = None,
    committer: CommitterOption = None,
    strategy: Annotated[Winner | None, typer.Option("--strategy", help="Who wins where both changed a path.")] = None,
    rule: Annotated[
        list[str] | None,
        typer.Option("--rule", metavar="PREFIX=WINNER", help="Who wins below a prefix. May be repeated."),
    ] = None,
    squash: Annotated[bool, typer.Option("--squash", help="One commit, without the history of the source.")] = False,
) -> None:
    """Merge a version into a branch, as one commit. Paths that both changed since they parted are conflicts: they are
    told, and nothing is merged, unless a strategy or a rule says who wins.

    \b
    lsmfs merge lsmfs://lake/dev main -m "the new sensors"
    lsmfs merge lsmfs://lake/dev main --strategy dest-wins --rule sensors/=source-wins
    """
    name, metadata, who = parse_commit(source), parse_pairs(meta or []), committer_name(committer)
    said = "" if message is None else check_message(message)
    rules = parse_rules(rule or []) | ({"": strategy.value} if strategy else {})
    Strategy(rules)  # `Invalid` before any work is done
    target = parse_uri(str(parse_beside(destination, name)))
    async with session.branch(target) as (_, repository, _):
        await find_commit(repository, name.ref)
        try:
            identity, commit = await repository.merge(name.ref, target.ref, said, who, metadata, rules, squash)
        except MergeConflict as error:
            raise _told(session, error, name, target) from None
        except (DirtyBranch, NoChanges) as error:
            raise await _advised(repository, error, name, target) from None
        document = {**show.commit_document(identity, commit), "branch": target.ref, "source": name.ref}
        session.emit(document, f"merged {name.short} into {target.short}: {identity}")
        await note_staged(session, repository, name)


def _told(session: Session, error: MergeConflict, source: Uri, target: Uri) -> Conflict:
    """The one line for a conflict, after each path of it."""
    for clash in error.clashes if session.json else error.clashes[:CLASHES_SHOWN_MAX]:
        session.emit(show.clash_document(clash), show.clash_text(clash, source.ref, target.ref))
    if error.count > CLASHES_SHOWN_MAX and not session.json:
        session.emit({}, f"... and {error.count - CLASHES_SHOWN_MAX:,} more")
    paths = "1 path was" if error.count == 1 else f"{error.count:,} paths were"
    return Conflict(
        f"{paths} changed on {source.short} and on {target.short}, so nothing was merged: say --strategy {SOURCE_WINS} "
        f"or {DEST_WINS}, or --rule PREFIX={SOURCE_WINS}, or change one side"
    )


async def _advised(
    repository: Repository, error: DirtyBranch | NoChanges, source: Uri, target: Uri
) -> DirtyBranch | NoChanges:
    if isinstance(error, DirtyBranch):
        return DirtyBranch(f"{target.short} has changes that are not committed: `lsmfs commit {target.short}` first")
    branch = await find_branch(repository, source.ref)
    if branch is not None and branch.is_dirty:
        advice = f"what is staged on {source.short} counts when it is committed: `lsmfs commit {source.short}` first"
    else:
        advice = "there is nothing to do"
    return NoChanges(f"{target.short} has every commit of {source.short} already: {advice}")


def add_to(app: typer.Typer) -> None:
    command(app, "merge")(merge)
