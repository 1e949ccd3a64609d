"""Reading a stack of layers by key and in bulk, and what is said when a layer is missing."""

import asyncio

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lsmfs import paths
from lsmfs.lsm import build
from lsmfs.lsm.build import Shape
from lsmfs.lsm.view import LayerGone
from lsmfs.objectstore.counting import CountingStore
from lsmfs.objectstore.memory import MemoryStore
from lsmfs.repository import Repository
from refstore.drivers.memory import MemoryRefStore
from refstore.errors import Conflict, Corrupt, NotFound
from refstore.records import Branch, SealLayers
from tests.aio import aio
from tests.lsm.stacks import KEYS, SHAPES, WORLDS, Content, Stack, World
from tests.lsm.support import (
    RefWrapper,
    another_client,
    entry,
    keys,
    memory_repository,
    memory_tables,
    put_all,
    scanned,
    visible,
)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    world=WORLDS,
    shape=SHAPES,
    probes=st.lists(KEYS, max_size=20),
    scans=st.lists(st.tuples(st.just(b"") | KEYS, st.just(b"") | KEYS), min_size=2, max_size=6),
    window=st.sampled_from([1, 5, 1 << 18]),
)
def test_any_stack_reads_as_its_dict(
    world: World, shape: Shape, probes: list[bytes], scans: list[tuple[bytes, bytes]], window: int
) -> None:
    async def check() -> None:
        view = await world.view(memory_tables(), shape)
        content = world.content
        everything = {key for stack in (world.top, *world.sealed) for _, layer in stack.l1 for key in layer}
        for key in {*everything, *world.base, *probes}:
            assert await view.get(key) == content.get(key)
        assert await view.get_many([*everything, *world.base, *probes]) == {
            key: content[key] for key in {*everything, *world.base, *probes} if key in content
        }
        for prefix, start in scans:
            expected = [(key, content[key]) for key in content if key.startswith(prefix) and key >= start]
            assert await scanned(view.scan(prefix, start)) == expected

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "WINDOW_ROWS", window)
        asyncio.run(check())


@aio
async def test_a_scan_of_a_prefix_reads_only_the_ranges_that_may_hold_it() -> None:
    store = CountingStore(MemoryStore())
    base = {f"{folder}/{n:04}".encode(): entry(1) for folder in "abcdefgh" for n in range(500)}
    world = World(Stack(), [], base)
    await world.view(memory_tables(store), Shape(16, 1 << 20))
    view = await world.view(memory_tables(store), Shape(16, 1 << 20))
    assert len(view.base) > 150
    before = store.calls("get")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "WINDOW_ROWS", 50)
        assert len(await scanned(view.scan(b"c/01"))) == 100
    assert store.calls("get") - before < 30


@aio
async def test_a_get_asks_no_table_whose_bounds_exclude_the_key_and_few_whose_filter_does() -> None:
    layers: list[tuple[bool, Content]] = [
        (False, {key: entry(n) for key in keys(range(n, 4000, 16))}) for n in range(16)
    ]
    view = await World(Stack(layers), [], {key: entry(9) for key in keys(range(4000))}).view(
        memory_tables(), Shape(500, 1 << 20)
    )
    view.tables.opened = 0
    for key in keys(range(4000, 5000)):  # beyond all
        assert await view.get(key) is None
    assert view.tables.opened == 0
    for key in keys(range(3000)):
        assert await view.get(key + b"x") is None
    assert view.tables.opened < 3000 * 17 * 0.02


@aio
async def test_get_many_reads_each_range_once() -> None:
    store = CountingStore(MemoryStore())
    world = World(Stack(), [], {key: entry(1) for key in keys(range(1000))})
    await world.view(memory_tables(store), Shape(16, 1 << 20))
    view = await world.view(memory_tables(store), Shape(16, 1 << 20))
    before = store.calls("get")
    assert len(await view.get_many([*keys(range(1000)), *keys(range(1000))])) == 1000
    assert store.calls("get") - before == len(view.base)


async def remove(repository: Repository, name: str) -> None:
    await repository.store.delete(paths.layer_path("repo", name))


async def staged_and_committed() -> Repository:
    """A branch with something in its base, its l2 and its l1."""
    repository = await memory_repository()
    await put_all(repository, {key: entry(1) for key in keys(range(100))})
    await repository.commit("main", "first")
    await put_all(repository, {key: entry(2) for key in keys(range(10))})
    return repository


async def reads(repository: Repository) -> None:
    """Each way of reading, one after the other."""
    for read in (
        repository.get("main", "k00050"),
        repository.get_many("main", ["k00050"]),
        visible(repository),
        scanned(repository.scan("main")),
    ):
        with pytest.raises(Corrupt, match="main"):
            await read


@aio
async def test_a_missing_l1_table_of_a_branch_that_has_not_moved_is_corrupt() -> None:
    repository = await staged_and_committed()
    branch = await repository.branches.read("main")
    await remove(repository, branch.l1[0])
    await reads(await another_client(repository))


