"""Appending to objects: what was acknowledged is there, once and in order, however layers are cut, lost and merged."""

import asyncio
import hashlib

import pytest

from lsmfs import paths
from lsmfs.lsm import writer as writing_module
from lsmfs.lsm.memstore import Addition, Batch
from lsmfs.lsm.writer import APPEND_BYTES_MAX, Writer
from lsmfs.model import EXTENTS_MAX, Extent
from lsmfs.objectstore.counting import CountingStore
from lsmfs.objectstore.faulting import Fault, FaultingStore, Kind
from lsmfs.objectstore.memory import MemoryStore
from lsmfs.repository import Repository
from refstore.drivers.memory import MemoryRefStore
from refstore.errors import Conflict, Corrupt, Error, Invalid, NotFound, OutcomeUnknown, Unavailable
from refstore.records import Append, Branch, BranchChange, RaiseFloor, Retire
from refstore.store import ABSENT
from tests.aio import aio
from tests.lsm.appending import bodies, compact_all, read, stored
from tests.lsm.support import DisturbedRefs, another_client, entry, memory_repository, scanned, visible
from tests.lsm.writing import Do, Gate, disturbed, l1, settle, truth, with_writer


async def place(repository: Repository, where: str) -> None:
    """Move what is staged down to where it shall lie."""
    if where in ("l2", "base"):
        await compact_all(repository)
    if where in ("sealed base", "base"):
        await repository.commit("main", "down")


PLACES = pytest.mark.parametrize("where", ["l1", "l2", "base", "sealed base"])


@PLACES
@aio
async def test_an_append_adds_to_the_object_wherever_it_lies(where: str) -> None:
    repository = await memory_repository()
    async with repository.writer("main") as writer:
        await writer.put("log", await stored(repository, b"one,"))
        await place(repository, where)
        await writer.append("log", b"two,")
        await writer.append("log", bytearray(b"three"))
        assert await read(repository, "log") == b"one,two,three"
        found = await repository.get("main", "log")
        assert (found.size_bytes, found.content_type, found.metadata) == (13, "text/plain", {"a": "b"})
        assert await visible(repository) == {b"log": found}
        assert await scanned(repository.scan("main")) == [(b"log", found)]
        assert await repository.get_many("main", ["log", "x"]) == {b"log": found}
    await place(repository, where)
    assert await repository.get("main", "log") == found
    await repository.commit("main", "rest", allow_empty=True)
    assert await repository.get("main", "log") == found


@PLACES
@aio
async def test_an_append_to_what_is_not_there_or_was_deleted_begins_an_object(where: str) -> None:
    repository = await memory_repository()
    async with repository.writer("main") as writer:
        await writer.put("gone", await stored(repository, b"old"))
        await place(repository, where)
        await writer.delete("gone")
        await writer.append("gone", b"new")
        await writer.append("fresh", b"first")
    await place(repository, where)
    assert await bodies(repository, await truth(repository)) == {b"gone": b"new", b"fresh": b"first"}
    found = await repository.get("main", "fresh")
    assert (found.etag, found.content_type) == (hashlib.md5(b"first").hexdigest(), None)


@aio
async def test_an_append_of_nothing_creates_an_empty_object_and_leaves_others_as_they_are() -> None:
    store = CountingStore(MemoryStore())
    repository = await memory_repository(store)
    there = await stored(repository, b"there")
    async with repository.writer("main") as writer:
        await writer.put("a", there)
        before = store.calls("put")
        await asyncio.gather(writer.append("a", b""), writer.append("b", b""))
        assert store.calls("put") == before + 1  # the table: there are no bytes to store
    assert (await repository.get("main", "a")).etag == there.etag
    assert await bodies(repository, await truth(repository)) == {b"a": b"there", b"b": b""}


@aio
async def test_a_deleted_or_replaced_object_has_nothing_of_what_was_appended_before() -> None:
    repository = await memory_repository()
    async with repository.writer("main") as writer:
        await writer.append("a", b"lost")
        await writer.append("b", b"lost")
        await compact_all(repository)
        await writer.append("b", b"lost too")
        await writer.delete("a")
        await writer.put("b", entry(1))
    assert await truth(repository) == {b"b": entry(1)}


