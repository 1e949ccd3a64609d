"""The command line: `lsmfs`. Each command is a short function over `Repository`; only here is the environment read."""

import sys
from collections.abc import Sequence
from importlib.metadata import version

import typer

from lsmfs.cli import (
    branches,
    diffs,
    folders,
    history,
    imports,
    merges,
    objects,
    repos,
    repositories,
    server,
    services,
    staged,
    tags,
)
from lsmfs.cli.exits import EPILOG, FAILED, INTERRUPTED
from lsmfs.cli.session import (
    WHERE,
    DataOption,
    DebugOption,
    EndpointOption,
    JsonOption,
    KeyOption,
    Session,
    command,
    nearer,
)

app = typer.Typer(
    name="lsmfs",
    help="Version control for data lakes: an LSM engine on your own object store.",
    epilog=f"{WHERE}\n\n{EPILOG}",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def root(
    context: typer.Context,
    data: DataOption = None,
    endpoint: EndpointOption = None,
    access_key_id: KeyOption = None,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    context.obj = nearer(context, data, endpoint, access_key_id, json, debug)


for part in (
    repositories,
    repos,
    objects,
    folders,
    imports,
    branches,
    staged,
    history,
    diffs,
    merges,
    tags,
    services,
    server,
):
    part.add_to(app)


async def print_version(session: Session) -> None:
    """Print the version.

    \b
    lsmfs version
    """
    session.emit({"version": version("lsmfs")}, version("lsmfs"))


command(app, "version")(print_version)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command line; its exit code."""
    try:
        return int(app(arguments, prog_name="lsmfs", standalone_mode=False) or 0)
    except KeyboardInterrupt:
        sys.stderr.write("error: interrupted\n")
        return INTERRUPTED
    except Exception as error:
        tell = getattr(error, "format_message", None)  # what typer raises for a wrong command line
        if tell is None:
            raise
        sys.stderr.write(_told(str(tell()), getattr(error, "ctx", None)))
        return int(getattr(error, "exit_code", FAILED))


def _told(message: str, context: typer.Context | None) -> str:
    """What is wrong with a command line, in one line; where commands were left out, the help that names them."""
    if not message.strip() or message.startswith("Usage:"):  # empty: typer has shown the help
        return message and f"{message}\n"
    where = context.command_path if context is not None else "lsmfs"
    return f"error: {' '.join(message.split())} See `{where} --help`.\n"


__all__ = ["app", "run"]
