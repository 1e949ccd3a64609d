"""RetryingStore around planned faults: what is repeated, what is read back, and what nobody can know."""

from collections.abc import AsyncIterator, Callable, Iterable

import pytest

from lsmfs.objectstore.counting import CountingStore
from lsmfs.objectstore.faulting import Fault, FaultingStore, Kind
from lsmfs.objectstore.memory import MemoryStore
from lsmfs.objectstore.retrying import RetryingStore, RetryPolicy
from lsmfs.objectstore.store import ABSENT, ANYTHING, Body, Precondition, Tag
from lsmfs.objectstore.wrapper import WrapperStore
from refstore.errors import AlreadyExists, Conflict, NotFound, OutcomeUnknown, Unavailable
from tests.aio import aio

BEFORE, AFTER, TORN = Fault(Kind.BEFORE), Fault(Kind.AFTER), Fault(Kind.TORN, keep_bytes=1)


class TestClock:
    """Time passes only by sleeping, and the jitter is always the largest."""

    __test__ = False

    def __init__(self) -> None:
        self.seconds = 0.0
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.seconds += seconds

    def now_us(self) -> int:
        return int(self.seconds * 1e6)

    def monotonic(self) -> float:
        return self.seconds

    def jitter(self) -> float:
        return 1.0

    def new_id(self) -> str:
        return "id"


def build(
    *faults: Fault | None, policy: RetryPolicy | None = None, verbs: Iterable[str] = ("put", "get", "delete", "head")
) -> tuple[RetryingStore, MemoryStore, TestClock]:
    """A store whose first calls of these verbs meet these faults in turn."""
    left = list(faults)

    def plan(verb: str, name: str, number: int) -> Fault | None:
        return left.pop(0) if left and verb in verbs else None

    memory, clock = MemoryStore(), TestClock()
    return RetryingStore(FaultingStore(memory, plan), clock, policy, clock.sleep), memory, clock


@aio
async def test_reads_unconditional_puts_and_deletes_are_repeated() -> None:
    store, memory, _ = build(BEFORE, AFTER, None, BEFORE, AFTER, None, BEFORE, AFTER)
    await store.put("a", b"1")
    assert await store.get("a") == b"1"
    await store.delete("a")
    with pytest.raises(NotFound):
        await memory.get("a")


@aio
async def test_other_errors_are_not_repeated() -> None:
    store, _, clock = build()
    with pytest.raises(NotFound):
        await store.get("missing")
    await store.put("a", b"1")
    with pytest.raises(AlreadyExists):
        await store.put("a", b"2", ABSENT)
    with pytest.raises(Conflict):
        await store.put("a", b"2", Tag("old"))
    assert clock.slept == []


@aio
async def test_waits_double_up_to_a_bound_and_attempts_are_bounded() -> None:
    policy = RetryPolicy(attempts_max=6, delay_seconds_first=1, delay_seconds_max=5, deadline_seconds=100)
    store, _, clock = build(*[BEFORE] * 6, policy=policy)
    with pytest.raises(Unavailable):
        await store.get("a")
    assert clock.slept == [1, 2, 4, 5, 5]


@aio
async def test_nothing_is_tried_beyond_the_deadline() -> None:
    policy = RetryPolicy(attempts_max=100, delay_seconds_first=1, delay_seconds_max=5, deadline_seconds=8)
    store, _, clock = build(*[BEFORE] * 100, policy=policy)
    with pytest.raises(Unavailable):
        await store.get("a")
    assert clock.slept == [1, 2, 4]


@pytest.mark.parametrize("faults", [[AFTER], [BEFORE, AFTER], [AFTER, BEFORE], [BEFORE] * 3])
@aio
async def test_a_conditional_put_succeeds_once_whatever_answers_are_lost(faults: list[Fault]) -> None:
    store, memory, _ = build(*faults)
    first = await store.put("a", b"1", ABSENT)
    assert await memory.get_tagged("a") == (b"1", first)
    store, memory, _ = build(None, *faults)
    second = await store.put("a", b"2", await store.put("a", b"1", ABSENT))
    assert await memory.get_tagged("a") == (b"2", second)


