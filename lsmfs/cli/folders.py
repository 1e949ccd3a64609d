"""Commands about many objects: `ls`, `rm`, `stage`. What they change on a branch changes at once, or not at all."""

import asyncio
from collections import defaultdict
from typing import Annotated

import pyarrow as pa
import typer

from lsmfs.cli import listings, show
from lsmfs.cli.objects import DELIMITER, find_entry
from lsmfs.cli.progress import metered
from lsmfs.cli.session import Session, command
from lsmfs.cli.uri import Uri, check_text, looks_like_uri, parse_uri, parse_version, with_path
from lsmfs.client.verbs import Repository
from lsmfs.lsm import records
from lsmfs.lsm.listing import PAGE_MAX
from lsmfs.model import key_of
from refstore.errors import Invalid, NotFound


async def ls(
    session: Session,
    uri: Annotated[str, typer.Argument(metavar="URI", help="A branch or any revision, or a prefix in it.")],
    recursive: Annotated[bool, typer.Option("--recursive", "-r", help="Every object, not only one level.")] = False,
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=1, help="How many lines at most.")] = None,
    after: Annotated[str, typer.Option("--after", metavar="PATH", help="Begin after this path.")] = "",
) -> None:
    """List what is on a branch or in a commit, in byte order of the path. What follows the branch is a prefix: end it
    with / to look into a folder.

    \b
    lsmfs ls lsmfs://lake/main/sensors/
    lsmfs ls lsmfs://lake/main --recursive --limit 10
    lsmfs ls lsmfs://lake/main~2/sensors/
    """
    name, after = parse_version(uri), check_text(after)
    async with session.version(name) as (_, repository, ref):
        count = await _list(session, repository, name._replace(ref=ref), "" if recursive else DELIMITER, limit, after)
    if not count:
        session.note(f"nothing begins with {show.printable(str(name))}" + (f" after {after}" if after else ""))


async def _list(
    session: Session, repository: Repository, name: Uri, delimiter: str, limit: int | None, after: str
) -> int:
    """Emit the listing page by page; how many lines it had."""
    count, place = 0, after.encode()
    while limit is None or count < limit:
        size = PAGE_MAX if limit is None else min(PAGE_MAX, limit - count)
        page = await repository.list(name.ref, name.path, delimiter, place.decode(), size)
        for key, entry in page.items:
            path = key.decode()
            document = {"prefix": path} if entry is None else show.entry_document(path, entry)
            session.emit(document, show.listing_text(path, entry))
        count += len(page.items)
        if page.after is None:
            break
        place = page.after
    return count


async def rm(
    session: Session,
    uris: Annotated[list[str], typer.Argument(metavar="URI...", help="Objects: lsmfs://repository/branch/path.")],
    recursive: Annotated[bool, typer.Option("--recursive", "-r", help="Also everything below each of them.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="Allow --recursive on a whole branch.")] = False,
) -> None:
    """Remove objects from a branch, on each branch all of them at once or none. Commits keep what they hold.

    \b
    lsmfs rm lsmfs://lake/main/sensors/day.parquet
    lsmfs rm --recursive lsmfs://lake/main/sensors/
    """
    names: dict[Uri, list[str]] = defaultdict(list)
    for text in uris:
        name = parse_uri(text) if recursive else with_path(parse_uri(text))
        if not name.path and not everything:
            raise Invalid(f"{text!r} is a whole branch: to remove everything on it say --all, too")
        names[name._replace(path="")].append(name.path)
    for branch, paths in names.items():
        async with session.branch(branch) as (_, repository, _):
            keys = await (_below if recursive else _existing)(repository, branch, paths)
            with metered(session.err, "removing", len(keys), quiet=session.json) as meter:
                await _remove(repository, branch.ref, keys)
                meter.advance(len(keys))
        document = {"repository": branch.repository, "branch": branch.ref, "removed": len(keys)}
        session.emit(document, f"removed {len(keys)} from {branch.repository}/{branch.ref}")


async def _existing(repository: Repository, branch: Uri, paths: list[str]) -> pa.ChunkedArray:
    found = await repository.get_many(branch.ref, paths)
    for path in paths:
        if key_of(path) not in found:
            await _missing(repository, branch._replace(path=path))
    return pa.chunked_array([pa.array(sorted(found), pa.binary()).cast(pa.string())])


async def _missing(repository: Repository, name: Uri) -> None:
    try:
        await find_entry(repository, name)
    except NotFound as error:
        raise NotFound(f"{error}; nothing was removed (--recursive removes what is below a path)") from None


async def _below(repository: Repository, branch: Uri, paths: list[str]) -> pa.ChunkedArray:
    """The keys at the paths and below them: `logs` means logs and logs/..., and not logs-2024/..."""
    chunks: list[pa.Array] = []
    for path in paths:
        exact = path.rstrip(DELIMITER)
        there = list(await repository.get_many(branch.ref, [exact])) if exact == path and exact else []
        found = [pa.array(there, pa.binary()).cast(pa.string())] if there else []
        async for rows in repository.scan(branch.ref, exact + DELIMITER if exact else ""):
            found += rows["key"].chunks
        if not found:
            raise NotFound(f"nothing is at or below {branch._replace(path=path)}: `lsmfs ls` shows what is there")
        chunks += found
    keys = pa.chunked_array(chunks, pa.string())
    return keys if len(paths) == 1 else keys.unique()


async def _remove(repository: Repository, branch: str, keys: pa.ChunkedArray) -> None:
    kinds = pa.repeat(pa.scalar(records.TOMBSTONE, pa.uint8()), len(keys))
    async with repository.writer(branch) as writer:
        await writer.stage(pa.table({"key": keys, "kind": kinds}))


async def stage(
    session: Session,
    listing: Annotated[str, typer.Argument(metavar="LISTING", help="A .parquet, .csv, .ndjson or .jsonl file.")],
    uri: Annotated[
        str, typer.Argument(metavar="URI", help="The branch, or a folder on it that goes before every key.")
    ],
) -> None:
    """Stage the objects of a listing as one atomic unit: all of them appear at once, and no bytes are copied.

    Columns: key (or path), address, size_bytes (or size); if you like etag, mtime, content_type, metadata (JSON), kind
    (put or tombstone), offset. An address is a URL, or a name in the installation's own store.

    \b
    lsmfs stage inventory.parquet lsmfs://lake/main/raw
    """
    if looks_like_uri(listing) and not looks_like_uri(uri):
        raise Invalid(f"the listing comes first: lsmfs stage {uri} {listing}")
    name = parse_uri(uri)
    async with session.branch(name) as (_, repository, _):
        with metered(session.err, f"reading {listing}", quiet=session.json) as meter:
            rows = await asyncio.to_thread(listings.read, listing, name.path, meter.advance)
            meter.describe(f"staging {len(rows)} entries", len(rows))
            async with repository.writer(name.ref) as writer:
                await writer.stage(rows)
            meter.advance(len(rows))
    document = {"repository": name.repository, "branch": name.ref, "prefix": name.path, "staged": len(rows)}
    session.emit(document, f"staged {len(rows)} entries on {name.repository}/{name.ref} as one unit")


def add_to(app: typer.Typer) -> None:
    command(app, "ls")(ls)
    command(app, "rm")(rm)
    command(app, "stage")(stage)
