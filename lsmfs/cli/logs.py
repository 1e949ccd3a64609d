"""Structured logs on stderr while a service runs: a line of JSON for each event, or coloured text on a terminal."""

import contextlib
import sys
from collections.abc import Iterator

import structlog


@contextlib.contextmanager
def logging(pretty: bool) -> Iterator[None]:
    """Logs go to stderr inside; whatever was set up before is undone after."""
    renderer = structlog.dev.ConsoleRenderer() if pretty else structlog.processors.JSONRenderer()
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            renderer,
        ],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    try:
        yield
    finally:
        structlog.reset_defaults()