class LosesThenArrivesLate(WrapperStore):
    """The first put's answer is lost before its effect, which comes just before the second put."""

    late: tuple[str, bytes, Precondition] | None = None
    count = 0

    async def put(self, name: str, body: Body, expected: Precondition = ANYTHING) -> Tag:
        self.count += 1
        if self.count == 1:
            self.late = name, bytes(body), expected
            raise OutcomeUnknown("lost")
        if self.late:
            late, self.late = self.late, None
            await self.inner.put(*late)
        return await self.inner.put(name, body, expected)


@aio
async def test_a_put_that_arrives_late_does_not_look_like_somebody_elses() -> None:
    clock = TestClock()
    store = RetryingStore(LosesThenArrivesLate(MemoryStore()), clock, sleep=clock.sleep)
    tag = await store.put("a", b"1", ABSENT)
    assert await store.get_tagged("a") == (b"1", tag)


class SomebodyElse(WrapperStore):
    """Puts the other body when an answer was lost, before we can look."""

    def __init__(self, inner: MemoryStore, applied: bool) -> None:
        super().__init__(inner)
        self.applied = applied

    async def put(self, name: str, body: Body, expected: Precondition = ANYTHING) -> Tag:
        if self.applied:
            await self.inner.put(name, body, expected)
        await self.inner.put(name, b"somebody else's")
        raise OutcomeUnknown("lost")


@pytest.mark.parametrize("applied", [True, False])
@pytest.mark.parametrize("create", [True, False])
@aio
async def test_a_put_that_somebody_may_have_replaced_stays_unknown(applied: bool, create: bool) -> None:
    memory, clock = MemoryStore(), TestClock()
    expected: Precondition = ABSENT if create else await memory.put("a", b"0")
    store = RetryingStore(SomebodyElse(memory, applied), clock, sleep=clock.sleep)
    with pytest.raises(OutcomeUnknown):
        await store.put("a", b"ours", expected)
    assert await memory.get("a") == b"somebody else's"


@aio
async def test_a_put_that_cannot_be_read_back_stays_unknown() -> None:
    store, _, _ = build(AFTER, *[BEFORE] * 20, verbs=("put", "get_tagged"))
    with pytest.raises(OutcomeUnknown):
        await store.put("a", b"1", ABSENT)


@aio
async def test_a_put_that_was_lost_and_then_refused_for_being_away_stays_unknown() -> None:
    class Away(WrapperStore):
        count = 0

        async def put(self, name: str, body: Body, expected: Precondition = ANYTHING) -> Tag:
            self.count += 1
            raise OutcomeUnknown("lost") if self.count == 1 else Unavailable("away")

    clock = TestClock()
    with pytest.raises(OutcomeUnknown):
        await RetryingStore(Away(MemoryStore()), clock, sleep=clock.sleep).put("a", b"1", ABSENT)


@aio
async def test_a_torn_put_is_not_taken_for_ours() -> None:
    store, memory, _ = build(TORN)
    with pytest.raises(OutcomeUnknown):
        await store.put("a", b"whole", ABSENT)
    assert await memory.get("a") == b"w"


@aio
async def test_a_listing_goes_on_after_the_last_name() -> None:
    store, memory, clock = build(*[AFTER] * 20, verbs=("list",))
    names = [f"{number:02}" for number in range(15)]
    for name in names:
        await memory.put(name, b"")
    assert [info.name async for info in store.list()] == names
    assert clock.slept == [0.1] * 15  # progress earns a new budget


@aio
async def test_a_stream_is_begun_again_only_before_its_first_piece() -> None:
    async def read(store: RetryingStore) -> bytes:
        return b"".join([piece async for piece in store.stream("a")])

    store, memory, _ = build(BEFORE, BEFORE, verbs=("stream",))
    await memory.put("a", bytes(3 << 20))
    assert len(await read(store)) == 3 << 20
    store, memory, _ = build(AFTER, verbs=("stream",))
    await memory.put("a", bytes(3 << 20))
    with pytest.raises(Unavailable):
        await read(store)


@aio
async def test_a_body_that_can_be_read_once_is_sent_once() -> None:
    async def body() -> AsyncIterator[bytes]:
        yield b"1"

    counting = CountingStore(MemoryStore())
    fault: Callable[[str, str, int], Fault | None] = lambda verb, name, number: AFTER  # noqa: E731
    clock = TestClock()
    store = RetryingStore(FaultingStore(counting, fault), clock, sleep=clock.sleep)
    with pytest.raises(OutcomeUnknown):
        await store.put_stream("a", body())
    assert counting.snapshot()["put_stream"].calls == 1
