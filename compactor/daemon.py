"""The compactor daemon: looks at every branch of its repositories in turn and compacts what is due.

Flow, until told to stop:
1. Read every branch record of each repository (one scan).
2. Plan; carry out what is due, some at a time.
3. Rest for `interval`, or not at all while there is work.

Stopping is graceful: no new work begins, what is under way ends. Killing it at any moment is safe too: what it has
written and not yet put in place is garbage. A store that cannot be reached is waited for, longer each time.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import structlog

from compactor.executor import compact
from compactor.planner import Plan, Triggers, plan
from lsmfs.repository import Repository
from refstore.errors import Error, Unavailable
from refstore.records import Branch

log = structlog.get_logger("compactor")

AT_ONCE = 2  # merges are bound by the processor: as many as small machines have
BACKOFF_SECONDS_MAX = 30.0
REST_SECONDS_MIN = 0.001  # between rounds without rest too, or a signal would not be heard


@dataclass(slots=True)
class Metrics:
    """Counts since the daemon began."""

    rounds: int = 0
    compactions: int = 0
    races_lost: int = 0
    errors: int = 0
    tables_merged: int = 0
    ranges_written: int = 0
    ranges_kept: int = 0
    seconds_busy: float = 0.0


@dataclass(slots=True)
class Daemon:
    repositories: Sequence[Repository]
    triggers: Triggers = field(default_factory=Triggers)
    interval_seconds: float = 1.0
    metrics: Metrics = field(default_factory=Metrics)
    _first_seen: dict[tuple[str, str, str], float] = field(default_factory=dict)

    async def run(self, stop: asyncio.Event) -> None:
        """Compact until `stop` is set."""
        rest = self.interval_seconds
        log.info("started", repositories=[r.name for r in self.repositories], interval=self.interval_seconds)
        while not stop.is_set():
            try:
                worked = await self.round(stop)
                rest = 0.0 if worked else self.interval_seconds
            except Error as error:
                self.metrics.errors += 1
                rest = min(BACKOFF_SECONDS_MAX, max(rest, self.interval_seconds, REST_SECONDS_MIN) * 2)
                log.warning("failed", error=str(error), retry_in=rest)
            await _wait(stop, max(rest, REST_SECONDS_MIN))
        log.info("stopped", compactions=self.metrics.compactions)

    async def round(self, stop: asyncio.Event | None = None) -> int:
        """Look at every branch once; how many compactions were done. When told to stop, begin no other one."""
        self.metrics.rounds += 1
        due = [(r, p) for r in self.repositories for p in await self._due(r)]
        done, failures = 0, []
        for start in range(0, len(due), AT_ONCE):
            if stop is not None and stop.is_set():
                break
            some = due[start : start + AT_ONCE]
            # All of them end, also if one fails: nothing is left under way when the daemon stops.
            answers = await asyncio.gather(*(self._compact(*work) for work in some), return_exceptions=True)
            failures += [answer for answer in answers if isinstance(answer, BaseException)]
            done += sum(answer is True for answer in answers)
        unexpected = [failure for failure in failures if not isinstance(failure, Unavailable)]
        if unexpected or (failures and not done):  # a store that cannot be reached, and not the trouble of one branch
            raise (unexpected or failures)[0]
        self.metrics.errors += len(failures)
        return done

    async def _due(self, repository: Repository) -> list[Plan]:
        try:
            return await self._plans(repository)
        except Unavailable:
            raise  # the ref store serves all repositories
        except Error as error:  # one bad repository must not stop the others
            self.metrics.errors += 1
            log.error("failed", repository=repository.name, error=str(error))
            return []

    async def _plans(self, repository: Repository) -> list[Plan]:
        now = repository.clock.monotonic()
        seen: dict[tuple[str, str, str], float] = {}
        plans = []
        async for branch in repository.refs.branches(repository.name):
            if branch.l1:
                head = (repository.name, branch.name, branch.l1[0])
                seen[head] = self._first_seen.get(head, now)
                work = self._plan(repository, branch, now - seen[head])
                plans += [work] if work else []
        kept = {head: at for head, at in self._first_seen.items() if head[0] != repository.name}
        self._first_seen = {**kept, **seen}
        return plans

    def _plan(self, repository: Repository, branch: Branch, waited_seconds: float) -> Plan | None:
        try:
            return plan(branch, waited_seconds, self.triggers)
        except Error as error:  # one bad branch must not stop the others
            self.metrics.errors += 1
            log.error("failed", repository=repository.name, branch=branch.name, error=str(error))
            return None

    async def _compact(self, repository: Repository, work: Plan) -> bool:
        where = {"repository": repository.name, "branch": work.branch.name, "reason": work.reason}
        try:
            result = await compact(repository, work)
        except Unavailable as error:
            log.warning("unavailable", **where, error=str(error))
            raise
        except Error as error:  # one bad branch must not stop the others
            self.metrics.errors += 1
            log.error("failed", **where, error=str(error))
            return False
        if result is None:
            self.metrics.races_lost += 1
            log.info("overtaken", **where)
            return False
        self.metrics.compactions += 1
        self.metrics.tables_merged += result.tables
        self.metrics.ranges_written += result.ranges_written
        self.metrics.ranges_kept += result.ranges_kept
        self.metrics.seconds_busy += result.seconds
        log.info("compacted", **where, tables=result.tables, records=result.records, written=result.ranges_written,
                 kept=result.ranges_kept, seconds=round(result.seconds, 3))  # fmt: skip
        return True


async def _wait(stop: asyncio.Event, seconds: float) -> None:
    try:
        await asyncio.wait_for(stop.wait(), seconds)
    except TimeoutError:
        return
