"""Commit objects: named by what they say, and never believed when they say something else."""

import msgspec
import pytest

from lsmfs import paths
from lsmfs.objectstore.counting import CountingStore
from lsmfs.objectstore.memory import MemoryStore
from lsmfs.tree.clocks import ClockIndex
from lsmfs.tree.commits import Commit, Commits
from refstore.drivers.memory import MemoryRefStore
from refstore.errors import Corrupt, Invalid, NotFound
from refstore.records import CommitId, RunId
from tests.aio import aio
from tests.lsm.support import another_client, entry, keys, memory_repository, put_all, visible

COMMIT = Commit(
    (CommitId("a" * 64),), RunId("r0-" + "b" * 64), "a message: ü", "me", 1_700_000_000_000_000, 3, {"k": "v"}
)


@aio
async def test_a_commit_is_loaded_as_it_was_saved_by_whoever_asks() -> None:
    store = CountingStore(MemoryStore())
    identity = await Commits(store, "repo", ClockIndex(MemoryRefStore(), "repo")).save(COMMIT)
    reader = Commits(store, "repo", ClockIndex(MemoryRefStore(), "repo"))
    assert await reader.load(identity) == await reader.load(identity) == COMMIT
    assert store.calls("get") == 1
    assert await Commits(store, "repo", ClockIndex(MemoryRefStore(), "repo")).save(COMMIT) == identity


@pytest.mark.parametrize(
    "change",
    [
        {"parents": ()},
        {"metarange": RunId("r0-" + "c" * 64)},
        {"message": "other"},
        {"committer": "you"},
        {"created_us": 1},
        {"generation": 4},
        {"metadata": {}},
    ],
)
def test_whatever_a_commit_says_is_in_its_id(change: dict[str, object]) -> None:
    assert msgspec.structs.replace(COMMIT, **change).id != COMMIT.id


def test_where_the_metarange_is_stored_is_not() -> None:
    assert msgspec.structs.replace(COMMIT, metarange=RunId("r7-" + "b" * 64)).id == COMMIT.id


def test_the_id_of_a_pinned_commit_never_changes() -> None:
    assert COMMIT.id == "8534e609285767fc745c4cd53143ed9a194f51ccb224babedc230c85e4d33aa6"


@aio
async def test_a_commit_cut_off_anywhere_is_corrupt() -> None:
    store = MemoryStore()
    identity = await Commits(store, "repo", ClockIndex(MemoryRefStore(), "repo")).save(COMMIT)
    path = paths.commit_path("repo", identity)
    data = await store.get(path)
    for length in range(len(data)):
        await store.put(path, data[:length])
        with pytest.raises(Corrupt, match=identity):
            await Commits(store, "repo", ClockIndex(MemoryRefStore(), "repo")).load(identity)


@aio
async def test_any_flipped_byte_of_a_commit_is_found_or_says_the_same() -> None:
    store = MemoryStore()
    identity = await Commits(store, "repo", ClockIndex(MemoryRefStore(), "repo")).save(COMMIT)
    path = paths.commit_path("repo", identity)
    data = await store.get(path)
    for at in range(len(data)):
        for mask in (0x01, 0x20, 0x80, 0xFF):
            await store.put(path, data[:at] + bytes([data[at] ^ mask]) + data[at + 1 :])
            try:
                found = await Commits(store, "repo", ClockIndex(MemoryRefStore(), "repo")).load(identity)
            except Corrupt:
                continue
            assert found.id == identity
            assert msgspec.structs.replace(found, metarange=COMMIT.metarange) == COMMIT


@aio
async def test_any_flipped_byte_of_the_base_commit_reads_as_corrupt_or_right() -> None:
    """Also the one that no hash covers, in the name of the metarange's file."""
    repository = await memory_repository()
    content = {key: entry(1) for key in keys(range(3))}
    await put_all(repository, dict(content))
    identity = (await repository.commit("main", "m")).id
    path = paths.commit_path("repo", identity)
    data = await repository.store.get(path)
    for at in range(len(data)):
        await repository.store.put(path, data[:at] + bytes([data[at] ^ 0x01]) + data[at + 1 :])
        try:
            assert await visible(await another_client(repository)) == content
        except Corrupt:
            continue


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"null", b"\xff", b'{"parents":[]}', b"{" * 10_000])
@aio
async def test_what_is_no_commit_is_corrupt(data: bytes) -> None:
    store = MemoryStore()
    await store.put(paths.commit_path("repo", CommitId("0")), data)
    with pytest.raises(Corrupt, match="commit 0"):
        await Commits(store, "repo", ClockIndex(MemoryRefStore(), "repo")).load(CommitId("0"))


@aio
async def test_a_commit_that_is_gone_is_not_found() -> None:
    with pytest.raises(NotFound):
        await Commits(MemoryStore(), "repo", ClockIndex(MemoryRefStore(), "repo")).load(COMMIT.id)


@aio
async def test_the_log_is_the_commits_from_the_newest_by_first_parent() -> None:
    repository = await memory_repository()
    made = []
    for n in range(3):
        await put_all(repository, {b"a": entry(n)})
        made.append((await repository.commit("main", f"message {n}", "me", {"n": str(n)})).id)
    log = [(identity, commit.message) async for identity, commit in repository.log("main")]
    assert log[:3] == [(made[2], "message 2"), (made[1], "message 1"), (made[0], "message 0")]
    assert (len(log), log[3][1]) == (4, "Repository created")
    assert [identity async for identity, _ in repository.log("main", limit=2)] == made[:0:-1]


@aio
async def test_a_log_with_a_parent_that_is_gone_is_corrupt() -> None:
    repository = await memory_repository()
    first = (await repository.branches.read("main")).base_commit
    await put_all(repository, {b"a": entry(1)})
    await repository.commit("main", "m")
    await repository.store.delete(paths.commit_path("repo", first))
    client = await another_client(repository)
    with pytest.raises(Corrupt, match=first):
        _ = [identity async for identity, _ in client.log("main")]


@pytest.mark.parametrize(
    "bad", [{"message": "\ud800"}, {"committer": "\ud800"}, {"metadata": {"a": 1}}, {"metadata": {"\ud800": "b"}}]
)
@aio
async def test_a_commit_that_could_not_be_read_back_is_refused_before_anything_is_sealed(
    bad: dict[str, object],
) -> None:
    repository = await memory_repository()
    await put_all(repository, {b"a": entry(1)})
    before = await repository.branches.read("main")
    with pytest.raises(Invalid, match="commit"):
        await repository.commit("main", **{"message": "m", **bad})  # type: ignore[arg-type]
    assert await repository.branches.read("main") == before
