"""Broken clients, hostile input, and stores that are away."""

import asyncio
import base64
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from lsmfs.api import answers
from lsmfs.model import Entry
from refstore.errors import Corrupt, Unavailable
from tests.aio import aio
from tests.api.support import ADMIN, R, World, commit, lake_with_repository, paths, put


def _scope(method: str, path: str, query: bytes = b"", headers: tuple[tuple[bytes, bytes], ...] = ()) -> dict[str, Any]:
    basic = b"Basic " + base64.b64encode(f"{ADMIN.access_key_id}:{ADMIN.secret}".encode())
    return {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": query,
        "headers": [(b"authorization", basic), *headers],
    }


async def _call(there: World, scope: dict[str, Any], messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the application sends if it receives these messages and then nothing more."""
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        if messages:
            return messages.pop(0)
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await there.app(scope, receive, send)
    return sent


@aio
@pytest.mark.parametrize("kind", [b"application/octet-stream", b"multipart/form-data; boundary=b"])
async def test_an_upload_whose_client_goes_away_leaves_nothing(tmp_path: Path, kind: bytes) -> None:
    async with lake_with_repository(tmp_path) as (there, client):
        begin = b'--b\r\nContent-Disposition: form-data; name="content"\r\n\r\n' if b"form" in kind else b""
        messages: list[dict[str, Any]] = [
            {"type": "http.request", "body": begin + b"x" * 100_000, "more_body": True},
            {"type": "http.disconnect"},
        ]
        scope = _scope("POST", f"/api/v1{R}/branches/main/objects", b"path=a", ((b"content-type", kind),))
        assert await _call(there, scope, messages) == []
        assert paths(await client.get(f"{R}/refs/main/objects/ls")) == []


@aio
async def test_a_read_whose_client_goes_away_ends(tmp_path: Path) -> None:
    async with lake_with_repository(tmp_path) as (there, client):
        await put(client, "large", b"x" * (20 * 1024 * 1024))
        scope = _scope("GET", f"/api/v1{R}/refs/main/objects", b"path=large")
        sent = await _call(there, scope, [{"type": "http.disconnect"}])
        assert sum(len(message.get("body", b"")) for message in sent) < 20 * 1024 * 1024


@aio
async def test_a_body_is_streamed_and_not_held(tmp_path: Path) -> None:
    """Of a body that never ends, bytes reach the store while it comes."""
    async with lake_with_repository(tmp_path) as (_, client):
        seen = 0

        async def body() -> AsyncIterator[bytes]:
            nonlocal seen
            for _ in range(40):
                seen = max(seen, sum(each.stat().st_size for each in tmp_path.rglob("*") if each.is_file()))
                yield b"y" * (1024 * 1024)

        answer = await client.post(f"{R}/branches/main/objects?path=a", content=body())
        assert answer.status_code == 201
        assert seen > 20 * 1024 * 1024


@aio
async def test_what_a_content_type_or_etag_has_cannot_make_headers(tmp_path: Path) -> None:
    async with lake_with_repository(tmp_path) as (there, client):
        entry = await there.lake.save_body("lake", _once(b"x"), "text/plain\r\nset-cookie: a=b")
        bad = Entry(entry.address, 1, "a\r\nx: y", 2**62, entry.offset, entry.content_type)
        async with there.lake.writing("lake", "main") as writer:
            await writer.put("bad", bad)
        got = await client.get(f"{R}/refs/main/objects?path=bad")
        assert got.headers["content-type"] == "application/octet-stream"
        assert "set-cookie" not in got.headers
        assert "etag" not in got.headers
        assert got.headers["x-content-type-options"] == "nosniff"
        assert "sandbox" in got.headers["content-security-policy"]
        given = {"physical_address": "x", "checksum": "c", "size_bytes": 1, "content_type": "a\r\nb"}
        assert (await client.put(f"{R}/branches/main/objects?path=a", json=given)).status_code in (400, 403)


async def _once(body: bytes) -> AsyncIterator[bytes]:
    yield body


@aio
@pytest.mark.parametrize(
    "query",
    [
        b"path=%ff",
        b"path=%00",
        b"path=" + b"x" * 2000,
        b"\xff",
        b"path=a&" + b"&".join([b"a=b"] * 2000),
        b"path=%ed%a0%80",
    ],
)
async def test_strange_queries_are_refused(tmp_path: Path, query: bytes) -> None:
    async with lake_with_repository(tmp_path) as (there, _):
        for method, path in (("GET", f"/api/v1{R}/refs/main/objects"), ("POST", f"/api/v1{R}/branches/main/objects")):
            sent = await _call(there, _scope(method, path, query), [{"type": "http.request", "body": b"x"}])
            assert sent[0]["status"] == 400


@aio
@pytest.mark.parametrize(
    "path", ["/api/v1/repositories/%ff", "/api/v1/repositories/a%00b", "/api/v1/repositories/..%2fx"]
)
async def test_strange_paths_are_refused(tmp_path: Path, path: str) -> None:
    async with lake_with_repository(tmp_path) as (there, _):
        sent = await _call(there, _scope("GET", path), [])
        assert sent[0]["status"] in (400, 404)


@aio
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'{"name": 5}',
        b"[" * 100_000,
        b'{"name":"\\ud800","source":"main"}',
        b"\xff\xfe",
        b'{"name":"x"}',
    ],
)
async def test_strange_bodies_are_refused(tmp_path: Path, body: bytes) -> None:
    async with lake_with_repository(tmp_path) as (_, client):
        answer = await client.post(f"{R}/branches", content=body)
        assert (answer.status_code, bool(answer.json()["message"])) == (400, True)


@aio
async def test_a_body_beyond_the_limit_of_json_is_413(tmp_path: Path) -> None:
    async with lake_with_repository(tmp_path) as (_, client):
        assert (await client.post(f"{R}/branches", content=b" " * (5 * 1024 * 1024))).status_code == 413


@aio
async def test_a_store_that_is_away_is_503_with_retry_after_and_comes_back(tmp_path: Path) -> None:
    async with lake_with_repository(tmp_path) as (there, client):
        await put(client, "a")
        await commit(client)
        there.lake._open.clear()
        refs = there.lake.installation.refs
        real = refs.get

        async def away(partition: str, key: bytes) -> bytes | None:
            raise Unavailable("the ref store is away")

        refs.get = away  # type: ignore[method-assign]
        answer = await client.get(f"{R}/refs/main/objects?path=a")
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        refs.get = real  # type: ignore[method-assign]
        assert (await client.get(f"{R}/refs/main/objects?path=a")).status_code == 200


@aio
async def test_bytes_that_are_gone_are_an_error_before_the_answer_begins(tmp_path: Path) -> None:
    async with lake_with_repository(tmp_path) as (_, client):
        stats = await put(client, "a", b"x" * 200_000)
        Path(stats["physical_address"].removeprefix("file://")).unlink()
        answer = await client.get(f"{R}/refs/main/objects?path=a")
        assert (answer.status_code, answer.json()) == (500, {"message": answers.BROKEN})


def test_what_nobody_foresaw_says_nothing_of_its_cause() -> None:
    for error in (RuntimeError("secret words"), Corrupt("secret words")):
        answer = answers.error_answer(error)
        assert answer.status == 500
        assert b"secret" not in answer.body


@aio
async def test_a_limit_of_paths_to_delete_holds_and_bad_ones_are_told(tmp_path: Path) -> None:
    async with lake_with_repository(tmp_path) as (_, client):
        await put(client, "a")
        url = f"{R}/branches/main/objects/delete"
        assert (await client.post(url, json={"paths": ["x"] * 1001})).status_code == 400
        answer = await client.post(url, json={"paths": ["a", "", "b" * 2000]})
        assert [(each["status_code"], each["path"][:3]) for each in answer.json()["errors"]] == [
            (400, ""),
            (400, "bbb"),
        ]
        assert paths(await client.get(f"{R}/refs/main/objects/ls")) == []


@aio
async def test_too_much_metadata_is_refused_before_the_body_is_taken_in(tmp_path: Path) -> None:
    async with lake_with_repository(tmp_path) as (there, _):
        headers = ((b"x-lakefs-meta-a", b"x" * 9000),)
        scope = _scope("POST", f"/api/v1{R}/branches/main/objects", b"path=a", headers)
        sent = await _call(there, scope, [])
        assert sent[0]["status"] == 400
