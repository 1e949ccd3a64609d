"""Bodies into the object store, in bounded memory and whole or not at all.

    size                      becomes                                              named by
    nothing                   nothing                                              -
    up to `packed_bytes_max`  a piece of a pack, together with others that came    a new id
    more                      blocks of `block_bytes`                              their content
    more, blocks turned off   one object, for those who read the store directly    a new id

Equal blocks are stored once: whoever stores one that is there finds its name taken. Nothing is ever replaced, so an
entry's bytes never change. The etag is the MD5 of the whole body, as S3's clients expect; a block's name has the
SHA-256 of its bytes, so that nobody can make two bodies that take the same name.

The flow of a large body: pieces are received, hashed in threads and written at the same time, and while one block is
made durable the next one is received. A body is some 20 MB of memory: what is read ahead to see whether it is small,
what the digests are behind, and the pieces that are being written.

A body that raises or is cancelled leaves blocks that nobody refers to: garbage collection finds them. A name carries
the garbage collection generation that its maker saw: an entry must be appended before that one ends.
"""

import asyncio
import hashlib
import sys
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import msgspec

from lsmfs import paths
from lsmfs.blocks.digests import Digest
from lsmfs.blocks.packs import Packs
from lsmfs.blocks.pieces import Pieces
from lsmfs.clock import Clock
from lsmfs.model import EXTENTS_MAX, Entry, Extent
from lsmfs.objectstore.content import put_content
from lsmfs.objectstore.store import ObjectStore
from refstore.errors import Invalid

if TYPE_CHECKING:
    from hashlib import _Hash as Hash

HELD_BYTES_MAX = 8 * 1024 * 1024  # a block up to this is one retried put; S3's parts are of this size too
PIECE_BYTES = 2 * 1024 * 1024  # written at once: a thread's turn costs little beside it
PACKED_BYTES_MAX = 1024 * 1024  # of a body: so many more of them still share a pack
BLOCK_BYTES_MIN = 1024 * 1024
BLOCKS_AT_ONCE = 2  # of one body: one is received while the one before is made durable


class Layout(msgspec.Struct, frozen=True):
    """How bodies are laid down."""

    block_bytes: int = 64 * 1024 * 1024
    """0: a body is one object, whatever its size."""
    packed_bytes_max: int = 64 * 1024
    """0: every body has objects of its own."""

    def __post_init__(self) -> None:
        if self.block_bytes and self.block_bytes < BLOCK_BYTES_MIN:
            raise Invalid(
                f"blocks of {self.block_bytes} bytes are too small: at least {BLOCK_BYTES_MIN}, or 0 for none"
            )
        if not 0 <= self.packed_bytes_max <= PACKED_BYTES_MAX:
            raise Invalid(f"bodies of {self.packed_bytes_max} bytes cannot be packed: at most {PACKED_BYTES_MAX}")


ALONE = Layout(packed_bytes_max=0)  # for one body at a time: nothing would share its pack


