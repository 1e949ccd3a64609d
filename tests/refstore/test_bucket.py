"""What is the bucket's own: names, answers that are lost, chunks that come late, and stores that ignore conditions."""

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lsmfs.objectstore.faulting import Fault, FaultingStore, Kind
from lsmfs.objectstore.memory import MemoryStore
from lsmfs.objectstore.store import ANYTHING, Body, Precondition, Tag
from lsmfs.objectstore.wrapper import WrapperStore
from refstore.drivers.bucket import BucketRefStore, from_segment, to_segment
from refstore.drivers.kept import PENDING_EVENTS_MAX, Span
from refstore.errors import Conflict, Corrupt, Error, OutcomeUnknown
from refstore.records import BranchChange
from refstore.refs import replay
from refstore.store import ABSENT
from tests.aio import aio
from tests.conformance import test_ref_stores as suite
from tests.conformance.refstore_backends import Backend
from tests.conformance.refstore_histories import append, create, delete, raise_floor, retire, seal

KEYS = st.binary(max_size=12) | st.text(alphabet="aAzZ09/-=_~{}:. ä", max_size=8).map(str.encode)


class TestNames:
    @given(KEYS)
    @example(bytes(range(256)))
    def test_a_name_leads_back_to_its_key(self, key: bytes) -> None:
        segment = to_segment(key)
        assert from_segment(segment) == key
        assert "/" not in segment
        assert segment.isascii()

    @given(KEYS, KEYS)
    def test_names_sort_as_their_keys_do(self, one: bytes, other: bytes) -> None:
        assert (to_segment(one) < to_segment(other)) == (one < other)

    @given(KEYS, KEYS)
    def test_names_have_the_prefixes_of_their_keys(self, one: bytes, other: bytes) -> None:
        assert to_segment(one).startswith(to_segment(other)) == one.startswith(other)

    @given(st.text(alphabet="aZ09-=_~fF/ +", max_size=8))
    @example("-4")
    @example("~4a")
    @example("-2F")
    @example("- 1")
    def test_what_is_no_name_of_a_key_is_corrupt(self, segment: str) -> None:
        try:
            key = from_segment(segment)
        except Corrupt:
            return
        assert to_segment(key) == segment

    @pytest.mark.parametrize("segment", ["-4", "~4a", "-2F", "- 1", "ä", "a/b", "-", "+41"])
    def test_these_are_no_names_of_keys(self, segment: str) -> None:
        with pytest.raises(Corrupt):
            from_segment(segment)


def failing(kind: Kind, verb: str, words: str, times: int = 1) -> Callable[[str, str, int], Fault | None]:
    """A plan that fails the next calls of this verb whose name has these words."""
    left = [times]

    def plan(called: str, name: str, _: int) -> Fault | None:
        if called != verb or words not in name or not left[0]:
            return None
        left[0] -= 1
        return Fault(kind)

    return plan


CHANGES: list[BranchChange] = [append(2), seal(), retire(2), raise_floor(4), delete()]


