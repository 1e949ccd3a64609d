"""An Arrow IPC stream as it comes over the wire: a table for each batch, in the memory of one.

    message   FF FF FF FF | metadata bytes (int32) | metadata, a flatbuffer that says how long the body is | body
    stream    the schema's message, a message for each batch, then FF FF FF FF 00 00 00 00

pyarrow reads streams from files that block; here each message is put together first and then read after the schema's.
A stream that ends without its end has been cut: `Unavailable`.
"""

import struct
from collections.abc import AsyncIterator

import pyarrow as pa

from refstore.errors import Unavailable

CONTINUATION = b"\xff\xff\xff\xff"
METADATA_BYTES_MAX = 1024 * 1024  # a batch of ten columns says some hundred bytes
BODY_BYTES_MAX = 2 * 1024**3  # of a batch: a server's tables have some tens of MB
_BODY_LENGTH = 3  # the field of a Message


class _Pieces:
    """Bytes that come in pieces of any size, taken in sizes that are wanted."""

    def __init__(self, pieces: AsyncIterator[bytes]) -> None:
        self._pieces = pieces
        self._held = bytearray()

    async def take(self, size: int) -> bytes:
        while len(self._held) < size:
            piece = await anext(self._pieces, None)
            if piece is None:
                raise Unavailable("an answer broke off before its end: try again")
            self._held += piece
        taken = bytes(self._held[:size])
        del self._held[:size]
        return taken


async def read_tables(pieces: AsyncIterator[bytes]) -> AsyncIterator[pa.Table]:
    """The batches of a stream without dictionaries, one by one."""
    source = _Pieces(pieces)
    schema = await _message(source)
    while schema and (batch := await _message(source)):
        try:
            with pa.ipc.open_stream(pa.py_buffer(schema + batch)) as reader:
                rows = reader.read_all()
            rows.validate(full=True)
        except (pa.ArrowException, OSError, ValueError) as error:  # what pyarrow says of bad bytes
            raise _strange(str(error)) from None
        if len(rows):
            yield rows


async def _message(source: _Pieces) -> bytes:
    """One message, whole; nothing at the end."""
    head = await source.take(8)
    size = int.from_bytes(head[4:], "little")
    if head[:4] != CONTINUATION or size > METADATA_BYTES_MAX:
        raise _strange("no message begins so")
    if not size:
        return b""
    metadata = await source.take(size)
    try:
        length = body_length(metadata)
    except struct.error:
        raise _strange("a message's metadata is cut") from None
    if not 0 <= length <= BODY_BYTES_MAX:
        raise _strange(f"a batch has {length} bytes")
    return head + metadata + await source.take(length)


def body_length(metadata: bytes) -> int:
    """What a message says of the length of its body: a field of a flatbuffer's table, found by its vtable."""
    table = struct.unpack_from("<I", metadata)[0]
    vtable = table - struct.unpack_from("<i", metadata, table)[0]
    if vtable < 0 or struct.unpack_from("<H", metadata, vtable)[0] <= 4 + 2 * _BODY_LENGTH:
        return 0
    offset = struct.unpack_from("<H", metadata, vtable + 4 + 2 * _BODY_LENGTH)[0]
    return int(struct.unpack_from("<q", metadata, table + offset)[0]) if offset else 0


def _strange(why: str) -> Unavailable:
    return Unavailable(f"an answer is no Arrow stream ({why}): use the server's version of lsmfs")
