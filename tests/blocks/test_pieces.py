"""A body is cut as its reader asks, whatever the pieces it came in, and no more of it is read than that needs."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lsmfs.blocks.pieces import Pieces
from tests.aio import aio
from tests.blocks.support import pieces


@given(st.lists(st.binary(max_size=9)), st.lists(st.integers(1, 12), min_size=1))
def test_any_pieces_are_cut_to_any_sizes(parts: list[bytes], sizes: list[int]) -> None:
    async def run() -> None:
        body, at, whole = Pieces(pieces(*parts)), 0, b"".join(parts)
        for size in sizes:
            assert await body.ends_within(size) == (len(whole) - at <= size)
            assert await body.take(size) == whole[at : at + size]
            at = min(at + size, len(whole))
            assert body.taken_bytes == at
            assert await body.ends_within(0) == (at == len(whole))

    asyncio.run(run())


@aio
async def test_a_piece_that_has_the_asked_size_is_not_copied() -> None:
    one, other = b"abcd", b"efgh"
    body = Pieces(pieces(one, other))
    assert await body.take(4) is one
    assert await body.take(4) is other


@aio
async def test_no_more_is_read_than_is_needed() -> None:
    given_out = 0

    async def counted() -> AsyncIterator[bytes]:
        nonlocal given_out
        for _ in range(9):
            given_out += 1
            yield b"abc"

    body = Pieces(counted())
    assert (await body.take(4), given_out) == (b"abca", 2)
    assert (await body.take(2), given_out) == (b"bc", 2)
    assert (await body.ends_within(2), given_out) == (False, 3)
    assert (await body.take(3), given_out) == (b"abc", 3)


@aio
async def test_a_body_that_raises_does_so_for_whoever_takes() -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield b"abc"
        raise ConnectionResetError("gone")

    body = Pieces(broken())
    assert await body.take(2) == b"ab"
    with pytest.raises(ConnectionResetError):
        await body.take(2)
