"""Appends among puts, deletes, compactions, commits and lost answers: any history reads as a dict of bytes."""

import asyncio
from collections.abc import Awaitable
from contextlib import suppress
from typing import NamedTuple

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from lsmfs.lsm.writer import Writer
from lsmfs.repository import Repository
from refstore.errors import NoChanges, OutcomeUnknown
from refstore.records import Append, Branch, BranchChange
from refstore.store import ABSENT
from tests.lsm.appending import bodies, compact_all, stored
from tests.lsm.support import DisturbedRefs, another_client, scanned, visible
from tests.lsm.writing import Do, disturbed, settle


class Step(NamedTuple):
    verb: str
    key: str = ""
    data: bytes = b""
    number: int = 0


KEYS = st.sampled_from(["a", "b", "c"])
DATA = st.binary(max_size=4)
STEPS = st.one_of(
    st.builds(Step, st.just("put"), KEYS, DATA),
    st.builds(Step, st.just("append"), KEYS, DATA),
    st.builds(Step, st.just("append"), KEYS, DATA),
    st.builds(Step, st.just("extents"), KEYS, DATA),
    st.builds(Step, st.just("delete"), KEYS),
    st.builds(Step, st.just("pause")),
    st.builds(Step, st.just("wait")),
    st.builds(Step, st.just("compact"), number=st.integers(1, 4)),
    st.builds(Step, st.just("commit")),
    st.builds(Step, st.just("swap"), KEYS, DATA),
    st.builds(Step, st.just("lose"), number=st.integers(0, 2)),
    st.builds(Step, st.just("reopen")),
)


class Machine:
    """A repository and the dict of bytes that it must read as."""

    def __init__(self, repository: Repository, refs: DisturbedRefs) -> None:
        self.repository, self.refs = repository, refs
        self.model: dict[bytes, bytes] = {}
        self.waiting: list[asyncio.Future[None]] = []
        self.losing: list[int] = []
        refs.disturb = self.disturb

    async def disturb(self, change: BranchChange, do: Do) -> Branch:
        how = self.losing.pop() if isinstance(change, Append) and self.losing else None
        if how == 0:
            raise OutcomeUnknown("lost on the way there")
        branch = await do()
        if how == 1:
            raise OutcomeUnknown("lost on the way back")
        return await do() if how == 2 else branch

    def begin(self, operation: Awaitable[None]) -> None:
        self.waiting.append(asyncio.ensure_future(operation))

    async def wait(self) -> None:
        await asyncio.gather(*self.waiting)
        self.waiting.clear()

    async def run(self, steps: list[Step]) -> None:
        writer = await self.repository.writer("main").__aenter__()
        for step in steps:
            if step.verb == "reopen":
                await self.wait()
                await writer.aclose()
                writer = await self.repository.writer("main").__aenter__()
            else:
                await self.step(writer, step)
        await self.wait()
        await writer.aclose()
        await self.check(await another_client(self.repository))
        with suppress(NoChanges):
            await self.repository.commit("main", "end")
        await self.check(self.repository)

    async def step(self, writer: Writer, step: Step) -> None:
        key, model = step.key.encode(), self.model
        match step.verb:
            case "put":
                self.begin(writer.put(key, await stored(self.repository, step.data)))
                model[key] = step.data
            case "append":
                self.begin(writer.append(key, step.data))
                model[key] = model.get(key, b"") + step.data
            case "extents":
                body = await stored(self.repository, step.data + b".")
                self.begin(writer.append_extents(key, body.extents))
                model[key] = model.get(key, b"") + step.data + b"."
            case "delete":
                self.begin(writer.delete(key))
                model.pop(key, None)
            case "swap":
                await self.wait()
                expected = (await self.repository.get("main", key)).etag if key in model else ABSENT
                self.begin(writer.put(key, await stored(self.repository, step.data), expected))
                model[key] = step.data
            case "pause":
                await settle()
            case "lose":
                self.losing.append(step.number)
            case "wait":
                await self.wait()
                await self.check(self.repository)
            case "compact":
                await compact_all(self.repository, step.number)
            case "commit":
                with suppress(NoChanges):
                    await self.repository.commit("main", "step")

    async def check(self, repository: Repository) -> None:
        found = await visible(repository)
        assert await bodies(repository, found) == self.model
        assert await scanned(repository.scan("main")) == sorted(found.items())
        for key in (b"a", b"b", b"c"):
            assert await repository.get_many("main", [key]) == ({key: found[key]} if key in found else {})


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps=st.lists(STEPS, min_size=3, max_size=25), linger=st.sampled_from([0.0, 0.001]))
@example([Step("append", "a", b"1"), Step("put", "a", b"2"), Step("append", "a", b"3"), Step("commit")], 0.0)
@example([Step("append", "a", b"1"), Step("wait"), Step("compact", number=1), Step("append", "a", b"2")], 0.0)
def test_any_order_of_puts_appends_and_deletes_reads_as_a_dict_of_bytes(steps: list[Step], linger: float) -> None:
    async def check() -> None:
        repository, refs = await disturbed(deadline_seconds=5.0, linger_seconds=linger)
        await Machine(repository, refs).run(steps)

    asyncio.run(check())
