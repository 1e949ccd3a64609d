"""Branches: list, create, get, delete, reset, revert, cherry-pick, and what is staged on them."""

from typing import Annotated

from msgspec import Meta, Struct

from lsmfs.api import differences, wire
from lsmfs.api.answers import Answer, ApiError
from lsmfs.api.operations import Call, Operation
from lsmfs.api.paging import PAGE_DEFAULT, Amount, PageQuery, taken
from lsmfs.auth import Action, Resource
from lsmfs.repository import Repository
from refstore.errors import AlreadyExists, Invalid, NoChanges
from refstore.records import Branch


class BranchesQuery(PageQuery, frozen=True):
    show_hidden: bool = False


class ForceQuery(Struct, frozen=True):
    force: bool = False


class HardResetQuery(Struct, frozen=True):
    ref: Annotated[str, Meta(min_length=1)]
    force: bool = False


class DiffQuery(Struct, frozen=True):
    after: str = ""
    amount: Amount = PAGE_DEFAULT
    prefix: str = ""
    delimiter: str = ""


def _ref(branch: Branch) -> wire.Ref:
    return wire.Ref(branch.name, branch.base_commit)


async def list_branches(call: Call) -> wire.Refs:
    query = call.query
    found = (await call.repository()).list_branches(query.prefix, query.after, query.show_hidden)
    return await taken(found, query.amount, lambda branch: branch.name, _ref)


async def create_branch(call: Call) -> Answer:
    """The commit id as a bare text: clients do not read it as JSON."""
    given = call.body
    await call.check(Action.READ_BRANCH, Resource(call.path["repository"], given.source))
    repository = await call.repository()
    try:
        branch = await repository.create_branch(given.name, given.source, given.hidden)
    except AlreadyExists as error:
        raise AlreadyExists(f"branch already exists: {error}") from None
    return Answer(201, branch.base_commit.encode(), b"text/html")


async def get_branch(call: Call) -> wire.Ref:
    return _ref(await (await call.repository()).branches.read(call.path["branch"]))


async def delete_branch(call: Call) -> None:
    await (await call.repository()).delete_branch(call.path["branch"])


async def reset_branch(call: Call) -> None:
    repository, branch, given = await call.repository(), call.path["branch"], call.body
    await repository.branches.read(branch)
    if given.type == "object":
        if not given.path:
            raise Invalid("to reset an object, say which: path")
        await repository.reset(branch, path=given.path)
    elif given.type == "common_prefix":
        await repository.reset(branch, prefix=given.path or "")
    else:
        await repository.reset(branch)


async def hard_reset(call: Call) -> None:
    await call.check(Action.READ_BRANCH, Resource(call.path["repository"], call.query.ref))
    repository = await call.repository()
    await repository.hard_reset(call.path["branch"], call.query.ref, call.query.force)


async def revert(call: Call) -> None:
    given, repository = call.body, await call.repository()
    words = given.commit_overrides or wire.CommitOverrides()
    await _check_parent(repository, given.ref, given.parent_number)
    try:
        await repository.revert(
            call.path["branch"], given.ref, given.parent_number or None, words.message, call.identity.user
        )
    except NoChanges:
        if not given.allow_empty:
            raise


async def cherry_pick(call: Call) -> wire.Commit:
    given, repository = call.body, await call.repository()
    await call.check(Action.READ_BRANCH, Resource(call.path["repository"], given.ref))
    words = given.commit_overrides or wire.CommitOverrides()
    await _check_parent(repository, given.ref, given.parent_number)
    done = await repository.cherry_pick(
        call.path["branch"], given.ref, given.parent_number or None, words.message, call.identity.user
    )
    return wire.commit_of(*done)


async def _check_parent(repository: Repository, ref: str, number: int | None) -> None:
    commit = await repository.commits.load(await repository.resolve(ref))
    if len(commit.parents) > 1 and not number:
        raise ApiError(409, f"{ref!r} is a merge: say which parent its changes are counted from, parent_number 1 or 2")


async def diff_uncommitted(call: Call) -> wire.Diffs:
    repository, query = await call.repository(), call.query
    source = differences.staged(repository, call.path["branch"], query.prefix)
    return await differences.page(source, query.prefix, query.after, query.delimiter, query.amount)


def _created(call: Call) -> Resource:
    return Resource(call.path["repository"], call.body.name)


ALL = "/repositories/{repository}/branches"
ONE = ALL + "/{branch}"
OPERATIONS = (
    Operation("listBranches", "GET", ALL, Action.LIST_BRANCHES, list_branches, wire.Refs, query=BranchesQuery),
    Operation(
        "createBranch",
        "POST",
        ALL,
        Action.CREATE_BRANCH,
        create_branch,
        "text/html",
        201,
        body=wire.BranchCreation,
        resource=_created,
    ),
    Operation("getBranch", "GET", ONE, Action.READ_BRANCH, get_branch, wire.Ref),
    Operation("deleteBranch", "DELETE", ONE, Action.DELETE_BRANCH, delete_branch, status=204, query=ForceQuery),
    Operation("resetBranch", "PUT", ONE, Action.REVERT, reset_branch, status=204, body=wire.ResetCreation),
    Operation(
        "hardResetBranch", "PUT", f"{ONE}/hard_reset", Action.REVERT, hard_reset, status=204, query=HardResetQuery
    ),
    Operation("revertBranch", "POST", f"{ONE}/revert", Action.REVERT, revert, status=204, body=wire.RevertCreation),
    Operation(
        "cherryPick",
        "POST",
        f"{ONE}/cherry-pick",
        Action.REVERT,
        cherry_pick,
        wire.Commit,
        201,
        body=wire.CherryPickCreation,
    ),
    Operation("diffBranch", "GET", f"{ONE}/diff", Action.LIST_OBJECTS, diff_uncommitted, wire.Diffs, query=DiffQuery),
)