@aio
async def test_appends_of_one_flush_cost_one_put_for_their_bytes_one_for_the_table_and_one_append() -> None:
    store, refs = CountingStore(MemoryStore()), DisturbedRefs(MemoryRefStore())
    repository = await memory_repository(store, refs)
    async with repository.writer("main") as writer:
        before, calls = store.calls("put"), refs.calls.copy()
        await asyncio.gather(*(writer.append(f"log{n % 3}", f"{n},".encode()) for n in range(100)))
        assert store.calls("put") - before == 2
        assert refs.calls - calls == {"append": 1}
        assert (store.calls("get"), store.calls("stream")) == (0, 0)  # nothing was read
    found = await truth(repository)
    assert await bodies(repository, found) == {
        f"log{key}".encode(): b"".join(f"{n},".encode() for n in range(key, 100, 3)) for key in range(3)
    }
    assert all(not value.rest for value in found.values())  # the bytes of a key are side by side: one extent
    assert len({value.address for value in found.values()}) == 1


@aio
async def test_the_bytes_and_the_table_of_a_flush_are_uploaded_at_the_same_time() -> None:
    store = Gate(MemoryStore())
    repository = await memory_repository(store)
    store.is_shut = True  # for tables
    async with repository.writer("main") as writer:
        append = asyncio.ensure_future(writer.append("a", b"bytes"))
        await settle()
        assert [info.size_bytes async for info in store.list("repo/data/")] == [5]
        assert not append.done()
        store.open()
        await append
    assert await read(repository, "a") == b"bytes"


@aio
async def test_bytes_that_were_appended_and_replaced_in_one_flush_are_not_stored() -> None:
    store = MemoryStore()
    repository = await memory_repository(store)
    async with repository.writer("main") as writer:
        await asyncio.gather(writer.append("a", b"lost"), writer.put("a", entry(1)), writer.append("b", b"kept"))
    assert [info.size_bytes async for info in store.list("repo/data/")] == [4]
    assert (await truth(repository))[b"a"] == entry(1)


@pytest.mark.parametrize("place", ["data", "tables"])
@pytest.mark.parametrize("kind", [Kind.BEFORE, Kind.AFTER])
@aio
async def test_an_append_whose_bytes_or_table_cannot_be_stored_fails_and_is_not_seen(place: str, kind: Kind) -> None:
    broken = False

    def plan(verb: str, name: str, _: int) -> Fault | None:
        return Fault(kind) if broken and verb == "put" and f"/{place}/" in name else None

    repository = await memory_repository(FaultingStore(MemoryStore(), plan))
    async with repository.writer("main") as writer:
        await writer.append("a", b"one")
        broken = True
        with pytest.raises(Unavailable):
            await writer.append("a", b"two")
        broken = False
        await writer.append("a", b"three")
    assert await read(repository, "a") == b"onethree"


@aio
async def test_appended_bytes_that_were_stored_in_part_are_corrupt_when_they_are_read() -> None:
    torn = False

    def plan(verb: str, name: str, _: int) -> Fault | None:
        return Fault(Kind.TORN, keep_bytes=2) if torn and verb == "put" and "/data/" in name else None

    store = FaultingStore(MemoryStore(), plan)
    repository = await memory_repository(store)
    async with repository.writer("main") as writer:
        await writer.append("a", b"one")
        await writer.append("a", b"two")
        address = (await repository.get("main", "a")).rest[0].address
        await store.put(address, b"tWo")
        with pytest.raises(Corrupt, match="MD5"):
            await read(repository, "a")
        torn = True
        with pytest.raises(OutcomeUnknown):
            await writer.append("b", b"three")
    with pytest.raises(NotFound):
        await repository.get("main", "b")


@pytest.mark.parametrize("lost", ["request", "answer", "doubled"])
@aio
async def test_an_append_whose_answer_is_lost_is_done_once(lost: str) -> None:
    repository, refs = await disturbed(deadline_seconds=5.0)
    seen: list[Do] = []

    async def lose(change: BranchChange, do: Do) -> Branch:
        if not isinstance(change, Append) or len(seen) >= 3:
            return await do()
        seen.append(do)
        if lost == "request":
            raise OutcomeUnknown("lost on the way there")
        await do()
        if lost == "answer":
            raise OutcomeUnknown("lost on the way back")
        return await do()

    refs.disturb = lose
    async with repository.writer("main") as writer:
        for word in (b"one,", b"two,", b"three"):
            await writer.append("a", word)
    for late in seen:  # copies that were under way all the time
        try:
            await late()
        except Error:
            continue
    assert await bodies(repository, await truth(repository)) == {b"a": b"one,two,three"}


