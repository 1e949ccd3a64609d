"""One writer, compactor or committer: a process that is at work until SIGTERM or SIGKILL.

It ends by itself only if something is wrong, and then with a traceback in its output. The errors that are documented
for servers that do not answer (`Unavailable`, `OutcomeUnknown`) and for lost races (`Conflict`) are part of its life:
they are noted in the ledger, and it goes on.
"""

import asyncio
import contextlib
import ctypes
import faulthandler
import os
import random
import signal
import sys
import warnings
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from compactor.daemon import Daemon
from compactor.planner import Triggers
from lsmfs.lsm import records
from lsmfs.lsm.writer import Writer
from lsmfs.model import Entry
from lsmfs.repository import Repository
from refstore.errors import Conflict, NoChanges, Unavailable
from refstore.store import ABSENT
from tests.chaos.lake import BRANCH, entry_of, got, opened
from tests.chaos.ledger import Changes, CommitDone, Intent, LedgerFile, sizes

PUTTERS, KEYS_EACH = 16, 5  # tasks of a writer that put and delete, and the keys that each has for itself
STAGERS, GROUPS_EACH = 2, 3  # tasks that stage units, and the groups of keys that each has
GROUP_SIZES = (8, 24)  # one below `unit_rows_max`, one above it: a table and a run
PAUSE_SECONDS_MAX = 0.03  # of a task between two operations: seven processes share two cores
READ_SHARE = 0.1  # of the puts and deletes that are read back at once
SESSION_SECONDS_MAX = 1.0  # of a writer before it is closed and another opened: more than the branch remembers
COMMIT_SECONDS_MAX = 0.8  # between two commits: compactors shall have their turn too
LIFE_SECONDS_MAX = 180.0  # a worker that hangs shows where, and ends
PR_SET_PDEATHSIG = 1  # <sys/prctl.h>

Role = Callable[[Repository, LedgerFile, asyncio.Event], Awaitable[None]]


async def write(repository: Repository, ledger: LedgerFile, stop: asyncio.Event) -> None:
    """One writer after the other, each shared by many tasks."""
    while not stop.is_set():
        over = asyncio.Event()
        async with repository.writer(BRANCH, actor=ledger.worker) as writer, asyncio.TaskGroup() as tasks:
            ledger.begin()
            for task in range(PUTTERS):
                tasks.create_task(_put_and_delete(repository, writer, ledger, over, task))
            for task in range(STAGERS):
                tasks.create_task(_stage_units(writer, ledger, over, task))
            tasks.create_task(_claim_keys(writer, ledger, over))
            await _pause(SESSION_SECONDS_MAX)
            over.set()


async def compact(repository: Repository, ledger: LedgerFile, stop: asyncio.Event) -> None:
    """The daemon as it is, only more eager."""
    ledger.begin()
    await Daemon([repository], Triggers(tables_min=4, age_seconds=1.0, tables_max=32), interval_seconds=0.1).run(stop)


async def commit(repository: Repository, ledger: LedgerFile, stop: asyncio.Event) -> None:
    """Commit again and again; an acknowledged commit is noted with what the ledgers said before and after it."""
    ledger.begin()
    while not stop.is_set():
        before = sizes(ledger.folder)
        with contextlib.suppress(NoChanges, Conflict, Unavailable):
            done = await repository.commit(BRANCH, f"by {ledger.worker}", committer=ledger.worker)
            ledger.write(CommitDone(done.id, before, sizes(ledger.folder)))
        await _pause(COMMIT_SECONDS_MAX)


async def _put_and_delete(
    repository: Repository, writer: Writer, ledger: LedgerFile, over: asyncio.Event, task: int
) -> None:
    keys = [f"{key:02}/{ledger.worker}/{task}" for key in range(KEYS_EACH)]  # neighbours are other workers' keys
    while not over.is_set():
        intent = ledger.intend("own", {random.choice(keys): random.random() < 0.75})
        done = await _attempt(ledger, intent, _send(writer, intent.changes))
        if done and random.random() < READ_SHARE:
            await _read_back(repository, intent.changes)
        await _pause()


