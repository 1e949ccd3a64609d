"""An import is one unit: of anything, of any size, in any order; and it goes on where it was, whoever goes on."""

import asyncio

import pytest

from lsmfs.imports import work
from lsmfs.imports.importer import Importer
from lsmfs.imports.ranges import StoredRange
from lsmfs.imports.source import Batch
from lsmfs.imports.state import RANGES_PER_CHUNK, Part
from lsmfs.lsm.run import Run
from lsmfs.model import KEY_BYTES_MAX
from lsmfs.objectstore.faulting import Fault, FaultingStore, Kind
from lsmfs.objectstore.memory import MemoryStore
from lsmfs.repository import Repository
from refstore.drivers.memory import MemoryRefStore
from refstore.errors import Conflict, Denied, Invalid, NotFound, Unavailable
from refstore.records import Append, Branch, BranchChange, RaiseFloor, RunId
from refstore.store import VALUE_BYTES_MAX
from tests.aio import aio
from tests.imports.support import SHUFFLED, SORTED, Do, ListSource, appended, content, leftovers, only_state
from tests.lsm.support import (
    SETTINGS,
    DisturbedRefs,
    RefWrapper,
    another_client,
    entry,
    memory_repository,
    put_all,
    visible,
)

pytestmark = pytest.mark.usefixtures("eager")


@aio
async def test_an_import_is_one_unit_with_the_addresses_of_the_source() -> None:
    repository = await memory_repository()
    before = (await repository.branches.read("main")).version
    told: list[work.Progress] = []
    imported = await repository.import_objects(ListSource(SORTED), "main", "raw", told.append)
    assert (imported.objects, imported.resumed) == (300, False)
    assert imported.size_bytes == sum(map(len, SORTED))
    branch = await repository.branches.read("main")
    assert (branch.version, branch.l1) == (before + 1, (imported.unit,))
    assert await visible(repository) == content(SORTED, "raw/")
    assert [progress.objects for progress in told] == list(range(20, 301, 20))
    assert await leftovers(repository, imported.id) == []


@aio
async def test_nothing_is_visible_before_everything_is() -> None:
    repository = await memory_repository()
    seen = []

    async def look() -> None:
        while True:
            seen.append(len(await visible(await another_client(repository))))
            await asyncio.sleep(0)

    looking = asyncio.ensure_future(look())
    await repository.import_objects(ListSource(SORTED), "main")
    looking.cancel()
    seen.append(len(await visible(repository)))
    assert (seen[0], seen[-1]) == (0, 300)
    assert set(seen) == {0, 300}


@pytest.mark.parametrize("count", [1, 21, 70, 300])
@aio
async def test_names_in_any_order_are_sorted_in_spills(count: int) -> None:
    repository = await memory_repository()
    names = SHUFFLED[:count]
    imported = await repository.import_objects(ListSource(names), "main")
    assert imported.objects == count
    assert await visible(repository) == content(names)
    run = await repository.tables.load_run(RunId(imported.unit))
    assert run.count == count


@aio
async def test_names_that_are_sorted_at_first_are_spilled_from_the_first_that_is_not() -> None:
    repository = await memory_repository()
    names = [*SORTED[100:], *SORTED[:100]]
    await repository.import_objects(ListSource(names), "main")
    assert await visible(repository) == content(names)


@aio
async def test_an_import_makes_the_same_ranges_in_whatever_order_names_come() -> None:
    runs: list[Run] = []
    for names in (SORTED, SHUFFLED, SORTED[::-1]):
        repository = await memory_repository()
        imported = await repository.import_objects(ListSource(names), "main")
        runs.append(await repository.tables.load_run(RunId(imported.unit)))
    assert len({run.content_hash() for run in runs}) == 1


@aio
async def test_a_key_that_is_there_twice_is_refused_wherever_it_is() -> None:
    for names in (["a", "a"], ["b", "a", "b"], [*SORTED, SORTED[0]], [SORTED[7], *SHUFFLED]):
        repository = await memory_repository()
        with pytest.raises(Invalid, match=r"s3://bucket/list: .* more than once, such as"):
            await repository.import_objects(ListSource(names), "main")
        assert await visible(repository) == {}
        assert [state async for state in Importer(repository).unfinished()] == []


