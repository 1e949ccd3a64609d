"""The writer when answers are lost, and when the branch changes under it."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from lsmfs import paths
from lsmfs.objectstore.counting import CountingStore
from lsmfs.objectstore.memory import MemoryStore
from lsmfs.reader import RefStore
from lsmfs.repository import Repository
from refstore import refs as rules
from refstore.errors import (
    BranchReplaced,
    Conflict,
    Error,
    GenerationStale,
    NotFound,
    OutcomeUnknown,
    Unavailable,
)
from refstore.records import Append, Branch, BranchChange, Create, Delete, RaiseFloor, Retire
from refstore.store import ABSENT, Absent
from tests.aio import aio
from tests.lsm.support import (
    DisturbedRefs,
    another_client,
    entry,
    keys,
    memory_repository,
    put_all,
    rows_of,
)
from tests.lsm.writing import Do, disturbed, l1, settle, truth, with_writer


class Network:
    """Loses what it is told to lose, and keeps every request it has seen for late delivery."""

    def __init__(self) -> None:
        self.lose: Callable[[BranchChange], str | None] = lambda change: None
        self.seen: list[Do] = []

    async def __call__(self, change: BranchChange, do: Do) -> Branch:
        what = self.lose(change)
        if isinstance(change, Append):
            self.seen.append(do)
        if what == "request":
            raise OutcomeUnknown("lost on the way there")
        branch = await do()
        if what == "answer":
            raise OutcomeUnknown("lost on the way back")
        return branch

    async def deliver_late(self) -> list[str]:
        """Everything once more; what each was answered."""
        answers = []
        for do in self.seen:
            try:
                await do()
                answers.append("done already")
            except Error as error:
                answers.append(type(error).__name__)
        return answers


def first_appends(count: int, what: str) -> Callable[[BranchChange], str | None]:
    left = count

    def lose(change: BranchChange) -> str | None:
        nonlocal left
        if isinstance(change, Append) and left:
            left -= 1
            return what
        return None

    return lose


async def networked(**settings: Any) -> tuple[Repository, DisturbedRefs, Network]:
    repository, refs = await disturbed(**settings)
    network = Network()
    refs.disturb = network
    return repository, refs, network


@pytest.mark.parametrize("what", ["request", "answer"])
@pytest.mark.parametrize("expected", [None, ABSENT])
@aio
async def test_an_append_whose_answer_is_lost_is_repeated_and_done_once(what: str, expected: Absent | None) -> None:
    repository, refs, network = await networked(deadline_seconds=20.0)
    network.lose = first_appends(3, what)
    async with repository.writer("main") as writer:
        await writer.put("a", entry(1), expected)
        assert refs.calls["append"] == 4
        await writer.put("b", entry(1))
    assert len(await l1(repository)) == 2
    before = await truth(repository)
    assert set(await network.deliver_late()) <= {"done already", "WriterUnknown", "ViewChanged"}
    assert await truth(repository) == before == {b"a": entry(1), b"b": entry(1)}
    assert len(await l1(repository)) == 2


@aio
async def test_an_append_that_was_done_is_found_done_at_the_deadline() -> None:
    repository, refs, network = await networked()
    network.lose = lambda change: "answer" if isinstance(change, Append) else None
    async with repository.writer("main") as writer:
        await writer.put("a", entry(1))  # every answer lost, but settling finds it done
        assert refs.calls["retire"] == 1
        network.lose = lambda change: None
        await writer.put("a", entry(2))
    assert len(await l1(repository)) == 2
    assert await truth(repository) == {b"a": entry(2)}


@aio
async def test_an_append_that_was_never_done_is_settled_and_never_will_be() -> None:
    repository, refs, network = await networked()
    network.lose = lambda change: "request" if isinstance(change, Append) else None
    async with repository.writer("main") as writer:
        with pytest.raises(Unavailable):
            await writer.put("a", entry(1))
        assert refs.calls["retire"] == 1
        assert set(await network.deliver_late()) == {"WriterUnknown"}
        network.lose = lambda change: None
        await writer.put("b", entry(2))
        network.seen = network.seen[:-1]
        assert set(await network.deliver_late()) == {"WriterUnknown"}
    assert await truth(repository) == {b"b": entry(2)}


@pytest.mark.parametrize("what", ["request", "answer"])
@aio
async def test_an_append_lost_beyond_the_deadline_is_of_unknown_outcome_and_the_next_write_goes_on(what: str) -> None:
    repository, _, network = await networked()
    network.lose = lambda change: what if isinstance(change, (Append, Retire)) else None
    async with repository.writer("main") as writer:
        with pytest.raises(OutcomeUnknown):
            await writer.put("a", entry(1))
        network.lose = lambda change: None
        await writer.put("b", entry(2))
        await writer.put("a", entry(3))
        assert await truth(repository) == {b"a": entry(3), b"b": entry(2)}
        late = await network.deliver_late()  # an old write must not appear above a newer one
        assert set(late) <= {"done already", "WriterUnknown"}
        assert await truth(repository) == {b"a": entry(3), b"b": entry(2)}
        await writer.put("c", entry(4))
    assert len(await l1(repository)) == (4 if what == "answer" else 3)
    assert await truth(repository) == {b"a": entry(3), b"b": entry(2), b"c": entry(4)}


@pytest.mark.parametrize("what", ["request", "answer"])
@aio
async def test_writes_that_queued_behind_an_unknown_outcome_are_done_after_it(what: str) -> None:
    repository, _, network = await networked(flush_bytes=1, flushes_max=4)
    network.lose = lambda change: what if isinstance(change, (Append, Retire)) else None
    async with repository.writer("main") as writer:
        puts = []
        for n in range(3):
            puts.append(asyncio.ensure_future(writer.put("a", entry(n))))
            await settle()
        await asyncio.wait(puts, return_when=asyncio.FIRST_COMPLETED)
        network.lose = lambda change: None
        answers = await asyncio.gather(*puts, return_exceptions=True)
    assert [type(answer) for answer in answers] == [OutcomeUnknown, type(None), type(None)]
    assert await truth(repository) == {b"a": entry(2)}
    await network.deliver_late()
    assert await truth(repository) == {b"a": entry(2)}


@aio
async def test_a_ref_store_that_cannot_be_reached_fails_the_write_with_nothing_done() -> None:
    repository, refs = await disturbed()

    async def unreachable(change: BranchChange, do: Do) -> Branch:
        raise Unavailable("no route")

    refs.disturb = unreachable
    async with repository.writer("main") as writer:
        with pytest.raises(Unavailable, match="no route"):
            await writer.put("a", entry(1))
        assert refs.calls["retire"] == 0  # nothing was sent: there is nothing to settle
        refs.disturb = None
        await writer.put("b", entry(1))
    assert await truth(repository) == {b"b": entry(1)}


@aio
async def test_a_conditional_write_whose_answer_is_lost_does_not_refuse_itself() -> None:
    """Decided again, it would find its own entry: the sequence number says that it was done."""
    repository, refs = await disturbed(deadline_seconds=5.0)
    intruder = await another_client(repository, refs.inner)
    lost = False

    async def lose_and_intrude(change: BranchChange, do: Do) -> Branch:
        nonlocal lost
        branch = await do()
        if isinstance(change, Append) and not lost:
            lost = True
            await put_all(intruder, {b"z": entry(1)})
            raise OutcomeUnknown("lost")
        return branch

    refs.disturb = lose_and_intrude
    async with repository.writer("main") as writer:
        await writer.put("a", entry(1), ABSENT)
    assert await truth(repository) == {b"a": entry(1), b"z": entry(1)}


@aio
async def test_a_writer_that_the_branch_has_forgotten_goes_on() -> None:
    repository = await memory_repository()
    async with repository.writer("main") as writer:
        await writer.put("mine", entry(1))
        for n in range(rules.WRITERS_MAX + 1):
            await put_all(repository, {f"other{n:03}".encode(): entry(n)})
        branch = await repository.refs.read("repo", "main")
        assert len(branch.writers) == rules.WRITERS_MAX
        await writer.put("mine", entry(2))
        await writer.put("mine too", entry(3))
    found = await truth(repository)
    assert (found[b"mine"], found[b"mine too"], len(found)) == (entry(2), entry(3), rules.WRITERS_MAX + 3)
    assert len(await l1(repository)) == rules.WRITERS_MAX + 4


@pytest.mark.parametrize("done", [True, False])
@aio
async def test_a_writer_forgotten_with_an_answer_outstanding_reports_the_outcome_as_unknown(done: bool) -> None:
    repository, refs = await disturbed(deadline_seconds=20.0)
    others = await another_client(repository, refs.inner)
    lost = False

    async def lose_and_forget(change: BranchChange, do: Do) -> Branch:
        nonlocal lost
        if isinstance(change, Append) and change.seq == 2 and not lost:
            lost = True
            if done:
                await do()
            for n in range(rules.WRITERS_MAX + 1):
                await put_all(others, {b"other": entry(n)})
            raise OutcomeUnknown("lost")
        return await do()

    refs.disturb = lose_and_forget
    async with repository.writer("main") as writer:
        await writer.put("a", entry(1))
        with pytest.raises(OutcomeUnknown):
            await writer.put("a", entry(2))
        assert (await truth(repository))[b"a"] == entry(2 if done else 1)
        await writer.put("a", entry(3))
    assert (await truth(repository))[b"a"] == entry(3)


async def recreate(repository: Repository, again: bool = True) -> None:
    branch = await repository.refs.read("repo", "main")
    await repository.refs.change("repo", "main", Delete(incarnation=branch.incarnation))
    if again:
        create = Create(incarnation="second-life", base_commit=branch.base_commit)
        await repository.refs.change("repo", "main", create)


@pytest.mark.parametrize("expected", [None, ABSENT])
@aio
async def test_a_branch_created_again_under_a_writer_is_not_written_to(expected: Absent | None) -> None:
    repository = await memory_repository()
    async with repository.writer("main") as writer:
        await writer.put("a", entry(1))
        await recreate(repository)
        for _ in range(2):
            with pytest.raises(BranchReplaced, match="main"):
                await writer.put("b", entry(1), expected)
    assert await truth(repository) == {}
    async with repository.writer("main") as writer:
        await writer.put("c", entry(1), expected)
    assert await truth(repository) == {b"c": entry(1)}


@aio
async def test_a_branch_deleted_under_a_writer_is_not_found() -> None:
    repository = await memory_repository()
    async with repository.writer("main") as writer:
        await writer.put("a", entry(1))
        await recreate(repository, again=False)
        for expected in (None, ABSENT):
            with pytest.raises(NotFound, match="main"):
                await writer.put("b", entry(1), expected)


@aio
async def test_a_writer_to_a_branch_that_does_not_exist_is_not_opened() -> None:
    repository = await memory_repository()
    with pytest.raises(NotFound, match="branch 'other' does not exist"):
        async with repository.writer("other"):
            pass


async def raise_floor(refs: RefStore, floor: int) -> None:
    branch = await refs.read("repo", "main")
    await refs.change("repo", "main", RaiseFloor(incarnation=branch.incarnation, floor=floor))


@aio
async def test_a_layer_made_before_the_garbage_floor_is_made_again() -> None:
    store = CountingStore(MemoryStore())
    repository = await memory_repository(store, settings=with_writer(unit_rows_max=10))
    async with repository.writer("main") as writer:
        await raise_floor(repository.refs, 3)
        await writer.put("a", entry(1))
        await raise_floor(repository.refs, 5)
        await writer.stage(rows_of({key: entry(1) for key in keys(range(20))}))
    assert [paths.generation_of(name) for name in await l1(repository)] == [3, 5]
    assert len(await truth(repository)) == 21


@aio
async def test_refused_operations_do_not_come_back_when_their_layer_is_made_again() -> None:
    repository, refs = await disturbed(deadline_seconds=5.0)
    await put_all(repository, {b"a": entry(1)})
    raised = False

    async def raise_first(change: BranchChange, do: Do) -> Branch:
        nonlocal raised
        if isinstance(change, Append) and not raised:
            raised = True
            await raise_floor(refs.inner, 7)
        return await do()

    refs.disturb = raise_first
    async with repository.writer("main") as writer:
        answers = await asyncio.gather(
            writer.put("a", entry(2), ABSENT), writer.put("b", entry(2), ABSENT), return_exceptions=True
        )
    assert [type(answer) for answer in answers] == [Conflict, type(None)]
    assert await truth(repository) == {b"a": entry(1), b"b": entry(2)}


@aio
async def test_a_prepared_layer_made_before_the_garbage_floor_is_refused() -> None:
    repository = await memory_repository()
    async with repository.writer("main") as writer:
        name = await writer.prepare(rows_of({b"a": entry(1)}))
        await raise_floor(repository.refs, 1)
        with pytest.raises(GenerationStale, match="generation 0"):
            await writer.stage_prepared(name)
        await writer.put("b", entry(1))
    assert await truth(repository) == {b"b": entry(1)}


@pytest.mark.parametrize("again", [True, False])
@aio
async def test_a_lost_append_to_a_branch_that_is_gone_since_is_of_unknown_outcome(again: bool) -> None:
    repository, refs = await disturbed()
    lost = False

    async def lose_and_delete(change: BranchChange, do: Do) -> Branch:
        nonlocal lost
        branch = await do()
        if isinstance(change, Append) and not lost:
            lost = True
            await recreate(await another_client(repository, refs.inner), again)
            raise OutcomeUnknown("lost")
        return branch

    refs.disturb = lose_and_delete
    async with repository.writer("main") as writer:
        with pytest.raises(OutcomeUnknown):  # it may even have been committed and merged before
            await writer.put("a", entry(1))
        with pytest.raises(BranchReplaced if again else NotFound):
            await writer.put("a", entry(2))


@aio
async def test_more_busy_writers_than_a_branch_remembers_all_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A forgotten writer appends as soon as it has opened a new life: waiting, it would be forgotten again."""
    monkeypatch.setattr(rules, "WRITERS_MAX", 4)
    monkeypatch.setattr(rules, "L1_TABLES_MAX", 10_000)
    repository, refs = await disturbed(deadline_seconds=20.0)

    async def write(number: int) -> None:
        async with repository.writer("main") as writer:
            for n in range(20):
                await writer.put(f"{number:03}/{n:03}", entry(n))

    await asyncio.gather(*(write(number) for number in range(20)))
    assert len(await truth(repository)) == 400
    assert refs.calls["append"] < 400 * 8
