"""Bulk: rows in as Arrow or Parquet, entries out as Arrow; what is hostile in them is refused."""

import hashlib
import io
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lsmfs.api.app import Options
from lsmfs.auth.permissions import Permission, read_repo, write_repo
from tests.aio import aio
from tests.api.support import R, lake_with_repository, paths, put

STAGE = f"{R}/branches/main/stage"
ALLOWED = Options(allowed_imports=("s3://bucket/raw/",))


def _rows(keys: list[str], addresses: list[str] | None = None, **more: Any) -> pa.Table:
    count = len(keys)
    columns = {
        "key": keys,
        "address": addresses or [f"s3://bucket/raw/{key}" for key in keys],
        "size_bytes": pa.array([1] * count, pa.int64()),
        "etag": ["e"] * count,
    }
    return pa.table({**columns, **more})


def _arrow(table: pa.Table, **options: Any) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table)
    return sink.getvalue()


def _parquet(table: pa.Table, **options: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, **options)
    return sink.getvalue()


async def _listed(client: httpx.AsyncClient, **query: str) -> pa.Table:
    answer = await client.get(f"{R}/refs/main/entries", params=query)
    assert answer.status_code == 200, answer.text
    return pa.ipc.open_stream(answer.content).read_all()


@aio
@pytest.mark.parametrize("encode", [_arrow, _parquet], ids=["arrow", "parquet"])
async def test_rows_become_one_unit_and_come_back(tmp_path: Path, encode: Any) -> None:
    async with lake_with_repository(tmp_path, ALLOWED) as (_, client):
        keys = [f"k/{number:05}" for number in range(5000)]
        answer = await client.post(STAGE, content=encode(_rows(keys)))
        assert (answer.status_code, answer.json()) == (201, {"rows": 5000}), answer.text
        found = await _listed(client)
        assert found["key"].to_pylist() == keys
        assert found["address"][0].as_py() == "s3://bucket/raw/k/00000"
        assert (await _listed(client, prefix="k/0001", after="k/00018"))["key"].to_pylist() == ["k/00019"]
        assert len(await _listed(client, prefix="none")) == 0


@aio
async def test_dictionaries_and_tombstones_are_understood(tmp_path: Path) -> None:
    async with lake_with_repository(tmp_path, ALLOWED) as (_, client):
        await put(client, "gone")
        table = _rows(["a", "gone"], kind=pa.array([0, 1], pa.uint8()))
        table = table.set_column(3, "etag", table["etag"].dictionary_encode())
        assert (await client.post(STAGE, content=_arrow(table))).status_code == 201
        assert paths(await client.get(f"{R}/refs/main/objects/ls")) == ["a"]


@aio
async def test_rows_may_name_bytes_of_their_own_repository(tmp_path: Path) -> None:
    async with lake_with_repository(tmp_path) as (_, client):
        stats = await put(client, "a", b"x" * 100_000)
        address = "lake/data/" + stats["physical_address"].rpartition("/")[2]
        table = _rows(["b"], [address]).set_column(2, "size_bytes", pa.array([100_000], pa.int64()))
        table = table.set_column(3, "etag", [[hashlib.md5(b"x" * 100_000).hexdigest()]])
        assert (await client.post(STAGE, content=_arrow(table))).status_code == 201
        assert (await client.get(f"{R}/refs/main/objects?path=b")).content == b"x" * 100_000


@aio
@pytest.mark.parametrize(
    ("address", "status"),
    [
        ("file:///etc/passwd", 403),
        ("s3://bucket/other", 403),
        ("s3://bucket/rawer/x", 403),
        ("s3://bucket/raw/../secret", 400),
        ("s3://bucket/raw/%2e%2e/secret", 400),
        ("s3://bucket/raw/x?endpoint=http://inner", 400),
        ("s3://bucket?endpoint=http://inner/raw/x", 400),
        ("other/data/d0-abc", 400),
        ("lake/data/../../other/data/d0-abc", 400),
        ("lake/commits/0.json", 400),
        ("", 400),
    ],
)
async def test_rows_cannot_name_bytes_that_are_not_theirs(tmp_path: Path, address: str, status: int) -> None:
    async with lake_with_repository(tmp_path, ALLOWED) as (_, client):
        good = "s3://bucket/raw/x"
        extents = f'[["{good}",0,1,""],["{address}",0,1,""]]'
        for table in (_rows(["a", "b"], [good, address]), _rows(["a"], [good], extents=[extents])):
            answer = await client.post(STAGE, content=_arrow(table))
            assert answer.status_code == status, answer.text
        assert len(await _listed(client)) == 0


def _compressed() -> bytes:
    return _arrow(_rows(["a" * 1000] * 1), compression="zstd")