@aio
async def test_an_object_that_a_listing_shows_twice_is_imported_once() -> None:
    repository = await memory_repository()
    imported = await repository.import_objects(ListSource([*SHUFFLED, *SORTED[:90]], may_repeat=True), "main")
    assert imported.objects == 300
    assert await visible(repository) == content(SORTED)


@aio
async def test_what_is_imported_lies_above_what_was_there_and_the_rest_stays() -> None:
    repository = await memory_repository()
    await put_all(repository, {b"d0/f00000": entry(1), b"z": entry(2)})
    await repository.import_objects(ListSource(SORTED), "main")
    assert await visible(repository) == {**content(SORTED), b"z": entry(2)}


@aio
async def test_an_empty_source_is_told_and_leaves_nothing() -> None:
    repository = await memory_repository()
    with pytest.raises(Invalid, match="nothing that can be imported"):
        await repository.import_objects(ListSource([]), "main")
    assert [state async for state in Importer(repository).unfinished()] == []


@pytest.mark.parametrize("names", [SORTED, SHUFFLED], ids=["sorted", "shuffled"])
@pytest.mark.parametrize("failure", [asyncio.CancelledError(), Unavailable("planned"), RuntimeError("a bug")])
@aio
async def test_an_interrupted_import_goes_on_after_what_it_saved(names: list[str], failure: BaseException) -> None:
    repository = await memory_repository()
    source = ListSource(names, fails_at=9, failure=failure)
    with pytest.raises(type(failure)):
        await repository.import_objects(source, "main")
    state = await only_state(repository)
    assert state.objects > 100
    assert await visible(repository) == {}
    imported = await (await another_client(repository)).import_objects(source, "main")
    assert imported.resumed
    assert source.places[1].rows == state.objects
    assert await visible(repository) == content(names)
    assert await leftovers(repository, imported.id) == []


@aio
async def test_an_import_that_goes_on_makes_the_same_ranges_as_one_that_was_never_interrupted() -> None:
    whole = await memory_repository()
    at_once = await whole.import_objects(ListSource(SORTED), "main")
    expected = (await whole.tables.load_run(RunId(at_once.unit))).files
    for fails_at in range(15):
        repository = await memory_repository()
        source = ListSource(SORTED, fails_at=fails_at)
        with pytest.raises(RuntimeError):
            await repository.import_objects(source, "main")
        imported = await repository.import_objects(source, "main")
        assert (await repository.tables.load_run(RunId(imported.unit))).files == expected


@aio
async def test_a_source_without_an_order_of_its_own_is_read_from_its_beginning_again() -> None:
    repository = await memory_repository()
    source = ListSource(SHUFFLED, is_ordered=False, fails_at=9)
    with pytest.raises(RuntimeError):
        await repository.import_objects(source, "main")
    imported = await repository.import_objects(source, "main")
    assert [place.rows for place in source.places] == [0, 0]
    assert (imported.objects, imported.resumed) == (300, False)
    assert await leftovers(repository, imported.id) == []


@aio
async def test_a_manifest_that_has_changed_is_read_from_its_beginning_again() -> None:
    repository = await memory_repository()
    with pytest.raises(RuntimeError):
        await repository.import_objects(ListSource(SORTED, mark="old", fails_at=9), "main")
    source = ListSource(SORTED[:100], mark="new")
    await repository.import_objects(source, "main")
    assert source.places[0].rows == 0
    assert await visible(repository) == content(SORTED[:100])


@aio
async def test_of_two_processes_the_one_that_began_first_is_told_and_publishes_nothing() -> None:
    repository = await memory_repository()
    other = await another_client(repository)

    begun, release = asyncio.Event(), asyncio.Event()

    async def stall(batch: Batch) -> None:
        begun.set()
        await release.wait()

    slow = asyncio.ensure_future(repository.import_objects(ListSource(SORTED, between=stall), "main"))
    await begun.wait()
    imported = await other.import_objects(ListSource(SORTED), "main")
    release.set()
    with pytest.raises(Conflict, match="taken over"):
        await slow
    assert await appended(repository.refs) == [imported.unit]
    assert await leftovers(repository, imported.id) == []


