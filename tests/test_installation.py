"""Repositories with storage of their own: everything they store is there, and nothing of the others."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from compactor.daemon import Daemon
from compactor.planner import Triggers
from lsmfs.blocks import ALONE, Bodies, read_body
from lsmfs.installation import Configuration, Installation
from lsmfs.repository import Repository
from refstore.errors import AlreadyExists, Denied, Error, Invalid, NotFound
from tests.aio import aio
from tests.blocks.support import pieces


@contextlib.asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[Installation]:
    (folder / "data").mkdir(parents=True, exist_ok=True)
    async with Installation(folder / "data", Configuration(), {}) as installation:
        yield installation


def url(folder: Path) -> str:
    return f"file://{folder}/cold"


def files(folder: Path) -> set[str]:
    """The objects that a folder has, by a second route."""
    every = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return {str(path) for path in every if path.parts[0] != ".lsmfs"}


async def put(repository: Repository, path: str, body: bytes, branch: str = "main") -> None:
    bodies = Bodies(repository.store, repository.name, repository.clock, ALONE)
    entry = await bodies.save(pieces(body))
    async with repository.writer(branch) as writer:
        await writer.put(path, entry)
        await writer.append(path, b"!")


async def read(installation: Installation, repository: Repository, path: str, branch: str = "main") -> bytes:
    entry = await repository.get(branch, path)
    return b"".join([piece async for piece in read_body(entry, repository.store, installation.foreign)])


async def use(installation: Installation, repository: Repository) -> None:
    """Everything that writes objects."""
    for number in range(3):
        await put(repository, f"{number}", b"%d" % number)
    assert await Daemon([repository], Triggers(tables_min=2)).round() == 1
    await repository.commit("main", "first")
    await repository.create_branch("dev", "main")
    await put(repository, "dev", b"dev", "dev")
    await repository.commit("dev", "second")
    await repository.merge("dev", "main")
    assert await read(installation, repository, "dev") == b"dev!"
    assert await read(installation, repository, "1") == b"1!"


@aio
async def test_all_that_a_repository_stores_is_in_its_storage_and_goes_with_it(tmp_path: Path) -> None:
    own, cold = tmp_path / "data" / "objects", tmp_path / "cold"
    async with opened(tmp_path) as installation:
        async with await installation.create("lake") as lake:
            await put(lake, "a", b"warm")
        before = files(own)
        assert before
        async with await installation.create("archive", storage=url(tmp_path)) as archive:
            await use(installation, archive)
        stored = files(cold)
        assert {name.split("/")[1] for name in stored} == {"commits", "data", "ranges", "runs", "tables"}
        assert {name.split("/")[0] for name in stored} == {"archive"}
        assert files(own) == before
    async with opened(tmp_path) as installation:  # it is found again by its record alone
        async with await installation.repository("archive") as archive:
            assert await read(installation, archive, "dev") == b"dev!"
            assert archive.record.storage == url(tmp_path)
        assert await installation.delete("archive") == len(stored)
        assert (files(cold), files(own)) == (set(), before)
        async with await installation.repository("lake") as lake:
            assert await read(installation, lake, "a") == b"warm!"


@aio
async def test_repositories_that_share_storage_do_not_touch_each_other(tmp_path: Path) -> None:
    async with opened(tmp_path) as installation:
        for name in ("one", "two"):
            async with await installation.create(name, storage=url(tmp_path)) as repository:
                await put(repository, "a", name.encode())
        await installation.delete("one")
        async with await installation.repository("two") as two:
            assert await read(installation, two, "a") == b"two!"
        assert {name.split("/")[0] for name in files(tmp_path / "cold")} == {"two"}


@aio
async def test_storage_can_be_told_from_the_folder_of_the_installation(tmp_path: Path) -> None:
    async with (
        opened(tmp_path) as installation,
        await installation.create("lake", storage="file://{folder}/cold") as lake,
    ):
        await put(lake, "a", b"1")
        assert installation.storage_url(lake.record) == f"file://{tmp_path}/data/cold"
    (tmp_path / "data").rename(tmp_path / "moved")
    async with (
        Installation(tmp_path / "moved", Configuration(), {}) as installation,
        await installation.repository("lake") as lake,
    ):
        assert await read(installation, lake, "a") == b"1!"


@pytest.mark.parametrize(
    ("storage", "words"),
    [
        ("mem://", "gone when the command ends"),
        ("file://{folder}/objects/pond", "one within the other"),
        ("file://{folder}/", "one within the other"),
        ("ftp://x", "no store's address"),
    ],
)
@aio
async def test_storage_that_cannot_be_right_leaves_no_repository(tmp_path: Path, storage: str, words: str) -> None:
    async with opened(tmp_path) as installation:
        with pytest.raises(Invalid, match=words):
            await installation.create("lake", storage=storage)
        assert [name async for name in installation.names()] == []


@aio
async def test_storage_that_cannot_be_used_leaves_no_repository(tmp_path: Path) -> None:
    (tmp_path / "cold").write_text("a file")
    async with opened(tmp_path) as installation:
        with pytest.raises(Error):
            await installation.create("lake", storage=url(tmp_path))
        assert [name async for name in installation.names()] == []


@aio
async def test_objects_of_a_repository_of_another_installation_are_not_taken_over(tmp_path: Path) -> None:
    async with opened(tmp_path) as installation:
        await (await installation.create("lake", storage=url(tmp_path))).aclose()
    async with opened(tmp_path / "other") as installation:
        with pytest.raises(AlreadyExists, match="has objects of a repository 'lake' already: lake/commits/"):
            await installation.create("lake", storage=url(tmp_path))
        with pytest.raises(NotFound):
            await installation.repository("lake")


@aio
async def test_a_repository_that_exists_is_not_made_again_with_other_storage(tmp_path: Path) -> None:
    async with opened(tmp_path) as installation:
        await (await installation.create("lake")).aclose()
        with pytest.raises(AlreadyExists, match="storage elsewhere"):
            await installation.create("lake", storage=url(tmp_path))
        assert files(tmp_path / "cold") == set()
        async with await installation.repository("lake") as lake:
            await put(lake, "a", b"1")


@aio
async def test_a_repository_that_others_borrow_from_stays_whole(tmp_path: Path) -> None:
    async with opened(tmp_path) as installation:
        lake, pond = [await installation.create(name) for name in ("lake", "pond")]
        await put(lake, "a", b"1")
        await installation.lend(lake.record, pond.record)
        before = files(tmp_path / "data" / "objects")
        with pytest.raises(Denied, match="delete pond first"):
            await installation.delete("lake")
        assert files(tmp_path / "data" / "objects") == before
        async with await installation.repository("lake") as again:
            assert await read(installation, again, "a") == b"1!"
        for repository in (lake, pond):
            await repository.aclose()
