"""Who may come in: Basic, Bearer, the session cookie with its CSRF token; setup and login."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from lsmfs.api.app import create_api
from lsmfs.auth import Authority
from lsmfs.auth.keys import Pair
from refstore.drivers.memory import MemoryRefStore
from tests.aio import aio
from tests.api.support import ADMIN, BASE, SERVER_KEY, lake_with_repository, world

UNKNOWN = {"message": "error authenticating request"}


@aio
@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "Basic",
        "Basic !!!",
        "Basic YWJj",
        "Basic //79",
        "Bearer",
        "Bearer x.y.z",
        "Digest a",
        "AWS a:b",
        "\xff",
    ],
)
async def test_without_good_credentials_the_answer_is_401_in_the_same_words(tmp_path: Path, header: str | None) -> None:
    async with world(tmp_path) as there, there.client(None) as client:
        headers = {} if header is None else {b"authorization": header.encode("latin-1")}
        answer = await client.get("/repositories", headers=headers)
        assert (answer.status_code, answer.json()) == (401, UNKNOWN)


@aio
async def test_a_wrong_secret_an_unknown_key_and_a_disabled_user_look_the_same(tmp_path: Path) -> None:
    async with world(tmp_path) as there:
        gone = await there.user("gone", "Admin")
        await there.authority.directory.set_user_disabled("gone", True)
        for pair in (Pair(ADMIN.access_key_id, "wrong"), Pair("NOBODY", "x"), gone):
            async with there.client(pair) as client:
                answer = await client.get("/repositories")
                assert (answer.status_code, answer.json()) == (401, UNKNOWN)


@aio
async def test_a_login_gives_a_token_and_cookies_and_unsafe_requests_need_the_csrf_token(tmp_path: Path) -> None:
    async with lake_with_repository(tmp_path) as (there, _), there.client(None) as browser:
        wrong = await browser.post("/auth/login", json={"access_key_id": "ADMINKEY", "secret_access_key": "no"})
        assert (wrong.status_code, wrong.json()) == (401, UNKNOWN)
        given = {"access_key_id": ADMIN.access_key_id, "secret_access_key": ADMIN.secret}
        answer = await browser.post("/auth/login", json=given)
        assert answer.status_code == 200
        token = answer.json()["token"]
        assert "HttpOnly" in answer.headers.get_list("set-cookie")[0]
        async with there.client(None, headers={"authorization": f"Bearer {token}"}) as bearer:
            assert (await bearer.get("/user")).json()["user"]["id"] == "admin"
        assert (await browser.get("/repositories")).status_code == 200
        body = {"name": "other", "storage_namespace": ""}
        assert (await browser.post("/repositories", json=body)).status_code == 403
        forged = {"x-csrf-token": "0" * 32 + "." + "0" * 64}
        assert (await browser.post("/repositories", json=body, headers=forged)).status_code == 403
        good = {"x-csrf-token": browser.cookies["lsmfs_csrf"]}
        assert (await browser.post("/repositories", json=body, headers=good)).status_code == 201
        await browser.post("/auth/logout")
        assert (await browser.get("/repositories")).status_code == 401


@aio
async def test_setup_works_once(tmp_path: Path) -> None:
    async with world(tmp_path) as there:
        authority = Authority(MemoryRefStore(), SERVER_KEY)
        app: Any = create_api(there.lake, authority, authority.directory)
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url=BASE) as client:
            assert (await client.get("/setup_lakefs")).json()["state"] == "not_initialized"
            made = await client.post("/setup_lakefs", json={"username": "first"})
            assert made.status_code == 200
            pair = made.json()["access_key_id"], made.json()["secret_access_key"]
            assert (await client.get("/repositories", auth=pair)).status_code == 200
            assert (await client.get("/setup_lakefs")).json()["state"] == "initialized"
            assert (await client.post("/setup_lakefs", json={"username": "second"})).status_code == 409
        await authority.aclose()


@aio
async def test_the_config_is_what_clients_can_work_with(tmp_path: Path) -> None:
    async with world(tmp_path) as there, there.client() as client, there.client(None) as nobody:
        assert (await nobody.get("/healthcheck")).status_code == 204
        assert (await nobody.get("/config")).status_code == 401
        config = (await client.get("/config")).json()
        assert tuple(map(int, config["version_config"]["version"].split("."))) >= (1, 3, 1)
        assert config["storage_config"]["blockstore_namespace_ValidityRegex"]
        assert config["storage_config"]["pre_sign_support"] is False
        assert (await client.get("/config/storage")).json() == config["storage_config"]
        assert (await nobody.get("/openapi.json")).json()["openapi"] == "3.1.0"


@aio
async def test_what_is_not_there_is_404_and_a_wrong_method_is_405(tmp_path: Path) -> None:
    async with world(tmp_path) as there, there.client() as client:
        for path in ("/nothing", "/repositories/x/y", "/", "//repositories"):
            assert (await client.get(path)).status_code == 404, path
        answer = await client.patch("/repositories")
        assert (answer.status_code, answer.headers["allow"]) == (405, "GET, POST")
        assert (await client.get("http://lake/elsewhere")).status_code == 404
