"""The command `init`: a repository, and the installation that it is in."""

import os
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import typer

from lsmfs.cli.session import Session, command
from lsmfs.cli.uri import looks_like_uri
from lsmfs.installation import (
    BUCKET_REFS,
    FILE,
    Configuration,
    Installation,
    create_installation,
    open_installation,
    read_configuration,
    without_password,
)
from lsmfs.model import check_branch_name, check_repository_name
from lsmfs.objectstore.conditions import honours_conditions
from refstore.errors import AlreadyExists, Invalid, NotFound

StoreOption = Annotated[
    str | None, typer.Option("--store", help="Where objects go: a folder, file://, s3://, gs:// or az:// [in --data].")
]
RefsOption = Annotated[
    str | None,
    typer.Option("--refs", help="Where refs go: sqlite://, redis://, dynamodb://, or the word bucket [in --data]."),
]


async def init(
    session: Session,
    repository: Annotated[
        str, typer.Argument(metavar="REPOSITORY", help="Its name: lower case letters, digits and '-'.")
    ],
    store: StoreOption = None,
    refs: RefsOption = None,
    default_branch: Annotated[str, typer.Option("--default-branch", help="Its first branch.")] = "main",
) -> None:
    """Create a repository, and the installation if there is none. Over a server (--endpoint, or a variable that names
    one) it is a repository alone; an endpoint in a file does not count here.

    \b
    lsmfs init lake
    lsmfs init lake --store s3://my-bucket/lsmfs --refs bucket
    """
    if looks_like_uri(repository) or "/" in repository:
        raise Invalid(f"{repository!r} is no repository name: say `lsmfs init NAME`, without lsmfs:// and branch")
    check_repository_name(repository)
    check_branch_name(default_branch)
    if session.said_server:
        await _create_over(session, repository, default_branch, store or refs)
        return
    is_new = _prepare(session.folder, store, refs)
    try:
        async with open_installation(session.folder, session.environment) as installation:
            if is_new:
                await _check_bucket_refs(installation)
            async with await installation.create(repository, default_branch):
                document = _document(installation, repository, default_branch, is_new)
    except AlreadyExists as error:
        if not is_new:
            raise
        # Another machine's, in stores that are shared: this folder is how it is reached from here.
        raise AlreadyExists(f"{error} in these stores: use it, {session.folder} now refers to them") from None
    except BaseException:
        if is_new:  # so that a corrected --store or --refs meets no half-made installation
            (session.folder / FILE).unlink(missing_ok=True)
        raise
    where = f"lsmfs://{repository}/{default_branch}"
    session.emit(document, f"created repository {repository} in {session.folder}; its branch is {where}")


async def _create_over(session: Session, repository: str, branch: str, stores: str | None) -> None:
    if stores:
        raise Invalid("a server has its stores already: leave --store and --refs out")
    async with session.installation() as installation, await installation.create(repository, branch):
        document = {"repository": repository, "default_branch": branch, "endpoint": session.server}
        where = f"lsmfs://{repository}/{branch}"
        session.emit(document, f"created repository {repository} at {session.server}; its branch is {where}")


def _prepare(folder: Path, store: str | None, refs: str | None) -> bool:
    """Make sure that there is an installation with these stores; whether it is new."""
    wanted = {"store": store if store is None else absolute_url(store), "refs": refs}
    try:
        existing = read_configuration(folder)
    except NotFound:
        usual = Configuration()
        create_installation(folder, Configuration(store=wanted["store"] or usual.store, refs=refs or usual.refs))
        return True
    for name, url in wanted.items():
        has = str(getattr(existing, name))
        if url is not None and url not in (has, has.replace("{folder}", quote(str(folder.absolute())))):
            had, asked = without_password(has), without_password(url)
            raise Invalid(
                f"the installation in {folder} has --{name} {had!r}, not {asked!r}: leave --{name} out, or say another "
                "--data"
            )
    return False


def absolute_url(store: str) -> str:
    """A folder means the same from wherever the next command is run."""
    if "://" in store:
        return store
    if not store:
        raise Invalid("--store is empty: give a folder or a URL, or leave it out")
    return f"file://{quote(os.path.abspath(store))}"


async def _check_bucket_refs(installation: Installation) -> None:
    if installation.refs_url != BUCKET_REFS:
        return
    report = await honours_conditions(installation.store, clock=installation.clock)
    if not report:
        raise Invalid(
            f"{installation.store_url} ignores conditions on writes ({'; '.join(report.problems)}), so it cannot hold "
            "the refs: say --refs redis://..., dynamodb://... or sqlite://..."
        )


def _document(installation: Installation, repository: str, branch: str, is_new: bool) -> dict[str, object]:
    return {
        "repository": repository,
        "default_branch": branch,
        "data": str(installation.folder),
        "store": installation.store_url,
        "refs": without_password(installation.refs_url),
        "installation_created": is_new,
    }


def add_to(app: typer.Typer) -> None:
    command(app, "init")(init)
