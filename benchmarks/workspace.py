"""Where benchmarks work: a temporary folder on the project's own disk, the sizes of a run, and repositories in it."""

import asyncio
import os
import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

from benchmarks import data
from lsmfs.installation import Configuration, Installation
from lsmfs.repository import Repository
from refstore.errors import NotFound

REPOSITORY = "bench"
BASE_STEP = 1_000_000  # rows staged and committed at a time while a base is built

T = TypeVar("T")


class Workspace:
    """The temporary folder. `scaled` makes sizes small for a quick run, whose figures mean nothing."""

    def __init__(self, root: Path, quick: bool, say: Callable[[str], None]) -> None:
        self.root = root
        self.quick = quick
        self.say = say
        self._bases: dict[int, Path] = {}
        self._numbers = 0

    @property
    def repeats(self) -> int:
        """How often short measurements are repeated."""
        return 1 if self.quick else 5

    def scaled(self, count: int) -> int:
        return max(10, count // 500) if self.quick else count

    def folder(self, name: str) -> Path:
        """A new empty folder."""
        self._numbers += 1
        path = self.root / f"{name}-{self._numbers}"
        path.mkdir(parents=True)
        return path

    async def base(self, rows: int) -> Path:
        """An installation whose repository has that many committed rows. Built once; work on a `copy` of it."""
        if rows not in self._bases:
            self.say(f"building a base of {rows:,} rows")
            folder = self.folder(f"base-{rows}")
            async with opened(folder) as repository:
                for start in range(0, rows, BASE_STEP):
                    async with repository.writer("main") as writer:
                        await writer.stage(data.puts(data.sequence(start, min(start + BASE_STEP, rows)), start))
                    await repository.commit("main", f"rows from {start}")
            self._bases[rows] = folder
        return self._bases[rows]

    async def copy(self, source: Path) -> Path:
        """The same installation again: objects by hard link, since they are never changed in place, refs as copies."""
        target = self.folder("copy")
        await asyncio.to_thread(_copy, source, target)
        return target


def _copy(source: Path, target: Path) -> None:
    shutil.copytree(source / "objects", target / "objects", copy_function=os.link)
    for file in source.glob("refs.db*"):
        shutil.copy2(file, target)


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[Repository]:
    """The embedded default in the folder, local files and SQLite, with its one repository, created if need be."""
    async with Installation(folder, Configuration(), {}) as installation:
        try:
            repository = await installation.repository(REPOSITORY)
        except NotFound:
            repository = await installation.create(REPOSITORY)
        async with repository:
            yield repository


async def timed(work: Awaitable[T]) -> tuple[float, T]:
    """Seconds, and the result."""
    started = time.perf_counter()
    result = await work
    return time.perf_counter() - started, result


def settle() -> None:
    """Let the disk finish what earlier steps left to it, so that it does not count for the next one."""
    os.sync()
