"""An import is published once, whatever happens, or never, if it is cancelled."""

import asyncio
from dataclasses import replace

import msgspec
import pytest

from lsmfs.imports.importer import Importer
from lsmfs.imports.publication import Fate
from lsmfs.imports.source import Batch
from lsmfs.repository import Repository
from refstore.drivers.memory import MemoryRefStore
from refstore.errors import BranchReplaced, Conflict, LayersFull, NotFound, OutcomeUnknown
from refstore.records import Append, Branch, BranchChange, Create, Delete
from refstore.refs import L1_TABLES_MAX, WRITERS_MAX
from tests.aio import aio
from tests.imports.support import SORTED, Do, ListSource, appended, content, leftovers, only_state
from tests.lsm.support import (
    SETTINGS,
    DisturbedRefs,
    another_client,
    entry,
    memory_repository,
    put_all,
    visible,
)

pytestmark = pytest.mark.usefixtures("eager")


# Publishing once


@aio
async def test_a_lost_answer_to_the_append_publishes_once() -> None:
    refs = DisturbedRefs(MemoryRefStore())
    lost: list[BranchChange] = []

    async def disturb(change: BranchChange, do: Do) -> Branch:
        branch = await do()
        if isinstance(change, Append) and not lost:
            lost.append(change)
            raise OutcomeUnknown("planned")
        return branch

    repository = await memory_repository(refs=refs)
    refs.disturb = disturb
    imported = await repository.import_objects(ListSource(SORTED), "main")
    assert await appended(refs) == [imported.unit]


async def published_but_not_told(repository: Repository, refs: DisturbedRefs) -> None:
    """An import whose process dies between the append and the end."""

    async def disturb(change: BranchChange, do: Do) -> Branch:
        branch = await do()
        if isinstance(change, Append):
            raise asyncio.CancelledError("crashed")
        return branch

    refs.disturb = disturb
    with pytest.raises(asyncio.CancelledError):
        await repository.import_objects(ListSource(SORTED), "main")
    refs.disturb = None
    assert (await only_state(repository)).publication is not None


@aio
async def test_an_import_that_dies_after_its_append_is_not_published_again_and_undoes_nothing() -> None:
    refs = DisturbedRefs(MemoryRefStore())
    repository = await memory_repository(refs=refs)
    await published_but_not_told(repository, refs)
    await put_all(repository, {SORTED[0].encode(): entry(7), SORTED[1].encode(): None})
    await repository.commit("main", "what was imported leaves the layers")
    imported = await repository.import_objects(ListSource(SORTED), "main")
    assert (imported.resumed, imported.objects) == (True, 300)
    assert [name for name in await appended(refs) if name.startswith("u")] == [imported.unit]
    expected = {**content(SORTED), SORTED[0].encode(): entry(7)}
    del expected[SORTED[1].encode()]
    assert await visible(repository) == expected
    assert await leftovers(repository, imported.id) == []


async def crowd(repository: Repository) -> None:
    """So many writers that the branch forgets all others."""
    for number in range(WRITERS_MAX + 1):
        await put_all(repository, {b"crowd": entry(number)})


@aio
async def test_a_unit_that_is_still_a_layer_was_published_though_the_branch_has_forgotten_its_writer() -> None:
    refs = DisturbedRefs(MemoryRefStore())
    repository = await memory_repository(refs=refs)
    await published_but_not_told(repository, refs)
    await crowd(repository)
    imported = await repository.import_objects(ListSource(SORTED), "main")
    assert [name for name in await appended(refs) if name.startswith("u")] == [imported.unit]


@aio
async def test_where_nobody_can_tell_whether_it_was_published_a_person_is_asked() -> None:
    refs = DisturbedRefs(MemoryRefStore())
    repository = await memory_repository(refs=refs)
    await published_but_not_told(repository, refs)
    await repository.commit("main", "what was imported leaves the layers")
    await crowd(repository)
    with pytest.raises(Conflict, match="nobody can tell"):
        await repository.import_objects(ListSource(SORTED), "main")
    assert len([name for name in await appended(refs) if name.startswith("u")]) == 1
    state = await only_state(repository)
    assert await Importer(repository).cancel(state.id) is Fate.UNKNOWN
    assert await leftovers(repository, state.id) == []
    assert len(await visible(repository)) == 301


@aio
async def test_the_state_may_be_half_removed_when_a_published_import_goes_on() -> None:
    refs = DisturbedRefs(MemoryRefStore())
    repository = await memory_repository(refs=refs)
    await published_but_not_told(repository, refs)
    state = await only_state(repository)
    await Importer(repository).states.forget(state)
    assert (await repository.import_objects(ListSource(SORTED), "main")).objects == 300


@aio
async def test_a_writer_that_others_have_pushed_out_before_its_append_begins_a_new_life() -> None:
    refs = DisturbedRefs(MemoryRefStore())
    repository = await memory_repository(refs=refs)
    pushed: list[str] = []

    async def disturb(change: BranchChange, do: Do) -> Branch:
        if isinstance(change, Append) and change.table.startswith("u") and not pushed:
            pushed.append(change.table)
            await crowd(await another_client(repository))
        return await do()

    refs.disturb = disturb
    imported = await repository.import_objects(ListSource(SORTED), "main")
    assert [name for name in await appended(refs) if name.startswith("u")] == [imported.unit]
    assert imported.unit not in pushed
    with pytest.raises(NotFound):
        await repository.store.head(f"repo/tables/{pushed[0]}.parquet")


