"""The net is tested too: each planted loss is caught, and what is allowed is let through."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.chaos.checker import violations
from tests.chaos.ledger import Changes, Intent, Kind, Ledger, LedgerFile, Outcome, between, load, parse, sizes

Step = tuple[Changes, Outcome | None]


def ledger_of(*steps: Step, kind: Kind = "own") -> Ledger:
    """A worker that did these steps, numbered from one; an outcome of None: it never heard."""
    intents = tuple(Intent(number, kind, changes) for number, (changes, _) in enumerate(steps, 1))
    outcomes = {number: outcome for number, (_, outcome) in enumerate(steps, 1) if outcome is not None}
    return Ledger(intents, outcomes)


def check(ledger: Ledger, content: Mapping[str, str]) -> list[str]:
    return violations({"w": ledger}, content)


PUT_TWICE = ledger_of(({"a": "1"}, "acknowledged"), ({"a": "2"}, "acknowledged"))
PUT_THEN_DELETED = ledger_of(({"a": "1"}, "acknowledged"), ({"a": None}, "acknowledged"))
PUT_THEN_UNHEARD = ledger_of(({"a": "1"}, "acknowledged"), ({"a": "2"}, None), ({"a": "3"}, "unknown"))
UNIT = ledger_of(({"a": "1", "b": "1"}, "acknowledged"), ({"a": "2", "b": None}, None))


def test_the_last_acknowledged_value_is_allowed() -> None:
    assert check(PUT_TWICE, {"a": "2"}) == []


def test_a_lost_acknowledged_value_is_caught() -> None:
    assert check(PUT_TWICE, {}) == ["w: a = None is shown, allowed is a = 2"]


def test_an_older_value_that_comes_back_is_caught() -> None:
    assert check(PUT_TWICE, {"a": "1"}) == ["w: a = 1 is shown, allowed is a = 2"]


def test_a_deleted_key_that_comes_back_is_caught() -> None:
    assert check(PUT_THEN_DELETED, {}) == []
    assert check(PUT_THEN_DELETED, {"a": "1"}) != []


@pytest.mark.parametrize("value", ["1", "2", "3"])
def test_what_was_not_answered_may_be_shown_or_not(value: str) -> None:
    assert check(PUT_THEN_UNHEARD, {"a": value}) == []


def test_a_key_whose_writes_were_all_unanswered_may_be_absent() -> None:
    assert check(ledger_of(({"a": "1"}, None)), {}) == []
    assert check(ledger_of(({"a": "1"}, None)), {"a": "1"}) == []


def test_an_unanswered_write_that_shows_above_a_later_acknowledged_one_is_caught() -> None:
    ledger = ledger_of(({"a": "1"}, "unknown"), ({"a": "2"}, "acknowledged"))
    assert check(ledger, {"a": "1"}) != []


@pytest.mark.parametrize("content", [{"a": "1", "b": "1"}, {"a": "2"}])
def test_a_whole_unit_is_allowed(content: dict[str, str]) -> None:
    assert check(UNIT, content) == []


@pytest.mark.parametrize("content", [{"a": "2", "b": "1"}, {"a": "1"}, {"b": "1"}, {}])
def test_half_a_unit_is_caught(content: dict[str, str]) -> None:
    assert len(check(UNIT, content)) == 1


def test_a_key_that_nobody_wrote_is_caught() -> None:
    assert check(ledger_of(), {"x": "1"}) == ["x: 1 is shown, but nobody wrote to it"]


def test_two_acknowledged_put_if_absent_are_caught() -> None:
    ledgers = {name: ledger_of(({"s": name}, "acknowledged"), kind="absent") for name in ("v", "w")}
    assert violations(ledgers, {"s": "v"}) == ["s: 2 put-if-absent were acknowledged: ['v', 'w']"]


def test_a_winner_whose_value_does_not_stand_is_caught() -> None:
    winner = ledger_of(({"s": "v"}, "acknowledged"), kind="absent")
    loser = ledger_of(({"s": "w"}, None), kind="absent")
    assert violations({"v": winner, "w": loser}, {"s": "v"}) == []
    assert len(violations({"v": winner, "w": loser}, {"s": "w"})) == 1
    assert len(violations({"v": winner, "w": loser}, {})) == 1


def test_a_refused_put_if_absent_is_never_shown_and_never_stands_alone() -> None:
    refused = ledger_of(({"s": "1"}, "refused"), kind="absent")
    assert check(refused, {"s": "1"}) == ["s: 1 is shown, which is refused"]
    assert check(refused, {}) == ["s: absent, but a put-if-absent was refused"]


def test_an_unanswered_put_if_absent_may_have_won_or_not() -> None:
    unheard = ledger_of(({"s": "1"}, None), kind="absent")
    assert check(unheard, {"s": "1"}) == check(unheard, {}) == []
    assert len(check(unheard, {"s": "2"})) == 1


def test_a_read_is_bound_by_what_was_acknowledged_before_it_and_intended_until_its_end() -> None:
    before = {"w": ledger_of(({"a": "1"}, "acknowledged"), ({"a": "2"}, None))}
    steps: list[Step] = [({"a": value}, "acknowledged") for value in ("1", "2", "3")]
    after = {"w": ledger_of(*steps)}
    seen = between(before, after)
    assert [violations(seen, {"a": str(number)}) for number in (1, 2, 3)] == [[], [], []]
    assert len(violations(seen, {"a": "4"})) == 1
    assert len(violations(seen, {})) == 1


def test_a_file_says_what_was_written_and_a_later_life_goes_on_with_it(tmp_path: Path) -> None:
    path = tmp_path / "w.ledger"
    with LedgerFile(path) as first:
        first.begin()
        first.answered(first.intend("own", {"a": True, "b": False}), "acknowledged")
    then = sizes(tmp_path)
    with LedgerFile(path) as second:
        second.begin()
        second.intend("absent", {"s": True})
    one, two = Intent(1, "own", {"a": "w-1", "b": None}), Intent(2, "absent", {"s": "w-2"})
    assert load(tmp_path) == {"w": Ledger((one, two), {1: "acknowledged"})}
    assert load(tmp_path, then) == {"w": Ledger((one,), {1: "acknowledged"})}


def test_a_line_that_a_kill_tore_says_nothing_in_this_life_and_the_next(tmp_path: Path) -> None:
    path = tmp_path / "w.ledger"
    with LedgerFile(path) as first:
        first.begin()
        first.intend("own", {"a": True})
    path.write_bytes(path.read_bytes()[:-5])
    assert load(tmp_path)["w"].intents == ()
    with LedgerFile(path) as second:
        second.begin()
        again = second.intend("own", {"a": False})
    assert load(tmp_path)["w"].intents == (again,)


def test_an_unreadable_line_that_no_kill_explains_is_an_error() -> None:
    with pytest.raises(ValueError, match="no kill explains"):
        parse(b'["intent",1,"ow\n["answer",1,"acknowledged",""]\n')
