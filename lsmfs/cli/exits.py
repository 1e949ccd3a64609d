"""Exit codes: one for each category of error, so that a script can tell them apart."""

from refstore.errors import (
    AlreadyExists,
    Conflict,
    Corrupt,
    Denied,
    Error,
    Invalid,
    NotFound,
    Unavailable,
)

FAILED = 1  # doctor found something, a benchmark missed its bar, or a bug
INTERRUPTED = 130  # 128 + SIGINT, as shells have it
TERMINATED = 143  # 128 + SIGTERM
PIPE_CLOSED = 141  # 128 + SIGPIPE: the reader of our output has gone

CODES: dict[type[Error], tuple[int, str]] = {
    Invalid: (2, "the request cannot be right: correct it"),
    NotFound: (3, "it is not there: create it, or correct the name"),
    AlreadyExists: (4, "it is there already: use it, or choose another name"),
    Conflict: (5, "somebody else was first: look again, then decide"),
    Denied: (6, "not allowed: ask for the right"),
    Unavailable: (7, "it could not be done now: try again"),
    Corrupt: (8, "stored bytes are not what was written: stop, and recover"),
}

EPILOG = "\n".join(
    [
        "\b\nExit codes:",  # \b: or the lines would be filled to a paragraph
        "  0 done",
        "  1 a check failed, or a bug",
        *(f"  {code} {kind.__name__}: {meaning}" for kind, (code, meaning) in CODES.items()),
        f"  {INTERRUPTED} interrupted, {PIPE_CLOSED} the reader of the output has gone, {TERMINATED} terminated",
    ]
)


def code_of(error: Error) -> int:
    """The exit code of the error's category."""
    return next((code for kind, (code, _) in CODES.items() if isinstance(error, kind)), FAILED)
