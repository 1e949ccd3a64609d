"""Progress on stderr, for people who wait.

On a terminal a bar, at once. Elsewhere nothing for the first two seconds, then a plain line now and then, each pause
twice as long as the one before, so that a log of a long job stays short. With `quiet` nothing at all.
"""

import contextlib
import time
from collections.abc import Iterator
from typing import Protocol

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)

FIRST_LINE_SECONDS = 2.0


class Meter(Protocol):
    """What work tells of itself."""

    def advance(self, amount: int) -> None: ...

    def describe(self, what: str, total: int | None = None) -> None: ...


class _Bar:
    def __init__(self, progress: Progress, what: str, total: int | None) -> None:
        self._progress = progress
        self._task = progress.add_task(what, total=total)

    def advance(self, amount: int) -> None:
        self._progress.advance(self._task, amount)

    def describe(self, what: str, total: int | None = None) -> None:
        self._progress.reset(self._task, description=what, total=total)


class _Lines:
    def __init__(self, console: Console, what: str, total: int | None) -> None:
        self._console = console
        self._what, self._total, self._done = what, total, 0
        self._pause = FIRST_LINE_SECONDS
        self._due = time.monotonic() + self._pause

    def advance(self, amount: int) -> None:
        self._done += amount
        self._tell()

    def describe(self, what: str, total: int | None = None) -> None:
        self._what, self._total, self._done = what, total, 0
        self._tell()

    def _tell(self) -> None:
        if time.monotonic() < self._due:
            return
        self._pause *= 2
        self._due = time.monotonic() + self._pause
        of = f" of {self._total}" if self._total else ""
        self._console.print(f"{self._what}: {self._done}{of}", markup=False, highlight=False)


class _Nothing:
    def advance(self, amount: int) -> None:
        return

    def describe(self, what: str, total: int | None = None) -> None:
        return


@contextlib.contextmanager
def metered(
    console: Console, what: str, total: int | None = None, in_bytes: bool = False, quiet: bool = False
) -> Iterator[Meter]:
    """A meter for the work inside; `total` None: nobody knows how much there is."""
    if quiet:
        yield _Nothing()
    elif not console.is_terminal:
        yield _Lines(console, what, total)
    else:
        amount: ProgressColumn = DownloadColumn() if in_bytes else MofNCompleteColumn()
        columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), amount, TimeElapsedColumn())
        with Progress(*columns, console=console, transient=True) as progress:
            yield _Bar(progress, what, total)