class Bodies:
    """Stores the bodies of one repository."""

    def __init__(self, store: ObjectStore, repository: str, clock: Clock, layout: Layout | None = None) -> None:
        self._store = store
        self._repository = repository
        self._clock = clock
        self._layout = layout or Layout()
        self._packs = Packs(store, repository, clock)

    async def save(
        self,
        body: AsyncIterator[bytes],
        generation: int = 0,
        content_type: str | None = None,
        metadata: dict[str, str] | None = None,
    ) -> Entry:
        """Store the body; the entry that describes it."""
        pieces, whole = Pieces(body), Digest(_md5)
        if await pieces.ends_within(0):
            extents = [Extent(self._path(paths.EMPTY), 0, 0)]
        elif await pieces.ends_within(self._layout.packed_bytes_max):
            extents = [await self._packed(pieces, whole, generation)]
        else:
            extents = await self._blocks(pieces, whole, generation)
        first, *rest = extents
        return Entry(
            first.address,
            pieces.taken_bytes,
            await whole.hexdigest(),
            self._clock.now_us(),
            offset=first.offset,
            content_type=content_type,
            metadata=metadata,
            rest=tuple(rest),
        )

    async def _packed(self, pieces: Pieces, whole: Digest, generation: int) -> Extent:
        body, own = await pieces.take(PACKED_BYTES_MAX), Digest(hashlib.sha256)
        await whole.update(body)
        await own.update(body)
        address, offset = await self._packs.add(body, await own.hexdigest(), generation)
        return Extent(address, offset, len(body))

    async def _blocks(self, pieces: Pieces, whole: Digest, generation: int) -> list[Extent]:
        """Each block is put by a task, which takes its pieces; the next begins when it has all of them."""
        puts: list[asyncio.Task[Extent]] = []
        try:
            while not await pieces.ends_within(0):
                if len(puts) == EXTENTS_MAX:
                    raise Invalid(f"the body has more than {EXTENTS_MAX} blocks: store it with larger ones")
                received = asyncio.get_running_loop().create_future()
                puts.append(asyncio.ensure_future(self._block(pieces, whole, generation, received)))
                await asyncio.wait((puts[-1], received), return_when=asyncio.FIRST_COMPLETED)
                await asyncio.gather(*puts[-BLOCKS_AT_ONCE : 1 - BLOCKS_AT_ONCE])
                if puts[-1].done():
                    await puts[-1]
            return list(await asyncio.gather(*puts))
        finally:
            for put in puts:
                put.cancel()
            await asyncio.gather(*puts, return_exceptions=True)

    async def _block(self, pieces: Pieces, whole: Digest, generation: int, received: "asyncio.Future[None]") -> Extent:
        """The next block: held if it is small, streamed if not. Its name is known when all of it has passed."""
        is_named_by_content, limit = bool(self._layout.block_bytes), self._layout.block_bytes or sys.maxsize
        block = _Block(pieces, whole, limit, received)
        new = self._path(paths.whole_name(generation, self._clock.new_id()))

        def name() -> str:
            return self._path(paths.block_name(generation, block.digest, block.size_bytes))

        if limit > HELD_BYTES_MAX and not await pieces.ends_within(HELD_BYTES_MAX):
            await self._store.put_stream(name if is_named_by_content else new, block.stream())
        else:
            body = await block.held()
            await (put_content(self._store, name(), body) if is_named_by_content else self._store.put(new, body))
        return Extent(name() if is_named_by_content else new, 0, block.size_bytes)

    def _path(self, name: str) -> str:
        return paths.data_path(self._repository, name)


class _Block:
    """The next bytes of a body, up to a limit, and what is known when they have passed."""

    def __init__(self, pieces: Pieces, whole: Digest, limit_bytes: int, received: "asyncio.Future[None]") -> None:
        self._pieces = pieces
        self._whole = whole
        self._limit_bytes = limit_bytes
        self._received = received
        self._own = Digest(hashlib.sha256) if limit_bytes < sys.maxsize else None  # one without a limit has a new name
        self.size_bytes = 0
        self.digest = ""

    async def held(self) -> bytes:
        body = await self._take(min(self._limit_bytes, HELD_BYTES_MAX))
        await self._end()
        return body

    async def stream(self) -> AsyncIterator[bytes]:
        while piece := await self._take(min(PIECE_BYTES, self._limit_bytes - self.size_bytes)):
            yield piece  # it is hashed meanwhile
        await self._end()

    async def _take(self, size_bytes: int) -> bytes:
        piece = await self._pieces.take(size_bytes)
        await self._whole.update(piece)
        if self._own is not None:
            await self._own.update(piece)
        self.size_bytes += len(piece)
        return piece

    async def _end(self) -> None:
        self._received.set_result(None)
        if self._own is not None:
            self.digest = await self._own.hexdigest()


def _md5() -> "Hash":
    return hashlib.md5(usedforsecurity=False)
