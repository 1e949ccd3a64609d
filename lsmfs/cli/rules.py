"""Commands of the group `branch` about which branches are protected: `protect`, `rules`."""

from enum import StrEnum
from typing import Annotated

import typer

from lsmfs.cli import show
from lsmfs.cli.session import Session
from lsmfs.cli.suggest import advice_on
from lsmfs.cli.uri import check_text, parse_repository
from lsmfs.policy import BLOCKED, Rule
from refstore.errors import Invalid, NotFound

RepositoryArgument = Annotated[str, typer.Argument(metavar="REPOSITORY", help="Its name.")]


class Against(StrEnum):
    STAGE = "stage"
    COMMIT = "commit"


async def protect(
    session: Session,
    repository: RepositoryArgument,
    pattern: Annotated[str, typer.Argument(metavar="PATTERN", help="Names of branches: main, or 'release-*'.")],
    against: Annotated[
        list[Against] | None, typer.Option("--against", help="What is refused [both]. May be repeated.")
    ] = None,
    remove: Annotated[bool, typer.Option("--remove", help="End the rule of this pattern.")] = False,
) -> None:
    """Let nobody stage to branches of such names, or commit to them: what comes to them comes by a merge. A rule that
    the pattern has already is replaced. It holds everywhere within seconds.

    \b
    lsmfs branch protect lake main
    lsmfs branch protect lake 'release-*' --against commit
    lsmfs branch protect lake main --remove
    """
    name = parse_repository(repository)
    check_text(pattern)
    if remove and against:
        raise Invalid("--remove and --against exclude each other: say one of them")
    async with session.repository(name) as (_, opened):
        patterns = [rule.pattern for rule in opened.record.rules]
        if remove and pattern not in patterns:
            raise NotFound(f"{name} has no rule for {pattern!r}: {advice_on(pattern, patterns) or 'it has no rules'}")
        blocks = [each for each in BLOCKED if against is None or each in against]
        await opened.protect(pattern, [] if remove else blocks)
    if remove:
        session.emit({"repository": name, "pattern": pattern, "blocks": []}, f"{name}: {pattern} is not protected")
    else:
        document = {"repository": name, "pattern": pattern, "blocks": blocks}
        session.emit(document, f"{name}: {pattern} is protected against {' and '.join(blocks)}")


async def rules(session: Session, repository: RepositoryArgument) -> None:
    """List which branches are protected, and against what.

    \b
    lsmfs branch rules lake
    """
    async with session.repository(parse_repository(repository)) as (_, opened):
        found: tuple[Rule, ...] = opened.record.rules
    for rule in found:
        document = {"repository": opened.name, "pattern": rule.pattern, "blocks": list(rule.blocks)}
        session.emit(document, show.rule_text(rule))
    if not found:
        session.note(f"no branch of {opened.name} is protected")
