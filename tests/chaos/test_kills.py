"""Writers, compactors and committers as real processes on real stores, killed with SIGKILL at random.

Nothing acknowledged is lost, no unit is shown by half, no deleted key comes back, one put-if-absent wins, every
acknowledged commit holds what it must, and the journal tells it all. `checker` has the rules, `test_checker` shows
that they catch what they are for.
"""

import asyncio
import os
import random
import signal
import socket
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from lsmfs.clock import SystemClock
from lsmfs.installation import Configuration
from tests.aio import aio
from tests.chaos.checker import expect_none
from tests.chaos.fleet import Fleet
from tests.chaos.lake import CACHE_BYTES_MAX, create, opened, opened_without_cache
from tests.chaos.verdict import judge
from tests.chaos.watch import Watch
from tests.servers.process import ServerProcess
from tests.servers.redis import redis_server
from tests.servers.seaweedfs import shared_s3

CREW = {"writer": 3, "compactor": 2, "committer": 2}
KILL_SECONDS_MAX = 0.6  # between two kills; 0.3 on average
PAUSED_SECONDS_MAX = 1.0  # of a process that is stopped and goes on: a zombie that finds the world changed
PILE_UP_SECONDS = 0.1  # a writer sends an append every twentieth of a second or so
RUN_SECONDS_MAX = 120.0  # on a machine that is busy with other things; alone it takes half a minute

Disturb = Callable[[], None]


class Chaos(NamedTuple):
    """How much of it: kills in all, of each role at least, and what else is done every so many kills."""

    kills: int
    kills_each: int
    pause_every: int
    disturb_every: int = 0
    disturbs: tuple[Disturb, ...] = ()


@aio
async def run_chaos(folder: Path, configuration: Configuration, environment: Mapping[str, str], chaos: Chaos) -> None:
    await create(folder, configuration, environment)
    with Fleet(folder, environment, CREW) as fleet:
        async with opened(folder, environment) as repository:
            watch, stop = Watch(repository, folder / "ledgers"), asyncio.Event()
            watching = asyncio.ensure_future(watch.run(stop))
            try:
                await asyncio.wait_for(_kill_at_random(fleet, watch, chaos), RUN_SECONDS_MAX)
            finally:
                stop.set()
                await watching
        fleet.stop()
    async with opened_without_cache(folder, environment) as repository:
        counts = await judge(repository, folder / "ledgers")
    _check_that_it_was_chaos(fleet, watch, counts)


async def _kill_at_random(fleet: Fleet, watch: Watch, chaos: Chaos) -> None:
    kills = 0
    while kills < chaos.kills or min(fleet.kills.values()) < chaos.kills_each:
        await asyncio.sleep(random.random() * KILL_SECONDS_MAX)
        expect_none(watch.problems)
        fleet.check()
        workers = fleet.at_work()
        if not workers:
            continue
        fleet.kill(random.choice(workers))
        kills += 1
        if kills % chaos.pause_every == 0:
            _pause_one(fleet)
        if chaos.disturbs and kills % chaos.disturb_every == 0:
            chaos.disturbs[kills // chaos.disturb_every % len(chaos.disturbs)]()


def _pause_one(fleet: Fleet) -> None:
    """Stop a process and let it go on later; it may be killed meanwhile."""
    if workers := fleet.at_work():
        worker = random.choice(workers)
        worker.signal(signal.SIGSTOP)
        seconds = random.random() * PAUSED_SECONDS_MAX
        asyncio.get_running_loop().call_later(seconds, worker.signal, signal.SIGCONT)


def _check_that_it_was_chaos(fleet: Fleet, watch: Watch, counts: Counter[str]) -> None:
    """A run in which nothing happened would prove nothing."""
    print(f"\nkills {fleet.kills}, reads {watch.reads} (disturbed {watch.disturbed}), {dict(sorted(counts.items()))}")
    expect_none(watch.problems)
    assert watch.reads > 0
    happened = ("writes", "units", "claims", "commits")
    assert {what: counts[f"acknowledged {what}"] > 0 for what in happened} == dict.fromkeys(happened, True)
    assert counts["refused claims"] > 0
    assert counts["replace events"] > 0


def test_nothing_acknowledged_is_lost_on_local_files_and_sqlite(tmp_path: Path) -> None:
    run_chaos(tmp_path, Configuration(cache_bytes_max=CACHE_BYTES_MAX), {}, Chaos(15, 3, pause_every=5))


@pytest.mark.xdist_group("s3")
def test_nothing_acknowledged_is_lost_on_redis_and_s3(tmp_path: Path) -> None:
    address = shared_s3().below(f"chaos-{SystemClock().new_id()}")
    with redis_server("--appendonly", "yes", "--appendfsync", "always") as server:
        configuration = Configuration(
            store=address.url, refs=f"redis://127.0.0.1:{server.port}/0", cache_bytes_max=CACHE_BYTES_MAX
        )
        disturbs = (lambda: _lose_answers(server), lambda: _lose_answers(server), lambda: _cut_power(server))
        chaos = Chaos(60, 10, pause_every=6, disturb_every=5, disturbs=disturbs)
        run_chaos(tmp_path, configuration, address.environment, chaos)


def _lose_answers(server: ServerProcess) -> None:
    """While Redis stands still requests pile up, and behind them a command that drops all connections. When Redis goes
    on it does them all in one turn, and sends answers only after it: the changes are made, their answers are lost."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=5) as connection:
        connection.sendall(b"PING\r\n")
        connection.recv(100)
        os.kill(server.pid, signal.SIGSTOP)
        try:
            time.sleep(PILE_UP_SECONDS)
            connection.sendall(b"CLIENT KILL TYPE normal\r\n")
        finally:
            os.kill(server.pid, signal.SIGCONT)
        connection.recv(100)


def _cut_power(server: ServerProcess) -> None:
    """Redis itself is killed, and comes back with what its append-only file has."""
    server.kill()
    server.__enter__()
