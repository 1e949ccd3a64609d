"""The one append that publishes an import, done once, whatever happens.

1. The unit is stored: a run of all ranges, under a name of its own.
2. The state is saved with the whole append: unit, writer, and the version at which the writer opened the branch.
3. The append is sent, as the first of that writer.
4. The state says that it is done.

Who finds a state with an append sends that same append again. The branch remembers the writer, so it is done once; if
the branch has forgotten the writer since (it remembers the last 64), its fence refuses the append for good. Then, and
only then, nobody can tell whether it was done before, unless the unit is still among the layers: a person has to look.

A refusal that says "not done" is final too: at the garbage floor the unit is made again, and a writer that came too
late because others were faster begins a new life, but only while no answer of this append was lost.
"""

import asyncio
import contextlib
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from lsmfs import paths
from lsmfs.imports.ranges import run_of
from lsmfs.imports.state import ImportState, Publication
from lsmfs.imports.work import Work
from lsmfs.lsm.view import layer_names
from lsmfs.tree.changer import BranchChanger
from refstore.errors import (
    BranchReplaced,
    Conflict,
    Error,
    GenerationStale,
    LayersFull,
    NotFound,
    OutcomeUnknown,
    Unavailable,
    WriterUnknown,
)
from refstore.records import Append, Branch, Retire, TableId, WriterId

if TYPE_CHECKING:
    from lsmfs.repository import Repository

TRIES_MAX = 16  # collections that begin, or crowds of writers that pass, between two steps of one publication
FULL_SECONDS = 1.0  # between two looks at a branch that has no room


class Fate(Enum):
    """What became of an append."""

    DONE = "done"
    NEVER = "never"
    UNKNOWN = "unknown"


@dataclass
class Sent:
    """Of an append: whether one of its answers was lost, so that a copy of it may still be under way."""

    is_lost: bool = False


class Publisher(BranchChanger):
    def __init__(self, repository: "Repository") -> None:
        super().__init__(
            repository.tables,
            repository.commits,
            repository.refs,
            repository.branches,
            repository.clock,
            repository.settings,
        )
        self._policy = repository.policy

    async def publish(self, work: Work) -> Publication:
        """Make an import visible that has no publication yet."""
        for _ in range(TRIES_MAX):
            publication = await self._prepare(work)
            sent = Sent()
            try:
                await self._append(work.state, publication, sent)
                return publication
            except Error as error:
                if not _is_final(error, sent):
                    raise
                with contextlib.suppress(Error):  # if it cannot be saved now, whoever goes on sends the append again
                    await work.save()
                    await self._discard(publication.unit)
                if not isinstance(error, GenerationStale | WriterUnknown):
                    raise
        raise Conflict(f"branch {work.state.branch!r} is too busy to publish import {work.state.id}: try again")

    async def repeat(self, state: ImportState, publication: Publication) -> bool:
        """Send the append that another process may have sent; False if it was not done and never will be."""
        try:
            await self._append(state, publication, Sent())
        except GenerationStale:
            return False  # the branch does not know the writer and has not fenced it, so it was never done
        except WriterUnknown:
            branch = await self._branches.read(state.branch)
            if not _has(branch, publication):
                raise Conflict(
                    f"import {state.id} was interrupted while it was published, and so much was written to branch "
                    f"{state.branch!r} since that nobody can tell whether it was: look with `lsmfs ls`, then "
                    f"`lsmfs import --cancel {state.id}`"
                ) from None
        return True

    async def _prepare(self, work: Work) -> Publication:
        """Steps 1 and 2."""
        await self._policy.check("stage", work.state.branch)  # it may have changed since the import began
        await work.save()  # which also brings all ranges to the generation of now
        branch = await self._branches.read(work.state.branch)
        writer = self._clock.new_id()
        run, facts = run_of(work.output.ranges), self._facts(work.state, branch, writer)
        unit = await self._tables.save_unit(run, work.output.generation, self._clock.new_id(), facts)
        publication = Publication(unit, writer, branch.version)
        await work.save(publication=publication)
        return publication

    def _facts(self, state: ImportState, branch: Branch, writer: str) -> dict[str, str]:
        """The layer's history, as the writer's layers have it."""
        return {
            "lsmfs.repository": self._tables.repository,
            "lsmfs.branch": state.branch,
            "lsmfs.incarnation": state.incarnation,
            "lsmfs.writer": writer,
            "lsmfs.number": "1",
            "lsmfs.seen": str(branch.version),
            "lsmfs.expected_view": "",
            "lsmfs.made_us": str(self._clock.now_us()),
            "lsmfs.import": state.id,
        }

    async def _append(self, state: ImportState, publication: Publication, sent: "Sent") -> None:
        """Step 3. While the branch is full, the compactor has until the deadline."""
        change = Append(
            incarnation=state.incarnation,
            actor=f"import {state.id}",
            writer=WriterId(publication.writer),
            seq=1,
            opened_at=publication.opened_at,
            table=TableId(publication.unit),
            generation=paths.generation_of(publication.unit),
        )

        async def send() -> Branch:
            try:
                return await self._refs.change(self._tables.repository, state.branch, change)
            except OutcomeUnknown:
                sent.is_lost = True
                raise

        deadline = self._clock.monotonic() + self._settings.writer.deadline_seconds
        while True:
            try:
                self._branches.observe(await self.retrying(send))
                return
            except LayersFull:
                if self._clock.monotonic() > deadline:
                    raise
            await asyncio.sleep(FULL_SECONDS * (0.5 + self._clock.jitter() / 2))

    async def withdraw(self, state: ImportState, publication: Publication) -> Fate:
        """Make sure that an append is never done, if it was not."""
        try:
            branch = await self._branches.read(state.branch)
            if branch.incarnation == state.incarnation and not _has(branch, publication):
                if branch.fence > publication.opened_at:
                    return Fate.UNKNOWN
                retire = Retire(incarnation=state.incarnation, writer=WriterId(publication.writer), seq=1)
                branch = await self.change(state.branch, retire)
        except (NotFound, BranchReplaced):
            return Fate.NEVER  # with the branch went all that was on it
        if branch.incarnation == state.incarnation and _has(branch, publication):
            return Fate.DONE
        await self._discard(publication.unit)
        return Fate.NEVER

    async def _discard(self, unit: str) -> None:
        """Remove a unit that was never appended: recovery must not find it."""
        with contextlib.suppress(Error):
            await self._tables.store.delete(paths.layer_path(self._tables.repository, unit))


def _is_final(error: Error, sent: Sent) -> bool:
    """Whether the append was not done and never will be. What is below the garbage floor stays below it; any other
    refusal counts only if no copy of the append can be under way."""
    return isinstance(error, GenerationStale) or not (sent.is_lost or isinstance(error, Unavailable))


def _has(branch: Branch, publication: Publication) -> bool:
    """Whether the branch shows that the append was done."""
    return WriterId(publication.writer) in branch.writers or publication.unit in layer_names(branch)
