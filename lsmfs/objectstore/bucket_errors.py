"""The edge at which obstore's errors become ours; a test watches that every class of `obstore.exceptions` has a row
here.

obstore gives one `GenericError` for most of what can happen, with the HTTP status only in its text; what is read from
that text here errs on the safe side: a write whose error is not understood has an unknown outcome.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from obstore import exceptions

from refstore.errors import (
    AlreadyExists,
    Conflict,
    Denied,
    Error,
    Invalid,
    NotFound,
    OutcomeUnknown,
    Unavailable,
)

CATEGORIES: Final[dict[str, type[Error] | None]] = {
    # None: the class alone does not say it; the status does.
    "BaseError": None,
    "GenericError": None,
    "JoinError": None,
    "AlreadyExistsError": AlreadyExists,
    "InvalidPathError": Invalid,
    "NotFoundError": NotFound,
    "NotModifiedError": Conflict,
    "NotSupportedError": Invalid,
    "PermissionDeniedError": Denied,
    "PreconditionError": Conflict,
    "UnauthenticatedError": Denied,
    "UnknownConfigurationKeyError": Invalid,
}

_STATUS = re.compile(r"status code: (\d{3})")
_STATUSES: Final[dict[int, type[Error]]] = {
    400: Invalid,
    401: Denied,
    403: Denied,
    404: NotFound,
    405: Invalid,
    411: Invalid,
    413: Invalid,
    414: Invalid,
    416: Invalid,
    429: Unavailable,  # refused before it was begun, so nothing was done
    501: Invalid,
}
_SIGNS: Final[dict[str, type[Error]]] = {
    "<Code>RequestTimeout</Code>": Unavailable,  # S3 says it with status 400, though the request is right
    "<Code>ExpiredToken</Code>": Denied,  # so this
    "InvalidRangeRequest": Invalid,  # Azure answers a span that begins at the object's end with an empty success
}
_ADVICE: Final[dict[type[Error], str]] = {
    Denied: "the credentials are missing, wrong or may not do this; check them and the bucket's policy: ",
}
_NEVER_SENT = ("tcp connect error", "dns error", "token request")
_TEXT_MAX = 300  # the rest is obstore's debugging output


def status_of(error: BaseException | None) -> int | None:
    """The HTTP status that the error's text tells, if it does."""
    match = _STATUS.search(str(error))
    return int(match[1]) if match else None


@contextmanager
def translated(what: str, *, writes: bool = False) -> Iterator[None]:
    """`what` is the verb and the full name, for the message; with `writes` a lost answer leaves the outcome open."""
    try:
        yield
    except FileNotFoundError as error:
        raise NotFound(f"{what}: not found") from error
    except (exceptions.BaseError, ValueError, OSError) as error:
        category = _category(error, writes)
        raise category(f"{what}: {_ADVICE.get(category, '')}{_first_line(error)}") from error


def _category(error: Exception, writes: bool) -> type[Error]:
    if type(error) is ValueError:  # a path or range that obstore refused before it sent anything
        return Invalid
    if (category := CATEGORIES.get(type(error).__name__)) is not None:
        return category
    if category := next((_SIGNS[sign] for sign in _SIGNS if sign in str(error)), None):
        return category
    if (status := status_of(error)) in _STATUSES:
        return _STATUSES[status]
    if writes and not any(sign in str(error) for sign in _NEVER_SENT):
        return OutcomeUnknown
    return Unavailable


def _first_line(error: Exception) -> str:
    return str(error).split("\n", 1)[0].split(": <?xml", 1)[0][:_TEXT_MAX]
