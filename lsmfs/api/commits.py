"""Commits: make one, get one, and the log."""

from collections.abc import AsyncIterator
from datetime import datetime

from msgspec import Struct

from lsmfs.api import wire
from lsmfs.api.operations import Call, Operation
from lsmfs.api.paging import PAGE_DEFAULT, Amount, limit_of, listed
from lsmfs.auth import Action
from lsmfs.reader import part_of
from lsmfs.repository import Repository
from lsmfs.tree.commits import Commit
from lsmfs.tree.log import changes_part, history
from refstore.errors import Invalid
from refstore.records import CommitId

SECOND_US = 1_000_000
PARTS_MAX = 1000  # objects and prefixes that one log is asked for

Part = tuple[bytes, bytes | None]


class LogQuery(Struct, frozen=True):
    after: str = ""
    amount: Amount = PAGE_DEFAULT
    objects: list[str] = []
    prefixes: list[str] = []
    limit: bool = False
    first_parent: bool = False
    since: datetime | None = None
    stop_at: str = ""


class CommitQuery(Struct, frozen=True):
    source_metarange: str = ""


async def create_commit(call: Call) -> wire.Commit:
    given, repository = call.body, await call.repository()
    if call.query.source_metarange:
        raise Invalid("a commit of a metarange is not possible: stage what it has, then commit")
    if given.date is not None:
        raise Invalid("a commit has the time at which it is made: leave out date")
    done = await repository.commit(
        call.path["branch"], given.message, call.identity.user, given.metadata, given.allow_empty
    )
    return wire.commit_of(done.id, done.commit)


async def get_commit(call: Call) -> wire.Commit:
    """Of any revision: clients ask with names of branches and tags too."""
    repository = await call.repository()
    identity = await repository.resolve(call.path["commitId"])
    return wire.commit_of(identity, await repository.commits.load(identity))


async def log_commits(call: Call) -> wire.CommitList:
    query, repository = call.query, await call.repository()
    limit = limit_of(query.amount)
    results: list[wire.Commit] = []
    async for identity, commit in _log(repository, call.path["ref"], query):
        if len(results) == limit:
            return listed(results, None if query.limit else results[-1].id)
        results.append(wire.commit_of(identity, commit))
    return listed(results, None)


async def _log(repository: Repository, ref: str, query: LogQuery) -> AsyncIterator[tuple[CommitId, Commit]]:
    """The commits that the query asks for, after the one that the last page ended with."""
    tip = await repository.resolve(ref)
    stop = await repository.resolve(query.stop_at) if query.stop_at else None
    after = await repository.resolve(query.after) if query.after else None
    parts = parts_of(query.objects, query.prefixes)
    since = None if query.since is None else int(query.since.timestamp() * SECOND_US)
    # By first parents what comes after a commit depends on nothing but the commit.
    start = after if after is not None and query.first_parent else tip
    async for identity, commit in history(repository.commits, start, not query.first_parent, limit_of(query.amount)):
        if since is not None and commit.created_us < since:
            return
        if after is not None:
            after = None if identity == after else after
        elif not parts or await _changes_any(repository, commit, parts):
            yield identity, commit
        if identity == stop:
            return


def parts_of(objects: list[str], prefixes: list[str]) -> list[Part]:
    if len(objects) + len(prefixes) > PARTS_MAX:
        raise Invalid(f"a log is of up to {PARTS_MAX} objects and prefixes")
    found = [part_of(path, None) for path in objects] + [part_of(None, prefix) for prefix in prefixes]
    return [part for part in found if part is not None]


async def _changes_any(repository: Repository, commit: Commit, parts: list[Part]) -> bool:
    for start, stop in parts:
        if await changes_part(repository.commits, repository.tables, commit, start, stop):
            return True
    return False


AT = "/repositories/{repository}"
OPERATIONS = (
    Operation(
        "commit",
        "POST",
        AT + "/branches/{branch}/commits",
        Action.COMMIT,
        create_commit,
        wire.Commit,
        201,
        CommitQuery,
        wire.CommitCreation,
    ),
    Operation("getCommit", "GET", AT + "/commits/{commitId}", Action.READ_COMMIT, get_commit, wire.Commit),
    Operation(
        "logCommits",
        "GET",
        AT + "/refs/{ref}/commits",
        Action.LIST_COMMITS,
        log_commits,
        wire.CommitList,
        query=LogQuery,
    ),
)
