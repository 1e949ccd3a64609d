"""What lakeFS has no operation for: stashes, appends, deleted branches, hints and previews of merges, the doctor."""

from collections.abc import AsyncIterator
from typing import Literal

from msgspec import Struct

from lsmfs.api import wire
from lsmfs.api.objects import PathQuery, address_base, stats_of
from lsmfs.api.operations import Call, Operation, Raw
from lsmfs.api.refs import check_strategy
from lsmfs.api.writes import check_writable, written
from lsmfs.auth import Action, Resource
from lsmfs.lsm.writer import APPEND_BYTES_MAX
from refstore.errors import Invalid, NotFound
from refstore.records import Stash

SECOND_US = 1_000_000


class StashCreation(Struct, frozen=True):
    message: str = ""


class WireStash(Struct, frozen=True):
    id: int
    message: str
    creation_date: int
    commit_id: str


class Stashes(Struct, frozen=True):
    results: list[WireStash]


class PopQuery(Struct, frozen=True):
    id: int | None = None


class Deleted(Struct, frozen=True):
    id: str
    commit_id: str
    deletion_date: int


class DeletedBranches(Struct, frozen=True):
    results: list[Deleted]


class MergeHint(Struct, frozen=True):
    hint: str


class StrategyQuery(Struct, frozen=True):
    strategy: str = ""


class Counts(Struct, frozen=True):
    added: int
    removed: int
    changed: int
    bytes_before: int
    bytes_after: int


class ReadOnly(Struct, frozen=True):
    read_only: bool


class Finding(Struct, frozen=True):
    level: Literal["ok", "warn", "fail"]
    what: str
    words: str


class Findings(Struct, frozen=True):
    results: list[Finding]


def _stash(stash: Stash) -> WireStash:
    return WireStash(stash.id, stash.message, stash.created_us // SECOND_US, stash.base)


async def list_stashes(call: Call) -> Stashes:
    found = await (await call.repository()).stashes(call.path["branch"])
    return Stashes([_stash(stash) for stash in found])


async def create_stash(call: Call) -> WireStash:
    return _stash(await (await call.repository()).stash(call.path["branch"], call.body.message))


async def pop_stash(call: Call) -> WireStash:
    return _stash(await (await call.repository()).pop_stash(call.path["branch"], call.query.id))


async def drop_stash(call: Call) -> None:
    text = call.path["stash"]
    if not (text.isascii() and text.isdigit()) or len(text) > 18:
        raise NotFound(f"branch {call.path['branch']!r} has no stash {text[:80]!r}")
    await (await call.repository()).drop_stash(call.path["branch"], int(text))


async def list_deleted(call: Call) -> DeletedBranches:
    found = [each async for each in (await call.repository()).deleted_branches()]
    return DeletedBranches(
        [Deleted(each.branch.name, each.branch.base_commit, each.deleted_us // SECOND_US) for each in found]
    )


async def restore_branch(call: Call) -> wire.Ref:
    branch = await (await call.repository()).restore_branch(call.path["branch"])
    return wire.Ref(branch.name, branch.base_commit)


async def append_object(call: Call) -> wire.ObjectStats:
    """Add the body to the end of an object: small ones share a flush and its bytes, large ones are stored first."""
    path = call.query.path
    await check_writable(call, path)
    body, held, is_large = call.stream(), bytearray(), False
    async for piece in body:
        held += piece
        if len(held) > APPEND_BYTES_MAX:
            is_large = True
            break
    if not held:
        raise Invalid("the body is empty: there is nothing to append")
    if is_large:
        entry = await call.lake.save_body(call.path["repository"], _joined(bytes(held), body))
        await written(call, lambda writer: writer.append_extents(path, entry.extents))
    else:
        await written(call, lambda writer: writer.append(path, held))
    repository = await call.repository()
    now = await repository.get(call.path["branch"], path)
    return stats_of(path, now, address_base(call, repository))


async def _joined(held: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield held
    async for piece in rest:
        yield piece


async def merge_hint(call: Call) -> MergeHint:
    repository, source = await call.repository(), call.path["sourceRef"]
    await call.check(Action.READ_BRANCH, Resource(repository.name, source))
    return MergeHint(await repository.merge_hint(source, call.path["branch"], check_strategy(call.query.strategy)))


async def preview_merge(call: Call) -> Counts:
    repository, source = await call.repository(), call.path["sourceRef"]
    await call.check(Action.READ_BRANCH, Resource(repository.name, source))
    found = await repository.preview_merge(source, call.path["branch"], check_strategy(call.query.strategy))
    return Counts(*found.get("", (0, 0, 0, 0, 0)))


async def set_read_only(call: Call) -> None:
    await (await call.repository()).set_read_only(call.body.read_only)


async def doctor(call: Call) -> Findings:
    from lsmfs.cli.doctor import examine  # what it needs, nobody else here does

    return Findings([Finding(*finding) async for finding in examine(call.lake.installation)])


def _administrators(call: Call) -> Resource:
    return Resource(entity="user/")


AT = "/repositories/{repository}"
BRANCH = AT + "/branches/{branch}"
MERGE = AT + "/refs/{sourceRef}/merge/{branch}"
OPERATIONS = (
    Operation("listStashes", "GET", f"{BRANCH}/stash", Action.READ_BRANCH, list_stashes, Stashes),
    Operation(
        "createStash",
        "POST",
        f"{BRANCH}/stash",
        Action.REVERT,
        create_stash,
        WireStash,
        201,
        body=StashCreation,
        optional_body=True,
    ),
    Operation("popStash", "POST", f"{BRANCH}/stash/pop", Action.REVERT, pop_stash, WireStash, query=PopQuery),
    Operation("dropStash", "DELETE", f"{BRANCH}/stash/{{stash}}", Action.REVERT, drop_stash, status=204),
    Operation(
        "listDeletedBranches", "GET", f"{AT}/deleted_branches", Action.LIST_BRANCHES, list_deleted, DeletedBranches
    ),
    Operation("restoreBranch", "POST", f"{BRANCH}/restore", Action.CREATE_BRANCH, restore_branch, wire.Ref, 201),
    Operation(
        "appendObject",
        "POST",
        f"{BRANCH}/objects/append",
        Action.WRITE_OBJECT,
        append_object,
        wire.ObjectStats,
        201,
        PathQuery,
        Raw.BYTES,
    ),
    Operation("mergeHint", "POST", f"{MERGE}/hint", Action.MERGE, merge_hint, MergeHint, 201, StrategyQuery),
    Operation(
        "previewMerge", "GET", f"{MERGE}/preview", Action.READ_BRANCH, preview_merge, Counts, query=StrategyQuery
    ),
    Operation(
        "setReadOnly",
        "PUT",
        f"{AT}/settings/read_only",
        Action.UPDATE_REPOSITORY,
        set_read_only,
        status=204,
        body=ReadOnly,
    ),
    # It writes probes and tells where the stores are: for those who administer users.
    Operation("doctor", "GET", "/doctor", Action.LIST_USERS, doctor, Findings, resource=_administrators),
)
