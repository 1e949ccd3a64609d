"""Commands about one object: `put`, `append`, `get`, `stat`; and `cat`, of some."""

import os
from collections.abc import AsyncIterator
from typing import Annotated, BinaryIO

import typer

from lsmfs.cli import show
from lsmfs.cli.files import STANDARD, opened, output, pieces_of
from lsmfs.cli.progress import Meter, metered
from lsmfs.cli.session import Session, command
from lsmfs.cli.uri import Uri, check_text, looks_like_uri, parse_object, parse_pairs, parse_uri
from lsmfs.client.verbs import Repository
from lsmfs.model import Entry, key_of
from refstore.errors import Invalid, NotFound
from refstore.store import ABSENT

ObjectArgument = Annotated[str, typer.Argument(metavar="URI", help="The object: lsmfs://repository/revision/path.")]
MetaOption = Annotated[list[str] | None, typer.Option("--meta", metavar="KEY=VALUE", help="May be repeated.")]
DELIMITER = "/"


async def put(
    session: Session,
    file: Annotated[str, typer.Argument(metavar="FILE", help="The file to store; - is the standard input.")],
    uri: Annotated[
        str,
        typer.Argument(metavar="URI", help="Where: lsmfs://repository/branch/path; after a final / the file's name."),
    ],
    content_type: Annotated[str | None, typer.Option("--content-type", help="Its MIME type.")] = None,
    meta: MetaOption = None,
    if_absent: Annotated[bool, typer.Option("--if-absent", help="Only if nothing is there.")] = False,
    if_match: Annotated[str | None, typer.Option("--if-match", metavar="ETAG", help="Only if this is there.")] = None,
) -> None:
    """Store a file as an object on a branch.

    \b
    lsmfs put day.parquet lsmfs://lake/main/sensors/day.parquet
    date | lsmfs put - lsmfs://lake/main/now.txt --content-type text/plain
    """
    target, metadata = _target(file, uri), parse_pairs(meta or [])
    if if_absent and if_match is not None:
        raise Invalid("--if-absent and --if-match exclude each other: say one of them")
    check_text(content_type or "")
    expected = ABSENT if if_absent else if_match
    with opened(file) as (descriptor, size):
        async with session.branch(target) as (_, repository, _):
            with metered(session.err, target.path, size, in_bytes=True, quiet=session.json) as meter:
                body = _passing(descriptor, file, meter)
                entry = await repository.put_object(target.ref, target.path, body, content_type, metadata, expected)
    document = {"uri": str(target), **show.entry_document(target.path, entry)}
    session.emit(document, f"{entry.size_bytes} bytes, etag {entry.etag}, at {show.printable(str(target))}")


def _target(file: str, text: str, verb: str = "put") -> Uri:
    if looks_like_uri(file) and not looks_like_uri(text):
        raise Invalid(f"the file comes first: lsmfs {verb} {text} {file}")
    uri = parse_uri(text)
    if not uri.path or uri.path.endswith(DELIMITER):
        if file == STANDARD:
            raise Invalid(f"{text!r} names no object, and the standard input has no name: say a whole path")
        uri = uri._replace(path=uri.path + os.path.basename(file))
    key_of(uri.path)
    return uri


async def _passing(descriptor: int, file: str, meter: Meter) -> AsyncIterator[bytes]:
    async for piece in pieces_of(descriptor, file):
        meter.advance(len(piece))
        yield piece


async def append(
    session: Session,
    file: Annotated[str, typer.Argument(metavar="FILE", help="What to add; - is the standard input.")],
    uri: Annotated[str, typer.Argument(metavar="URI", help="The object: lsmfs://repository/branch/path.")],
) -> None:
    """Add a file to the end of an object; where there is none, it begins. What is there is neither read nor copied, and
    of any number of writers each adds its own.

    \b
    lsmfs append today.log lsmfs://lake/main/logs/all.log
    date | lsmfs append - lsmfs://lake/main/logs/all.log
    """
    target = _target(file, uri, "append")
    with opened(file) as (descriptor, size):
        async with session.branch(target) as (_, repository, _):
            with metered(session.err, target.path, size, in_bytes=True, quiet=session.json) as meter:
                count = await repository.append_object(target.ref, target.path, _passing(descriptor, file, meter))
    document = {"uri": str(target), "path": target.path, "appended_bytes": count}
    session.emit(document, f"{count} bytes added to {show.printable(str(target))}")