class TestLostAnswers:
    @pytest.mark.parametrize("change", CHANGES, ids=lambda change: type(change).__name__)
    @aio
    async def test_a_put_whose_answer_is_lost_is_read_back_and_not_repeated(self, change: BranchChange) -> None:
        inner = MemoryStore()
        plain, store = BucketRefStore(inner), BucketRefStore(FaultingStore(inner, failing(Kind.AFTER, "put", "refs/")))
        for each in (create(), append(1)):
            await plain.change("r", "main", each)
        branch = await store.change("r", "main", change)
        events = await plain.events("r")
        assert [event.version for event in events] == [1, 2, 3]
        assert events[-1].change == change
        assert replay(events) == ({} if change == delete() else {"main": branch})

    @pytest.mark.parametrize("change", CHANGES, ids=lambda change: type(change).__name__)
    @aio
    async def test_a_put_delivered_twice_counts_once(self, change: BranchChange) -> None:
        inner = MemoryStore()
        plain, store = BucketRefStore(inner), BucketRefStore(FaultingStore(inner, failing(Kind.TWICE, "put", "refs/")))
        for each in (create(), append(1)):
            await plain.change("r", "main", each)
        await store.change("r", "main", change)
        assert [event.version for event in await plain.events("r")] == [1, 2, 3]

    @aio
    async def test_a_put_overtaken_before_it_is_read_back_is_of_unknown_outcome(self) -> None:
        """Its own record is not there any more; only the caller's rule, the sequence, can tell."""
        inner = MemoryStore()
        plain = BucketRefStore(inner)

        class Overtaking(WrapperStore):
            async def put(self, name: str, body: Body, expected: Precondition = ANYTHING) -> Tag:
                await super().put(name, body, expected)
                await plain.change("r", "main", append(1, "faster"))
                raise OutcomeUnknown("planned: the answer is lost")

        await plain.change("r", "main", create())
        with pytest.raises(OutcomeUnknown, match="planned"):
            await BucketRefStore(Overtaking(inner)).change("r", "main", append(1))
        branch = await plain.change("r", "main", append(1))
        assert branch.l1 == ("w-1", "faster-1")

    @aio
    async def test_a_put_of_which_nothing_can_be_learnt_is_of_unknown_outcome(self) -> None:
        inner = MemoryStore()
        lost = failing(Kind.AFTER, "put", "refs/")
        gets = 0

        def plan(verb: str, name: str, number: int) -> Fault | None:
            nonlocal gets
            gets += verb == "get_tagged"
            return Fault(Kind.BEFORE) if verb == "get_tagged" and gets == 2 else lost(verb, name, number)

        await BucketRefStore(inner).change("r", "main", create())
        store = BucketRefStore(FaultingStore(inner, plan))
        with pytest.raises(OutcomeUnknown):
            await store.change("r", "main", append(1))
        assert (await store.change("r", "main", append(1))).l1 == ("w-1",)

    @aio
    async def test_a_set_if_whose_answer_is_lost_is_read_back(self) -> None:
        inner = MemoryStore()
        store = BucketRefStore(FaultingStore(inner, failing(Kind.AFTER, "put", "kv/", times=2)))
        await store.set_if("p", b"k", b"one", ABSENT)
        await store.set_if("p", b"k", b"two", b"one")
        assert await store.get("p", b"k") == b"two"
        with pytest.raises(Conflict):
            await store.set_if("p", b"k", b"three", b"one")

    @aio
    async def test_a_chunk_whose_answer_is_lost_is_written_again(self) -> None:
        inner = MemoryStore()
        store = BucketRefStore(FaultingStore(inner, failing(Kind.AFTER, "put", "journal/")))
        await fill(store, PENDING_EVENTS_MAX)
        with pytest.raises(OutcomeUnknown):
            await store.change("r", "main", append(PENDING_EVENTS_MAX))
        branch = await store.change("r", "main", append(PENDING_EVENTS_MAX))
        assert replay(await store.events("r")) == {"main": branch}


async def fill(store: BucketRefStore, events: int) -> None:
    """One branch with a journal of this many events."""
    await store.change("r", "main", create())
    for seq in range(1, events):
        await store.change("r", "main", append(seq))


