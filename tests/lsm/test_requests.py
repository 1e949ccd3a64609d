"""What each operation costs in requests: the table of design.md, "Requests per operation", asserted."""

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from compactor.daemon import Daemon
from compactor.executor import compact
from compactor.planner import Plan, Triggers
from lsmfs.lsm.build import Shape
from lsmfs.lsm.cache import DiskCache
from lsmfs.objectstore.counting import CountingStore
from lsmfs.objectstore.memory import MemoryStore
from lsmfs.repository import Repository
from lsmfs.settings import Settings, WriterSettings
from refstore.drivers.memory import MemoryRefStore
from refstore.errors import Conflict, NoChanges, NotFound
from refstore.store import ABSENT
from tests.aio import aio
from tests.lsm.support import RefWrapper, entry, keys, put_all, rows_of, scanned

SETTINGS = Settings(WriterSettings(unit_rows_max=300), Shape(16, 1 << 20))
VERBS = ("get", "put", "list", "head", "delete", "get_tagged", "stream", "put_stream")


@dataclass
class Meter:
    """A repository of which every request is counted; `since()` gives those since it was last asked."""

    store: CountingStore = field(default_factory=lambda: CountingStore(MemoryStore()))
    refs: RefWrapper = field(default_factory=lambda: RefWrapper(MemoryRefStore()))
    _before: Counter[str] = field(default_factory=Counter)

    async def create(self) -> Repository:
        return await Repository.create(self.store, self.refs, "repo", settings=SETTINGS, threads=False)

    async def client(self, disk: DiskCache | None = None) -> Repository:
        found = await Repository.open(self.store, self.refs, "repo", settings=SETTINGS, disk=disk, threads=False)
        self.since()
        return found

    def since(self) -> dict[str, int]:
        now = Counter({f"object {verb}": self.store.calls(verb) for verb in VERBS})
        now.update({f"ref {verb}": count for verb, count in self.refs.calls.items()})
        spent, self._before = now - self._before, now
        return dict(spent)


async def warm() -> tuple[Meter, Repository]:
    """A client that has read a branch with a base, an l2 and two l1 tables."""
    meter = Meter()
    repository = await meter.create()
    await put_all(repository, {key: entry(1) for key in keys(range(1000))})
    await repository.commit("main", "base")
    await put_all(repository, {key: entry(2) for key in keys(range(0, 1000, 7))})
    await compact_all(repository)
    await put_all(repository, {b"k00005": entry(3)})
    await put_all(repository, dict.fromkeys(keys(range(900, 910))))
    await scanned(repository.scan("main"))
    await repository.get_many("main", keys(range(1000)))
    meter.since()
    return meter, repository


async def compact_all(repository: Repository) -> None:
    branch = await repository.branches.read("main")
    assert await compact(repository, Plan(branch, branch.l1, branch.l2, "test"))


@aio
async def test_a_flush_is_one_object_put_and_one_append_however_many_puts_it_holds() -> None:
    meter, repository = await warm()
    async with repository.writer("main") as writer:
        assert meter.since() == {"ref read": 1}  # opening the writer
        await writer.put("a", entry(1))
        assert meter.since() == {"object put": 1, "ref append": 1}
        await asyncio.gather(*(writer.put(key, entry(1)) for key in keys(range(200))), writer.delete("a"))
        assert meter.since() == {"object put": 1, "ref append": 1}
    assert meter.since() == {}  # closing it


@aio
async def test_a_flush_of_appends_is_one_put_more_however_many_and_reads_nothing() -> None:
    meter, repository = await warm()
    async with repository.writer("main") as writer:
        meter.since()
        await writer.append("k00005", b"more")
        assert meter.since() == {"object put": 2, "ref append": 1}
        await asyncio.gather(*(writer.append(key, b"more") for key in keys(range(200))), writer.put("a", entry(1)))
        assert meter.since() == {"object put": 2, "ref append": 1}
    assert meter.since() == {}


@aio
async def test_a_conditional_flush_costs_one_branch_read_and_the_tables_it_has_not_seen_more() -> None:
    meter, repository = await warm()
    async with repository.writer("main") as writer:
        meter.since()
        await writer.put("a", entry(1), ABSENT)
        assert meter.since() == {"ref read": 1, "object put": 1, "ref append": 1}
        await writer.put("b", entry(1), ABSENT)
        assert meter.since() == {"ref read": 1, "object get": 1, "object put": 1, "ref append": 1}  # reads a's table
        with pytest.raises(Conflict):
            await writer.put("a", entry(2), ABSENT)
        assert meter.since() == {"ref read": 1, "object get": 1}


@aio
async def test_a_staged_unit_is_one_put_for_each_range_one_for_the_run_and_one_append() -> None:
    meter, repository = await warm()
    async with repository.writer("main") as writer:
        meter.since()
        await writer.stage(rows_of({key: entry(1) for key in keys(range(300))}))
        assert meter.since() == {"object put": 1, "ref append": 1}  # small: a table
        await writer.stage(rows_of({key: entry(8) for key in keys(range(1000))}))
        spent = meter.since()
        run = (await repository.view("main")).layers[0]
        assert spent == {"object put": len(run) + 1, "ref append": 1}  # type: ignore[arg-type]
        meter.since()
        name = await writer.prepare(rows_of({b"a": entry(1)}))
        assert meter.since() == {"object put": 1}
        await writer.stage_prepared(name)
        assert meter.since() == {"object get": 1, "ref append": 1}  # it is verified first


