"""The server's log: a line for each event and each request, as JSON or text, on stdout or in a file.

Promises: a line is written by one call, so lines of several workers never mix; a log that cannot be written (a full
disk, a reader that went away) fails no request, its lines are only counted in `lost`; nothing of a query string is
ever logged, since it holds signatures and tokens; control characters are escaped, so a name cannot forge a line.

`request_id` is the id of the request that the running task serves, and stands in every line that task writes.
A file is opened again by `Output.reopen`, which SIGHUP calls: after logrotate has moved it away.
"""

import contextlib
import logging as standard
import os
import re
import sys
import time
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from typing import Any, NoReturn

import msgspec
import structlog

from lsmfs.server.config import Logging
from refstore.errors import Invalid

request_id: ContextVar[str] = ContextVar("request_id", default="")

LEVELS = {
    "DEBUG": standard.DEBUG,
    "INFO": standard.INFO,
    "WARN": standard.WARNING,
    "ERROR": standard.ERROR,
    "NONE": standard.CRITICAL + 1,
}
PATH_CHARACTERS_MAX = 1024  # of a request's path in the log: S3's longest key
STDOUT = "-"
_PLAIN = re.compile(r"[!#-<>-~]+")  # needs no quotes in text: printable, no space, no " and no =
_encode = msgspec.json.Encoder(enc_hook=repr).encode


class Output:
    """Where lines go."""

    def __init__(self, path: str) -> None:
        self.lost = 0
        self._path = path
        self._descriptor = self._opened()

    def _opened(self) -> int:
        if self._path == STDOUT:
            return sys.stdout.fileno()
        try:
            return os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
        except OSError as error:
            raise Invalid(f"logging.output: {self._path} cannot be written: {error.strerror}") from None

    def write(self, line: bytes) -> None:
        try:
            os.write(self._descriptor, line)
        except OSError:
            self.lost += 1

    def reopen(self) -> None:
        """Open the file again under its name; if that fails, go on with the old one."""
        if self._path != STDOUT:
            with contextlib.suppress(Invalid):
                old, self._descriptor = self._descriptor, self._opened()
                os.close(old)

    def close(self) -> None:
        if self._path != STDOUT:
            os.close(self._descriptor)


class Log:
    """The configured log. `access` is the fast way for the line of each request."""

    def __init__(self, settings: Logging, output: Output) -> None:
        self.output = output
        self.level = LEVELS[settings.level]
        self._render = _json_line if settings.format == "json" else _text_line
        self._second, self._stamp = 0, ""

    def access(self, status: int, fields: dict[str, Any]) -> None:
        """One request that has been answered."""
        if self.level <= standard.INFO:
            self.output.write(self._render({"timestamp": self._now(), "level": "info", "event": "request"} | fields))

    def event(self, logger: Any, method: str, fields: Mapping[str, Any]) -> bytes:
        """structlog's last processor."""
        line: dict[str, Any] = {"timestamp": self._now(), "level": method, "event": fields.get("event", "")}
        if identity := request_id.get():
            line["request_id"] = identity
        return self._render({**line, **fields})

    def _now(self) -> str:
        now = time.time()
        second = int(now)
        if second != self._second:  # formatting costs as much as the rest of the line
            self._second, self._stamp = second, time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
        return f"{self._stamp}.{int((now - second) * 1000):03d}Z"


class _Lines:
    """What structlog calls with a finished line."""

    def __init__(self, output: Output) -> None:
        self._write = output.write

    def msg(self, line: bytes) -> None:
        self._write(line)

    debug = info = warning = warn = error = exception = critical = fatal = log = msg


class _Bridge(standard.Handler):
    """Lines of libraries that use the standard library's log, uvicorn's among them."""

    def __init__(self, log: Log) -> None:
        super().__init__()
        self._log = log

    def emit(self, record: standard.LogRecord) -> None:
        fields: dict[str, Any] = {"event": record.getMessage(), "logger": record.name}
        if record.exc_info:
            fields["exception"] = standard.Formatter().formatException(record.exc_info)
        self._log.output.write(self._log.event(None, record.levelname.lower(), fields))


@contextlib.contextmanager
def logging(settings: Logging) -> Iterator[Log]:
    """The log is set up inside, for structlog and the standard library; undone after."""
    output = Output(settings.output)
    log = Log(settings, output)
    structlog.configure(
        processors=[_drop] if log.level > standard.CRITICAL else [structlog.processors.format_exc_info, log.event],
        wrapper_class=structlog.make_filtering_bound_logger(min(log.level, standard.CRITICAL)),
        logger_factory=lambda *names: _Lines(output),
        cache_logger_on_first_use=False,
    )
    root, bridge = standard.getLogger(), _Bridge(log)
    level = root.level
    root.addHandler(bridge)
    # Below a warning, libraries speak of connections and events of their own: that is for who asks for DEBUG.
    root.setLevel(log.level if log.level != standard.INFO else standard.WARNING)
    try:
        yield log
    finally:
        root.removeHandler(bridge)
        root.setLevel(level)
        structlog.reset_defaults()
        output.close()


def _drop(logger: Any, method: str, fields: Any) -> NoReturn:
    raise structlog.DropEvent


def loggable_path(path: str) -> str:
    """A request's path as the log has it."""
    return path if len(path) <= PATH_CHARACTERS_MAX else path[:PATH_CHARACTERS_MAX] + "..."


def _json_line(fields: Mapping[str, Any]) -> bytes:
    try:
        return _encode(fields) + b"\n"
    except (UnicodeError, TypeError, ValueError):  # a lone surrogate, a key that is no text
        return _encode({str(name): ascii(value) for name, value in fields.items()}) + b"\n"


def _text_line(fields: Mapping[str, Any]) -> bytes:
    rest = dict(fields)
    words = [rest.pop("timestamp"), rest.pop("level").upper().ljust(7), _shown(rest.pop("event"), False)]
    words += [f"{name}={value if type(value) is int else _shown(value, True)}" for name, value in rest.items()]
    return " ".join(words).encode("utf-8", "backslashreplace") + b"\n"


def _shown(value: object, is_field: bool) -> str:
    if type(value) is float:
        return f"{value:.6g}"
    text = value if type(value) is str else str(value)
    if _PLAIN.fullmatch(text) or (not is_field and text.isprintable()):
        return text
    return msgspec.json.encode(text.encode("utf-8", "backslashreplace").decode()).decode()
