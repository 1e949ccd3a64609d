"""A reader beside the workers: while they are killed, what it sees is at every moment what the ledgers allow."""

import asyncio
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from lsmfs.repository import Repository
from refstore.errors import Unavailable
from tests.chaos.checker import slots, violations
from tests.chaos.lake import BRANCH, REPOSITORY, got, scanned
from tests.chaos.ledger import Ledger, between, load

PAUSE_SECONDS_MAX = 0.3
GETS_PER_SCAN = 3
SLOTS_READ = 20  # by one round of point reads
READS_MAX = 10_000


@dataclass(slots=True)
class Watch:
    """Reads until `stop`; what was wrong is in `problems`. A read that a dropped connection disturbs is left out."""

    repository: Repository
    ledgers: Path
    problems: list[str] = field(default_factory=list)
    reads: int = 0
    disturbed: int = 0
    version: int = 0

    async def run(self, stop: asyncio.Event) -> None:
        for number in range(READS_MAX):
            if stop.is_set() or self.problems:
                return
            try:
                await (self._check_gets() if number % (GETS_PER_SCAN + 1) else self._check_scan())
                self.reads += 1
            except Unavailable:
                self.disturbed += 1
            await asyncio.sleep(random.random() * PAUSE_SECONDS_MAX)

    async def _check_scan(self) -> None:
        await self._check_version()
        before = load(self.ledgers)
        content = await scanned(self.repository)
        self.problems += violations(between(before, load(self.ledgers)), content)

    async def _check_version(self) -> None:
        version = (await self.repository.refs.read(REPOSITORY, BRANCH)).version
        if version < self.version:
            self.problems.append(f"the branch went back from version {self.version} to {version}")
        self.version = version

    async def _check_gets(self) -> None:
        """Point reads of some slots. Their keys are fixed before the read, all of their writes are known after it."""
        before = load(self.ledgers)
        keys = _some_keys(before)
        content = await got(self.repository, keys)
        seen = between(before, load(self.ledgers))
        self.problems += violations({name: _only(ledger, keys) for name, ledger in seen.items()}, content)


def _some_keys(ledgers: Mapping[str, Ledger]) -> set[str]:
    every = [slot for ledger in ledgers.values() for slot in slots(ledger)]
    return {key for slot in random.sample(every, min(SLOTS_READ, len(every))) for key in slot}


def _only(ledger: Ledger, keys: set[str]) -> Ledger:
    return Ledger(tuple(intent for intent in ledger.intents if keys.issuperset(intent.changes)), ledger.outcomes)