@aio
async def test_a_warm_read_of_any_kind_is_one_branch_read_and_no_object_request() -> None:
    meter, repository = await warm()
    await repository.get("main", "k00500")
    assert meter.since() == {"ref read": 1}
    with pytest.raises(NotFound):
        await repository.get("main", "missing")
    assert meter.since() == {"ref read": 1}
    await repository.get_many("main", keys(range(1000)))
    assert meter.since() == {"ref read": 1}
    page = await repository.list("main", limit=100)
    assert meter.since() == {"ref read": 1}
    assert page.after is not None
    await repository.list("main", after=page.after.decode(), delimiter="0", limit=100)
    assert meter.since() == {"ref read": 1}
    await scanned(repository.scan("main"))
    assert meter.since() == {"ref read": 1}


@aio
async def test_the_first_read_after_a_flush_costs_one_get_for_each_new_table_it_has_not_seen() -> None:
    meter, repository = await warm()
    await put_all(repository, {b"a": entry(1)})
    await put_all(repository, {b"b": entry(1)})
    meter.since()
    await repository.get("main", "k00001")
    assert meter.since() == {"ref read": 1, "object get": 2}
    await repository.get("main", "k00001")
    assert meter.since() == {"ref read": 1}


@aio
async def test_a_cold_get_opens_commit_run_and_layers_and_one_range_for_each_run_that_may_hold_the_key() -> None:
    meter, _ = await warm()
    client = await meter.client()
    await client.get("main", "k00500")
    # the commit, its metarange, the l2's run, two l1 tables; then a range of l2 and one of the base
    assert meter.since() == {"ref read": 1, "object get": 7}


@aio
async def test_a_get_from_a_warm_local_cache_fetches_only_commit_and_runs(tmp_path: Path) -> None:
    meter, _ = await warm()
    for expected in (7, 3):  # what another process has fetched, this one finds
        client = await meter.client(DiskCache(tmp_path, 1 << 24))
        await client.get("main", "k00500")
        assert meter.since() == {"ref read": 1, "object get": expected}


@aio
async def test_concurrent_gets_share_their_branch_reads() -> None:
    meter, repository = await warm()
    await asyncio.gather(*(repository.get("main", key) for key in keys(range(500))))
    assert meter.since() == {"ref read": 1}  # all came in one turn of the loop


@aio
async def test_concurrent_cold_gets_share_their_fetches() -> None:
    meter, _ = await warm()
    client = await meter.client()
    await asyncio.gather(*(client.get("main", "k00500") for _ in range(50)))
    assert meter.since() == {"ref read": 1, "object get": 7}


@aio
async def test_idle_writers_and_readers_ask_for_nothing() -> None:
    meter, repository = await warm()
    async with repository.writer("main") as writer:
        await writer.put("a", entry(1))
        await repository.get("main", "a")
        meter.since()
        await asyncio.sleep(0.05)
        assert meter.since() == {}
        await writer.flush()
        assert meter.since() == {}


@aio
async def test_an_idle_compactor_asks_once_a_round_for_all_branches_of_a_repository() -> None:
    meter, repository = await warm()
    daemon = Daemon([repository], Triggers(tables_min=100))
    assert await daemon.round() == 0
    assert meter.since() == {"ref branches": 1}


@pytest.mark.parametrize("adjacent", [True, False])
@aio
async def test_a_compaction_reads_its_tables_and_the_ranges_they_touch_and_writes_as_many_and_a_run(
    adjacent: bool,
) -> None:
    meter = Meter()
    repository = await meter.create()
    await put_all(repository, {key: entry(1) for key in keys(range(1000))})
    await compact_all(repository)
    branch = await repository.branches.read("main")
    assert branch.l2 is not None
    run = await repository.tables.load_run(branch.l2)
    places = range(3, 6) if adjacent else range(0, len(run), 10)
    for at in places:
        await put_all(repository, {run.min_keys[at]: entry(2)})
    branch = await repository.branches.read("main")
    meter.since()
    result = await compact(repository, Plan(branch, branch.l1, branch.l2, "test"))
    touched = len(places)
    assert meter.since() == {"object get": touched + touched, "object put": touched + 1, "ref replace": 1}
    assert result is not None
    assert (result.ranges_written, result.ranges_kept) == (touched, len(run) - touched)


@aio
async def test_a_commit_reads_its_tables_and_the_ranges_they_touch_and_writes_as_many_and_a_metarange_and_itself() -> (
    None
):
    meter, repository = await warm()
    await repository.commit("main", "all so far")
    base = (await repository.view("main")).base
    places = range(2, len(base), 12)
    await put_all(repository, {base.min_keys[at]: entry(9) for at in places})
    client = await meter.client()
    await client.commit("main", "changes")
    # the parent commit and its metarange, the one table, and the touched ranges
    assert meter.since() == {
        "object get": 3 + len(places),
        "object put": len(places) + 2,
        "ref read": 1,
        "ref seallayers": 1,
        "ref set": 1,
        "ref advance": 1,
    }
    with pytest.raises(NoChanges):
        await client.commit("main", "nothing")
    assert meter.since() == {"ref read": 1}


@aio
async def test_creating_a_repository_is_two_object_puts_and_two_ref_writes() -> None:
    meter = Meter()
    await meter.create()
    assert meter.since() == {"object put": 2, "ref set_if": 1, "ref create": 1}
