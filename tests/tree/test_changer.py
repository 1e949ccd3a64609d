"""A commit or merge that was done, whose answer was lost, with others on top: it is found, or nobody knows."""

from collections.abc import Awaitable, Callable

import pytest

from lsmfs.repository import Repository
from refstore.drivers.memory import MemoryRefStore
from refstore.errors import OutcomeUnknown, Unavailable
from refstore.records import Advance, Branch, BranchChange, Move
from tests.aio import aio
from tests.lsm.support import DisturbedRefs, another_client, entry, memory_repository, put_all

VERBS = ["commit", "merge"]


class Blind(DisturbedRefs):
    """A ref store that loses the answer to the first advance or move, lets a rival commit on top, and then cannot be
    read for some calls."""

    def __init__(self, inner: MemoryRefStore, reads_failing: float) -> None:
        super().__init__(inner, self._lose)
        self.reads_failing = reads_failing
        self.rival: Repository | None = None
        self.lost = False

    async def _lose(self, change: BranchChange, do: Callable[[], Awaitable[Branch]]) -> Branch:
        branch = await do()
        if isinstance(change, Move | Advance) and not self.lost:
            assert self.rival is not None
            self.lost = True
            await put_all(self.rival, {b"rival": entry(9)})
            await self.rival.commit("main", "rival")
            raise OutcomeUnknown("lost")
        return branch

    async def read(self, repository: str, name: str) -> Branch:
        if self.lost and self.reads_failing > 0:
            self.reads_failing -= 1
            raise Unavailable("no route")
        return await super().read(repository, name)


async def prepared(verb: str, reads_failing: float) -> tuple[Repository, Repository]:
    """A client whose next commit or merge meets such a ref store, and one that sees all."""
    refs = Blind(MemoryRefStore(), reads_failing)
    rival = refs.rival = await memory_repository(refs=refs.inner)
    await rival.create_branch("dev", "main")
    await put_all(rival, {b"a": entry(1)}, "dev")
    await rival.commit("dev", "on dev")
    if verb == "commit":
        await put_all(rival, {b"b": entry(1)})
    return await another_client(rival, refs), rival


async def done(client: Repository, verb: str) -> str:
    if verb == "merge":
        return (await client.merge("dev", "main", "mine"))[0]
    return (await client.commit("main", "mine")).id


async def logged(repository: Repository) -> list[tuple[str, str]]:
    return [(identity, commit.message) async for identity, commit in repository.log("main", limit=2)]


@pytest.mark.parametrize("verb", VERBS)
@aio
async def test_what_was_done_under_a_rivals_commit_is_found_as_soon_as_the_branch_can_be_read(verb: str) -> None:
    client, rival = await prepared(verb, reads_failing=2)
    identity = await done(client, verb)
    newest, mine = await logged(rival)
    assert (newest[1], mine) == ("rival", (identity, "mine"))


@pytest.mark.parametrize("verb", VERBS)
@aio
async def test_a_branch_that_cannot_be_read_after_a_lost_answer_leaves_the_outcome_unknown(verb: str) -> None:
    client, rival = await prepared(verb, reads_failing=float("inf"))
    with pytest.raises(OutcomeUnknown, match="may be on it or not"):
        await done(client, verb)
    assert [message for _, message in await logged(rival)] == ["rival", "mine"]
