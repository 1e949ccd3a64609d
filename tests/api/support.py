"""A lake with its API, in a folder; clients of it for an administrator and for users of other roles."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx

from lsmfs.api.app import Options, create_api
from lsmfs.auth import Authority
from lsmfs.auth.keys import Pair
from lsmfs.installation import Configuration, Installation, create_installation
from lsmfs.server.lake import Lake

SERVER_KEY = bytes(range(32))
ADMIN = Pair("ADMINKEY", "adminsecret1")
BASE = "http://lake/api/v1"
ROLES = {"Admin": "Admins", "Developer": "Developers", "Analyst": "Viewers"}


class World:
    """The API of one lake."""

    def __init__(self, lake: Lake, authority: Authority, options: Options) -> None:
        self.lake = lake
        self.authority = authority
        self.app: Any = create_api(lake, authority, authority.directory, options)

    def client(self, pair: Pair | None = ADMIN, **more: Any) -> httpx.AsyncClient:
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=True)
        auth = None if pair is None else httpx.BasicAuth(*pair)
        return httpx.AsyncClient(transport=transport, base_url=BASE, auth=auth, **more)

    async def user(self, name: str, role: str | None) -> Pair:
        """A user with a preconfigured role, or none; its key."""
        directory = self.authority.directory
        await directory.create_user(name)
        if role is not None:
            await directory.add_to_group(name, ROLES[role])
        info, secret = await directory.create_key(name)
        return Pair(info.access_key_id, secret)


@contextlib.asynccontextmanager
async def world(folder: Path, options: Options | None = None) -> AsyncIterator[World]:
    create_installation(folder, Configuration())
    async with (
        Installation(folder, Configuration(), {}) as installation,
        contextlib.aclosing(Lake(installation)) as lake,
        contextlib.aclosing(Authority(installation.refs, SERVER_KEY, installation.clock)) as authority,
    ):
        await authority.setup("admin", ADMIN)
        yield World(lake, authority, options or Options())


@contextlib.asynccontextmanager
async def lake_with_repository(
    folder: Path, options: Options | None = None
) -> AsyncIterator[tuple[World, httpx.AsyncClient]]:
    """A world with the empty repository `lake`, and the administrator's client of it."""
    async with world(folder, options) as there, there.client() as client:
        created = await client.post("/repositories", json={"name": "lake", "storage_namespace": "local://lake"})
        assert created.status_code == 201, created.text
        yield there, client


R = "/repositories/lake"


async def put(
    client: httpx.AsyncClient, path: str, body: bytes = b"x", branch: str = "main", repository: str = "lake"
) -> Any:
    url = f"/repositories/{repository}/branches/{branch}/objects"
    answer = await client.post(url, params={"path": path}, content=body)
    assert answer.status_code == 201, answer.text
    return answer.json()


async def commit(client: httpx.AsyncClient, message: str = "some", branch: str = "main") -> Any:
    answer = await client.post(f"{R}/branches/{branch}/commits", json={"message": message})
    assert answer.status_code == 201, answer.text
    return answer.json()


async def branch(client: httpx.AsyncClient, name: str, source: str = "main") -> str:
    answer = await client.post(f"{R}/branches", json={"name": name, "source": source})
    assert answer.status_code == 201, answer.text
    return answer.text


def paths(answer: httpx.Response) -> list[str]:
    assert answer.status_code == 200, answer.text
    return [each["path"] for each in answer.json()["results"]]
