"""Imports begun, asked after and cancelled over the API."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from lsmfs.api import imports
from lsmfs.api.app import Options
from tests.aio import aio
from tests.api.support import R, World, lake_with_repository, paths

IMPORT = f"{R}/branches/main/import"


def _folder(tmp_path: Path, files: int = 3) -> tuple[Path, Options]:
    raw = tmp_path / "raw"
    (raw / "sub").mkdir(parents=True)
    for number in range(files):
        (raw / "sub" / f"{number}.txt").write_text(str(number))
    return raw, Options(allowed_imports=(f"file://{raw}",))


def _given(kind: str, path: str, destination: str) -> dict[str, Any]:
    place = {"type": kind, "path": path, "destination": destination}
    return {"paths": [place], "commit": {"message": "imported", "metadata": {"from": "raw"}}}


async def _ended(client: httpx.AsyncClient, identity: str) -> Any:
    while True:
        status = (await client.get(IMPORT, params={"id": identity})).json()
        if status["completed"]:
            return status
        await asyncio.sleep(0.02)


@aio
async def test_a_folder_is_imported_and_committed(tmp_path: Path) -> None:
    raw, options = _folder(tmp_path)
    async with lake_with_repository(tmp_path / "lake", options) as (_, client):
        answer = await client.post(IMPORT, json=_given("common_prefix", f"file://{raw}/sub", "in/"))
        assert answer.status_code == 202, answer.text
        status = await _ended(client, answer.json()["id"])
        assert "error" not in status
        assert status["ingested_objects"] == 3
        assert (status["commit"]["message"], status["commit"]["metadata"]) == ("imported", {"from": "raw"})
        assert paths(await client.get(f"{R}/refs/main@/objects/ls")) == ["in/0.txt", "in/1.txt", "in/2.txt"]
        assert (await client.get(f"{R}/refs/main/objects?path=in/1.txt")).content == b"1"


@aio
async def test_an_imported_object_that_is_gone_is_410(tmp_path: Path) -> None:
    raw, options = _folder(tmp_path)
    async with lake_with_repository(tmp_path / "lake", options) as (_, client):
        answer = await client.post(IMPORT, json=_given("common_prefix", f"file://{raw}/sub", "in/"))
        await _ended(client, answer.json()["id"])
        (raw / "sub" / "1.txt").unlink()
        assert (await client.get(f"{R}/refs/main/objects?path=in/1.txt")).status_code == 410


@aio
async def test_one_object_is_imported(tmp_path: Path) -> None:
    raw, options = _folder(tmp_path)
    async with lake_with_repository(tmp_path / "lake", options) as (_, client):
        answer = await client.post(IMPORT, json=_given("object", f"file://{raw}/sub/2.txt", "two"))
        status = await _ended(client, answer.json()["id"])
        assert "error" not in status, status
        assert (await client.get(f"{R}/refs/main/objects?path=two")).content == b"2"


@aio
@pytest.mark.parametrize(
    "path", ["file:///etc", "/etc", "s3://bucket/x", "{raw}/../lake", "{raw}er", "{raw}/sub/0.txt"]
)
async def test_only_allowed_places_and_folders_are_imported(tmp_path: Path, path: str) -> None:
    raw, options = _folder(tmp_path)
    async with lake_with_repository(tmp_path / "lake", options) as (_, client):
        answer = await client.post(IMPORT, json=_given("common_prefix", path.format(raw=f"file://{raw}"), ""))
        assert answer.status_code in (400, 403)
        assert answer.json()["message"]


@aio
async def test_what_fails_later_is_told_by_the_status(tmp_path: Path) -> None:
    raw, options = _folder(tmp_path)
    (raw / "empty").mkdir()
    async with lake_with_repository(tmp_path / "lake", options) as (_, client):
        for given in (
            _given("common_prefix", f"file://{raw}/empty", "x/"),
            _given("object", f"file://{raw}/no-such-file", "x"),
        ):
            answer = await client.post(IMPORT, json=given)
            status = await _ended(client, answer.json()["id"])
            assert status["error"]["message"]
            assert "commit" not in status


@aio
@pytest.mark.parametrize("files", [50, 3000])
@pytest.mark.parametrize("elsewhere", [False, True], ids=["this worker", "another worker"])
async def test_a_cancelled_import_leaves_nothing_or_was_faster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, elsewhere: bool, files: int
) -> None:
    monkeypatch.setattr(imports, "BEAT_SECONDS", 0.005)
    raw, options = _folder(tmp_path, files)
    async with lake_with_repository(tmp_path / "lake", options) as (there, client):
        other = World(there.lake, there.authority, options) if elsewhere else there
        async with other.client() as canceller:
            answer = await client.post(IMPORT, json=_given("common_prefix", f"file://{raw}", ""))
            identity = answer.json()["id"]
            assert (await canceller.delete(IMPORT, params={"id": identity})).status_code == 204
            status = await _ended(canceller, identity)
            found = paths(await client.get(f"{R}/refs/main@/objects/ls"))
            if "error" in status:
                assert (status["error"]["message"], found) == ("the import was cancelled", [])
            else:
                assert (status["commit"]["message"], len(found)) == ("imported", min(100, files))
            assert (await canceller.delete(IMPORT, params={"id": identity})).status_code == 409


@aio
async def test_an_import_is_known_by_its_id_and_branch_and_a_lost_worker_is_told(tmp_path: Path) -> None:
    async with lake_with_repository(tmp_path) as (there, client):
        repository = await there.lake.repository("lake")
        await imports.Records(repository).add(imports.Record("lost", "main", there.lake.clock.now_us() - 31_000_000))
        status = (await client.get(IMPORT, params={"id": "lost"})).json()
        assert (status["completed"], "again" in status["error"]["message"]) == (False, True)
        assert (await client.get(IMPORT.replace("main", "dev"), params={"id": "lost"})).status_code == 404
        assert (await client.get(IMPORT, params={"id": "none"})).status_code == 404
