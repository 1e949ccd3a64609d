"""Times as signatures write them, and the two questions asked of them: is the clock near ours, has the URL expired."""

import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache

from lsmfs.gateway.errors import S3Error

SKEW_SECONDS_MAX = 15 * 60  # AWS's bound: how long a captured request can be sent again
TIMES_MAX = 1024  # requests of one second say the same time: this many are remembered
_BASIC = re.compile(r"([0-9]{4})([0-9]{2})([0-9]{2})T([0-9]{2})([0-9]{2})([0-9]{2})Z\Z")
_TEXT_MAX = 64  # the longest HTTP date has 35 characters


def basic(text: str) -> int | None:
    """20261118T164605Z in seconds since 1970, or None."""
    found = _BASIC.match(text)
    if found is None:
        return None
    try:
        return int(datetime(*map(int, found.groups()), tzinfo=UTC).timestamp())  # type: ignore[misc, arg-type]
    except ValueError:
        return None


@lru_cache(TIMES_MAX)
def any_form(text: str) -> int | None:
    """The basic form or an HTTP date, or None."""
    if len(text) > _TEXT_MAX:
        return None
    seconds = basic(text)
    if seconds is not None:
        return seconds
    try:
        return int(parsedate_to_datetime(text).replace(tzinfo=UTC).timestamp()) if _is_utc(text) else None
    except (ValueError, TypeError, IndexError, OverflowError):
        return None


def _is_utc(text: str) -> bool:
    return text.rstrip().endswith(("GMT", "UTC", "+0000", "-0000", "Z"))


@lru_cache(TIMES_MAX)
def as_basic(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y%m%dT%H%M%SZ")


def check_skew(signed_at: int, now: float) -> None:
    if abs(now - signed_at) > SKEW_SECONDS_MAX:
        times = {"RequestTime": _iso(signed_at), "ServerTime": _iso(now)}
        raise S3Error(
            "RequestTimeTooSkewed", extra=times | {"MaxAllowedSkewMilliseconds": str(SKEW_SECONDS_MAX * 1000)}
        )


def check_window(begins_at: int | None, expires_at: int, now: float) -> None:
    """A presigned URL: from when it was signed, give or take the skew, until it expires."""
    if now > expires_at:
        raise S3Error(
            "AccessDenied", "Request has expired", extra={"Expires": _iso(expires_at), "ServerTime": _iso(now)}
        )
    if begins_at is not None and begins_at - now > SKEW_SECONDS_MAX:
        raise S3Error("AccessDenied", "Request is not valid yet", extra={"ServerTime": _iso(now)})


def _iso(seconds: float) -> str:
    try:
        return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return str(int(seconds))