async def _stage_units(writer: Writer, ledger: LedgerFile, over: asyncio.Event, task: int) -> None:
    """Units over whole groups of keys, with tombstones in them."""
    while not over.is_set():
        group = random.randrange(GROUPS_EACH)
        size = GROUP_SIZES[(group + task) % len(GROUP_SIZES)]
        keys = [f"{key:02}/{ledger.worker}/unit-{task}-{group}" for key in range(size)]
        intent = ledger.intend("own", {key: random.random() < 0.8 for key in keys})
        rows = records.from_entries([(key.encode(), _entry(value)) for key, value in sorted(intent.changes.items())])
        await _attempt(ledger, intent, writer.stage(rows))
        await _pause(PAUSE_SECONDS_MAX * 4)


async def _claim_keys(writer: Writer, ledger: LedgerFile, over: asyncio.Event) -> None:
    """Put-if-absent to keys that all writers want, in the same order: who is behind is refused until it has caught up,
    so that they race for the same ones."""
    while not over.is_set():
        intent = ledger.intend("absent", {f"{ledger.claims % 100:02}/shared/{ledger.claims}": True})
        ((key, value),) = intent.changes.items()
        await _attempt(ledger, intent, writer.put(key, entry_of(str(value)), expected=ABSENT))
        await _pause()


async def _attempt(ledger: LedgerFile, intent: Intent, sending: Awaitable[None]) -> bool:
    """Send what is intended and note the answer; whether it was acknowledged. Only an exact `Conflict` is about the
    key's content."""
    try:
        await sending
    except Conflict as error:
        ledger.answered(intent, "refused" if type(error) is Conflict else "unknown", repr(error))
    except Unavailable as error:
        ledger.answered(intent, "unknown", repr(error))
    else:
        ledger.answered(intent, "acknowledged")
        return True
    return False


async def _read_back(repository: Repository, changes: Changes) -> None:
    """A client reads its own writes."""
    with contextlib.suppress(Unavailable):
        shown = await got(repository, changes)
        expected = {key: value for key, value in changes.items() if value is not None}
        assert shown == expected, f"{changes} was acknowledged and is read back as {shown}"


def _send(writer: Writer, changes: Changes) -> Awaitable[None]:
    ((key, value),) = changes.items()
    return writer.delete(key) if value is None else writer.put(key, entry_of(value))


def _entry(value: str | None) -> Entry | None:
    return None if value is None else entry_of(value)


async def _pause(seconds_max: float = PAUSE_SECONDS_MAX) -> None:
    await asyncio.sleep(random.random() * seconds_max)


ROLES: dict[str, Role] = {"writer": write, "compactor": compact, "committer": commit}


def main(role: str, name: str, folder: Path, environment: Mapping[str, str]) -> None:
    """A process's whole life. `folder` is the installation, with ledgers and output in folders of their own."""
    die_with_parent()
    output = os.open(folder / "output" / f"{name}.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.dup2(output, 1)
    os.dup2(output, 2)
    warnings.simplefilter("error")
    faulthandler.dump_traceback_later(LIFE_SECONDS_MAX, exit=True)
    asyncio.run(_live(ROLES[role], name, folder, environment))


def die_with_parent() -> None:
    """From now on the parent's end is this process's end, even while it is stopped (Linux only)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


async def _live(role: Role, name: str, folder: Path, environment: Mapping[str, str]) -> None:
    """Open the repository and work; if a server does not answer when it is opened, open it again."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    with LedgerFile(folder / "ledgers" / f"{name}.ledger") as ledger:
        while not stop.is_set():
            try:
                async with opened(folder, environment) as repository:
                    await role(repository, ledger, stop)
            except Unavailable as error:
                print(f"{name} opens the repository again: {error!r}", flush=True)
                await asyncio.sleep(0.1)
