"""Whether what a reader saw is something that the ledgers allow. Pure.

A *slot* is a set of keys that one worker always writes as a whole: one key, or all keys of a unit. The rules:
1. A slot shows, as a whole, the last acknowledged write to it or any later intended one: nothing acknowledged is lost,
   nothing deleted comes back, no unit is shown by half.
2. Of all put-if-absent to one key at most one is acknowledged. If one is, its value stands. If none is, the key is
   absent or has the value of one that was not refused; and if one was refused, the key is not absent.
3. There are no other keys.
"""

from collections.abc import Iterable, Iterator, Mapping

from tests.chaos.ledger import Changes, Intent, Kind, Ledger

Content = Mapping[str, str]
"""What a reader saw: the value of every key that is there."""

Slot = tuple[str, ...]
SHOWN_MAX = 20  # violations in a failure: one bug breaks hundreds of slots


def violations(ledgers: Mapping[str, Ledger], content: Content) -> list[str]:
    """Every way in which the content breaks the rules, in words."""
    found = [text for worker, ledger in ledgers.items() for text in _broken_slots(worker, ledger, content)]
    return [*found, *_broken_claims(ledgers, content), *_strangers(ledgers, content)]


def expect_none(problems: Iterable[str]) -> None:
    """Fail with the first of them."""
    found = list(problems)
    assert not found, "\n".join([f"{len(found)} violations:", *found[:SHOWN_MAX]])


def slots(ledger: Ledger) -> dict[Slot, list[Intent]]:
    """The worker's writes to its own keys, by slot, in order."""
    found: dict[Slot, list[Intent]] = {}
    for intent in _of_kind(ledger, "own"):
        found.setdefault(tuple(sorted(intent.changes)), []).append(intent)
    return found


def allowed(ledger: Ledger, intents: list[Intent]) -> list[Changes]:
    """What the slot of these intents may show: the last acknowledged one (or nothing) and all later ones."""
    last = max((at for at, intent in enumerate(intents) if ledger.acknowledged(intent)), default=None)
    if last is not None:
        return [intent.changes for intent in intents[last:]]
    return [dict.fromkeys(intents[0].changes), *(intent.changes for intent in intents)]


def _broken_slots(worker: str, ledger: Ledger, content: Content) -> Iterator[str]:
    for slot, intents in slots(ledger).items():
        shown: Changes = {key: content.get(key) for key in slot}
        choices = allowed(ledger, intents)
        if shown not in choices:
            yield f"{worker}: {_brief(shown)} is shown, allowed is {' or '.join(map(_brief, choices))}"


def _broken_claims(ledgers: Mapping[str, Ledger], content: Content) -> Iterator[str]:
    for key, claims in _claims(ledgers).items():
        told = dict(claims)
        winners = [value for value, outcome in claims if outcome == "acknowledged"]
        possible = {value for value, outcome in claims if outcome != "refused"}
        shown = content.get(key)
        if len(winners) > 1:
            yield f"{key}: {len(winners)} put-if-absent were acknowledged: {winners}"
        elif winners and shown != winners[0]:
            yield f"{key}: {shown} is shown, but {winners[0]} was acknowledged as the first"
        elif shown is not None and shown not in possible:
            yield f"{key}: {shown} is shown, which is {told.get(shown, 'nobody’s')}"
        elif shown is None and "refused" in told.values():
            yield f"{key}: absent, but a put-if-absent was refused"


def _claims(ledgers: Mapping[str, Ledger]) -> dict[str, list[tuple[str, str]]]:
    """Every put-if-absent by key: its value and its outcome."""
    found: dict[str, list[tuple[str, str]]] = {}
    for ledger in ledgers.values():
        for intent in _of_kind(ledger, "absent"):
            for key, value in intent.changes.items():
                found.setdefault(key, []).append((str(value), ledger.outcomes.get(intent.number, "unknown")))
    return found


def _strangers(ledgers: Mapping[str, Ledger], content: Content) -> Iterator[str]:
    known = {key for ledger in ledgers.values() for intent in ledger.intents for key in intent.changes}
    for key in sorted(set(content) - known):
        yield f"{key}: {content[key]} is shown, but nobody wrote to it"


def _of_kind(ledger: Ledger, kind: Kind) -> Iterator[Intent]:
    return (intent for intent in ledger.intents if intent.kind == kind)


def _brief(changes: Changes) -> str:
    """One text for all keys with the same value, so that a unit of a hundred keys is one line."""
    keys: dict[str | None, list[str]] = {}
    for key, value in changes.items():
        keys.setdefault(value, []).append(key)
    return ", ".join(f"{some[0]}{f' (+{len(some) - 1})' if some[1:] else ''} = {value}" for value, some in keys.items())
