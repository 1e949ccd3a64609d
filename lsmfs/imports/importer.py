"""The importer: what a source has becomes entries of a branch, as one unit, and no byte is copied.

Flow:
1. Begin: the state of an earlier try of the same import is taken over, or a new one saved.
2. Read: batches of the source become ranges, in the object store and in order, while it is read. Memory is bounded.
   If keys come out of order, they are sorted in spills and merged (`sorting`).
3. Save: every few seconds the state says what is stored. It is where an import goes on after a crash or Ctrl-C.
4. Publish: one append makes all of it visible at once; nothing is before (`publication`).

If a garbage collector begins meanwhile, what the import has stored is of an older generation and would be refused. It
is then stored anew, at the next save; if something of it is gone already, the import begins again by itself.
"""

import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from lsmfs.imports.columns import Repeated
from lsmfs.imports.publication import Fate, Publisher
from lsmfs.imports.ranges import RangeGone
from lsmfs.imports.source import Skip, Source, folder_prefix
from lsmfs.imports.state import ImportState, Publication, States, found, import_id
from lsmfs.imports.work import Progress, Tell, Work
from refstore.errors import BranchReplaced, Conflict, Error, Invalid
from refstore.store import ABSENT

if TYPE_CHECKING:
    from lsmfs.repository import Repository

BEGINNINGS_MAX = 3  # an import that loses what it stored to that many collections is slower than they are


class Imported(NamedTuple):
    """What was imported; `resumed` if an earlier try had begun it."""

    id: str
    objects: int
    size_bytes: int
    skipped: Mapping[str, Skip]
    unit: str
    resumed: bool


def _silent(progress: Progress) -> None:
    return


class Importer(Publisher):
    """The imports of one repository."""

    def __init__(self, repository: "Repository") -> None:
        super().__init__(repository)
        self.states = States(repository.refs, repository.name, repository.clock, self.retrying)

    async def unfinished(self) -> AsyncIterator[ImportState]:
        """Imports that have begun and not ended."""
        async for state in self.states.all():
            if not state.is_done:
                yield state

    async def find(self, identity: str) -> ImportState:
        """The unfinished import of that id; `NotFound`."""
        return found(await self.states.find(identity), identity)

    async def run(
        self, source: Source, branch: str, prefix: str = "", tell: Tell | None = None, once: bool = False
    ) -> Imported:
        """Import the source, or go on with it where an earlier try ended. With `once`, if the same import has ended
        before, it is not made again: its result is the answer."""
        state, resumed = await self._begin(source, branch, folder_prefix(prefix), once)
        if state.publication is not None:
            if state.is_done or await self.repeat(state, state.publication):
                return await self._end(state, state.publication, resumed)
            state = await self.states.swap(state, msgspec.structs.replace(state, publication=None))
        for _ in range(BEGINNINGS_MAX):
            work = await Work.begin(
                self.states, self._tables, self._branches, self._clock, self._settings, state, source
            )
            try:
                await self._read(work, source, tell or _silent)
                publication = await self.publish(work)
                return await self._end(work.state, publication, resumed)
            except RangeGone:
                state = await self._again(work.state, source)
            except Invalid as error:
                with contextlib.suppress(Error):  # it would fail again
                    await self.states.remove(work.state)
                raise Invalid(f"{source.url}: {error}") if isinstance(error, Repeated) else error from None
        raise Conflict(
            f"import {state.id}: garbage collections took what it had stored, {BEGINNINGS_MAX} times: try again later"
        )

    async def cancel(self, identity: str) -> Fate:
        """Forget an import: nothing of it will be visible, unless it was published already, which the answer says."""
        state = await self.find(identity)
        cancelled = msgspec.structs.replace(state, owner=self._clock.new_id(), is_cancelled=True)
        return await self._end_cancelled(await self.states.swap(state, cancelled))

    async def _begin(self, source: Source, branch: str, prefix: str, once: bool) -> tuple[ImportState, bool]:
        """The state to go on with, which is now this process's; and whether an earlier try had begun it."""
        record = await self._branches.read(branch)
        identity = import_id(self._tables.repository, source.url, branch, prefix)
        there = await self.states.find(identity)
        if there is not None and there.is_cancelled:
            await self._end_cancelled(there)
            there = None
        if there is not None and there.is_done and once and there.incarnation == record.incarnation:
            return there, True
        if there is None or there.is_done or there.publication is None:
            await self._policy.check("stage", branch)
        if there is None or there.is_done or not there.is_read:
            await source.check()
        fresh = self._fresh(identity, source, branch, record.incarnation, prefix)
        if there is None:
            return await self.states.swap(ABSENT, fresh), False
        if there.is_done:
            return await self._replaced(there, fresh), False
        taken = await self.states.swap(there, msgspec.structs.replace(there, owner=fresh.owner))
        if taken.incarnation == record.incarnation and (taken.is_read or _goes_on(taken, source)):
            return taken, True
        if taken.publication is not None:
            raise BranchReplaced(
                f"branch {branch!r} was deleted and created again while import {identity} was published: "
                f"`lsmfs import --cancel {identity}`, then import again"
            )
        return await self._replaced(taken, fresh), False

    def _fresh(self, identity: str, source: Source, branch: str, incarnation: str, prefix: str) -> ImportState:
        now = self._clock.now_us()
        return ImportState(
            id=identity,
            life=self._clock.new_id(),
            source=source.url,
            mark=source.mark,
            branch=branch,
            incarnation=incarnation,
            prefix=prefix,
            owner=self._clock.new_id(),
            began_us=now,
            saved_us=now,
        )

    async def _again(self, state: ImportState, source: Source) -> ImportState:
        """A new beginning of the same import."""
        await source.check()
        fresh = self._fresh(state.id, source, state.branch, state.incarnation, state.prefix)
        return await self._replaced(state, fresh)

    async def _replaced(self, state: ImportState, fresh: ImportState) -> ImportState:
        fresh = await self.states.swap(state, fresh)
        await self.states.forget(state)
        return fresh

    async def _read(self, work: Work, source: Source, tell: Tell) -> None:
        async with work.saved_if_interrupted():
            if not work.state.is_read:
                async for batch in source.batches(work.state.prefix, work.place()):
                    tell(await work.take(batch))
                await work.end_reading()
            async for progress in work.merge():
                tell(progress)
        if not work.output.ranges:
            raise Invalid(f"{source.url} has nothing that can be imported{_told(work.state.skipped)}")

    async def _end(self, state: ImportState, publication: Publication, resumed: bool) -> Imported:
        """Of an import that is published only its result is remembered."""
        if not state.is_done:
            done = msgspec.structs.replace(state, is_done=True, publication=publication, spills=(), written=())
            state = await self.states.swap(state, done)
        await self.states.forget(state)
        return result_of(state, resumed)

    async def _end_cancelled(self, state: ImportState) -> Fate:
        fate = Fate.NEVER if state.publication is None else await self.withdraw(state, state.publication)
        await self.states.remove(state)
        return fate


def result_of(state: ImportState, resumed: bool = True) -> Imported:
    """What an import that has ended says of itself."""
    assert state.publication is not None
    return Imported(state.id, state.objects, state.size_bytes, state.skipped, state.publication.unit, resumed)


def _goes_on(state: ImportState, source: Source) -> bool:
    """Whether the source can be read from where the import was: it is the same, and in an order that is its own."""
    return source.is_ordered and state.mark == source.mark


def _told(skipped: Mapping[str, Skip]) -> str:
    reasons = ", ".join(f"{skip.count} {reason}" for reason, skip in skipped.items())
    return f": left out were {reasons}" if reasons else ""
