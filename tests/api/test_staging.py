"""Staging and linking: only what was given for linking can be linked, and only to where it was given for."""

from pathlib import Path
from urllib.parse import urlsplit

import pytest

from lsmfs.api.app import Options
from tests.aio import aio
from tests.api.support import R, branch, lake_with_repository, put

BACKING = f"{R}/branches/main/staging/backing"


def _body(address: str, size: int = 5) -> dict[str, object]:
    return {
        "staging": {"physical_address": address},
        "checksum": "abc",
        "size_bytes": size,
        "user_metadata": {"k": "v"},
    }


@aio
async def test_an_object_that_was_stored_where_told_is_linked(tmp_path: Path) -> None:
    async with lake_with_repository(tmp_path) as (_, client):
        address = (await client.get(BACKING, params={"path": "a"})).json()["physical_address"]
        early = await client.put(BACKING, params={"path": "a"}, json=_body(address))
        assert (early.status_code, "no object" in early.json()["message"]) == (400, True)
        stored = Path(urlsplit(address).path)
        stored.parent.mkdir(parents=True, exist_ok=True)
        stored.write_bytes(b"hello")
        assert (await client.put(BACKING, params={"path": "a"}, json=_body(address, 6))).status_code == 400
        linked = await client.put(BACKING, params={"path": "a"}, json=_body(address))
        assert (linked.status_code, linked.json()["metadata"]) == (200, {"k": "v"})
        assert (await client.get(f"{R}/refs/main/objects?path=a")).content == b"hello"
        again = await client.put(BACKING, params={"path": "a"}, json=_body(address), headers={"if-none-match": "*"})
        assert again.status_code == 412


@aio
async def test_an_address_is_good_for_its_path_and_branch_only(tmp_path: Path) -> None:
    async with lake_with_repository(tmp_path) as (_, client):
        await branch(client, "dev")
        address = (await client.get(BACKING, params={"path": "a"})).json()["physical_address"]
        stored = Path(urlsplit(address).path)
        stored.parent.mkdir(parents=True, exist_ok=True)
        stored.write_bytes(b"hello")
        assert (await client.put(BACKING, params={"path": "b"}, json=_body(address))).status_code == 400
        url = BACKING.replace("main", "dev")
        assert (await client.put(url, params={"path": "a"}, json=_body(address))).status_code == 400
        forged = address[:-1] + ("0" if address[-1] != "0" else "1")
        assert (await client.put(BACKING, params={"path": "a"}, json=_body(forged))).status_code == 400


@aio
async def test_bytes_of_other_objects_cannot_be_linked(tmp_path: Path) -> None:
    async with lake_with_repository(tmp_path) as (_, client):
        secret = await put(client, "secret", b"12345")
        for address in (
            secret["physical_address"],
            secret["physical_address"].rpartition("/data/")[2],
            "file:///etc/passwd",
            "s3://bucket/x",
            secret["physical_address"].replace("/data/", "/data/../data/"),
            "",
        ):
            for answer in (
                await client.put(BACKING, params={"path": "a"}, json=_body(address)),
                await client.put(
                    f"{R}/branches/main/objects",
                    params={"path": "a"},
                    json={"physical_address": address, "checksum": "x", "size_bytes": 5},
                ),
            ):
                assert answer.status_code in (400, 403), address


@aio
async def test_what_is_below_an_allowed_place_is_linked_and_links_do_not_lead_out_of_it(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "x").write_bytes(b"there")
    (tmp_path / "outside").write_bytes(b"other")
    (shared / "link").symlink_to(tmp_path / "outside")
    options = Options(allowed_imports=(f"file://{shared}",))
    async with lake_with_repository(tmp_path / "lake", options) as (_, client):
        good = await client.put(BACKING, params={"path": "a"}, json=_body(f"file://{shared}/x"))
        assert good.status_code == 200, good.text
        assert (await client.get(f"{R}/refs/main/objects?path=a")).content == b"there"
        for address in (f"file://{shared}/link", f"file://{shared}/../outside", f"file://{tmp_path}/outside"):
            answer = await client.put(BACKING, params={"path": "b"}, json=_body(address))
            assert answer.status_code in (400, 403), address


@aio
async def test_presigned_urls_are_refused_honestly(tmp_path: Path) -> None:
    async with lake_with_repository(tmp_path) as (_, client):
        await put(client, "a")
        for url in (f"{BACKING}?path=a", f"{R}/refs/main/objects?path=a", f"{R}/refs/main/objects/stat?path=a"):
            answer = await client.get(f"{url}&presign=True")
            assert (answer.status_code, "not supported" in answer.json()["message"]) == (400, True)


@aio
@pytest.mark.parametrize(
    ("namespace", "status"),
    [
        ("", 201),
        ("local://anything", 201),
        ("s3://bucket/x", 403),
        ("file:///etc", 403),
        ("mem://", 403),
        ("nonsense", 400),
        ("s3://bucket/allowed/../other", 400),
        ("s3://bucket/allowed?endpoint=http://inner", 400),
    ],
)
async def test_a_repository_is_stored_only_where_it_is_allowed(tmp_path: Path, namespace: str, status: int) -> None:
    options = Options(allowed_namespaces=("s3://bucket/allowed",))
    async with lake_with_repository(tmp_path, options) as (_, client):
        answer = await client.post("/repositories", json={"name": "other", "storage_namespace": namespace})
        assert answer.status_code == status, answer.text


@aio
async def test_an_allowed_place_is_used_and_shown(tmp_path: Path) -> None:
    place = f"file://{tmp_path}/places"
    (tmp_path / "places").mkdir()
    async with lake_with_repository(tmp_path / "lake", Options(allowed_namespaces=(place,))) as (_, client):
        given = {"name": "other", "storage_namespace": f"{place}/one"}
        answer = await client.post("/repositories", json=given)
        assert (answer.status_code, answer.json()["storage_namespace"]) == (201, f"{place}/one"), answer.text
        await put(client, "a", b"hello", repository="other")
        assert any((tmp_path / "places" / "one").rglob("*"))
        assert (await client.get("/repositories/lake")).json()["storage_namespace"] == "local://lake"