async def get(
    session: Session,
    uri: ObjectArgument,
    to: Annotated[str, typer.Option("--output", "-o", metavar="FILE", help="Where to write it.")] = STANDARD,
) -> None:
    """Read an object, to the standard output or into a file that appears when it is whole.

    \b
    lsmfs get lsmfs://lake/main/sensors/day.parquet -o day.parquet
    lsmfs get lsmfs://lake/v1/sensors/day.parquet
    """
    name = parse_object(uri)
    if looks_like_uri(to):
        raise Invalid(f"--output {to!r} is no file: to copy within lsmfs, get the object and put it")
    if session.json and to == STANDARD:
        raise Invalid("--json needs --output FILE: without it the object itself is the output")
    async with session.version(name) as (_, repository, ref):
        entry = await find_entry(repository, name)
        quiet = session.json or to == STANDARD
        with output(to) as file, metered(session.err, name.path, entry.size_bytes, True, quiet) as meter:
            await _send(repository, name._replace(ref=ref), entry, file, meter)
    if to != STANDARD:
        document = {"uri": str(name), "file": to, **show.entry_document(name.path, entry)}
        session.emit(document, f"{entry.size_bytes} bytes, etag {entry.etag}, in {to}")


async def _send(repository: Repository, name: Uri, entry: Entry, file: BinaryIO, meter: Meter) -> None:
    async for piece in repository.read_object(name.ref, name.path, entry):
        file.write(piece)
        meter.advance(len(piece))


async def cat(
    session: Session,
    uris: Annotated[list[str], typer.Argument(metavar="URI...", help="Objects: lsmfs://repository/revision/path.")],
) -> None:
    """Write objects to the standard output, one after the other.

    \b
    lsmfs cat lsmfs://lake/main/sensors/day.csv | head
    lsmfs cat lsmfs://lake/main/sensors/1.csv lsmfs://lake/main~2/sensors/2.csv
    """
    if session.json:
        raise Invalid("cat has no --json: the objects themselves are the output. `lsmfs stat` describes one")
    for name in [parse_object(uri) for uri in uris]:
        async with session.version(name) as (_, repository, ref):
            entry = await find_entry(repository, name)
            with output(STANDARD) as file, metered(session.err, name.path, quiet=True) as meter:
                await _send(repository, name._replace(ref=ref), entry, file, meter)


async def find_entry(repository: Repository, name: Uri) -> Entry:
    """The entry; `NotFound` tells if there are entries below that name."""
    try:
        return await repository.get(name.ref, name.path)
    except NotFound as error:
        folder = name.path.rstrip(DELIMITER) + DELIMITER
        if (await repository.list(name.ref, folder, limit=1)).items:
            raise NotFound(
                f"{error}, but there are objects below it: `lsmfs ls {name._replace(path=folder)}`"
            ) from None
        raise


async def stat(session: Session, uri: ObjectArgument) -> None:
    """Show what is known of an object.

    \b
    lsmfs stat lsmfs://lake/main/sensors/day.parquet
    lsmfs stat lsmfs://lake/main~2/sensors/day.parquet
    """
    name = parse_object(uri)
    async with session.version(name) as (_, repository, _):
        entry = await find_entry(repository, name)
    session.emit({"uri": str(name), **show.entry_document(name.path, entry)}, show.entry_text(name, entry))


def add_to(app: typer.Typer) -> None:
    command(app, "put")(put)
    command(app, "append")(append)
    command(app, "get")(get)
    command(app, "cat")(cat)
    command(app, "stat")(stat)
