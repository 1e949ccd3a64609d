"""Commands that run something: `compactor`, `doctor`, `bench`, `tour`. The only module that knows the compactor, and it
imports it when it is asked for."""

import asyncio
import contextlib
import dataclasses
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import structlog
import typer

from lsmfs.cli import logs, metrics
from lsmfs.cli.exits import FAILED
from lsmfs.cli.session import Session, command
from lsmfs.cli.suggest import check_repository
from lsmfs.cli.uri import looks_like_uri
from lsmfs.repository import Repository
from lsmfs.server.services import repeating
from refstore.errors import Error, Invalid, NotFound

if TYPE_CHECKING:
    from compactor.daemon import Daemon
    from compactor.watched import Watched

log = structlog.get_logger("compactor")

PREFIX = "lsmfs_compactor"
# Below, a daemon with nothing to do would only spin, and hear no signal while it does.
INTERVAL_SECONDS_MIN = 0.01


async def compactor(
    session: Session,
    repositories: Annotated[
        list[str] | None, typer.Argument(metavar="[REPOSITORY]...", help="Only these [all, also those that come].")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Do what is due now, then end.")] = False,
    interval: Annotated[
        float, typer.Option("--interval", min=INTERVAL_SECONDS_MIN, help="Seconds between two looks.")
    ] = 1.0,
    tables_min: Annotated[int, typer.Option("--tables-min", min=1, help="Tables in l1 that make it due.")] = 8,
    bytes_min: Annotated[int, typer.Option("--bytes-min", min=1, help="Bytes in l1 that make it due.")] = 16 << 20,
    age: Annotated[float, typer.Option("--age", min=0, help="Seconds seen waiting that make it due.")] = 60.0,
    metrics_file: Annotated[
        Path | None, typer.Option("--metrics-file", help="Write Prometheus metrics there at each interval.")
    ] = None,
    metrics_port: Annotated[
        int | None, typer.Option("--metrics-port", min=0, max=65535, help="Serve them on this port of 127.0.0.1.")
    ] = None,
) -> int:
    """Merge the small tables that writers leave, until told to stop by Ctrl-C or SIGTERM. Run one, or several.

    \b
    lsmfs compactor
    lsmfs compactor lake --once --age 0
    """
    from compactor.daemon import Daemon
    from compactor.planner import Triggers
    from compactor.watched import Watched

    for name in repositories or []:
        if looks_like_uri(name) or "/" in name:
            raise Invalid(f"{name!r} is no repository name: say `lsmfs compactor NAME`, without lsmfs:// and branch")
    triggers = Triggers(tables_min=tables_min, bytes_min=bytes_min, age_seconds=age)
    async with session.local() as installation:
        for name in repositories or []:
            await check_repository(installation, name)
        watched = Watched(installation, repositories or [])
        async with contextlib.aclosing(watched):
            daemon = Daemon(await watched.refresh(), triggers, interval)
            with logs.logging(pretty=sys.stderr.isatty() and not session.json):
                await _run(daemon, watched, once, metrics_file, metrics_port)
    counts = dataclasses.asdict(daemon.metrics)
    session.emit(counts, f"{daemon.metrics.compactions} compactions, {daemon.metrics.errors} errors")
    return FAILED if once and daemon.metrics.errors else 0


async def _run(daemon: "Daemon", watched: "Watched", once: bool, file: Path | None, port: int | None) -> None:
    stop = _stop_on_signals()

    def snapshot() -> str:
        return metrics.text_of(PREFIX, daemon.metrics, {"repositories": len(daemon.repositories)})

    async def refresh() -> None:
        daemon.repositories = await watched.refresh()

    async def write() -> None:
        if file is not None:
            metrics.write(str(file), snapshot())

    async with contextlib.AsyncExitStack() as stack:
        await write()  # now, so that a wrong name is told and not only logged
        stack.push_async_callback(write)
        if port is not None:
            bound = await stack.enter_async_context(metrics.served(port, snapshot))
            log.info("metrics", address=f"http://{metrics.HOST}:{bound}/metrics")
        for work in (refresh, write):
            await stack.enter_async_context(repeating(daemon.interval_seconds, work))
        if once:
            while not stop.is_set() and await daemon.round():
                pass
        else:
            await daemon.run(stop)


def _stop_on_signals() -> asyncio.Event:
    """Set by the first SIGINT or SIGTERM. The second ends the process at once: whatever is unfinished is garbage."""
    stop = asyncio.Event()

    def heard(number: signal.Signals) -> None:
        if stop.is_set():
            os._exit(128 + number)
        stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(RuntimeError, ValueError):  # not in the main thread: its owner has the signals
            loop.add_signal_handler(number, heard, number)
    return stop


async def compact_all(repository: Repository, branch: str) -> int:
    """Merge all of l1, however little it is; how many compactions that took."""
    from compactor.executor import compact
    from compactor.planner import Triggers, plan

    count = 0
    while work := plan(await repository.branches.read(branch), 0.0, Triggers(tables_min=1)):
        count += 1 if await compact(repository, work) else 0
    return count


async def doctor(session: Session) -> int:
    """Check that the stores keep what lsmfs needs of them. Exit code 1 if one does not.

    \b
    lsmfs doctor
    """
    from lsmfs.cli import doctor as checks

    findings = []
    session.check_on_stores()
    try:
        async with session.local() as installation:
            async for finding in checks.examine(installation):
                findings.append(finding)
                if not session.json:
                    session.emit({}, f"{finding.level:4}  {finding.what}: {finding.words}")
    except NotFound:
        raise
    except Error as error:
        findings.append(checks.Finding("fail", "installation", str(error)))
        if not session.json:
            session.emit({}, f"fail  installation: {error}")
    if session.json:
        session.emit([finding._asdict() for finding in findings], "")
    return FAILED if any(finding.level == "fail" for finding in findings) else 0


async def bench(
    session: Session,
    entries: Annotated[int, typer.Option("--entries", min=1, help="How many entries to write.")] = 20_000,
) -> None:
    """Measure this installation, each verb beside the bare stores below it, in a repository that is removed after.

    \b
    lsmfs bench --entries 50000
    """
    from lsmfs.cli import bench as benchmark

    async with session.local() as installation:
        measures = await benchmark.measure(installation, entries, session.err, session.json)
    session.emit([benchmark.document(each) for each in measures], benchmark.text(measures))


async def tour(
    session: Session,
    entries: Annotated[int, typer.Option("--entries", min=100, help="How many entries to write.")] = 100_000,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the temporary folder.")] = False,
) -> None:
    """A guided tour: write, compact, commit, read and delete, on local files in a temporary folder (or in --data).

    \b
    lsmfs tour
    """
    from lsmfs.cli import tour as guide

    if session.endpoint is not None:
        session.check_on_stores()
    with guide.folder(session.data, keep) as (place, is_kept):
        steps = await guide.walk(session, place, entries, compact_all)
        document = {"folder": str(place) if is_kept else None, "steps": [dataclasses.asdict(step) for step in steps]}
        session.emit(document, guide.summary(steps, place if is_kept else None))


def add_to(app: typer.Typer) -> None:
    command(app, "compactor")(compactor)
    command(app, "doctor")(doctor)
    command(app, "bench")(bench)
    command(app, "tour")(tour)