def _bomb() -> bytes:
    """A few bytes that stand for a gigabyte: one text in a dictionary, a hundred thousand times."""
    texts = pa.DictionaryArray.from_arrays(pa.array([0] * 100_000, pa.int32()), pa.array(["x" * 10_000]))
    return _arrow(pa.table({"key": [str(n) for n in range(100_000)], "address": texts}))


def _parquet_bomb() -> bytes:
    return _parquet(pa.table({"key": ["x" * 10_000] * 100_000, "address": ["s3://bucket/raw/x"] * 100_000}))


def _bad_offsets() -> bytes:
    good = bytearray(_arrow(_rows(["aaaa", "bbbb"])))
    at = good.index((4).to_bytes(4, "little") + (8).to_bytes(4, "little"))
    good[at : at + 4] = (0x7FFFFFFF).to_bytes(4, "little")
    return bytes(good)


def _bad_text() -> bytes:
    return _arrow(_rows(["aaaa"])).replace(b"aaaa", b"aa\xff\xfe", 1)


@aio
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff" * 100,
        b"PAR1",
        b"PAR1" + b"\0" * 100 + b"PAR1",
        _arrow(_rows(["a"]))[:-40],
        _arrow(_rows([])),
        _compressed(),
        _bomb(),
        _parquet_bomb(),
        _bad_offsets(),
        _bad_text(),
        _arrow(_rows(["a"], no_such_column=["x"])),
        _arrow(_rows(["a"], metadata=[["nested"]])),
        _arrow(pa.table({"address": ["s3://bucket/raw/x"]})),
        _arrow(_rows(["a", "a"])),
        _arrow(_rows(["a"], metadata=["no json"])),
        _arrow(_rows(["a"], kind=pa.array([9], pa.uint8()))),
        _arrow(_rows(["x" * 2000])),
        _arrow(_rows(["a"]).set_column(0, "key", pa.array([None], pa.string()))),
        (0xFFFFFFFF).to_bytes(4, "little") + (0x7FFFFFF0).to_bytes(4, "little") + b"\0" * 64,
    ],
    ids=lambda body: f"{len(body)}-{hashlib.md5(body).hexdigest()[:6]}",
)
async def test_hostile_rows_are_refused_and_leave_nothing(tmp_path: Path, body: bytes) -> None:
    options = Options(allowed_imports=ALLOWED.allowed_imports, bulk_bytes_max=64 * 1024 * 1024)
    async with lake_with_repository(tmp_path, options) as (_, client):
        answer = await client.post(STAGE, content=body)
        assert answer.status_code == 400, answer.text
        assert len(await _listed(client)) == 0


@aio
async def test_a_body_beyond_the_limit_is_413(tmp_path: Path) -> None:
    async with lake_with_repository(tmp_path, Options(bulk_bytes_max=1000)) as (_, client):
        assert (await client.post(STAGE, content=b"x" * 1001)).status_code == 413


@aio
async def test_each_key_is_checked_if_permissions_differ_by_path(tmp_path: Path) -> None:
    async with lake_with_repository(tmp_path, ALLOWED) as (there, _):
        directory = there.authority.directory
        await directory.create_role("some", [read_repo("*"), write_repo("lake", paths="mine/*")])
        await directory.create_role("not-secret", [Permission("deny", ("fs:WriteObject",), paths="mine/secret/*")])
        pair = await there.user("ann", None)
        for role in ("some", "not-secret"):
            await directory.attach_role_to_user(role, "ann")
        async with there.client(pair) as client:

            async def stage(keys: list[str], prefix: str, kind: int = 0) -> int:
                table = _rows(keys, kind=pa.array([kind] * len(keys), pa.uint8()))
                answer = await client.post(STAGE, params={"prefix": prefix}, content=_arrow(table))
                return answer.status_code

            assert await stage(["mine/a", "mine/b"], "mine/") == 201
            assert await stage(["mine/a"], "") == 403
            assert await stage(["mine/a", "other"], "mine/") == 400
            assert await stage(["mine/a", "mine/secret/b"], "mine/") == 403
            assert await stage(["mine/secret/b"], "mine/", kind=1) == 201


@aio
async def test_own_bytes_are_for_those_who_may_read_all_of_the_repository(tmp_path: Path) -> None:
    async with lake_with_repository(tmp_path) as (there, client):
        stats = await put(client, "secret", b"s3cret")
        address = "lake/data/" + stats["physical_address"].rpartition("/")[2]
        await there.authority.directory.create_role("some", [read_repo("*", paths="mine/*"), write_repo("*")])
        pair = await there.user("ann", None)
        await there.authority.directory.attach_role_to_user("some", "ann")
        async with there.client(pair) as ann:
            answer = await ann.post(STAGE, content=_arrow(_rows(["mine/x"], [address])))
            assert answer.status_code == 403
