"""Progress of an import on stderr: objects, their bytes, and how fast they come.

On a terminal a bar. Elsewhere a line now and then, each pause twice as long as the one before. With --json nothing.
"""

import contextlib
import time
from collections.abc import Iterator

from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

from lsmfs.cli import show
from lsmfs.cli.progress import FIRST_LINE_SECONDS
from lsmfs.cli.session import Session
from lsmfs.imports import Progress, Source
from lsmfs.imports.work import Tell

BAR_SECONDS = 0.1  # between two changes of a bar: each costs as much as a batch


@contextlib.contextmanager
def told(session: Session, source: Source) -> Iterator[Tell]:
    """What is told of the progress of the work inside."""
    if session.json:
        yield lambda progress: None
    elif session.err.is_terminal:
        with _bar(session, source) as tell:
            yield tell
    else:
        pace = Pace(source, FIRST_LINE_SECONDS, 2)
        yield lambda progress: session.note(f"{progress.doing}: {text}") if (text := pace.text(progress)) else None


@contextlib.contextmanager
def _bar(session: Session, source: Source) -> Iterator[Tell]:
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[said]}"), TimeElapsedColumn())
    pace = Pace(source, BAR_SECONDS, 1)
    with Bars(*columns, console=session.err, transient=True) as bars:
        task = bars.add_task("beginning", total=None, said="")

        def tell(progress: Progress) -> None:
            if said := pace.text(progress):
                bars.update(task, description=progress.doing, completed=progress.objects, total=source.total, said=said)

        yield tell


class Pace:
    """When to tell of progress, and how fast it is."""

    def __init__(self, source: Source, pause: float, factor: int) -> None:
        self._source = source
        self._pause, self._factor = pause, factor
        self._due = time.monotonic() + pause
        self._doing, self._objects, self._began = "", 0, 0.0

    def text(self, progress: Progress) -> str:
        """What to say now; nothing if it is too early."""
        now = time.monotonic()
        if progress.doing != self._doing:
            self._doing, self._objects, self._began = progress.doing, progress.objects, now
        if now < self._due:
            return ""
        self._pause *= self._factor
        self._due = now + self._pause
        of = f" of {self._source.total:,}" if self._source.total else ""
        rate = show.rate_text(progress.objects - self._objects, now - self._began)
        return f"{progress.objects:,}{of} objects, {show.bytes_text(progress.size_bytes)}, {rate}"


__all__ = ["Pace", "told"]
