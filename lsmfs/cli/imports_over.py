"""The command `import` over a server: it reads a bucket or a folder of its own; a manifest is read here and staged."""

import asyncio
import os

from lsmfs.cli import listings
from lsmfs.cli.progress import metered
from lsmfs.cli.session import Session
from lsmfs.cli.uri import Uri
from lsmfs.client.verbs import Repository
from refstore.errors import Invalid, NoChanges, NotFound


async def import_over(session: Session, text: str, name: Uri, words: str | None) -> None:
    """`words`: the message of the commit, if one is wanted."""
    async with session.branch(name) as (_, repository, _):
        if "://" in text:
            objects, commit = await _from_place(session, repository, text, name, words)
        elif os.path.isfile(text):
            objects, commit = await _from_manifest(session, repository, text, name, words)
        elif os.path.exists(text):
            raise Invalid(
                f"{text!r} is a folder here, and the server is elsewhere: say file:///FOLDER for one of its own"
            )
        else:
            raise NotFound(f"{text} does not exist: give a folder, a bucket's address or a manifest")
    document = {"source": text, "repository": name.repository, "branch": name.ref, "prefix": name.path}
    told = f"imported {objects:,} objects on {name.short} as one unit"
    done = f"{told}, committed as {commit}" if commit else told
    session.emit({**document, "objects": objects, "commit": commit}, done)


async def _from_place(
    session: Session, repository: Repository, url: str, name: Uri, words: str | None
) -> tuple[int, str | None]:
    from lsmfs.client.imports import import_objects
    from lsmfs.client.repository import RemoteRepository

    if words is None:
        raise Invalid("a server commits what it imports: say --commit, or -m MESSAGE")
    assert isinstance(repository, RemoteRepository)
    last = 0
    with metered(session.err, "importing", quiet=session.json) as meter:

        def tell(objects: int) -> None:
            nonlocal last
            meter.advance(objects - last)
            last = objects

        return await import_objects(repository, url, name.ref, name.path, words or f"Import {url}", tell=tell)


async def _from_manifest(
    session: Session, repository: Repository, file: str, name: Uri, words: str | None
) -> tuple[int, str | None]:
    with metered(session.err, f"reading {file}", quiet=session.json) as meter:
        rows = await asyncio.to_thread(listings.read, file, name.path, meter.advance)
    async with repository.writer(name.ref) as writer:
        await writer.stage(rows)
    if words is None:
        return len(rows), None
    try:
        return len(rows), (await repository.commit(name.ref, words or f"Import {file}")).id
    except NoChanges:
        return len(rows), None  # what was imported is what the last commit has
