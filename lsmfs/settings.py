"""Every number a user may want to change, with its default and the reason for it."""

from dataclasses import dataclass, field

from lsmfs.lsm.build import Shape


@dataclass(frozen=True, slots=True)
class WriterSettings:
    linger_seconds: float = 0.0
    """How long a flush waits for company when none is under way. A group forms by itself while the flush before it is
    under way; raise this for stores that charge by request."""

    flush_bytes: int = 8 * 1024 * 1024
    """A batch this heavy is flushed while others are still under way."""

    flushes_max: int = 4
    """Uploads under way at once; appends keep their order."""

    buffer_bytes_max: int = 64 * 1024 * 1024
    """Puts wait while this much is not yet acknowledged."""

    deadline_seconds: float = 30.0
    """How long a write is retried, or waits for the compactor, before it fails."""

    unit_rows_max: int = 64 * 1024
    """A staged unit of more rows is written as a Run, so that no single table grows beyond what is held in memory."""


@dataclass(frozen=True, slots=True)
class Settings:
    writer: WriterSettings = field(default_factory=WriterSettings)
    shape: Shape = field(default_factory=Shape)
    commit_tries_max: int = 32
    """Commits that may win the race before this one gives up: more than seals can be pending at once."""

    retry_seconds: float = 30.0
    """How long a commit repeats a change whose answer was lost."""
