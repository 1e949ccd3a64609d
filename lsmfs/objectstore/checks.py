"""Which names and spans are allowed: one rule for every driver, so that what one store takes, all take.

A name is segments joined by `/`. Refused are: an empty name or segment (so also a slash at either end), the segments
`.` and `..`, backslashes (some S3 servers turn them into slashes), control characters, and what UTF-8 or XML cannot
carry (surrogates, U+FFFE, U+FFFF: a store that lists in XML would fail on the whole page). The first segment `.lsmfs`
belongs to the drivers.
"""

import re

from lsmfs.objectstore.store import Span
from refstore.errors import Invalid

RESERVED = ".lsmfs"
NAME_BYTES_MAX = 900  # S3, GCS and Azure allow 1,024; the rest is room for the prefix within the bucket
SEGMENT_BYTES_MAX = 255  # a file name on every common file system

_SEGMENT = r"(?!\.\.?(?:/|\Z))[^/\\\x00-\x1f\x7f\ud800-\udfff\ufffe\uffff]+"
_NAME = re.compile(rf"(?!{re.escape(RESERVED)}(?:/|\Z)){_SEGMENT}(?:/{_SEGMENT})*")


def is_name(text: str) -> bool:
    """Whether an object could have this name, but for its length."""
    return _NAME.fullmatch(text) is not None


def check_name(name: str) -> str:
    """The name, if it is one; `Invalid` if not."""
    if not is_name(name):
        raise Invalid(f"{name!r} is no object name: it is empty or reserved, or has a bad segment or character")
    if len(name) > SEGMENT_BYTES_MAX // 4:  # a character has at most 4 bytes, so a shorter name is within both limits
        _check_lengths(name)
    return name


def _check_lengths(name: str) -> None:
    if (size := len(name.encode())) > NAME_BYTES_MAX:
        raise Invalid(f"object name of {size} bytes, at most {NAME_BYTES_MAX} are allowed: {name[:80]!r}...")
    if (size := max(len(segment.encode()) for segment in name.split("/"))) > SEGMENT_BYTES_MAX:
        raise Invalid(f"segment of {size} bytes, at most {SEGMENT_BYTES_MAX} are allowed, in {name[:80]!r}...")


def check_span(name: str, span: Span) -> Span:
    """The span, if it can lie in an object; `Invalid` if not."""
    if not 0 <= span.start <= span.stop:
        raise Invalid(f"span {span.start}..{span.stop} of {name!r} is backwards or negative")
    return span


def check_within(name: str, span: Span, size_bytes: int) -> Span:
    """The span, if it lies within an object of this size; `Invalid` if not."""
    if check_span(name, span).stop > size_bytes:
        raise Invalid(f"span {span.start}..{span.stop} does not lie within {name!r} of {size_bytes} bytes")
    return span
