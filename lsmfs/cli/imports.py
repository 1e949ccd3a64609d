"""The command `import`: objects that exist already become entries of a branch, and no byte is copied."""

import asyncio
import contextlib
import shlex
from collections.abc import AsyncIterator, Mapping
from typing import Annotated

import typer

from lsmfs.cli import show
from lsmfs.cli.import_progress import told
from lsmfs.cli.imports_over import import_over
from lsmfs.cli.session import Session, command
from lsmfs.cli.suggest import open_repository, read_branch
from lsmfs.cli.uri import Uri, looks_like_uri, parse_repository, parse_uri
from lsmfs.client.local import LocalInstallation
from lsmfs.imports import Imported, Importer, Progress, Skip, Source, count, open_source
from lsmfs.imports.apart import check_apart
from lsmfs.imports.importer import result_of
from lsmfs.imports.manifest import ManifestSource
from lsmfs.imports.publication import Fate
from lsmfs.imports.source import folder_prefix
from lsmfs.imports.state import ImportState, TakenOver, import_id
from lsmfs.installation import Installation
from lsmfs.repository import Repository
from refstore.errors import Error, Invalid, NoChanges, NotFound


async def import_objects(
    session: Session,
    source: Annotated[
        str | None,
        typer.Argument(metavar="SOURCE", help="s3://, gs:// or az:// and a prefix; a folder; or a manifest file."),
    ] = None,
    uri: Annotated[
        str | None, typer.Argument(metavar="URI", help="The branch, or a folder on it that goes before every key.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count what would be imported.")] = False,
    commit: Annotated[bool, typer.Option("--commit", help="Commit the branch afterwards.")] = False,
    message: Annotated[str, typer.Option("--message", "-m", help="Of the commit; implies --commit.")] = "",
    once: Annotated[bool, typer.Option("--once", help="Not again, if the same import has ended before.")] = False,
    resume: Annotated[str, typer.Option("--resume", metavar="ID", help="Go on with an unfinished import.")] = "",
    cancel: Annotated[str, typer.Option("--cancel", metavar="ID", help="Forget an unfinished import.")] = "",
    unfinished: Annotated[bool, typer.Option("--list", help="Show the unfinished imports.")] = False,
) -> None:
    """Import objects that exist already, as one atomic unit: all of them appear at once, and no bytes are copied.

    A source is a bucket's prefix, a local folder (hidden files too, symbolic links not), or a manifest: a .parquet,
    .csv or .ndjson file with columns key (or path), address, size_bytes (or size), and if you like etag, mtime,
    content_type, metadata. What is interrupted goes on where it was when the same command is given again.

    \b
    lsmfs import 's3://bucket/raw?region=eu-west-1' lsmfs://lake/main/raw/
    lsmfs import /data/photos lsmfs://lake/main/photos/ --commit -m "photos of May"
    lsmfs import inventory.parquet lsmfs://lake/main/ --dry-run
    lsmfs import --list
    """
    if sum(map(bool, (resume, cancel, unfinished))) > 1:
        raise Invalid("--resume, --cancel and --list exclude each other: say one of them")
    if (resume or cancel) and source is not None:
        raise Invalid("an unfinished import knows its source and destination: give its id alone")
    words = message if message or commit else None
    if session.server and (resume or cancel or unfinished or dry_run or once):
        raise Invalid("over a server there is no --resume, --cancel, --list, --dry-run and --once: say --data FOLDER")
    if unfinished:
        await _list(session, source)
    elif cancel:
        await _cancel(session, cancel)
    elif resume:
        await _resume(session, resume, words)
    else:
        await _import(session, source, uri, dry_run, words, once)