@aio
async def test_an_append_whose_answer_was_lost_is_not_sent_by_another_writer_when_the_branch_has_forgotten_it() -> None:
    refs = DisturbedRefs(MemoryRefStore())
    repository = await memory_repository(refs=refs, settings=replace(SETTINGS, retry_seconds=60.0))
    done: list[Branch] = []

    async def disturb(change: BranchChange, do: Do) -> Branch:
        if isinstance(change, Append) and change.table.startswith("u") and not done:
            done.append(await do())
            await (await another_client(repository)).commit("main", "it is no layer any more")
            await crowd(await another_client(repository))
            raise OutcomeUnknown("planned")
        return await do()

    refs.disturb = disturb
    with pytest.raises(Conflict):
        await repository.import_objects(ListSource(SORTED), "main")
    with pytest.raises(Conflict, match="nobody can tell"):
        await repository.import_objects(ListSource(SORTED), "main")
    assert len([name for name in await appended(refs) if name.startswith("u")]) == 1


@aio
async def test_a_full_branch_is_told_and_the_import_goes_on_when_there_is_room() -> None:
    repository = await memory_repository()
    for number in range(L1_TABLES_MAX):
        await put_all(repository, {b"full": entry(number)})
    source = ListSource(SORTED)
    with pytest.raises(LayersFull, match="run a compactor"):
        await repository.import_objects(source, "main")
    await repository.commit("main", "room")
    await crowd(repository)  # the refused writer is long forgotten
    imported = await repository.import_objects(source, "main")
    assert (imported.resumed, len(source.places)) == (True, 1)


# Cancelling


@aio
async def test_a_cancelled_import_leaves_nothing_and_may_begin_again() -> None:
    repository = await memory_repository()
    with pytest.raises(RuntimeError):
        await repository.import_objects(ListSource(SORTED, fails_at=9), "main")
    state = await only_state(repository)
    assert await Importer(repository).cancel(state.id) is Fate.NEVER
    assert await leftovers(repository, state.id) == []
    assert await visible(repository) == {}
    with pytest.raises(NotFound, match="no unfinished import"):
        await Importer(repository).cancel(state.id)
    assert not (await repository.import_objects(ListSource(SORTED), "main")).resumed


@aio
async def test_cancelling_an_import_that_was_published_says_so() -> None:
    refs = DisturbedRefs(MemoryRefStore())
    repository = await memory_repository(refs=refs)
    await published_but_not_told(repository, refs)
    state = await only_state(repository)
    assert await Importer(repository).cancel(state.id) is Fate.DONE
    assert await visible(repository) == content(SORTED)
    assert await leftovers(repository, state.id) == []


@aio
async def test_an_append_that_is_under_way_when_its_import_is_cancelled_is_never_done() -> None:
    refs = DisturbedRefs(MemoryRefStore())
    repository = await memory_repository(refs=refs)
    late = []

    async def disturb(change: BranchChange, do: Do) -> Branch:
        if isinstance(change, Append):
            late.append(do)
            raise asyncio.CancelledError("crashed before it arrived")
        return await do()

    refs.disturb = disturb
    with pytest.raises(asyncio.CancelledError):
        await repository.import_objects(ListSource(SORTED), "main")
    state = await only_state(repository)
    assert await Importer(repository).cancel(state.id) is Fate.NEVER
    with pytest.raises(Conflict):
        await late[0]()
    assert await visible(repository) == {}
    assert await appended(refs) == []
    assert state.publication is not None
    with pytest.raises(NotFound):
        await repository.store.head(f"repo/tables/{state.publication.unit}.parquet")


@aio
async def test_an_import_that_somebody_cancels_while_it_runs_stops_and_publishes_nothing() -> None:
    repository = await memory_repository()
    other = await another_client(repository)

    async def cancel(batch: Batch) -> None:
        async for state in Importer(other).unfinished():
            await Importer(other).cancel(state.id)

    with pytest.raises(Conflict, match="cancelled"):
        await repository.import_objects(ListSource(SORTED, between=cancel), "main")
    assert await visible(repository) == {}


@aio
async def test_a_cancellation_that_was_interrupted_is_ended_by_the_next_import() -> None:
    repository = await memory_repository()
    with pytest.raises(RuntimeError):
        await repository.import_objects(ListSource(SORTED, fails_at=9), "main")
    state = await only_state(repository)
    await Importer(repository).states.swap(state, msgspec.structs.replace(state, is_cancelled=True))
    imported = await repository.import_objects(ListSource(SORTED), "main")
    assert (imported.resumed, imported.objects) == (False, 300)


@aio
async def test_a_branch_that_was_replaced_while_an_import_was_published_is_told() -> None:
    refs = DisturbedRefs(MemoryRefStore())
    repository = await memory_repository(refs=refs)
    await published_but_not_told(repository, refs)
    branch = await repository.branches.read("main")
    await refs.change("repo", "main", Delete(incarnation=branch.incarnation))
    await refs.change("repo", "main", Create(incarnation="another", base_commit=branch.base_commit))
    with pytest.raises(BranchReplaced, match="--cancel"):
        await repository.import_objects(ListSource(SORTED), "main")
    state = await only_state(repository)
    assert await Importer(repository).cancel(state.id) is Fate.NEVER
