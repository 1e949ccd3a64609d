"""Refs: what differs between two, merging one into a branch, and where they parted."""

from typing import Literal

from msgspec import Struct

from lsmfs.api import differences, wire
from lsmfs.api.operations import Call, Operation
from lsmfs.api.paging import PAGE_DEFAULT, Amount
from lsmfs.auth import Action, Resource
from lsmfs.repository import Repository
from lsmfs.tree.merge import DEST_WINS, SOURCE_WINS
from refstore.errors import Invalid, NoChanges
from refstore.records import CommitId


class RefsDiffQuery(Struct, frozen=True):
    after: str = ""
    amount: Amount = PAGE_DEFAULT
    prefix: str = ""
    delimiter: str = ""
    type: Literal["two_dot", "three_dot"] = "three_dot"
    include_right_stats: bool = False


async def diff_refs(call: Call) -> wire.Diffs:
    query, repository = call.query, await call.repository()
    left, right = [await repository.resolve(call.path[name]) for name in ("leftRef", "rightRef")]
    if query.type == "three_dot":
        left = await ancestor(repository, left, right)
    source = await differences.committed(repository, left, right, query.prefix)
    return await differences.page(
        source, query.prefix, query.after, query.delimiter, query.amount, query.include_right_stats
    )


async def merge(call: Call) -> wire.MergeResult:
    given, repository = call.body, await call.repository()
    source, branch = call.path["sourceRef"], call.path["branch"]
    await call.check(Action.READ_BRANCH, Resource(repository.name, source))
    strategy = check_strategy(given.strategy)
    try:
        commit, _ = await repository.merge(
            source,
            branch,
            given.message,
            call.identity.user,
            given.metadata,
            strategy,
            given.squash_merge,
            hint=given.hint,
        )
    except NoChanges:
        if not given.allow_empty:
            raise
        commit = (await repository.branches.read(branch)).base_commit
    return wire.MergeResult(commit)


def check_strategy(strategy: str) -> str | None:
    if strategy not in ("", SOURCE_WINS, DEST_WINS):
        raise Invalid(f"{strategy[:80]!r} is no strategy: {SOURCE_WINS} or {DEST_WINS}")
    return strategy or None


async def find_merge_base(call: Call) -> wire.MergeBase:
    repository = await call.repository()
    await call.check(Action.READ_BRANCH, Resource(repository.name, call.path["sourceRef"]))
    source = await repository.resolve(call.path["sourceRef"])
    destination = await repository.resolve(call.path["branch"])
    return wire.MergeBase(source, destination, await ancestor(repository, source, destination))


async def ancestor(repository: Repository, left: CommitId, right: CommitId) -> CommitId:
    return await repository._merger().ancestor(left, right)


MERGE = "/repositories/{repository}/refs/{sourceRef}/merge/{branch}"
DIFF = "/repositories/{repository}/refs/{leftRef}/diff/{rightRef}"
OPERATIONS = (
    Operation("diffRefs", "GET", DIFF, Action.LIST_COMMITS, diff_refs, wire.Diffs, query=RefsDiffQuery),
    Operation(
        "mergeIntoBranch",
        "POST",
        MERGE,
        Action.MERGE,
        merge,
        wire.MergeResult,
        body=wire.Merge,
        optional_body=True,
    ),
    Operation("findMergeBase", "GET", MERGE, Action.READ_BRANCH, find_merge_base, wire.MergeBase),
)
