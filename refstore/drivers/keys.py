"""What names an item, a page of items and an event, the same in every driver."""

from collections.abc import Iterable

from refstore.errors import Invalid
from refstore.records import Event
from refstore.store import KEY_BYTES_MAX, VALUE_BYTES_MAX

PAGE_ITEMS_MAX = 256  # of 256 KiB at most each: a page of a scan stays below 64 MiB, and is commonly 64 KiB

EventId = tuple[str, str, int]


def check_key(key: bytes) -> None:
    if not 0 < len(key) <= KEY_BYTES_MAX:
        raise Invalid(f"a key has 1 to {KEY_BYTES_MAX} bytes, not {len(key)}: {key[:40]!r}")


def check_value(key: bytes, value: bytes) -> None:
    check_key(key)
    if len(value) > VALUE_BYTES_MAX:
        raise Invalid(f"the value of {key!r} has {len(value)} bytes, more than {VALUE_BYTES_MAX}")


def prefix_stop(prefix: bytes) -> bytes | None:
    """The first key after all that begin with the prefix; None if there is no such key."""
    trimmed = prefix.rstrip(b"\xff")
    return trimmed[:-1] + bytes([trimmed[-1] + 1]) if trimmed else None


def event_id(event: Event) -> EventId:
    """A branch's life comes to a version once, so this names one event for ever."""
    return event.branch, event.change.incarnation, event.version


def event_ids(events: Iterable[Event]) -> set[EventId]:
    return {event_id(event) for event in events}
