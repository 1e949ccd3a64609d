"""Bodies are let in while there is room, in their order, and those who give up leave no trace."""

import asyncio
from typing import Any

import pytest

from lsmfs.server.admission import HELD_BYTES_MAX, Admission
from lsmfs.server.config import Limits, Logging
from lsmfs.server.logs import Log, Output
from lsmfs.server.metrics import Metrics
from lsmfs.server.observing import Observed
from refstore.errors import Unavailable
from tests.aio import aio


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@aio
async def test_who_finds_no_room_waits_and_nobody_overtakes() -> None:
    room = Admission(10)
    await room.enter(8)
    order: list[str] = []

    async def come(name: str, weight: int) -> None:
        await room.enter(weight)
        order.append(name)

    tasks = [asyncio.ensure_future(come(name, weight)) for name, weight in (("large", 9), ("small", 1))]
    await settle()
    assert order == []
    room.leave(8)
    await settle()
    assert order == ["large", "small"]
    assert room.bytes_taken == 10
    await asyncio.gather(*tasks)


@aio
async def test_who_gives_up_makes_room_for_the_next() -> None:
    room = Admission(10)
    await room.enter(5)
    large, small = asyncio.ensure_future(room.enter(9)), asyncio.ensure_future(room.enter(5))
    await settle()
    large.cancel()
    await small
    assert room.bytes_taken == 10
    room.leave(5)
    room.leave(5)
    assert room.bytes_taken == 0


@aio
async def test_who_is_let_in_while_it_gives_up_leaves_again() -> None:
    room = Admission(10)
    await room.enter(10)
    late = asyncio.ensure_future(room.enter(4))
    await settle()
    room.leave(10)
    late.cancel()
    with pytest.raises(asyncio.CancelledError):
        await late
    assert room.bytes_taken == 0


@aio
async def test_who_has_just_given_up_is_passed_over() -> None:
    room = Admission(10)
    await room.enter(10)
    gone, next_one = asyncio.ensure_future(room.enter(4)), asyncio.ensure_future(room.enter(5))
    await settle()
    gone.cancel()
    room.leave(10)  # before the one that was cancelled hears of it
    await next_one
    with pytest.raises(asyncio.CancelledError):
        await gone
    assert room.bytes_taken == 5


@aio
async def test_who_has_begun_goes_before_who_has_not() -> None:
    room = Admission(10)
    await room.enter(4)
    await room.enter(6)
    assert await room.grow(2, 4) == 4  # beyond the room, once, so that somebody ends
    newcomer, begun = asyncio.ensure_future(room.enter(1)), asyncio.ensure_future(room.grow(3, 6))
    await settle()
    assert not newcomer.done()
    assert not begun.done()
    room.leave(8)
    assert await begun == 3
    await newcomer
    assert room.bytes_taken == 10


@aio
async def test_who_gives_up_growing_keeps_what_it_had_and_lets_the_next_grow() -> None:
    room = Admission(10, wait_seconds_max=0.01)
    await room.enter(10)
    assert await room.grow(1, 3) == 3
    with pytest.raises(Unavailable):
        await room.grow(1, 3)
    room.wait_seconds_max = 20.0
    gone, next_one = asyncio.ensure_future(room.grow(1, 1)), asyncio.ensure_future(room.grow(2, 2))
    await settle()
    gone.cancel()
    room.leave(5)
    assert await next_one == 2
    assert room.bytes_taken == 10


@aio
async def test_any_number_of_bodies_get_through_a_full_room() -> None:
    room, ended = Admission(100), []

    async def send(number: int) -> None:
        await room.enter(1)
        taken = 1
        while taken < 16:
            await asyncio.sleep(0)
            taken += await room.grow(taken, 16 - taken)
            assert room.bytes_taken <= 100 + 16
        room.leave(taken)
        ended.append(number)

    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        for number in range(100):
            group.create_task(send(number))
    assert len(ended) == 100
    assert room.bytes_taken == 0


@aio
async def test_who_waits_too_long_is_told_to_try_again() -> None:
    room = Admission(10, wait_seconds_max=0.01)
    await room.enter(10)
    with pytest.raises(Unavailable, match="try again"):
        await room.enter(1)
    room.leave(10)
    assert room.bytes_taken == 0


def test_a_body_weighs_what_is_held_of_it_and_always_fits() -> None:
    assert Admission(100 * HELD_BYTES_MAX).weight_of(None) == HELD_BYTES_MAX
    assert Admission(100 * HELD_BYTES_MAX).weight_of(10**18) == HELD_BYTES_MAX
    assert Admission(100).weight_of(None) == 100
    assert Admission(100).weight_of(7) == 7


@pytest.mark.parametrize(
    ("header", "weight"),
    [((b"content-length", b"3"), 3), ((b"transfer-encoding", b"chunked"), 50), ((b"content-length", b"0"), 0)],
)
@aio
async def test_a_request_takes_room_from_its_first_byte_to_its_end(header: tuple[bytes, bytes], weight: int) -> None:
    taken: list[int] = []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        taken.append(observed.admission.bytes_taken)
        await receive()
        await receive()
        taken.append(observed.admission.bytes_taken)
        raise RuntimeError

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"x", "more_body": True}

    async def send(message: Any) -> None:
        pass

    output = Output("/dev/null")
    log = Log(Logging(level="NONE"), output)
    observed = Observed(application, log, Metrics(), Limits(body_bytes_in_flight_max=50))
    await observed({"type": "http", "method": "PUT", "path": "/", "headers": [header], "state": {}}, receive, send)
    output.close()
    assert taken == [0, weight]
    assert observed.admission.bytes_taken == 0
