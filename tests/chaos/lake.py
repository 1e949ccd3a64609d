"""The repository that all workers share: how a process opens it, and what entries and reads look like in ledger words.

Every process opens the installation in one folder as a user would: the stores that lsmfs.json names, retried, and a
cache of decoded tables that all processes share and that is too small for all of them.
"""

import contextlib
from collections.abc import AsyncIterator, Iterable, Mapping
from pathlib import Path

from lsmfs.installation import Configuration, create_installation, open_installation
from lsmfs.lsm import records
from lsmfs.lsm.build import Shape
from lsmfs.model import Entry
from lsmfs.repository import Repository
from lsmfs.settings import Settings, WriterSettings
from lsmfs.tree.commits import Commit

REPOSITORY, BRANCH = "lake", "main"
CACHE_BYTES_MAX = 512 * 1024  # some fifty decoded tables: processes sweep what others are adding
SETTINGS = Settings(
    writer=WriterSettings(deadline_seconds=20.0, unit_rows_max=12, flush_bytes=1500, flushes_max=3),
    shape=Shape(rows_mean=32, weight_max=16 * 1024),
    retry_seconds=20.0,
)


async def create(folder: Path, configuration: Configuration, environment: Mapping[str, str]) -> None:
    """A new installation with the repository in it."""
    create_installation(folder, configuration)
    async with open_installation(folder, environment) as installation:
        await (await installation.create(REPOSITORY)).aclose()


@contextlib.asynccontextmanager
async def opened(folder: Path, environment: Mapping[str, str]) -> AsyncIterator[Repository]:
    """The repository, as a process that is new to it opens it."""
    async with (
        open_installation(folder, environment) as installation,
        await installation.repository(REPOSITORY, SETTINGS) as repository,
    ):
        yield repository


@contextlib.asynccontextmanager
async def opened_without_cache(folder: Path, environment: Mapping[str, str]) -> AsyncIterator[Repository]:
    """The same for a client that believes nothing but the stores."""
    async with (
        open_installation(folder, environment) as installation,
        await Repository.open(installation.store, installation.refs, REPOSITORY, settings=SETTINGS) as repository,
    ):
        yield repository


def entry_of(value: str) -> Entry:
    """The entry that stands for a value: every column says it again."""
    address = f"s3://elsewhere/{value}"
    return Entry(address, len(value), value, len(value), 1, f"text/{value}", {"value": value})


def value_of(entry: Entry | None) -> str:
    """The value that an entry stands for; an entry that contradicts itself is nobody's value."""
    return entry.etag if entry is not None and entry == entry_of(entry.etag) else f"damaged: {entry}"


async def scanned(repository: Repository) -> dict[str, str]:
    """All that the branch shows, by one scan."""
    found: dict[str, str] = {}
    async for rows in repository.scan(BRANCH):
        _collect(found, rows["key"].to_pylist(), (records.entry_at(rows, at) for at in range(len(rows))))
    return found


async def got(repository: Repository, keys: Iterable[str]) -> dict[str, str]:
    """What the branch shows of these keys, by point reads at one version."""
    entries = await repository.get_many(BRANCH, keys)
    return {key.decode(): value_of(entry) for key, entry in entries.items()}


async def committed(repository: Repository, commit: Commit) -> dict[str, str]:
    """All that a commit holds, by reading each of its ranges whole."""
    found: dict[str, str] = {}
    for file in (await repository.tables.load_run(commit.metarange)).files:
        rows = await repository.tables.read(file)
        _collect(found, rows["key"].to_pylist(), (records.entry_at(rows, at) for at in range(len(rows))))
    return found


def _collect(found: dict[str, str], keys: list[str], entries: Iterable[Entry | None]) -> None:
    for key, entry in zip(keys, entries, strict=True):
        assert key not in found, f"{key} is shown twice"
        found[key] = value_of(entry)