async def _import(
    session: Session, text: str | None, uri: str | None, dry_run: bool, words: str | None, once: bool
) -> None:
    if text is None or uri is None:
        raise Invalid("say what to import, and where to: lsmfs import SOURCE lsmfs://repository/branch/folder/")
    if looks_like_uri(text):
        raise Invalid(f"the source comes first: lsmfs import {uri} {text}")
    name = parse_uri(uri)
    folder_prefix(name.path)
    if session.server:
        await import_over(session, text, name._replace(path=folder_prefix(name.path)), words)
        return
    async with session.local() as installation, await open_repository(installation, name.repository) as repository:
        await read_branch(repository, name.ref)
        async with _opened(session, installation, text) as source:
            if dry_run:
                await _count(session, source, name)
            else:
                await _run(session, repository, source, name, words, once)


@contextlib.asynccontextmanager
async def _opened(session: Session, installation: Installation, text: str) -> AsyncIterator[Source]:
    source = open_source(text, session.environment, installation.store_url, installation.clock)
    if not isinstance(source, ManifestSource):
        records = [record async for record in installation.records()]
        names = [record.name for record in records]
        for url in {installation.store_url, *map(installation.storage_url, records)}:
            check_apart(source.url, url, str(installation.folder), names)
    async with contextlib.aclosing(source):
        yield source


async def _count(session: Session, source: Source, name: Uri) -> None:
    with told(session, source) as tell:
        counted = await count(source, name.path, lambda objects, size: tell(Progress("counting", objects, size)))
    document = {"source": source.url, "objects": counted.objects, "size_bytes": counted.size_bytes}
    text = f"would import {counted.objects:,} objects, {show.bytes_text(counted.size_bytes)}, nothing is written"
    session.emit({**document, "skipped": _skipped_document(counted.skipped)}, text)
    _tell_skipped(session, counted.skipped)


async def _run(
    session: Session, repository: Repository, source: Source, name: Uri, words: str | None, once: bool
) -> None:
    """Import, and commit if there are words for it; none are as good as some of ours."""
    identity = import_id(repository.name, source.url, name.ref, folder_prefix(name.path))
    async with _hint(session, repository, identity, words):
        if (state := await _unfinished(repository, identity)) is not None:
            session.note(f"going on with import {identity}, which has {state.objects:,} objects")
        with told(session, source) as tell:
            imported = await repository.import_objects(source, name.ref, name.path, tell, once)
    await _end(session, repository, source.url, name, imported, words)


async def _unfinished(repository: Repository, identity: str) -> ImportState | None:
    state = await Importer(repository).states.find(identity)
    return None if state is None or state.is_done else state


@contextlib.asynccontextmanager
async def _hint(session: Session, repository: Repository, identity: str, words: str | None) -> AsyncIterator[None]:
    """What is interrupted says how to go on."""
    try:
        yield
    except TakenOver:
        raise
    except (Error, asyncio.CancelledError):
        with contextlib.suppress(Error):
            if (state := await _unfinished(repository, identity)) is not None:
                session.note(_how_to_go_on(session, state, words))
        raise


def _how_to_go_on(session: Session, state: ImportState, words: str | None) -> str:
    data = f" --data {shlex.quote(str(session.data))}" if session.data else ""
    commit = "" if words is None else f" -m {shlex.quote(words)}" if words else " --commit"
    return (
        f"import {state.id} has stored {state.objects:,} objects, and nothing is visible yet\n"
        f"  to go on:      lsmfs import --resume {state.id}{commit}{data}\n"
        f"  to forget it:  lsmfs import --cancel {state.id}{data}"
    )


async def _commit(repository: Repository, branch: str, message: str) -> str | None:
    try:
        return (await repository.commit(branch, message)).id
    except NoChanges:
        return None  # what was imported is what the last commit has
    except Error as error:
        raise type(error)(f"the import is done and visible, but it could not be committed: {error}") from None


