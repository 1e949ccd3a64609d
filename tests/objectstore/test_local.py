"""LocalStore beyond the suite: several processes, crashes, full disks, foreign files, cancelled tasks."""

import asyncio
import errno
import os
import resource
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from lsmfs.objectstore import local_files, local_listing
from lsmfs.objectstore.local import LocalStore
from lsmfs.objectstore.store import ABSENT, ANYTHING, Precondition, Tag
from refstore.errors import Conflict, Denied, Invalid, OutcomeUnknown, Unavailable
from tests.aio import aio

RACER = """
import asyncio, sys
from lsmfs.objectstore.local import LocalStore
from lsmfs.objectstore.store import ABSENT
from refstore.errors import AlreadyExists, Conflict

async def main(root, me):
    store = LocalStore(root)
    print("ready", flush=True)
    sys.stdin.readline()
    won = []
    for number in range(40):
        try:
            await store.put(f"race/{number}", me.encode(), ABSENT)
            won.append(number)
        except AlreadyExists:
            pass
    for _ in range(25):
        while True:
            body, tag = await store.get_tagged("counter")
            try:
                await store.put("counter", b"%d" % (int(body) + 1), tag)
                break
            except Conflict:
                pass
    await store.aclose()
    print(*won)

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LocalStore]:
    store = LocalStore(tmp_path)
    yield store
    asyncio.run(store.aclose())


def temporary(root: Path) -> list[str]:
    return os.listdir(root / ".lsmfs" / "temporary")


def test_processes_that_race_create_each_name_once_and_lose_no_update(store: LocalStore, tmp_path: Path) -> None:
    asyncio.run(store.put("counter", b"0"))
    command = [sys.executable, "-c", RACER, str(tmp_path)]
    racers = [
        subprocess.Popen([*command, f"racer {number}"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for number in range(4)
    ]
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("go\n")
        racer.stdin.flush()
    won = {number: racer.communicate(timeout=60)[0].split() for number, racer in enumerate(racers)}
    assert sorted(name for names in won.values() for name in names) == sorted(str(number) for number in range(40))
    for number, names in won.items():
        for name in names:
            assert (tmp_path / "race" / name).read_bytes() == f"racer {number}".encode()
    assert asyncio.run(store.get("counter")) == b"100"
    assert temporary(tmp_path) == []


@aio
async def test_an_object_is_a_plain_file_under_its_name(store: LocalStore, tmp_path: Path) -> None:
    await store.put("repository/tables/t1.parquet", b"body")
    assert (tmp_path / "repository" / "tables" / "t1.parquet").read_bytes() == b"body"
    assert temporary(tmp_path) == []


@aio
async def test_what_a_crash_left_is_never_listed_and_swept_after_a_day(tmp_path: Path) -> None:
    folder = tmp_path / ".lsmfs" / "temporary"
    folder.mkdir(parents=True)
    for name, age_seconds in (("1-1", 90_000), ("1-2", 3_600)):
        (folder / name).write_bytes(b"half a bo")
        moment = (folder / name).stat().st_mtime - age_seconds
        os.utime(folder / name, (moment, moment))
    store = LocalStore(tmp_path)
    assert [info async for info in store.list()] == []
    await store.put("name", b"1")
    assert [info.name async for info in store.list()] == ["name"]
    assert temporary(tmp_path) == ["1-2"]
    await store.aclose()


@aio
async def test_a_temporary_name_that_is_taken_is_not_used(store: LocalStore, tmp_path: Path) -> None:
    await store.put("first", b"1")
    at = next(local_files._numbers)
    taken = tmp_path / ".lsmfs" / "temporary" / f"{os.getpid()}-{at + 1}"
    taken.write_bytes(b"of a process with our id in another container")
    await store.put("second", b"2")
    assert taken.read_bytes() == b"of a process with our id in another container"
    assert await store.get("second") == b"2"


@aio
async def test_foreign_files_are_not_objects(store: LocalStore, tmp_path: Path) -> None:
    await store.put("name", b"1")
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff")).write_bytes(b"not UTF-8")
    (tmp_path / "link").symlink_to(tmp_path / "name")
    os.mkfifo(tmp_path / "pipe")
    assert [info.name async for info in store.list()] == ["name"]


@aio
async def test_a_listing_reads_a_large_directory_in_pages(
    store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_listing, "PAGE_ENTRIES", 3)
    expected = sorted([f"d/{number}" for number in range(20)] + [f"d/{number}x/y" for number in range(20)])
    for name in expected:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    assert [info.name async for info in store.list()] == expected
    assert [info.name async for info in store.list("d/1")] == [name for name in expected if name.startswith("d/1")]


@aio
async def test_a_listing_reads_a_directory_of_one_page_once(
    store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "d/b", "d/e/c"):
        await store.put(name, b"")
    read: list[bytes] = []
    scandir = os.scandir

    def counted(path: bytes) -> "os._ScandirIterator[bytes]":
        read.append(path.removeprefix(os.fsencode(tmp_path)))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", counted)
    assert [info.name async for info in store.list()] == ["a", "d/b", "d/e/c"]
    assert [path.strip(b"/") for path in read] == [b"", b"d", b"d/e"]


@aio
async def test_an_object_cannot_be_above_another(store: LocalStore) -> None:
    await store.put("a/b", b"below")
    for expected in (ANYTHING, ABSENT):
        with pytest.raises(Invalid, match="'a'"):
            await store.put("a", b"above", expected)
    with pytest.raises(Invalid):
        await store.put("a/b/c", b"further below")
    assert await store.get("a/b") == b"below"


@pytest.mark.parametrize("expected", [ANYTHING, ABSENT])
@aio
async def test_a_directory_that_was_emptied_may_become_an_object(store: LocalStore, expected: Precondition) -> None:
    for _ in range(2):
        await store.put("a/b/c", b"below")
        await store.delete("a/b/c")
        await store.put("a", b"above", expected)
        assert [info.name async for info in store.list()] == ["a"]
        await store.delete("a")


@aio
async def test_a_directory_that_another_removed_is_made_again(store: LocalStore, tmp_path: Path) -> None:
    await store.put("a/b/c", b"1")
    await store.delete("a/b/c")
    (tmp_path / "a" / "b").rmdir()
    (tmp_path / "a").rmdir()
    await store.put("a/b/c", b"2", ABSENT)
    assert await store.get("a/b/c") == b"2"


@aio
async def test_a_full_disk_is_unavailable_and_leaves_nothing(store: LocalStore, tmp_path: Path) -> None:
    async def body() -> AsyncIterator[bytes]:
        for _ in range(4):
            yield bytes(30_000)

    tag = await store.put("taken", b"was there")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))  # the kernel then refuses to write on, as on a full disk
    try:
        for expected in (ANYTHING, ABSENT, tag):
            with pytest.raises(Unavailable, match=f"no room to write {tmp_path}/taken") as caught:
                await store.put("taken", bytes(100_000), expected)
            assert not isinstance(caught.value, OutcomeUnknown)
        with pytest.raises(Unavailable, match="no room to write"):
            await store.put_stream("new", body())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [info.name async for info in store.list()] == ["taken"]
    assert await store.get("taken") == b"was there"
    assert temporary(tmp_path) == []


@pytest.mark.parametrize(
    ("number", "category"), [(errno.ENOSPC, Unavailable), (errno.EDQUOT, Unavailable), (errno.EROFS, Denied)]
)
@aio
async def test_the_systems_refusals_get_their_category(
    store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, category: type[Exception]
) -> None:
    await store.put("taken", b"was there")

    def refuse(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(category, match="new"):
        await store.put("new", b"body")
    monkeypatch.undo()
    assert [info.name async for info in store.list()] == ["taken"]
    assert temporary(tmp_path) == []


@aio
async def test_a_put_whose_directory_cannot_be_synced_has_an_unknown_outcome(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.put("first", b"1")

    def refuse(directory: bytes) -> None:
        raise OSError(errno.EIO, "disk error")

    monkeypatch.setattr(local_files, "sync_directory", refuse)
    with pytest.raises(OutcomeUnknown, match="second"):
        await store.put("second", b"2")


@aio
async def test_file_and_directories_are_synced_before_a_put_returns(
    store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    sync = os.fsync

    def watch(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", watch)
    await store.put("a/b/first", b"1")
    assert {str(tmp_path), f"{tmp_path}/a"} <= set(synced[:-2])  # where the new directories are
    assert synced[-2].startswith(f"{tmp_path}/.lsmfs/temporary/")
    assert synced[-1] == f"{tmp_path}/a/b"
    synced.clear()
    await store.put("a/b/second", b"2")
    assert len(synced) == 2  # the file, and the directory it is in: no more on the hot path


@aio
async def test_tags_differ_when_the_kernel_gives_the_same_time_and_inode(tmp_path: Path) -> None:
    path = tmp_path / "file"
    tags = set[Tag]()
    for number in range(200):
        body = local_files.Temporary(os.fsencode(path))
        body.write(b"%03d" % number)
        tags.add(body.seal())
        body.discard()  # which frees the inode for the next
    assert len(tags) == 200


@aio
async def test_a_lock_that_is_never_released_is_unavailable(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    tag = await store.put("name", b"1")
    monkeypatch.setattr(local_files, "LOCK_TRIES_MAX", 3)
    with store._files._locked("name"):
        with pytest.raises(Unavailable, match="'name'"):
            await store.put("name", b"2", tag)
        await store.put("other", b"created without a lock", ABSENT)
    assert await store.get("name") == b"1"


@aio
async def test_a_cancelled_upload_leaves_nothing(store: LocalStore, tmp_path: Path) -> None:
    begun = asyncio.Event()

    async def body() -> AsyncIterator[bytes]:
        yield b"some"
        begun.set()
        await asyncio.sleep(60)
        yield b"never"

    open_before = len(os.listdir("/proc/self/fd"))
    uploading = asyncio.create_task(store.put_stream("name", body()))
    await begun.wait()
    uploading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await uploading
    assert temporary(tmp_path) == []
    assert len(os.listdir("/proc/self/fd")) == open_before
    assert [info async for info in store.list()] == []


@aio
async def test_a_stream_that_is_left_early_closes_its_file(store: LocalStore) -> None:
    await store.put("name", bytes(3 << 20))
    open_before = len(os.listdir("/proc/self/fd"))
    stream = store.stream("name")
    assert len(await anext(stream)) == 1 << 20
    await stream.aclose()  # type: ignore[attr-defined]
    assert len(os.listdir("/proc/self/fd")) == open_before


@aio
async def test_a_stale_tag_of_another_process_is_a_conflict(store: LocalStore, tmp_path: Path) -> None:
    other = LocalStore(tmp_path)
    tag = await store.put("name", b"1")
    await other.put("name", b"2", tag)
    with pytest.raises(Conflict, match=tag):
        await store.put("name", b"3", tag)
    await other.aclose()
