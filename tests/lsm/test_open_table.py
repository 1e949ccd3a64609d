"""An opened table: finding rows between its samples, and stretches of keys that two tables have in common."""

from bisect import bisect_left

from hypothesis import given, settings
from hypothesis import strategies as st

from lsmfs.lsm.table import COMMON_KEYS_MIN, SAMPLE_ROWS, OpenTable
from tests.lsm.support import entry, rows_of

NUMBERS = st.sets(st.integers(0, 999), min_size=1, max_size=400)


def key(number: int) -> bytes:
    return b"k" * (number % 3) + b"%d" % number


def opened(keys: list[bytes]) -> OpenTable:
    return OpenTable(rows_of({key: entry(1) for key in keys}), {}, b"")


@settings(max_examples=100, deadline=None)
@given(NUMBERS, st.integers(0, 999), st.integers(0, 400))
def test_the_lower_bound_is_that_of_bisecting_all_keys(numbers: set[int], wanted: int, low: int) -> None:
    keys = sorted(map(key, numbers))
    low = min(low, len(keys))
    assert opened(keys).lower_bound(key(wanted), low) == max(low, bisect_left(keys, key(wanted)))


def test_keys_beside_a_sample_are_found() -> None:
    keys = [b"%05d" % number for number in range(3 * SAMPLE_ROWS + 1)]
    table = opened(keys)
    assert [table.find(key) for key in keys] == list(range(len(keys)))
    assert table.find(b"00063x") == -1


@settings(max_examples=100, deadline=None)
@given(NUMBERS, NUMBERS)
def test_common_keys_are_counted_up_to_the_first_that_differs(mine: set[int], theirs: set[int]) -> None:
    here, there = (sorted(map(key, numbers | {0})) for numbers in (mine, theirs))
    common = 0
    while common < min(len(here), len(there)) and here[common] == there[common]:
        common += 1
    if not common:
        return
    one, other = opened(here), opened(there)
    count = min(len(here), len(there))
    assert one.common_keys(0, other, 0, count) == common
    assert one.common_keys(0, other, 0, count) == common  # as remembered
    assert one.common_keys(0, other, 0, 1) == 1


def test_a_short_look_does_not_hide_how_much_is_common() -> None:
    keys = [b"%05d" % number for number in range(2 * COMMON_KEYS_MIN)]
    one, other = opened(keys), opened(keys)
    assert one.common_keys(0, other, 0, 2) == 2
    assert one.common_keys(0, other, 0, len(keys)) == len(keys)
