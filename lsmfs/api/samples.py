"""A small lake to look at: a README, a folder of data, an image, and a Parquet file of made-up lakes. All of it is
ours, and the same bytes every time."""

import asyncio
import contextlib
import io
import random
import struct
import zlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from refstore.errors import AlreadyExists, NoChanges

if TYPE_CHECKING:
    from lsmfs.server.lake import Lake

LAKES = 40_000  # rows: over 512 KiB, which readers of footers and row groups need to be tried on
MESSAGE = "Add sample data"
README = b"""# A sample repository

- `lakes.parquet`: made-up lakes with their country, depth and area
- `data/depths.csv`, `data/notes.txt`: small files in a folder
- `images/waves.png`: a tiny picture

Make a branch, change something, look at the difference, merge it.
"""
_NAMES = ("Blue", "Long", "Still", "Deep", "Silver", "North", "Heron", "Stone")
_COUNTRIES = ("Finland", "Canada", "Malawi", "Peru", "Nepal", "Chile", "Latvia", "Japan")


async def create_sample(lake: "Lake", name: str, branch: str = "main", user: str = "lsmfs") -> None:
    """The repository of that name with sample data, made if it is not there."""
    with contextlib.suppress(AlreadyExists):
        await (await lake.installation.create(name, branch)).aclose()
    if not (await (await lake.repository(name)).list(branch, limit=1)).items:
        await fill(lake, name, branch, user)


async def fill(lake: "Lake", name: str, branch: str, user: str) -> None:
    """Put the sample data on a branch, and commit it."""
    files = await asyncio.to_thread(sample_files)
    async with lake.writing(name, branch) as writer:
        for path, (kind, body) in files.items():
            await writer.put(path, await lake.save_body(name, _once(body), kind))
    with contextlib.suppress(NoChanges):
        await (await lake.repository(name)).commit(branch, MESSAGE, user)


async def _once(body: bytes) -> AsyncIterator[bytes]:
    yield body


def sample_files() -> dict[str, tuple[str, bytes]]:
    """Content type and bytes of each path."""
    depths = "".join(f"{name} Lake,{10 * number + 7}\n" for number, name in enumerate(_NAMES))
    return {
        "README.md": ("text/markdown", README),
        "data/depths.csv": ("text/csv", f"name,depth_m\n{depths}".encode()),
        "data/notes.txt": ("text/plain", b"Depths were not measured, they were made up.\n"),
        "images/waves.png": ("image/png", _picture()),
        "lakes.parquet": ("application/vnd.apache.parquet", _lakes()),
    }


def _lakes() -> bytes:
    chance = random.Random(8)
    table = pa.table(
        {
            "lake_id": pa.array(range(LAKES), pa.int64()),
            "name": [f"{chance.choice(_NAMES)} Lake {number}" for number in range(LAKES)],
            "country": [chance.choice(_COUNTRIES) for _ in range(LAKES)],
            "depth_m": [round(chance.uniform(1, 700), 2) for _ in range(LAKES)],
            "area_km2": [round(chance.expovariate(0.02), 3) for _ in range(LAKES)],
        }
    )
    sink = io.BytesIO()
    pq.write_table(table, sink, row_group_size=10_000, compression="snappy")
    return sink.getvalue()


def _picture(size: int = 16) -> bytes:
    """A PNG of grey waves."""
    rows = b"".join(b"\0" + bytes((40 * (abs((x + y) % 8 - 4)) + 60) & 255 for x in range(size)) for y in range(size))
    header = struct.pack(">IIBBBBB", size, size, 8, 0, 0, 0, 0)
    chunks = (b"IHDR", header), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in chunks)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