@aio
async def test_the_same_import_again_after_its_end_is_a_new_one() -> None:
    repository = await memory_repository()
    first = await repository.import_objects(ListSource(SORTED[:50]), "main")
    await put_all(repository, {SORTED[0].encode(): None})
    second = await repository.import_objects(ListSource(SORTED), "main")
    assert (first.id, second.resumed) == (second.id, False)
    assert await visible(repository) == content(SORTED)


@aio
async def test_what_is_remembered_fits_into_the_ref_store_however_long_keys_are() -> None:
    file = f"g0-{'a' * 64}-{2**60:x}-{'b' * 32}"
    long = StoredRange("k" * KEY_BYTES_MAX, "l" * KEY_BYTES_MAX, 2**40, 2**40, 2**60, file)
    refs = RefWrapper(MemoryRefStore())
    repository = await memory_repository(refs=refs)
    with pytest.raises(RuntimeError):
        await repository.import_objects(ListSource(SORTED, fails_at=9), "main")
    states, state = Importer(repository).states, await only_state(repository)
    part = Part([long] * (2 * RANGES_PER_CHUNK + 1))
    await states.save_part(state, part)
    assert len(part.chunks) == 3
    assert (await states.load_part(state, part.chunks)).ranges == part.ranges
    sizes = [len(item.value) async for item in refs.scan("repo/imports", prefix=b"chunk/")]
    assert max(sizes) < VALUE_BYTES_MAX


# Garbage collections


async def raise_floor(repository: Repository, floor: int) -> None:
    branch = await repository.branches.read("main")
    await repository.refs.change("repo", "main", RaiseFloor(incarnation=branch.incarnation, floor=floor))


async def collect(repository: Repository, floor: int) -> None:
    """Remove every range of older generations."""
    names = [info.name async for info in repository.store.list("repo/ranges/")]
    for name in names:
        if int(name.rpartition("/")[2][1:].partition("-")[0], 16) < floor:
            await repository.store.delete(name)


@pytest.mark.parametrize("names", [SORTED, SHUFFLED], ids=["sorted", "shuffled"])
@aio
async def test_what_is_older_than_a_collection_that_begins_is_stored_anew(names: list[str]) -> None:
    repository = await memory_repository()
    source = ListSource(names, fails_at=9)
    with pytest.raises(RuntimeError):
        await repository.import_objects(source, "main")
    await raise_floor(repository, 3)
    imported = await repository.import_objects(source, "main")
    assert source.places[1].rows > 100  # it did not begin again
    run = await repository.tables.load_run(RunId(imported.unit))
    assert all(file.startswith("g3-") for file in run.files)
    await collect(repository, 3)
    assert await visible(await another_client(repository)) == content(names)


@pytest.mark.parametrize("names", [SORTED, SHUFFLED], ids=["sorted", "shuffled"])
@aio
async def test_an_import_whose_ranges_are_collected_begins_again_by_itself(names: list[str]) -> None:
    repository = await memory_repository()
    source = ListSource(names, fails_at=9)
    with pytest.raises(RuntimeError):
        await repository.import_objects(source, "main")
    await raise_floor(repository, 3)
    await collect(repository, 3)
    imported = await repository.import_objects(source, "main")
    assert source.places[-1].rows == 0
    assert await visible(repository) == content(names)
    assert await leftovers(repository, imported.id) == []


@aio
async def test_a_collection_that_begins_just_before_the_append_makes_the_unit_again() -> None:
    refs = DisturbedRefs(MemoryRefStore())
    repository = await memory_repository(refs=refs)
    floors = iter([1, 2, 5])

    async def disturb(change: BranchChange, do: Do) -> Branch:
        if isinstance(change, Append) and (floor := next(floors, None)):
            await raise_floor(await another_client(repository, refs.inner), floor)
        return await do()

    refs.disturb = disturb
    imported = await repository.import_objects(ListSource(SORTED), "main")
    assert imported.unit.startswith("u5-")
    assert await appended(refs) == [imported.unit]
    assert await visible(repository) == content(SORTED)
    assert len([info async for info in repository.store.list("repo/tables/")]) == 1


