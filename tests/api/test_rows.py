"""Mutated rows and forms in any pieces: whatever comes, it is refused or read, and nothing else happens."""

import io
import random
import tempfile
from collections.abc import AsyncIterator

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lsmfs.api.rows import is_compressed, read_rows
from lsmfs.api.uploads import Form
from lsmfs.lsm import records
from refstore.errors import Invalid
from tests.aio import aio

MUTATIONS = 200
WORDS = (b"\xff\xff\xff\x7f", b"\xff\xff\xff\xff", b"\0\0\0\0", b"\0\0\0\x80")


def _table() -> pa.Table:
    keys = [f"k{number:03}" for number in range(50)]
    return pa.table(
        {
            "key": keys,
            "address": [f"s3://b/{key}" for key in keys],
            "etag": pa.array(["e"] * 50).dictionary_encode(),
            "metadata": ['{"a":"b"}'] * 25 + [None] * 25,
            "mtime": pa.array([0] * 50, pa.timestamp("us", "UTC")),
        }
    )


def _arrow(table: pa.Table, compression: str | None = None) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_table(table)
    return sink.getvalue()


def _parquet(compression: str) -> bytes:
    sink = io.BytesIO()
    pq.write_table(_table(), sink, compression=compression)
    return sink.getvalue()


def _read(body: bytes) -> pa.Table:
    with tempfile.TemporaryFile() as file:
        file.write(body)
        file.flush()
        return read_rows(file, len(body), 64 * 1024 * 1024)


def _mutated(body: bytes, chance: random.Random) -> bytes:
    changed = bytearray(body)
    for _ in range(chance.choice((1, 1, 2, 8))):
        at = chance.randrange(len(changed))
        kind = chance.random()
        if kind < 0.5:
            changed[at] = chance.randrange(256)
        elif kind < 0.8:
            changed[at : at + 4] = chance.choice(WORDS)
        elif len(changed) > 100:
            del changed[at : at + chance.randrange(1, 20)]
    return bytes(changed)


@pytest.mark.parametrize(
    "body", [_arrow(_table()), _parquet("snappy"), _parquet("none")], ids=["arrow", "snappy", "plain"]
)
def test_mutated_rows_are_read_or_refused(body: bytes) -> None:
    assert _read(body)["key"].to_pylist()[:2] == ["k000", "k001"]
    chance, refused = random.Random(4), 0
    for _ in range(MUTATIONS):
        try:
            records.conform(_read(_mutated(body, chance)))
        except Invalid:
            refused += 1
    assert refused > MUTATIONS // 10


@pytest.mark.parametrize("compression", [None, "zstd", "lz4"])
def test_compressed_buffers_are_seen_in_batches_and_in_dictionaries(compression: str | None) -> None:
    reader = pa.ipc.MessageReader.open_stream(_arrow(_table(), compression))
    messages = list(iter(lambda: _next(reader), None))
    kinds = [message.type for message in messages]
    assert kinds == ["schema", "dictionary", "record batch"]
    found = [is_compressed(bytes(message.metadata)) for message in messages]
    assert found == [False, compression is not None, compression is not None]


def _next(reader: "pa.ipc.MessageReader") -> "pa.ipc.Message | None":
    try:
        return reader.read_next_message()
    except StopIteration:
        return None


@settings(max_examples=30, deadline=None)
@given(body=st.binary(max_size=200), cuts=st.lists(st.integers(1, 60), min_size=1, max_size=20))
def test_a_form_gives_the_same_bytes_in_whatever_pieces_it_comes(body: bytes, cuts: list[int]) -> None:
    boundary = b"xyz-not-in-it"
    head = b'Content-Disposition: form-data; name="content"; filename="f"\r\nContent-Type: text/plain\r\n\r\n'
    whole = b"--" + boundary + b"\r\n" + head + body + b"\r\n--" + boundary + b"--\r\n"

    async def pieces() -> AsyncIterator[bytes]:
        at, turn = 0, 0
        while at < len(whole):
            size = cuts[turn % len(cuts)]
            yield whole[at : at + size]
            at, turn = at + size, turn + 1

    @aio
    async def check() -> None:
        form = Form.of(f"multipart/form-data; boundary={boundary.decode()}")
        assert form is not None
        assert b"".join([piece async for piece in form.content(pieces())]) == body
        assert form.content_type == "text/plain"

    check()
