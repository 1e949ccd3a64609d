"""What a server's answer means as an error of ours: one table. The message is the server's.

The class is in a header if an lsmfs server knows it; else the category follows from the status, as it does for answers
of something that stands before the server.
"""

import msgspec

from lsmfs.client import wire
from lsmfs.tree.merge import Clash, MergeConflict
from refstore import errors

MESSAGE_CHARACTERS_MAX = 2000  # of an answer that is no JSON: enough to see what it is
UNAUTHENTICATED = (
    "the server does not know this access key id with this secret: correct LSMFS_ACCESS_KEY_ID and "
    "LSMFS_SECRET_ACCESS_KEY, or the credentials file"
)
STATUSES: dict[int, type[errors.Error]] = {
    400: errors.Invalid,
    401: errors.Denied,
    403: errors.Denied,
    404: errors.NotFound,
    409: errors.Conflict,
    410: errors.NotFound,
    412: errors.Conflict,
    413: errors.Invalid,
    414: errors.Invalid,
    416: errors.Invalid,
    429: errors.Unavailable,
    431: errors.Invalid,
    500: errors.Unavailable,
    502: errors.Unavailable,
    503: errors.Unavailable,
    504: errors.Unavailable,
}
CLASSES: dict[str, type[errors.Error]] = {
    name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, errors.Error)
}


class _Told(msgspec.Struct):
    message: str


def error_of(status: int, name: str, body: bytes, where: str) -> errors.Error:
    """The error that an answer with this status stands for; `name` is what the header says, `where` the endpoint."""
    if status == 401:
        return errors.Denied(UNAUTHENTICATED)
    if name == MergeConflict.__name__:
        return _conflict(body)
    told = _message(body)
    if told is None and STATUSES.get(status) is errors.Unavailable:
        return errors.Unavailable(f"{where} answered {status}: try again")
    if told is None or (not name and status in (404, 405)):
        shown = told or " ".join(body[:200].decode(errors="replace").split())
        return errors.Unavailable(
            f"{where} answered {status} as no lsmfs server does ({shown[:200]}): correct the endpoint"
        )
    return named(name, told, STATUSES.get(status, errors.Unavailable))


def named(name: str, message: str, otherwise: type[errors.Error] = errors.Unavailable) -> errors.Error:
    return CLASSES.get(name, otherwise)(message)


def _message(body: bytes) -> str | None:
    try:
        return msgspec.json.decode(body, type=_Told).message[:MESSAGE_CHARACTERS_MAX]
    except (msgspec.MsgspecError, UnicodeError):
        return None


def _conflict(body: bytes) -> errors.Error:
    try:
        told = msgspec.json.decode(body, type=wire.Clashes)
    except (msgspec.MsgspecError, UnicodeError):
        return errors.Conflict("Conflict: both sides changed the same keys")
    clashes = [Clash(line.path.encode(), line.base, line.source, line.destination) for line in told.clashes]
    return MergeConflict(told.count, clashes)
