"""Moments that a user types: a date, a time, or how long ago it was."""

import re
from datetime import UTC, datetime

from refstore.errors import Invalid

_AGO = re.compile(r"([0-9]{1,6})([smhdw])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_MICROSECONDS = 1_000_000


def parse_moment(text: str, now_us: int) -> int:
    """In microseconds: `2026-01-31`, `2026-01-31T12:00Z` (without a zone it is UTC), or `7d`: seven days ago."""
    if match := _AGO.fullmatch(text):
        return max(0, now_us - int(match[1]) * _SECONDS[match[2]] * _MICROSECONDS)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise Invalid(f"{text!r} is no moment: say 2026-01-31, 2026-01-31T12:00Z, or 7d for seven days ago") from None
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * _MICROSECONDS)