@aio
async def test_an_append_that_was_given_up_never_appears_and_may_be_repeated() -> None:
    repository, refs = await disturbed()
    seen: list[Do] = []

    async def lose(change: BranchChange, do: Do) -> Branch:
        if isinstance(change, Append) and not isinstance(change, Retire) and len(await l1(repository)) == 1:
            seen.append(do)
            raise OutcomeUnknown("lost on the way there")
        return await do()

    async with repository.writer("main") as writer:
        await writer.append("a", b"one,")
        refs.disturb = lose
        with pytest.raises(Unavailable):
            await writer.append("a", b"two,")  # settled: it never will be done
        refs.disturb = None
        await writer.append("a", b"two,")
        for late in seen:
            with pytest.raises(Error):
                await late()
    assert await bodies(repository, await truth(repository)) == {b"a": b"one,two,"}


@aio
async def test_an_append_made_before_a_garbage_collection_is_made_again_with_its_bytes_and_done_once() -> None:
    repository = await memory_repository()
    async with repository.writer("main") as writer:
        await writer.append("a", b"one,")
        branch = await repository.branches.read("main")
        await repository.refs.change("repo", "main", RaiseFloor(incarnation=branch.incarnation, floor=3))
        await writer.append("a", b"two")
    used = {extent.address for extent in (await repository.get("main", "a")).extents}
    unused = {info.name async for info in repository.store.list("repo/data/")} - used
    assert len(unused) == 1  # the first try's
    await repository.store.delete(unused.pop())
    assert paths.generation_of((await l1(repository))[-1]) == 3
    assert await bodies(repository, await truth(repository)) == {b"a": b"one,two"}


@PLACES
@aio
async def test_conditions_see_the_object_with_what_was_appended(where: str) -> None:
    repository = await memory_repository()
    async with repository.writer("main") as writer:
        first = await stored(repository, b"one,")
        await writer.put("a", first)
        await writer.append("b", b"new")
        await place(repository, where)
        await writer.append("a", b"two")
        now = (await repository.get("main", "a")).etag
        with pytest.raises(Conflict):
            await writer.put("a", entry(1), first.etag)
        with pytest.raises(Conflict):
            await writer.put("a", entry(1), ABSENT)
        with pytest.raises(Conflict):
            await writer.put("b", entry(1), ABSENT)
        with pytest.raises(Conflict):
            await writer.delete("a", first.etag)
        await writer.put("b", entry(2), hashlib.md5(b"new").hexdigest())
        await writer.put("a", entry(1), now)
    assert await truth(repository) == {b"a": entry(1), b"b": entry(2)}


@aio
async def test_conditions_of_one_batch_see_the_appends_before_them() -> None:
    repository = await memory_repository()
    async with repository.writer("main") as writer:
        await writer.put("c", entry(3))
        answers = await asyncio.gather(
            writer.append("a", b"hello"),
            writer.put("a", entry(1), ABSENT),
            writer.append("b", b"hello"),
            writer.put("b", entry(2), hashlib.md5(b"hello").hexdigest()),
            writer.append("b", b"!"),
            writer.append("c", b"hello"),
            writer.put("c", entry(4), "e3"),
            writer.put("d", entry(5), ABSENT),
            writer.append("d", b"!"),
            return_exceptions=True,
        )
    refused = [at for at, answer in enumerate(answers) if answer is not None]
    assert refused == [1, 6]
    assert all(isinstance(answers[at], Conflict) for at in refused)
    found = await truth(repository)
    assert [found[key].size_bytes for key in (b"a", b"b", b"c", b"d")] == [5, 2 + 1, 3 + 5, 5 + 1]


@aio
async def test_an_append_beside_a_condition_is_done_once_though_the_condition_is_decided_again() -> None:
    repository, refs = await disturbed(deadline_seconds=5.0)
    intruder = await another_client(repository, refs.inner)
    intruded = 0

    async def intrude(change: BranchChange, do: Do) -> Branch:
        nonlocal intruded
        if isinstance(change, Append) and change.expected_view is not None and intruded < 2:
            intruded += 1
            async with intruder.writer("main") as other:
                await other.append("a", b"other,")
        return await do()

    refs.disturb = intrude
    async with repository.writer("main") as writer:
        await asyncio.gather(writer.append("a", b"mine"), writer.put("b", entry(1), ABSENT))
    assert await bodies(repository, {b"a": (await truth(repository))[b"a"]}) == {b"a": b"other,other,mine"}


