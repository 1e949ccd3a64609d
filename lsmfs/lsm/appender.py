"""The appender: puts table ids at the tail of a branch's l1, one after another, each exactly once.

A life of it is a writer id that nobody else has, and a sequence number that rises by one with each append. What it
promises:
1. An append whose answer is lost is repeated under the same sequence number, so it is done once.
2. One that stays unknown past the deadline is settled (`Retire`): either it was done, or it never will be. Only then
   does the next one begin, so that an old write cannot appear above a newer one.
3. A life that the branch has forgotten, or a layer below the garbage floor, is begun or made anew, if nothing is
   unsettled.

It does not queue: whoever calls it waits for one append before asking for the next.
"""

import asyncio
from collections.abc import Awaitable, Callable

from lsmfs import paths
from lsmfs.clock import Clock
from lsmfs.lsm.branches import BranchReader
from refstore.errors import (
    BranchReplaced,
    Error,
    GenerationStale,
    LayersFull,
    OutcomeUnknown,
    Unavailable,
    ViewChanged,
    WriterUnknown,
)
from refstore.records import Append, Branch, Retire, TableId, WriterId
from refstore.refs import Refs

BACKOFF_MIN, BACKOFF_MAX = 0.005, 1.0


async def back_off(clock: Clock, attempt: int) -> None:
    await asyncio.sleep(min(BACKOFF_MAX, BACKOFF_MIN * 2**attempt) * (0.5 + clock.jitter() / 2))


class Appender:
    """Appends to one branch, as one writer."""

    def __init__(
        self,
        refs: Refs,
        branches: BranchReader,
        repository: str,
        branch: str,
        clock: Clock,
        deadline_seconds: float,
        actor: str = "",
        allow: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._refs = refs
        self._branches = branches
        self._repository = repository
        self._name = branch
        self._clock = clock
        self._deadline_seconds = deadline_seconds
        self._actor = actor
        self._allow = allow  # raises if the branch may not be written to; asked when a life begins
        self.life: Branch | None = None  # the branch as this life opened it
        self.session = ""  # the id of the first life: one for all layers of this writer
        self.seen = 0  # the newest version of the branch that this writer knows
        self._id = WriterId("")  # of this life
        self._seq = 0
        self._unsettled = False  # whether append seq+1 may have been sent without a definite answer

    async def begin_life(self) -> None:
        """A new writer id, known to nobody, that opens the branch as it is now."""
        if self._allow is not None:
            await self._allow()
        branch = await self._branches.read(self._name)
        if self.life is not None and branch.incarnation != self.life.incarnation:
            raise BranchReplaced(f"branch {self._name!r} was deleted and created again: open a new writer")
        self.life, self._id, self._seq = branch, WriterId(self._clock.new_id()), 0
        self._unsettled, self.seen = False, branch.version
        self.session = self.session or self._id

    async def append(
        self, name: TableId, expected_view: int | None, remake: Callable[[], Awaitable[TableId]] | None
    ) -> None:
        """Append, or say why not: `OutcomeUnknown` if an answer was lost and nothing has told what became of it.
        `remake` stores the layer once more, for one that the garbage floor has passed; None refuses such a one."""
        deadline = self._clock.monotonic() + self._deadline_seconds
        if self._unsettled:
            await self._settle(deadline)
        try:
            await self._append_until(deadline, name, expected_view, remake)
        except (ViewChanged, GenerationStale, OutcomeUnknown):
            raise  # the first two: a copy of it that is still under way will be refused for the same reason
        except Error as error:
            if not self._unsettled:
                raise
            raise OutcomeUnknown(f"append to branch {self._name!r}: its answer was lost, and {error}") from None

    async def _append_until(
        self,
        deadline: float,
        name: TableId,
        expected_view: int | None,
        remake: Callable[[], Awaitable[TableId]] | None,
    ) -> None:
        """Append, repeating what is safe to repeat, until the deadline."""
        attempt = 0
        while True:
            try:
                await self._append_once(name, expected_view)
                return
            except (Unavailable, LayersFull) as error:
                if self._clock.monotonic() > deadline:
                    if not self._unsettled:
                        raise
                    if await self._settle(deadline + self._deadline_seconds):
                        return
                    raise Unavailable(f"append to branch {self._name!r} was not done in time: {error}") from None
            except WriterUnknown:
                if self._unsettled or self._clock.monotonic() > deadline:
                    raise  # unsettled, it stays so: the next append settles it, and begins a new life
                await self.begin_life()
                continue  # at once: where many are busy, a life that waits is forgotten before its first append
            except GenerationStale:
                if remake is None:
                    raise
                await self.begin_life()
                name = await remake()
            attempt += 1
            await back_off(self._clock, attempt)

    async def _append_once(self, name: TableId, expected_view: int | None) -> None:
        """Ask for append seq+1. While no definite answer has come, it is unsettled, also if this task is cancelled."""
        assert self.life is not None
        change = Append(
            incarnation=self.life.incarnation,
            actor=self._actor,
            writer=self._id,
            seq=self._seq + 1,
            opened_at=self.life.version,
            table=name,
            generation=paths.generation_of(name),
            expected_view=expected_view,
        )
        before, self._unsettled = self._unsettled, True
        try:
            branch = await self._refs.change(self._repository, self._name, change)
        except OutcomeUnknown:
            raise
        except Error:
            self._unsettled = before  # this one was not done; one sent before it may still be
            raise
        self._seq, self._unsettled, self.seen = self._seq + 1, False, branch.version
        self._branches.observe(branch)

    async def _settle(self, deadline: float) -> bool:
        """Make sure that the append whose answer was lost is done, or never will be; whether it was done."""
        assert self.life is not None
        retire = Retire(incarnation=self.life.incarnation, actor=self._actor, writer=self._id, seq=self._seq + 1)
        while True:
            try:
                branch = await self._refs.change(self._repository, self._name, retire)
                break
            except Unavailable:
                if self._clock.monotonic() > deadline:
                    raise OutcomeUnknown(
                        f"append to branch {self._name!r}: its answer was lost and the ref store cannot be reached"
                    ) from None
                await asyncio.sleep(BACKOFF_MAX * (0.5 + self._clock.jitter() / 2))
        self._unsettled = False
        mark = branch.writers.get(self._id)
        if mark is not None and mark.seq > self._seq:
            self._seq = mark.seq
            return True
        await self.begin_life()
        return False