@aio
async def test_a_missing_range_of_a_branch_that_has_not_moved_is_corrupt() -> None:
    repository = await staged_and_committed()
    for file in (await repository.view("main")).base.files:
        await remove(repository, file)
    await reads(await another_client(repository))


@aio
async def test_a_missing_metarange_or_commit_of_a_branch_that_has_not_moved_is_corrupt() -> None:
    repository = await staged_and_committed()
    branch = await repository.branches.read("main")
    commit = await repository.commits.load(branch.base_commit)
    await remove(repository, commit.metarange)
    await reads(await another_client(repository))
    await repository.store.delete(paths.commit_path("repo", branch.base_commit))
    await reads(await another_client(repository))


class StaleOnce(RefWrapper):
    """Answers the next reads with a record of the past."""

    def __init__(self, inner: MemoryRefStore) -> None:
        super().__init__(inner)
        self.stale: list[Branch] = []

    async def read(self, repository: str, name: str) -> Branch:
        if self.stale:
            return self.stale.pop()
        return await super().read(repository, name)


@aio
async def test_a_table_that_is_gone_because_the_branch_has_moved_is_no_error() -> None:
    refs = StaleOnce(MemoryRefStore())
    repository = await memory_repository(refs=refs)
    await put_all(repository, {key: entry(1) for key in keys(range(100))})
    old = await repository.branches.read("main")
    await repository.commit("main", "first")
    await remove(repository, old.l1[0])  # as garbage collection may, once nothing refers to it
    for read in ("get", "get_many", "list", "scan"):
        refs.stale = [old]
        client = await another_client(repository)
        if read == "get":
            assert await client.get("main", "k00050") == entry(1)
        elif read == "get_many":
            assert await client.get_many("main", ["k00050", "x"]) == {b"k00050": entry(1)}
        elif read == "list":
            assert len((await client.list("main")).items) == 100
        else:
            assert len(await scanned(client.scan("main"))) == 100
        assert not refs.stale


@aio
async def test_a_branch_that_moves_each_time_it_is_opened_is_a_conflict_in_the_end() -> None:
    class Restless(RefWrapper):
        """Every read finds the branch moved, and its table gone already."""

        restless = False

        async def read(self, repository: str, name: str) -> Branch:
            if self.restless:
                self.calls["moved"] += 1
                await put_all(writing, {b"k": entry(self.calls["moved"])})
                branch = await self.inner.read(repository, name)
                await remove(writing, branch.l1[-1])
                return branch
            return await super().read(repository, name)

    inner = MemoryRefStore()
    refs = Restless(inner)
    repository = await memory_repository(refs=refs)
    writing = await another_client(repository, inner)
    refs.restless = True
    with pytest.raises(Conflict, match="moved 10 times"):
        await repository.get("main", "k")


@aio
async def test_a_scan_goes_on_from_its_last_key_when_its_layers_go() -> None:
    repository = await memory_repository()
    await put_all(repository, {key: entry(1) for key in keys(range(100))})
    await repository.commit("main", "first")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "WINDOW_ROWS", 20)
        found = []
        async for rows in repository.scan("main"):
            found += [key.encode() for key in rows["key"].to_pylist()]
            if len(found) < 40:  # the rest is deleted, committed, and its ranges are gone
                before = (await repository.view("main")).base.files
                await put_all(repository, dict.fromkeys(keys(range(60, 100))))
                await repository.commit("main", "second")
                after = (await repository.view("main")).base.files
                for file in set(before) - set(after):
                    await remove(repository, file)
    assert found == keys(range(60))


@aio
async def test_a_branch_that_does_not_exist_is_not_found_by_any_read() -> None:
    repository = await memory_repository()
    with pytest.raises(NotFound, match="'other'"):
        await repository.get("other", "a")
    with pytest.raises(NotFound, match="'other'"):
        await repository.list("other")
    with pytest.raises(NotFound, match="'other'"):
        await scanned(repository.scan("other"))


@aio
async def test_sealing_and_committing_change_nothing_that_a_reader_sees() -> None:
    repository = await memory_repository()
    content = {key: entry(1) for key in keys(range(50))}
    await put_all(repository, dict(content))
    branch = await repository.branches.read("main")
    await repository.refs.change("repo", "main", SealLayers(incarnation=branch.incarnation))
    assert await visible(repository) == content
    await put_all(repository, {b"k00003": None, b"k00004": entry(7)})
    content = {key: value for key, value in {**content, b"k00004": entry(7)}.items() if key != b"k00003"}
    assert await visible(repository) == await visible(await another_client(repository)) == content
    await repository.commit("main", "both")
    assert await visible(repository) == content


def test_layer_gone_says_which_layer() -> None:
    async def check() -> None:
        tables = memory_tables()
        world = World(Stack([(False, {b"a": entry(1)})]), [], {b"b": entry(2)})
        view = await world.view(tables, Shape())
        await tables.store.delete(paths.layer_path("repo", view.base.files[0]))
        with pytest.raises(LayerGone, match=view.base.files[0]):
            await view.get(b"b")
        assert await view.get(b"a") == entry(1)

    asyncio.run(check())
