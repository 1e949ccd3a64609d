"""Commands of the server: `run` starts it, `config check` looks at its configuration."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lsmfs.cli.exits import FAILED
from lsmfs.cli.session import Session, command, group
from refstore.errors import Invalid

if TYPE_CHECKING:
    from lsmfs.server.config_file import Loaded

ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", envvar="LSMFS_CONFIG", show_envvar=True, help="YAML file of the configuration."),
]


async def run(
    session: Session,
    config: ConfigOption = None,
    listen: Annotated[
        str | None, typer.Option("--listen", metavar="HOST:PORT", help="Only there; port 0 is a free one.")
    ] = None,
    workers: Annotated[int | None, typer.Option("--workers", min=1, help="Processes that serve requests.")] = None,
    quickstart: Annotated[bool, typer.Option("--quickstart", help="Also create a sample repository.")] = False,
) -> int:
    """Start the server: S3 gateway and REST API on one port, until told to stop by Ctrl-C or SIGTERM.

    \b
    lsmfs run
    lsmfs run --listen 0.0.0.0:8000 --data /var/lib/lsmfs --workers 2
    lsmfs run --config /etc/lsmfs/server.yaml
    """
    if session.endpoint is not None:
        session.check_on_stores()
    loaded = _loaded(session, config, {"listen": listen, "workers": workers})
    from lsmfs.server import logs
    from lsmfs.server.config_stores import prepare
    from lsmfs.server.run import serve

    def tell(urls: list[str], announcement: dict[str, Any] | None) -> None:
        said = announcement or {"text": "", "document": {}}
        session.emit({"listening": urls, **said["document"]}, "\n".join(f"listening on {url}" for url in urls))
        if said["text"] and not session.json:
            sys.stdout.write(said["text"].rstrip("\n") + "\n")
        sys.stdout.flush()

    configuration = prepare(loaded.config, loaded.names_stores)
    with logs.logging(loaded.config.logging):
        return await serve(loaded.config, configuration, tell, quickstart)


async def check(
    session: Session,
    config: ConfigOption = None,
) -> int:
    """Print the effective configuration, with *** for secrets; or the bad key and its line, and exit code 1.

    \b
    lsmfs config check --config /etc/lsmfs/server.yaml
    """
    try:
        loaded = _loaded(session, config, {})
    except Invalid as error:
        session.emit({"error": str(error)}, f"error: {error}")
        return FAILED
    from lsmfs.server.config_file import as_yaml, shown

    session.emit(shown(loaded.config), as_yaml(loaded.config).rstrip("\n"))
    return 0


def _loaded(session: Session, path: Path | None, options: dict[str, object]) -> "Loaded":
    try:
        from lsmfs.server.config_file import load
    except ImportError as error:
        raise Invalid(f"the server needs packages ({error.name}): pip install 'lsmfs[server]'") from None
    given = {key: value for key, value in options.items() if value is not None}
    if session.data is not None:
        given["data"] = str(session.data)
    return load(path, session.environment, given)


def add_to(app: typer.Typer) -> None:
    command(app, "run")(run)
    command(group(app, "config", "The server's configuration."), "check")(check)
