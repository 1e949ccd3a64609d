"""A digest that is taken in threads is that of the bytes in their order, however they are cut."""

import asyncio
import hashlib
import threading
from collections.abc import Callable

import pytest

from lsmfs.blocks.digests import BEHIND_BYTES_MAX, INLINE_BYTES_MAX, Digest
from tests.aio import aio
from tests.blocks.support import MIB, noise


@pytest.mark.parametrize("make", [hashlib.md5, hashlib.sha256])
@pytest.mark.parametrize("size", [1, INLINE_BYTES_MAX, INLINE_BYTES_MAX + 1, MIB, BEHIND_BYTES_MAX + 1])
@aio
async def test_pieces_are_hashed_in_their_order(make: "Callable[..., hashlib._Hash]", size: int) -> None:
    digest, body = Digest(make), b""
    for number in range(12):
        for piece in (noise(size, number), b"%d" % number):  # a small one behind a large one that is under way
            await digest.update(piece)
            body += piece
    assert await digest.hexdigest() == make(body).hexdigest()
    await digest.update(b"more")
    assert await digest.hexdigest() == make(body + b"more").hexdigest()
    assert digest.name == make().name


class Slow:
    """A hash that waits until it is let go."""

    name = "slow"

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.taken = 0

    def update(self, piece: bytes) -> None:
        self.gate.wait()
        self.taken += len(piece)

    def hexdigest(self) -> str:
        return str(self.taken)


@aio
async def test_a_digest_falls_behind_so_far_and_no_further() -> None:
    slow = Slow()
    digest = Digest(lambda: slow)  # type: ignore[arg-type,return-value]
    given = 0

    async def give() -> None:
        nonlocal given
        for _ in range(20):
            await digest.update(bytes(MIB))
            given += 1

    giving = asyncio.create_task(give())
    await asyncio.sleep(0.01)
    assert BEHIND_BYTES_MAX // MIB <= given <= BEHIND_BYTES_MAX // MIB + 2
    slow.gate.set()
    await giving
    assert await digest.hexdigest() == str(20 * MIB)
