"""Commands that bring changes to a branch: `merge`, `cherry-pick`, `revert`. Each makes one commit; or, if the branch
has changed the same paths, it tells each of them and does nothing."""

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Annotated

import typer

from lsmfs.cli import show
from lsmfs.cli.branches import BranchArgument, CommitterOption, check_message, committer_name, note_staged
from lsmfs.cli.objects import MetaOption
from lsmfs.cli.session import Session, command
from lsmfs.cli.suggest import find_branch, find_commit
from lsmfs.cli.uri import Uri, parse_beside, parse_branch, parse_commit, parse_pairs, parse_rules, parse_uri
from lsmfs.client.verbs import Repository
from lsmfs.tree.merge import DEST_WINS, SOURCE_WINS, MergeConflict, Strategy
from lsmfs.tree.summary import Summary
from refstore.errors import Conflict, DirtyBranch, Invalid, NoChanges
from refstore.records import Branch

CLASHES_SHOWN_MAX = 20  # as text: enough to see what kind of paths they are


ParentOption = Annotated[
    int | None,
    typer.Option("--parent", metavar="N", min=1, help="Of a merge: the parent that its changes are counted from."),
]
MessageOption = Annotated[
    str | None, typer.Option("--message", "-m", help="For those who read the log [the commit's].")
]


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
    fast_forward: Annotated[
        bool, typer.Option("--ff", help="No commit if the branch has nothing of its own since: it moves.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only tell what it would change, and conflicts.")] = False,
    prepare: Annotated[
        bool, typer.Option("--prepare", help="Do the work ahead, without merging, and print a text for --hint.")
    ] = False,
    hint: Annotated[
        str | None, typer.Option("--hint", metavar="TEXT", help="Use the work of --prepare, also if the branch moved.")
    ] = None,
) -> None:
    """Merge a version into a branch, as one commit. Paths that both changed since they parted are conflicts: they are
    told, and nothing is merged, unless a strategy or a rule says who wins.

    \b
    lsmfs merge lsmfs://lake/dev main -m "the new sensors"
    lsmfs merge lsmfs://lake/dev main --dry-run
    lsmfs merge lsmfs://lake/dev main --strategy dest-wins --rule sensors/=source-wins
    """
    name, metadata, who = parse_commit(source), parse_pairs(meta or []), committer_name(session, committer)
    said = "" if message is None else check_message(message)
    rules = parse_rules(rule or []) | ({"": strategy.value} if strategy else {})
    Strategy(rules)  # `Invalid` before any work is done
    if squash and fast_forward:
        raise Invalid("--squash and --ff exclude each other: say one of them")
    if dry_run + prepare + (hint is not None) > 1:
        raise Invalid("--dry-run, --prepare and --hint exclude each other: say one of them")
    target = parse_uri(str(parse_beside(destination, name)))
    why = (
        f"on {name.short} and on {target.short}, so nothing was merged: say --strategy {SOURCE_WINS} or {DEST_WINS}, "
        f"or --rule PREFIX={SOURCE_WINS}, or change one side"
    )
    async with session.branch(target) as (_, repository, branch):
        await find_commit(repository, name.ref)
        try:
            with _telling(session, name.ref, target, why):
                if dry_run or prepare:
                    await (_preview if dry_run else _prepare)(session, repository, branch, name, rules)
                    return
                identity, commit = await repository.merge(
                    name.ref, target.ref, said, who, metadata, rules, squash, fast_forward, hint
                )
        except NoChanges:
            raise await _nothing_to_merge(repository, name, target) from None
        document = {**show.commit_document(identity, commit), "branch": target.ref, "source": name.ref}
        session.emit(document, f"merged {name.short} into {target.short}: {identity}")
        await note_staged(session, repository, name)


async def _preview(
    session: Session, repository: Repository, branch: Branch, source: Uri, rules: dict[str, str]
) -> None:
    found = await repository.preview_merge(source.ref, branch.name, rules)
    (total,) = found.values() or [Summary()]
    session.emit(total._asdict(), show.summary_text([("", total)]))
    session.note(f"{source.short} can be merged into {repository.name}/{branch.name}; nothing was merged")


async def _prepare(
    session: Session, repository: Repository, branch: Branch, source: Uri, rules: dict[str, str]
) -> None:
    text = await repository.merge_hint(source.ref, branch.name, rules)
    session.emit({"branch": branch.name, "source": source.ref, "hint": text}, text)


async def _nothing_to_merge(repository: Repository, source: Uri, target: Uri) -> NoChanges:
    branch = await find_branch(repository, source.ref)
    if branch is not None and branch.is_dirty:
        advice = f"what is staged on {source.short} counts when it is committed: `lsmfs commit {source.short}` first"
    else:
        advice = "there is nothing to do"
    return NoChanges(f"{target.short} has every commit of {source.short} already: {advice}")