class TestChunks:
    @aio
    async def test_a_chunk_without_its_swap_is_not_seen(self) -> None:
        """A process died between the two; its chunk says nothing that the record does not say."""
        inner = MemoryStore()
        store = BucketRefStore(inner)
        await fill(store, PENDING_EVENTS_MAX)
        dying = BucketRefStore(FaultingStore(inner, failing(Kind.BEFORE, "put", "refs/")))
        with pytest.raises(Error):
            await dying.change("r", "main", append(PENDING_EVENTS_MAX))
        assert [info.name async for info in inner.list("refstore/journal/")] != []
        assert [event.version for event in await store.events("r")] == list(range(1, PENDING_EVENTS_MAX + 1))
        branch = await store.change("r", "main", append(PENDING_EVENTS_MAX))
        assert replay(await store.events("r")) == {"main": branch}

    @aio
    async def test_a_chunk_that_comes_late_is_not_seen(self) -> None:
        """A slow process writes again what another has spilled, drained and trimmed long ago."""
        inner = MemoryStore()
        store = BucketRefStore(inner)
        await fill(store, PENDING_EVENTS_MAX)
        late, _ = await store._load_kept("r", "main")
        assert late is not None
        await store.change("r", "main", append(PENDING_EVENTS_MAX))
        await store.trim("r", await store.events("r"))
        await store._write_chunk("r", late, Span(late.spilled + 1, late.position))
        assert await store.events("r") == []
        for seq in range(PENDING_EVENTS_MAX + 1, 3 * PENDING_EVENTS_MAX):
            await store.change("r", "main", append(seq))
        events = await store.events("r")
        assert [event.version for event in events] == list(range(PENDING_EVENTS_MAX + 2, 3 * PENDING_EVENTS_MAX + 1))
        await store.trim("r", events)
        assert [info.name async for info in inner.list("refstore/journal/")] == []

    @aio
    async def test_a_chunk_that_overlaps_another_is_seen_once(self) -> None:
        """Trimming within the pending events moves where the next chunk begins; an older chunk may begin before."""
        inner = MemoryStore()
        store = BucketRefStore(inner)
        await fill(store, PENDING_EVENTS_MAX)
        early, _ = await store._load_kept("r", "main")
        assert early is not None
        await store._write_chunk("r", early, Span(1, early.position))
        await store.trim("r", (await store.events("r"))[:10])
        for seq in range(PENDING_EVENTS_MAX, 2 * PENDING_EVENTS_MAX + 10):
            await store.change("r", "main", append(seq))
        versions = [event.version for event in await store.events("r")]
        assert versions == list(range(11, 2 * PENDING_EVENTS_MAX + 11))

    @aio
    async def test_a_chunk_that_is_gone_is_corrupt(self) -> None:
        inner = MemoryStore()
        store = BucketRefStore(inner)
        await fill(store, PENDING_EVENTS_MAX + 1)
        (name,) = [info.name async for info in inner.list("refstore/journal/")]
        await inner.delete(name)
        with pytest.raises(Corrupt, match="lacks event 1 "):
            await store.events("r")

    @pytest.mark.parametrize("body", [b"", b"[]", b"{}", b"\xff"])
    @aio
    async def test_a_record_damaged_by_hand_is_corrupt(self, body: bytes) -> None:
        inner = MemoryStore()
        store = BucketRefStore(inner)
        await fill(store, 1)
        (name,) = [info.name async for info in inner.list("refstore/refs/")]
        await inner.put(name, body)
        for verb in (store.read("r", "main"), store.change("r", "main", append(1)), store.events("r")):
            with pytest.raises(Corrupt):
                await verb


class SlowStore(WrapperStore):
    """A put is under way while others go on, as over a network; this one asks for no condition if it is deaf."""

    def __init__(self, inner: MemoryStore, deaf: bool) -> None:
        super().__init__(inner)
        self._deaf = deaf

    async def put(self, name: str, body: Body, expected: Precondition = ANYTHING) -> Tag:
        await asyncio.sleep(0)
        return await self.inner.put(name, body, ANYTHING if self._deaf else expected)


class TestStoresThatIgnoreConditions:
    """The suite's own checks of concurrency are a net that such a store does not slip through."""

    def test_a_store_that_honours_conditions_passes(self) -> None:
        suite.TestConcurrency().test_writers_of_one_branch_lose_and_double_nothing(self._backend(deaf=False))
        suite.TestKeysAndValues().test_of_many_set_if_at_once_one_wins(self._backend(deaf=False))
        suite.TestKeysAndValues().test_counting_by_set_if_loses_no_step(self._backend(deaf=False))

    def test_a_store_that_ignores_conditions_is_caught(self) -> None:
        with pytest.raises((AssertionError, Error)):
            suite.TestConcurrency().test_writers_of_one_branch_lose_and_double_nothing(self._backend(deaf=True))

    def test_a_store_that_ignores_conditions_lets_more_than_one_win(self) -> None:
        with pytest.raises(AssertionError):
            suite.TestKeysAndValues().test_of_many_set_if_at_once_one_wins(self._backend(deaf=True))

    def test_a_store_that_ignores_conditions_miscounts(self) -> None:
        with pytest.raises(AssertionError):
            suite.TestKeysAndValues().test_counting_by_set_if_loses_no_step(self._backend(deaf=True))

    @staticmethod
    def _backend(deaf: bool) -> Backend:
        store = SlowStore(MemoryStore(), deaf)
        return Backend(lambda: BucketRefStore(store))
