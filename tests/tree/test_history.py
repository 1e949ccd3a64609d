"""Clocks, the log, and what it costs."""

import msgspec
import pytest

from lsmfs.objectstore.counting import CountingStore
from lsmfs.objectstore.memory import MemoryStore
from lsmfs.repository import Repository
from lsmfs.tree import clocks, log
from lsmfs.tree.clocks import before, following
from lsmfs.tree.log import between
from refstore.drivers.memory import MemoryRefStore
from refstore.errors import Corrupt, Invalid
from refstore.records import CommitId
from tests.aio import aio
from tests.lsm.support import RefWrapper, another_client, entry, keys, memory_repository, put_all


async def commit(repository: Repository, name: str, branch: str = "main") -> CommitId:
    await put_all(repository, {name.encode(): entry(1)}, branch)
    return (await repository.commit(branch, name)).id


async def logged(repository: Repository, ref: str = "main", **options: object) -> list[str]:
    return [found.message async for _, found in repository.log(ref, **options)]  # type: ignore[arg-type]


class TestClocks:
    def test_a_line_counts_and_another_one_is_put_behind_it(self) -> None:
        first = following((), "foo")
        second = following(first, "foo")
        assert (first, second) == ((("foo", 0),), (("foo", 1),))
        assert following(second, "bar") == (("foo", 1), ("bar", 0))
        assert before(following(second, "bar")) == second
        assert before(second) == first
        assert before(first) == ()

    def test_a_clock_of_many_lines_is_cut_at_its_old_end(self) -> None:
        clock: clocks.Clock = ()
        for number in range(100):
            clock = following(clock, f"line {number}")
        assert len(clock) == clocks.COMPONENTS_MAX
        assert clock[-1] == ("line 99", 0)

    @aio
    async def test_commits_carry_the_lines_of_their_first_parents(self) -> None:
        repository = await memory_repository()
        main = (await repository.branches.read("main")).line
        for name in ("a", "b"):
            await commit(repository, name)
        await repository.create_branch("dev", "main~")
        dev = (await repository.branches.read("dev")).line
        clock = (await repository.commits.load(await commit(repository, "c", "dev"))).clock
        assert clock == ((main, 0), (dev, 0))
        _, merged = await repository.merge("dev", "main")
        assert merged.clock == ((main, 2),)

    @aio
    async def test_a_name_that_is_used_again_never_continues_the_line_of_another_life(self) -> None:
        repository = await memory_repository()
        await repository.create_branch("dev", "main")
        first = (await repository.commits.load(await commit(repository, "a", "dev"))).clock
        await repository.delete_branch("dev")
        await repository.create_branch("dev", "main")
        second = (await repository.commits.load(await commit(repository, "b", "dev"))).clock
        assert first != second

    @aio
    async def test_a_branch_that_was_reset_to_an_older_commit_begins_a_new_line(self) -> None:
        repository = await memory_repository()
        for name in ("a", "b"):
            await commit(repository, name)
        await repository.hard_reset("main", "main~")
        await commit(repository, "c")
        assert await logged(repository) == ["c", "a", "Repository created"]


