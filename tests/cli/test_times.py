"""Moments that a user types."""

import pytest

from lsmfs.cli.times import parse_moment
from refstore.errors import Invalid

NOON_US = 1_769_860_800_000_000  # 2026-01-31T12:00Z


@pytest.mark.parametrize(
    ("text", "seconds_before_noon"),
    [
        ("2026-01-31", 12 * 3600),
        ("2026-01-31T12:00", 0),
        ("2026-01-31T12:00:00Z", 0),
        ("2026-01-31T12:00+01:00", 3600),
        ("90s", 90),
        ("2h", 7200),
        ("1w", 7 * 86400),
    ],
)
def test_a_moment_is_a_date_a_time_or_how_long_ago_it_was(text: str, seconds_before_noon: int) -> None:
    assert parse_moment(text, NOON_US) == NOON_US - seconds_before_noon * 1_000_000


@pytest.mark.parametrize("text", ["", "yesterday", "7", "d", "-7d", "2026-13-01", "99999999999999d", "٣d"])
def test_what_is_no_moment_is_refused(text: str) -> None:
    with pytest.raises(Invalid, match="is no moment"):
        parse_moment(text, NOON_US)
