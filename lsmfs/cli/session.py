"""One run of a command: its common options, where its output goes, and how it ends.

Every command is an async function whose first argument is the `Session`. `command` gives it the options that all have
(--data, --endpoint, --json, --debug, also accepted before the command's name) and runs it to its end:
- an error of ours is one line on stderr and the exit code of its category; a traceback only with --debug
- Ctrl-C and SIGTERM cancel it, and it closes its stores before it exits
- anything else is a bug, and says so

Where a command works: --endpoint, a server; --data or LSMFS_DATA, that folder; a variable that names an endpoint, that
server; an installation in the default folder, there; an endpoint in a file of the user's, that server. So no file takes
the place of an installation that is there.
"""

import asyncio
import contextlib
import errno
import functools
import inspect
import os
import signal
import sys
import traceback
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
import typer
from rich.console import Console

from lsmfs.cli.exits import FAILED, INTERRUPTED, PIPE_CLOSED, TERMINATED, code_of
from lsmfs.cli.files import STANDARD_INPUT, pieces_of, translated
from lsmfs.cli.suggest import find_version, open_repository, read_branch
from lsmfs.cli.uri import Uri
from lsmfs.client import connect
from lsmfs.client.endpoint import parse_endpoint
from lsmfs.client.local import LocalInstallation
from lsmfs.client.profile import endpoint_in_files, endpoint_of, profile
from lsmfs.client.verbs import Installation, Repository
from lsmfs.installation import FILE, read_configuration
from refstore.errors import Denied, Error, Invalid
from refstore.records import Branch

DATA_DEFAULT = "lsmfs-data"
DATA_VARIABLE = "LSMFS_DATA"