@aio
async def test_appends_of_many_writers_are_all_there_and_those_of_each_in_its_order() -> None:
    first = await memory_repository(settings=with_writer(deadline_seconds=20.0))
    clients = [first, *[await another_client(first) for _ in range(3)]]

    async def work(number: int, client: Repository) -> None:
        async with client.writer("main") as writer:
            for n in range(10):
                await writer.append("log", f"{number}:{n} ".encode())
                if n == 5 and number == 0:
                    await compact_all(client, 3)
                if n == 7 and number == 1:
                    await client.commit("main", "half")

    await asyncio.gather(*(work(number, client) for number, client in enumerate(clients)))
    words = (await read(await another_client(first), "log")).split()
    assert len(words) == 40
    for number in range(4):
        assert [word for word in words if word.startswith(b"%d:" % number)] == [
            b"%d:%d" % (number, n) for n in range(10)
        ]


@aio
async def test_extents_that_are_stored_already_are_appended_as_they_are() -> None:
    repository = await memory_repository()
    body = await stored(repository, b"large")
    async with repository.writer("main") as writer:
        await writer.append("a", b"small,")
        await writer.append_extents("a", [*body.extents, Extent(body.address, 0, 2)])
        await writer.append_extents("b", ())
    found = await truth(repository)
    assert await bodies(repository, found) == {b"a": b"small,largela", b"b": b""}
    assert found[b"a"].rest[0] == Extent(body.address, 0, 5, body.etag)


@pytest.mark.parametrize(
    "extents",
    [
        [Extent("a", 0, -1)],
        [Extent("a", -1, 1)],
        [Extent("a", 0, 5), Extent("b", 0, -1)],
        [Extent("a", 0, 2**63)],
        [Extent("a\ud800", 0, 1)],
        [Extent("a", 0, 1, "xyz")],
        [Extent("a", 0, 1), Extent("a", 0, 1, "A" * 32)],
        [Extent("a", 0, 1)] * (EXTENTS_MAX + 1),
    ],
)
@aio
async def test_extents_that_cannot_be_are_invalid_before_anything_is_written(extents: list[Extent]) -> None:
    repository = await memory_repository()
    async with repository.writer("main") as writer:
        with pytest.raises(Invalid):
            await writer.append_extents("a", extents)
    assert await truth(repository) == {}


@aio
async def test_what_cannot_be_appended_is_invalid_and_says_what_to_do() -> None:
    repository = await memory_repository()
    async with repository.writer("main") as writer:
        with pytest.raises(Invalid, match="append_extents"):
            await writer.append("a", bytes(APPEND_BYTES_MAX + 1))
        with pytest.raises(Invalid, match="empty"):
            await writer.append("", b"x")
        await writer.append("a", memoryview(b"xyz")[1:])
    assert await read(repository, "a") == b"yz"
    with pytest.raises(Invalid, match="closed"):
        await writer.append("a", b"x")


@aio
async def test_an_object_of_too_many_extents_takes_no_more_and_one_written_anew_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(writing_module, "LOOK_EVERY", 5)
    monkeypatch.setattr(writing_module, "EXTENTS_MAX", 8)
    repository = await memory_repository()

    async def append_until_refused(writer: Writer) -> int:
        for count in range(30):
            try:
                await writer.append("a", b"x")
            except Invalid:
                return count
            await settle()
        raise AssertionError("it was never refused")

    async with repository.writer("main") as writer:
        count = await append_until_refused(writer)
        assert 8 < count <= 8 + 5 + 1
        with pytest.raises(Invalid, match="'a' has more than 8 extents"):
            await writer.append("a", b"x")
        await writer.append("b", b"y")
        await writer.put("a", await stored(repository, await read(repository, "a")))
    async with repository.writer("main") as writer:
        await writer.append("a", b"z")
    assert await read(repository, "a") == count * b"x" + b"z"


def test_a_batch_weighs_what_is_appended() -> None:
    batch = Batch()
    assert batch.add(b"a", Addition(0, data=bytes(5000))) > 5000
    assert batch.add(b"a", Addition(0, extents=(Extent("x" * 50, 0, 1),) * 10)) > 1000
    assert batch.additions == 2