async def cherry_pick(
    session: Session,
    source: Annotated[str, typer.Argument(metavar="URI", help="The commit: lsmfs://repository/revision.")],
    destination: Annotated[str, typer.Argument(metavar="BRANCH", help="The branch, in the same repository.")],
    parent: ParentOption = None,
    message: MessageOption = None,
    committer: CommitterOption = None,
) -> None:
    """Do on a branch what one commit did elsewhere, as a commit of its own, and leave out what came before it.

    \b
    lsmfs cherry-pick lsmfs://lake/dev~1 main
    lsmfs cherry-pick lsmfs://lake/1a2b3c4d main -m "only the repair"
    """
    name, who = parse_commit(source), committer_name(session, committer)
    said = "" if message is None else check_message(message)
    target = parse_uri(str(parse_beside(destination, name)))
    why = f"otherwise on {target.short}, so nothing was picked: put there what you want, and commit it"
    async with session.branch(target) as (_, repository, _):
        await _check_parent(repository, name, parent)
        nothing = f"{target.short} has all that {name.short} did already: there is nothing to do"
        with _telling(session, name.ref, target, why, nothing):
            identity, commit = await repository.cherry_pick(target.ref, name.ref, parent, said, who)
        document = {**show.commit_document(identity, commit), "branch": target.ref, "source": name.ref}
        session.emit(document, f"picked {name.short} for {target.short}: {identity}")


async def revert(
    session: Session,
    uri: BranchArgument,
    revision: Annotated[str, typer.Argument(metavar="REVISION", help="The commit to undo: main, main~2, 1a2b3c4d.")],
    parent: ParentOption = None,
    message: MessageOption = None,
    committer: CommitterOption = None,
) -> None:
    """Undo on a branch what one commit did, as a new commit; what came after it stays. Of a merge say which parent its
    changes are counted from: with --parent 1 what it brought to the branch is undone.

    \b
    lsmfs revert lsmfs://lake/main main
    lsmfs revert lsmfs://lake/main main~2 --parent 1 -m "the new sensors were wrong"
    """
    target, who = parse_branch(uri), committer_name(session, committer)
    said = "" if message is None else check_message(message)
    name = parse_beside(revision, target)
    why = f"again on {target.short} since, so nothing was reverted: revert what came later first, or change it yourself"
    async with session.branch(target) as (_, repository, _):
        await _check_parent(repository, name, parent)
        nothing = f"{target.short} has nothing of what {name.short} did: there is nothing to undo"
        with _telling(session, "undone", target, why, nothing):
            identity, commit = await repository.revert(target.ref, name.ref, parent, said, who)
        document = {**show.commit_document(identity, commit), "branch": target.ref, "source": name.ref}
        session.emit(document, f"reverted {name.short} on {target.short}: {identity}")


async def _check_parent(repository: Repository, name: Uri, parent: int | None) -> None:
    """A wrong name is told with those that are near; a merge needs an answer to a question."""
    commit = await repository.commits.load(await find_commit(repository, name.ref))
    if not commit.parents:
        raise Invalid(f"{name.short} is the first commit of its history: it changed nothing")
    if len(commit.parents) > 1 and parent is None:
        raise Invalid(
            f"{name.short} is a merge: say --parent 1 for what it brought to the branch that it was made on, or "
            "--parent 2 for what it brought to the other side"
        )


@contextmanager
def _telling(session: Session, side: str, target: Uri, why: str, nothing: str = "") -> Iterator[None]:
    """Tell each path of a conflict, `side` being the name of what was to be brought, and then why nothing was done; or
    that there is nothing to bring."""
    try:
        yield
    except MergeConflict as error:
        for clash in error.clashes if session.json else error.clashes[:CLASHES_SHOWN_MAX]:
            session.emit(show.clash_document(clash), show.clash_text(clash, side, target.ref))
        if error.count > CLASHES_SHOWN_MAX and not session.json:
            session.emit({}, f"... and {error.count - CLASHES_SHOWN_MAX:,} more")
        paths = "1 path was" if error.count == 1 else f"{error.count:,} paths were"
        raise Conflict(f"{paths} changed {why}") from None
    except DirtyBranch:
        told = f"{target.short} has changes that are not committed: `lsmfs commit {target.short}` first"
        raise DirtyBranch(told) from None
    except NoChanges as error:
        raise NoChanges(nothing or str(error)) from None


def add_to(app: typer.Typer) -> None:
    command(app, "merge")(merge)
    command(app, "cherry-pick")(cherry_pick)
    command(app, "revert")(revert)