class TestLog:
    @aio
    async def test_a_long_history_is_one_scan_and_no_chain_of_reads(self) -> None:
        store, refs = CountingStore(MemoryStore()), RefWrapper(MemoryRefStore())
        repository = await memory_repository(store, refs=refs)
        for number in range(50):
            await commit(repository, f"{number:02}")
        client = await another_client(repository)
        refs.calls.clear()
        gets = store.calls("get")
        assert await logged(client) == [*(f"{number:02}" for number in reversed(range(50))), "Repository created"]
        assert refs.calls["scan"] == 1
        assert store.calls("get") - gets == 2  # the newest, and the repository's first, which is on no line
        few = await another_client(repository)
        assert len(await logged(few, limit=5)) == 5

    @aio
    async def test_the_lines_of_nested_branches_are_read_together(self) -> None:
        store = CountingStore(MemoryStore())
        repository = await memory_repository(store)
        names, ref = [], "main"
        for depth in range(5):
            if depth:
                await repository.create_branch(f"b{depth}", ref)
                ref = f"b{depth}"
            for number in range(4):
                names.append(f"{depth}.{number}")
                await commit(repository, names[-1], ref)
        client = await another_client(repository)
        gets = store.calls("get")
        assert await logged(client, ref) == [*reversed(names), "Repository created"]
        assert store.calls("get") - gets == 2

    @aio
    async def test_what_the_index_lacks_is_read_from_the_bucket(self) -> None:
        repository = await memory_repository()
        for number in range(20):
            await commit(repository, f"{number:02}")
        whole = await logged(repository)
        items = [item.key async for item in repository.refs.scan("repo/clocks")]
        for at in (3, 4, 10, 19):
            await repository.refs.delete("repo/clocks", items[at])
        assert await logged(await another_client(repository)) == whole
        for key in items:
            await repository.refs.delete("repo/clocks", key)
        assert await logged(await another_client(repository)) == whole

    @aio
    async def test_a_damaged_item_of_the_index_is_corrupt_and_never_a_wrong_history(self) -> None:
        repository = await memory_repository()
        for number in range(3):
            await commit(repository, f"{number:02}")
        items = [item async for item in repository.refs.scan("repo/clocks")]
        await repository.refs.set("repo/clocks", items[0].key, items[1].value)
        with pytest.raises(Corrupt, match="does not have the content"):
            await logged(await another_client(repository))

    @aio
    async def test_a_commit_that_lost_its_race_is_in_no_history(self) -> None:
        repository = await memory_repository()
        loser = await commit(repository, "a")
        lost = await repository.commits.load(loser)
        await repository.hard_reset("main", "main~")
        other = await repository.commits.load(await commit(repository, "b"))
        await commit(repository, "c")
        await repository.refs.set(
            "repo/clocks", f"{other.clock[-1][0]}/{0:012x}/{loser}".encode(), msgspec.json.encode(lost)
        )
        assert await logged(await another_client(repository)) == ["c", "b", "Repository created"]
        assert await between(repository.commits, loser, await repository.resolve("main")) is None

    @aio
    async def test_limits_and_ends(self) -> None:
        repository = await memory_repository()
        ids = {name: await commit(repository, name) for name in "abcd"}
        assert await logged(repository, limit=2) == ["d", "c"]
        assert await logged(repository, limit=0) == []
        assert await logged(repository, stop_at=ids["b"]) == ["d", "c", "b"]
        since = (await repository.commits.load(ids["c"])).created_us
        assert set(await logged(repository, since_us=since)) >= {"d", "c"}
        assert await logged(repository, since_us=since + 10**12) == []

    @aio
    async def test_all_parents_are_shown_once_each_after_its_descendants(self) -> None:
        repository = await memory_repository()
        await repository.create_branch("dev", "main")
        for name in ("d1", "d2"):
            await commit(repository, name, "dev")
        await commit(repository, "m1")
        await repository.merge("dev", "main", "merged")
        assert await logged(repository) == ["merged", "m1", "Repository created"]
        found = await logged(repository, first_parent=False)
        assert found[0] == "merged"
        assert found[-1] == "Repository created"
        assert sorted(found[1:-1]) == ["d1", "d2", "m1"]
        assert found.index("d2") < found.index("d1")

    @aio
    async def test_by_path_only_ranges_that_may_have_it_are_opened(self) -> None:
        store = CountingStore(MemoryStore())
        repository = await memory_repository(store)
        await put_all(repository, {key: entry(1) for key in keys(range(2000))})
        await repository.commit("main", "many")
        for number in range(10):
            await put_all(repository, {b"k00900": entry(2 + number)})
            await repository.commit("main", f"far {number}")
        await put_all(repository, {b"k00001": entry(9)})
        await repository.commit("main", "near")
        assert await logged(repository, path="k00001") == ["near", "many"]
        assert await logged(repository, prefix="k0090") == [*(f"far {n}" for n in reversed(range(10))), "many"]
        assert await logged(repository, path="never") == []
        client = await another_client(repository)
        gets = store.calls("get")
        assert await logged(client, path="k00001", limit=1) == ["near"]
        assert store.calls("get") - gets < 12
        with pytest.raises(Invalid, match="not both"):
            await logged(repository, path="a", prefix="b")

    @aio
    async def test_between_two_commits(self) -> None:
        repository = await memory_repository()
        ids = [await commit(repository, name) for name in "abcd"]
        await repository.create_branch("dev", ids[1])
        other = await commit(repository, "e", "dev")
        found = await between(repository.commits, ids[0], ids[3])
        assert found is not None
        assert [identity for identity, _ in found] == ids[:0:-1]
        assert await between(repository.commits, ids[2], other) is None
        assert await between(repository.commits, ids[3], ids[0]) is None
        assert await between(repository.commits, ids[3], ids[3]) == []

    @aio
    async def test_a_history_longer_than_one_read_is_read_in_blocks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(log, "READ_AT_ONCE", 10)
        refs = RefWrapper(MemoryRefStore())
        repository = await memory_repository(refs=refs)
        for number in range(35):
            await commit(repository, f"{number:02}")
        client = await another_client(repository)
        refs.calls.clear()
        assert len(await logged(client)) == 36
        assert refs.calls["scan"] <= 5