DataOption = Annotated[
    Path | None,
    typer.Option(
        "--data", envvar=DATA_VARIABLE, show_envvar=True, help=f"Folder of the installation [./{DATA_DEFAULT}]."
    ),
]
# Only before the command is the variable read: or it would win over a --data that stands there.
NearDataOption = Annotated[
    Path | None, typer.Option("--data", help=f"Folder of the installation [LSMFS_DATA, or ./{DATA_DEFAULT}].")
]
EndpointOption = Annotated[
    str | None,
    typer.Option(
        "--endpoint",
        metavar="URL",
        help="Work over this server, not on stores [LSMFS_ENDPOINT_URL, LAKECTL_SERVER_ENDPOINT_URL].",
    ),
]
KeyOption = Annotated[
    str | None,
    typer.Option(
        "--access-key-id", metavar="ID", help="Whose secret is meant, of the variables and files that have one."
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON document, or a line of JSON for each item.")]
DebugOption = Annotated[bool, typer.Option("--debug", help="Show tracebacks.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask, also on a terminal.")]

WHERE = "\n".join(
    [
        "\b\nWhere a command works: the first of these that there is.",  # \b: or the lines would be a paragraph
        "  --endpoint URL               a server",
        "  --data FOLDER, LSMFS_DATA    the installation in that folder",
        "  LSMFS_ENDPOINT_URL, LAKECTL_SERVER_ENDPOINT_URL    a server",
        f"  ./{DATA_DEFAULT}                 the installation there, if there is one",
        "  ~/.lsmfs.yaml, ~/.lakectl.yaml    the server at server.endpoint_url; not for init",
        "\b\nWhose key a server is shown: the first that has a secret, of --access-key-id if that is said.",
        "  LSMFS_ACCESS_KEY_ID and LSMFS_SECRET_ACCESS_KEY",
        "  LAKECTL_CREDENTIALS_ACCESS_KEY_ID and LAKECTL_CREDENTIALS_SECRET_ACCESS_KEY",
        "  ~/.lsmfs.yaml, ~/.lakectl.yaml    credentials.access_key_id and secret_access_key, for its own server only",
    ]
).replace("\n\b", "\n\n\b")

T = TypeVar("T")


@dataclass(frozen=True)
class Session:
    """The common options, and what they decide."""

    data: Path | None = None
    json: bool = False
    debug: bool = False
    endpoint: str | None = None
    access_key_id: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    err: Console = field(default_factory=lambda: Console(stderr=True))

    @property
    def folder(self) -> Path:
        return self.data or Path(DATA_DEFAULT)

    @property
    def said_server(self) -> str:
        """The endpoint that this command is for by an option or the environment; empty if by none."""
        if self.endpoint is not None:
            if self.data is not None and str(self.data) != self.environment.get(DATA_VARIABLE):
                raise Invalid("--data and --endpoint exclude each other: say where the command is to work")
            return parse_endpoint(self.endpoint)
        found = "" if self.data is not None else endpoint_of(self.environment)
        return parse_endpoint(found) if found else ""

    @property
    def server(self) -> str:
        """The endpoint of the server that this command works over; empty if it works on stores."""
        if (found := self.said_server) or self.data is not None or (self.folder / FILE).exists():
            return found
        found = endpoint_in_files(self.environment)
        return parse_endpoint(found) if found else ""

    def check_on_stores(self) -> None:
        """`Invalid` if the command, which works on stores alone, is meant for a server."""
        if server := self.said_server:
            raise Invalid(f"this works on stores and not over {server}: say --data FOLDER, where the installation is")

    @contextlib.asynccontextmanager
    async def installation(self) -> AsyncIterator[Installation]:
        """Where the command works."""
        if not (server := self.server):
            async with self.local() as installation:
                yield installation
            return
        who = profile(server, self.access_key_id or "", self.environment)
        async with connect(*who, trust_environment=True) as remote:
            yield remote

    @contextlib.asynccontextmanager
    async def local(self) -> AsyncIterator[LocalInstallation]:
        """The installation in the folder, for what works on stores alone."""
        self.check_on_stores()
        installation = LocalInstallation(self.folder, read_configuration(self.folder), self.environment)
        async with installation:
            yield installation

    @contextlib.asynccontextmanager
    async def repository(self, name: str) -> AsyncIterator[tuple[Installation, Repository]]:
        async with self.installation() as installation, await open_repository(installation, name) as repository:
            yield installation, repository

    @contextlib.asynccontextmanager
    async def branch(self, uri: Uri) -> AsyncIterator[tuple[Installation, Repository, Branch]]:
        """The branch of the URI as it is now: a wrong name is told before any work is done."""
        async with self.repository(uri.repository) as (installation, repository):
            yield installation, repository, await read_branch(repository, uri.ref)

    @contextlib.asynccontextmanager
    async def version(self, uri: Uri) -> AsyncIterator[tuple[Installation, Repository, str]]:
        """What to read for the revision of the URI: the branch, or the one commit that it names now."""
        async with self.repository(uri.repository) as (installation, repository):
            yield installation, repository, await find_version(repository, uri.ref)

    def emit(self, document: object, text: str) -> None:
        """One result: as a line of JSON, or as text for people."""
        if self.json:
            text = msgspec.json.encode(document).decode()
        sys.stdout.write(text + "\n")

    def note(self, text: str) -> None:
        """For people only: stderr, and nothing with --json."""
        if not self.json:
            self.err.print(text, markup=False, highlight=False, soft_wrap=True)

    async def confirm(self, question: str, yes: bool) -> None:
        """Ask before something is lost for good, if somebody is there to be asked; `Denied` if the answer is no."""
        if yes or self.json or not os.isatty(STANDARD_INPUT):
            return
        self.err.print(f"{question} [y/N] ", end="", markup=False, highlight=False, soft_wrap=True)
        async for answer in pieces_of(STANDARD_INPUT, "the terminal"):
            if answer.strip().lower() in (b"y", b"yes"):
                return
            break
        raise Denied("nothing was done: the answer was not yes")

    def warn(self, text: str) -> None:
        sys.stderr.write(f"warning: {text}\n")


Command = Callable[..., Coroutine[Any, Any, int | None]]


def command(app: typer.Typer, name: str) -> Callable[[Command], Command]:
    """Add an async function `(session, ...)` to the app as the command of that name."""

    def add(work: Command) -> Command:
        own = list(inspect.signature(work, eval_str=True).parameters.values())[1:]
        common = [
            _option("data", NearDataOption, None),
            _option("endpoint", EndpointOption, None),
            _option("access_key_id", KeyOption, None),
            _option("json", JsonOption, False),
            _option("debug", DebugOption, False),
        ]
        context = inspect.Parameter("context", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)

        @functools.wraps(work)
        def run(
            context: typer.Context,
            data: Path | None,
            endpoint: str | None,
            access_key_id: str | None,
            json: bool,
            debug: bool,
            **arguments: object,
        ) -> None:
            session = nearer(context, data, endpoint, access_key_id, json, debug)
            raise typer.Exit(_run(session, work(session, **arguments)))

        parameters = [context, *own, *common]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        del run.__wrapped__
        app.command(name)(run)
        return work

    return add


def group(app: typer.Typer, name: str, text: str) -> typer.Typer:
    """Add a group of commands; the common options are also taken between its name and the command's."""
    inner = typer.Typer(name=name, help=text, no_args_is_help=True, rich_markup_mode=None)

    @inner.callback()
    def options(
        context: typer.Context,
        data: NearDataOption = None,
        endpoint: EndpointOption = None,
        access_key_id: KeyOption = None,
        json: JsonOption = False,
        debug: DebugOption = False,
    ) -> None:
        context.obj = nearer(context, data, endpoint, access_key_id, json, debug)

    app.add_typer(inner)
    return inner


def nearer(
    context: typer.Context,
    data: Path | None,
    endpoint: str | None,
    access_key_id: str | None,
    json: bool,
    debug: bool,
) -> Session:
    """The session with options that stand nearer to the command than those before."""
    outer = context.obj if isinstance(context.obj, Session) else Session()
    return Session(
        data or outer.data,
        json or outer.json,
        debug or outer.debug,
        endpoint or outer.endpoint,
        access_key_id or outer.access_key_id,
        os.environ,
    )


def _option(name: str, annotation: Any, default: object) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _run(session: Session, work: Coroutine[Any, Any, int | None]) -> int:
    """Run the work; the exit code."""
    try:
        code = asyncio.run(_terminable(work))
        sys.stdout.flush()
        return code or 0
    except Error as error:
        return _failed(session, str(error), code_of(error))
    except KeyboardInterrupt:
        return _failed(session, "interrupted; what was acknowledged is safe", INTERRUPTED)
    except asyncio.CancelledError:
        return _failed(session, "terminated; what was acknowledged is safe", TERMINATED)
    except BrokenPipeError:
        _drop_output()
        return PIPE_CLOSED
    except Exception as error:
        if isinstance(error, OSError) and (error.filename or error.errno == errno.ENOSPC):
            return _file_failed(session, error)
        return _failed(session, f"a bug in lsmfs, please report it: {type(error).__name__}: {error}", FAILED)


async def _terminable(work: Coroutine[Any, Any, int | None]) -> int | None:
    """The work, cancelled by SIGTERM: so that it removes what is unfinished, as it does after Ctrl-C."""
    task = asyncio.current_task()
    assert task is not None
    with contextlib.suppress(RuntimeError, ValueError):  # not in the main thread: there its owner has the signals
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await work


def _drop_output() -> None:
    """What is still buffered has nowhere to go; without this the interpreter complains while it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _file_failed(session: Session, error: OSError) -> int:
    """Files that we open have names: one without is the standard output, sent to a file on a disk that is full."""
    if not error.filename:
        _drop_output()
    failure = translated(error, str(error.filename or "the output"))
    return _failed(session, str(failure), code_of(failure))


def _failed(session: Session, message: str, code: int) -> int:
    if session.debug:
        traceback.print_exc()
    line = " ".join(message.split())
    sys.stderr.write(f"error: {line}\n")
    return code