async def _end(
    session: Session, repository: Repository, source: str, name: Uri, imported: Imported, words: str | None
) -> None:
    commit = None if words is None else await _commit(repository, name.ref, words or f"Import {source}")
    document = {
        "id": imported.id,
        "source": source,
        "repository": name.repository,
        "branch": name.ref,
        "prefix": folder_prefix(name.path),
        "objects": imported.objects,
        "size_bytes": imported.size_bytes,
        "skipped": _skipped_document(imported.skipped),
        "resumed": imported.resumed,
        "commit": commit,
    }
    text = f"imported {imported.objects:,} objects, {show.bytes_text(imported.size_bytes)}, on {name.short} as one unit"
    session.emit(document, f"{text}, committed as {commit}" if commit else text)
    _tell_skipped(session, imported.skipped)


def _skipped_document(skipped: Mapping[str, Skip]) -> dict[str, object]:
    return {reason: {"count": skip.count, "example": skip.example} for reason, skip in skipped.items()}


def _tell_skipped(session: Session, skipped: Mapping[str, Skip]) -> None:
    for reason, skip in skipped.items():
        session.warn(f"left out: {skip.count:,} {reason}, such as {show.printable(skip.example)}")


async def _found(installation: LocalInstallation, identity: str) -> tuple[str, ImportState]:
    """The repository of an import, and its state."""
    known = []
    async for name in installation.names():
        async with await open_repository(installation, name) as repository:
            importer = Importer(repository)
            if (state := await importer.states.find(identity)) is not None:
                return name, state
            known += [other.id async for other in importer.unfinished()]
    advice = f"there is {', '.join(known)}" if known else "there is none"
    raise NotFound(f"there is no unfinished import {identity!r}: {advice}")


async def _resume(session: Session, identity: str, words: str | None) -> None:
    """What has ended is not begun again: then the result is told."""
    async with session.local() as installation:
        name, state = await _found(installation, identity)
        target = Uri(name, state.branch, state.prefix)
        async with await open_repository(installation, name) as repository:
            if state.is_done:
                await _end(session, repository, state.source, target, result_of(state), words)
                return
            await read_branch(repository, state.branch)
            async with _opened(session, installation, state.source) as source:
                await _run(session, repository, source, target, words, once=True)


FATES = {
    Fate.NEVER: "cancelled import {}: nothing of it is visible",
    Fate.DONE: "import {} was published before it was cancelled: its objects are visible, and it is forgotten",
    Fate.UNKNOWN: "import {} is forgotten; whether it was published before, nobody can tell: look with `lsmfs ls`",
}


async def _cancel(session: Session, identity: str) -> None:
    async with session.local() as installation:
        name, _ = await _found(installation, identity)
        async with await open_repository(installation, name) as repository:
            fate = await Importer(repository).cancel(identity)
    published = {Fate.DONE: True, Fate.NEVER: False}.get(fate)
    session.emit({"id": identity, "repository": name, "published": published}, FATES[fate].format(identity))


async def _list(session: Session, repository: str | None) -> None:
    wanted = None if repository is None else parse_repository(repository)
    rows = []
    async with session.local() as installation:
        names = [name async for name in installation.names()] if wanted is None else [wanted]
        for name in names:
            async with await open_repository(installation, name) as opened:
                rows += [(name, state) async for state in Importer(opened).unfinished()]
    for name, state in rows:
        session.emit(_state_document(name, state), _state_text(name, state))
    if not rows:
        session.note("no unfinished imports")


def _state_document(name: str, state: ImportState) -> dict[str, object]:
    return {
        "id": state.id,
        "source": state.source,
        "repository": name,
        "branch": state.branch,
        "prefix": state.prefix,
        "objects": state.objects,
        "size_bytes": state.size_bytes,
        "began": show.time_text(state.began_us),
        "saved": show.time_text(state.saved_us),
    }


def _state_text(name: str, state: ImportState) -> str:
    target = Uri(name, state.branch, state.prefix)
    done = f"{state.objects:,} objects, {show.bytes_text(state.size_bytes)}"
    return f"{state.id}  {show.time_text(state.saved_us)}  {done}  {state.source} -> {target}"


def add_to(app: typer.Typer) -> None:
    command(app, "import")(import_objects)
