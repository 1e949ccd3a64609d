"""Our own records, as the lsmfs client reads them: nothing rounded, nothing left out (`lsmfs.client.wire`).

Long answers are streams of JSON lines. What they show is what the operations of lakeFS's shapes and of `bulk` show, and
they ask for the same permissions; a diff, which shows entries, also asks for the right to list both sides.
"""

from collections.abc import AsyncIterator
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from lsmfs import paths
from lsmfs.api.answers import Answer, Stream, encode, stream
from lsmfs.api.operations import Call, Operation
from lsmfs.auth import Action, Resource
from lsmfs.client import wire
from lsmfs.installation import without_password
from lsmfs.policy import RepositoryRecord, read_record
from lsmfs.repository import Repository
from lsmfs.tree.diff import Difference
from refstore.errors import Corrupt, Invalid
from refstore.records import Branch, RunId

LINES_BYTES = 64 * 1024  # sent at once: a line alone costs more to send than to make


class PageQuery(Struct, frozen=True):
    after: str = ""
    prefix: str = ""
    amount: wire.Amount = wire.PAGE_MAX


class BranchesQuery(PageQuery, frozen=True):
    hidden: bool = False


class LogQuery(Struct, frozen=True):
    ref: str
    limit: Annotated[int, Meta(ge=0, le=2**31)] = 100
    since_us: Annotated[int, Meta(ge=-(2**62), le=2**62)] | None = None
    stop_at: str | None = None
    first_parent: bool = True
    path: str | None = None
    prefix: str | None = None


class ListQuery(Struct, frozen=True):
    ref: str
    prefix: str = ""
    delimiter: str = ""
    after: str = ""
    limit: wire.Amount = wire.PAGE_MAX


class DiffQuery(Struct, frozen=True):
    """Without a right side: what is staged on the left, which is a branch."""

    left: str
    right: str | None = None
    prefix: str = ""
    delimiter: str = ""
    three_dot: bool = False


def shown(record: RepositoryRecord) -> RepositoryRecord:
    """Where it is stored may be seen, what opens that place not."""
    return msgspec.structs.replace(record, storage=without_password(record.storage).partition("?")[0])


async def list_records(call: Call) -> wire.RecordPage:
    query, found = call.query, list[RepositoryRecord]()
    async for record in call.lake.installation.records():
        if record.name > query.after and record.name.startswith(query.prefix):
            if not await call.allows(Action.READ_REPOSITORY, Resource(record.name)):
                continue
            if len(found) == query.amount:
                return wire.RecordPage(found, True)
            found.append(shown(record))
    return wire.RecordPage(found, False)


async def get_record(call: Call) -> RepositoryRecord:
    """Also of a repository that is being deleted: who asked for that may go on with it."""
    record, _ = await read_record(call.lake.installation.refs, call.path["repository"])
    return shown(record)


async def list_branches(call: Call) -> wire.BranchPage:
    query, repository = call.query, await call.repository()
    found = list[Branch]()
    async for branch in repository.list_branches(query.prefix, query.after, query.hidden):
        if len(found) == query.amount:
            return wire.BranchPage(found, True)
        found.append(branch)
    return wire.BranchPage(found, False)


async def get_branch(call: Call) -> Branch:
    return await (await call.repository()).branches.read(call.path["branch"])


async def list_deleted(call: Call) -> wire.DeletedBranches:
    return wire.DeletedBranches([each async for each in (await call.repository()).deleted_branches()])


async def get_run(call: Call) -> wire.RunFacts:
    repository, name = await call.repository(), call.path["run"]
    try:
        paths.parse_run(name)
    except Corrupt as error:
        raise Invalid(str(error)[:200]) from None
    run = await repository.tables.load_run(RunId(name))
    return wire.RunFacts(len(run), run.count, run.tombstones, run.size_bytes)


async def get_commit(call: Call) -> wire.Made:
    repository = await call.repository()
    identity = await repository.resolve(call.path["ref"])
    return wire.Made(identity, await repository.commits.load(identity))


async def log(call: Call) -> Answer | Stream:
    query, repository = call.query, await call.repository()
    found = repository.log(
        query.ref, query.limit, query.since_us, query.stop_at, query.first_parent, query.path, query.prefix
    )
    return await _lines(encode(wire.Made(identity, commit)) async for identity, commit in found)


