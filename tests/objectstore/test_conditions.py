"""Probing a store for conditions: it passes those that honour them and finds each way not to."""

import pytest

from lsmfs.objectstore.conditions import honours_conditions
from lsmfs.objectstore.faulting import Fault, FaultingStore, Kind
from lsmfs.objectstore.memory import MemoryStore
from lsmfs.objectstore.store import ABSENT, ANYTHING, Body, Precondition, Tag
from lsmfs.objectstore.wrapper import WrapperStore
from refstore.errors import OutcomeUnknown, Unavailable
from tests.aio import aio


class IgnoresAbsent(WrapperStore):
    async def put(self, name: str, body: Body, expected: Precondition = ANYTHING) -> Tag:
        return await super().put(name, body, ANYTHING if expected is ABSENT else expected)


class IgnoresTags(WrapperStore):
    async def put(self, name: str, body: Body, expected: Precondition = ANYTHING) -> Tag:
        return await super().put(name, body, ABSENT if expected is ABSENT else ANYTHING)


class StoresAnotherBody(WrapperStore):
    async def put(self, name: str, body: Body, expected: Precondition = ANYTHING) -> Tag:
        return await super().put(name, b"not what was put", expected)


@aio
async def test_a_store_that_honours_them_passes_and_is_left_clean() -> None:
    store = MemoryStore()
    report = await honours_conditions(store, "probe/")
    assert report
    assert report.honoured
    assert [info async for info in store.list()] == []


@pytest.mark.parametrize(
    ("wrapper", "says"),
    [(IgnoresAbsent, "(create)"), (IgnoresTags, "(update)"), (StoresAnotherBody, "the stored body is not")],
)
@aio
async def test_each_way_to_break_them_is_found(wrapper: type[WrapperStore], says: str) -> None:
    store = MemoryStore()
    report = await honours_conditions(wrapper(store))
    assert not report
    assert any(says in problem for problem in report.problems), report.problems
    assert [info async for info in store.list()] == []


@aio
async def test_a_lost_answer_proves_nothing() -> None:
    store = FaultingStore(MemoryStore(), lambda verb, name, number: Fault(Kind.AFTER) if number == 1 else None)
    with pytest.raises(OutcomeUnknown):
        await honours_conditions(store)


@aio
async def test_a_store_that_is_away_proves_nothing() -> None:
    store = FaultingStore(MemoryStore(), lambda verb, name, number: Fault(Kind.BEFORE))
    with pytest.raises(Unavailable):
        await honours_conditions(store)


@aio
async def test_losers_may_be_told_to_try_again() -> None:
    store = FaultingStore(MemoryStore(), lambda verb, name, number: Fault(Kind.BEFORE) if number in (2, 5) else None)
    assert await honours_conditions(store)
