"""Small bodies together in one object: a pack.

Whatever comes while a pack is being put waits for the next one, so an idle server packs nothing and a busy one shares
puts: a put of 4 KiB costs a store as much as one of 4 MiB. A body that came lately, of the same content, is not stored
again, also if it is still on its way; that is known only within this process.

A pack that cannot be put fails everybody who waits for it, and nobody else. Who is cancelled leaves the others theirs.
"""

import asyncio
from collections import OrderedDict, deque
from typing import NamedTuple

from lsmfs import paths
from lsmfs.clock import Clock
from lsmfs.objectstore.store import ObjectStore
from refstore.errors import Unavailable

PACK_BYTES_MAX = 8 * 1024 * 1024  # one retried put
KNOWN_MAX = 10_000  # places of bodies that came lately: some 3 MB


class _Pack:
    """A pack that is being filled, then put; for one generation."""

    def __init__(self, unique: str, generation: int) -> None:
        self.unique = unique
        self.generation = generation
        self.bodies: list[bytes] = []
        self.size_bytes = 0
        self.stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def add(self, body: bytes) -> int:
        offset = self.size_bytes
        self.bodies.append(body)
        self.size_bytes += len(body)
        return offset

    def fail(self, error: Exception) -> None:
        self.stored.set_exception(error)
        self.stored.exception()  # it may be that all who waited gave up

    @property
    def has_failed(self) -> bool:
        return self.stored.done() and self.stored.exception() is not None


class _Place(NamedTuple):
    pack: _Pack
    offset: int


class Packs:
    def __init__(self, store: ObjectStore, repository: str, clock: Clock) -> None:
        self._store = store
        self._repository = repository
        self._clock = clock
        self._waiting: deque[_Pack] = deque()
        self._putting: asyncio.Task[None] | None = None
        self._known: OrderedDict[str, _Place] = OrderedDict()

    async def add(self, body: bytes, digest: str, generation: int) -> tuple[str, int]:
        """Store the body, whose SHA-256 is `digest`; the object it is in, and where."""
        place = self._known.get(digest)
        if place is None or place.pack.generation != generation or place.pack.has_failed:
            pack = self._filling(generation, len(body))
            place = _Place(pack, pack.add(body))
            self._remember(digest, place)
        if not place.pack.stored.done():
            await asyncio.shield(place.pack.stored)
        return self._address(place.pack), place.offset

    def _filling(self, generation: int, size_bytes: int) -> _Pack:
        last = self._waiting[-1] if self._waiting else None
        if last is None or last.generation != generation or last.size_bytes + size_bytes > PACK_BYTES_MAX:
            last = _Pack(self._clock.new_id(), generation)
            self._waiting.append(last)
            if self._putting is None:
                self._putting = asyncio.ensure_future(self._put_all())
        return last

    def _address(self, pack: _Pack) -> str:
        """Its name tells its size: known when it is put, and no body is added after that."""
        name = paths.pack_name(pack.generation, pack.unique, pack.size_bytes)
        return paths.data_path(self._repository, name)

    def _remember(self, digest: str, place: _Place) -> None:
        self._known[digest] = place
        self._known.move_to_end(digest)
        if len(self._known) > KNOWN_MAX:
            self._known.popitem(last=False)

    async def _put_all(self) -> None:
        try:
            while self._waiting:
                await self._put(self._waiting.popleft())
        finally:
            self._putting = None
            # Nothing is left but when this task is cancelled, with its event loop: the next one begins afresh.
            while self._waiting:
                self._waiting.popleft().fail(_interrupted())

    async def _put(self, pack: _Pack) -> None:
        bodies, pack.bodies = pack.bodies, []  # the places that are remembered need no bytes
        try:
            await self._store.put(self._address(pack), b"".join(bodies))
        except Exception as error:
            pack.fail(error)
        except BaseException:
            pack.fail(_interrupted())
            raise
        else:
            pack.stored.set_result(None)


def _interrupted() -> Exception:
    return Unavailable("storing the body was interrupted: the process is ending, or its event loop; try again")