async def get_entries(call: Call) -> wire.Found:
    repository, given = await call.repository(), call.body
    for path in given.paths:
        await call.check(Action.READ_OBJECT, Resource(repository.name, given.ref, path))
    found = await repository.get_many(given.ref, given.paths)
    return wire.Found([(key.decode(), entry) for key, entry in found.items()])


async def list_entries(call: Call) -> wire.Page:
    query, repository = call.query, await call.repository()
    page = await repository.list(query.ref, query.prefix, query.delimiter, query.after, query.limit)
    items = [(key.decode(), entry) for key, entry in page.items]
    return wire.Page(items, None if page.after is None else page.after.decode())


async def diff(call: Call) -> Answer | Stream:
    query, repository = call.query, await _compared(call)
    if query.right is None:
        found = repository.diff_uncommitted(query.left, query.prefix)
    else:
        found = repository.diff(query.left, query.right, query.prefix, query.three_dot)
    return await _lines(_line(difference) async for difference in found)


async def summary(call: Call) -> wire.Counts:
    query, repository = call.query, await _compared(call)
    if query.right is None:
        found = await repository.uncommitted_summary(query.left, query.prefix, query.delimiter)
    else:
        found = await repository.diff_summary(query.left, query.right, query.prefix, query.delimiter, query.three_dot)
    return wire.Counts(found)


async def _compared(call: Call) -> Repository:
    query, repository = call.query, await call.repository()
    for ref in (query.left, query.right):
        if ref is not None:
            await call.check(Action.LIST_OBJECTS, Resource(repository.name, ref, query.prefix))
    return repository


def _line(difference: Difference) -> bytes:
    return encode(wire.DifferenceLine(difference.type, difference.key.decode(), difference.before, difference.after))


async def _lines(lines: AsyncIterator[bytes]) -> Answer | Stream:
    return await stream(200, [(b"content-type", wire.LINES.encode())], _together(lines))


async def _together(lines: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    held = bytearray()
    async for line in lines:
        held += line
        held += b"\n"
        if len(held) >= LINES_BYTES:
            yield bytes(held)
            held.clear()
    if held:
        yield bytes(held)


def _listed(call: Call) -> Resource:
    return Resource(call.path["repository"], call.query.ref, call.query.prefix)


AT = wire.BASE + "/{repository}"
OPERATIONS = (
    Operation(
        "exactRepositories",
        "GET",
        wire.BASE,
        Action.LIST_REPOSITORIES,
        list_records,
        wire.RecordPage,
        query=PageQuery,
    ),
    Operation("exactRepository", "GET", AT, Action.READ_REPOSITORY, get_record, RepositoryRecord),
    Operation(
        "exactBranches",
        "GET",
        f"{AT}/branches",
        Action.LIST_BRANCHES,
        list_branches,
        wire.BranchPage,
        query=BranchesQuery,
    ),
    Operation("exactBranch", "GET", f"{AT}/branches/{{branch}}", Action.READ_BRANCH, get_branch, Branch),
    Operation(
        "exactDeleted", "GET", f"{AT}/deleted_branches", Action.LIST_BRANCHES, list_deleted, wire.DeletedBranches
    ),
    Operation("exactRun", "GET", f"{AT}/runs/{{run}}", Action.READ_REPOSITORY, get_run, wire.RunFacts),
    Operation("exactCommit", "GET", f"{AT}/commits/{{ref}}", Action.READ_COMMIT, get_commit, wire.Made),
    Operation("exactLog", "GET", f"{AT}/log", Action.LIST_COMMITS, log, wire.LINES, query=LogQuery),
    # Each path is checked by the handler: what is asked before is whether the repository may be seen.
    Operation(
        "exactEntries", "POST", f"{AT}/entries", Action.READ_REPOSITORY, get_entries, wire.Found, body=wire.Paths
    ),
    Operation(
        "exactList",
        "GET",
        f"{AT}/list",
        Action.LIST_OBJECTS,
        list_entries,
        wire.Page,
        query=ListQuery,
        resource=_listed,
    ),
    Operation("exactDiff", "GET", f"{AT}/diff", Action.LIST_COMMITS, diff, wire.LINES, query=DiffQuery),
    Operation("exactSummary", "GET", f"{AT}/summary", Action.LIST_COMMITS, summary, wire.Counts, query=DiffQuery),
)