@aio
async def test_an_append_that_was_refused_by_a_collection_before_a_crash_is_made_again() -> None:
    refs = DisturbedRefs(MemoryRefStore())
    repository = await memory_repository(refs=refs)

    async def disturb(change: BranchChange, do: Do) -> Branch:
        if isinstance(change, Append):
            raise asyncio.CancelledError("crashed")
        return await do()

    refs.disturb = disturb
    with pytest.raises(asyncio.CancelledError):
        await repository.import_objects(ListSource(SORTED), "main")
    refs.disturb = None
    await raise_floor(repository, 4)
    imported = await repository.import_objects(ListSource(SORTED), "main")
    assert imported.unit.startswith("u4-")
    assert await visible(repository) == content(SORTED)


@aio
async def test_an_import_that_loses_every_race_with_collections_gives_up_and_says_so() -> None:
    repository = await memory_repository()
    floors = iter(range(1, 100))

    async def collected(batch: Batch) -> None:
        if batch.rows["key"][0].as_py() > "d4":
            floor = next(floors)
            await raise_floor(repository, floor)
            await collect(repository, floor)

    with pytest.raises(Conflict, match="garbage collections"):
        await repository.import_objects(ListSource(SORTED, between=collected), "main")


# Branches


@aio
async def test_a_branch_that_was_replaced_is_imported_into_from_the_beginning() -> None:
    repository = await memory_repository()
    await repository.create_branch("dev", "main")
    source = ListSource(SORTED, fails_at=9)
    with pytest.raises(RuntimeError):
        await repository.import_objects(source, "dev")
    await repository.delete_branch("dev")
    await repository.create_branch("dev", "main")
    assert not (await repository.import_objects(source, "dev")).resumed
    assert await visible(repository, "dev") == content(SORTED)


@aio
async def test_a_branch_that_is_deleted_meanwhile_ends_the_import() -> None:
    repository = await memory_repository()
    await repository.create_branch("dev", "main")

    async def delete(batch: Batch) -> None:
        await repository.delete_branch("dev")

    with pytest.raises(NotFound, match="dev"):
        await repository.import_objects(ListSource(SORTED, between=delete), "dev")


@aio
async def test_a_destination_that_can_be_no_folder_of_keys_is_invalid() -> None:
    repository = await memory_repository()
    for prefix in ("a\0b", "x" * 1100):
        with pytest.raises(Invalid):
            await repository.import_objects(ListSource(SORTED), "main", prefix)


@aio
async def test_a_protected_branch_is_not_imported_into_also_if_it_is_protected_meanwhile() -> None:
    repository = await memory_repository()

    async def protect(batch: Batch) -> None:
        await repository.protect("ma*")

    with pytest.raises(Denied, match="protected"):
        await repository.import_objects(ListSource(SORTED, between=protect), "main")
    with pytest.raises(Denied, match="protected"):
        await repository.import_objects(ListSource(SORTED), "main")
    assert await visible(repository) == {}
    await repository.protect("ma*", ())
    assert (await repository.import_objects(ListSource(SORTED), "main")).resumed


# Stores that fail


@pytest.mark.parametrize("names", [SORTED, SHUFFLED], ids=["sorted", "shuffled"])
@aio
async def test_a_store_that_fails_now_and_then_only_delays_an_import(names: list[str]) -> None:
    def plan(verb: str, name: str, number: int) -> Fault | None:
        return Fault(Kind.BEFORE) if number % 17 == 16 else None

    inner, refs = MemoryStore(), MemoryRefStore()
    healthy = await memory_repository(inner, refs)
    repository = await Repository.open(FaultingStore(inner, plan), refs, "repo", settings=SETTINGS, threads=False)
    source, tries = ListSource(names), 0
    while True:
        try:
            imported = await repository.import_objects(source, "main")
            break
        except Unavailable:
            tries += 1
            assert tries < 50
    assert tries
    assert await appended(refs) == [imported.unit]
    assert await visible(healthy) == content(names)
