"""Does a store honour conditions? Asked by a race, because some servers take a conditional put and ignore the
condition.

Flow, on one probe object that is removed again:
1. RACERS puts at once, each with its own body, each only if the name is absent. One wins; the stored body is its body.
2. A put only if absent on the name that is now taken. Refused.
3. RACERS puts at once with the winner's tag. One wins; the stored body is its body.
4. A put with the tag that is now old. Refused.
5. A put with a tag on a name that is gone. Refused.

A pass is no proof: a store that checks and then writes may by luck let only one through. A fail is one.
"""

import asyncio
from contextlib import suppress
from dataclasses import dataclass

from lsmfs.clock import Clock, SystemClock
from lsmfs.objectstore.store import ABSENT, ObjectStore, Precondition, Tag
from refstore.errors import AlreadyExists, Conflict, Error, NotFound, OutcomeUnknown, Unavailable

RACERS = 8  # enough to overlap; servers that lock a name serve them one after the other, some in steps of a second


@dataclass(frozen=True, slots=True)
class ConditionReport:
    """What the race showed; `problems` is empty if the store honours conditions."""

    problems: tuple[str, ...]

    @property
    def honoured(self) -> bool:
        return not self.problems

    def __bool__(self) -> bool:
        return self.honoured


async def honours_conditions(store: ObjectStore, prefix: str = "", clock: Clock | None = None) -> ConditionReport:
    """Race on a new name below the prefix. What is no refusal (`Denied`, a lost answer) is raised."""
    name = f"{prefix}condition-probe-{(clock or SystemClock()).new_id()}"
    try:
        return ConditionReport(tuple(await _problems(store, name)))
    finally:
        with suppress(Error):  # the report matters more than a few bytes left behind
            await store.delete(name)


async def _problems(store: ObjectStore, name: str) -> list[str]:
    created, problems = await _race(store, name, ABSENT, "create")
    if not await _refused(store, name, ABSENT):
        problems.append("a put on condition of absence replaced an object")
    _, tag = await store.get_tagged(name)
    updated, more = await _race(store, name, tag, "update")
    problems += more
    if created is not None and updated is not None and not await _refused(store, name, tag):
        problems.append("a put on condition of an old tag replaced a newer object")
    await store.delete(name)
    if not await _refused(store, name, tag):
        problems.append("a put on condition of a tag created an object")
    return problems


async def _race(store: ObjectStore, name: str, expected: Precondition, what: str) -> tuple[Tag | None, list[str]]:
    """The winner's tag if there was exactly one, and what was wrong."""
    bodies = [f"{what} by racer {racer}".encode() for racer in range(RACERS)]
    answers = await asyncio.gather(*(_put(store, name, body, expected) for body in bodies))
    winners = [(body, answer) for body, answer in zip(bodies, answers, strict=True) if isinstance(answer, str)]
    for answer in answers:
        # One that won unknown to us may be a second winner; but two that we know of are proof enough.
        enough = 2 if isinstance(answer, OutcomeUnknown) else 1
        if isinstance(answer, Unavailable) and len(winners) < enough:
            raise answer
    if len(winners) != 1:
        return None, [f"{len(winners)} of {RACERS} racing puts ({what}) won; exactly one may"]
    [(body, tag)] = winners
    if await store.get(name) != body:
        return None, [f"the stored body is not that of the only put that won the race ({what})"]
    return tag, []


async def _put(store: ObjectStore, name: str, body: bytes, expected: Precondition) -> Tag | Unavailable | None:
    """The tag if it won, None if it lost, the error if that is not known. S3 is `Unavailable` when two puts meet."""
    try:
        return await store.put(name, body, expected)
    except (AlreadyExists, Conflict):
        return None
    except Unavailable as error:
        return error


async def _refused(store: ObjectStore, name: str, expected: Precondition) -> bool:
    try:
        await store.put(name, b"must be refused", expected)
    except (AlreadyExists, Conflict, NotFound):
        return True
    return False
