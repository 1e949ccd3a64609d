"""Tags: list, create, get, delete."""

from lsmfs.api import wire
from lsmfs.api.branches import ForceQuery
from lsmfs.api.operations import Call, Operation
from lsmfs.api.paging import PageQuery, taken
from lsmfs.auth import Action, Resource
from lsmfs.model import check_branch_name
from refstore.errors import AlreadyExists, NotFound


async def list_tags(call: Call) -> wire.Refs:
    query = call.query
    found = (await call.repository()).tags.all(query.prefix, query.after)
    return await taken(found, query.amount, lambda tag: tag[0], lambda tag: wire.Ref(*tag))


async def create_tag(call: Call) -> wire.Ref:
    """409 also for the same commit: clients take it for an error, and have no other way to know."""
    given, repository = call.body, await call.repository()
    await call.check(Action.READ_BRANCH, Resource(repository.name, given.ref))
    check_branch_name(given.id, "tag")
    if (there := await repository.tags.find(given.id)) is not None:
        raise AlreadyExists(f"tag already exists: {given.id!r} names commit {there}")
    return wire.Ref(given.id, await repository.create_tag(given.id, given.ref))


async def get_tag(call: Call) -> wire.Ref:
    name = check_branch_name(call.path["tag"], "tag")
    commit = await (await call.repository()).tags.find(name)
    if commit is None:
        raise NotFound(f"tag {name!r} does not exist")
    return wire.Ref(name, commit)


async def delete_tag(call: Call) -> None:
    await (await call.repository()).delete_tag(call.path["tag"])


def _created(call: Call) -> Resource:
    return Resource(call.path["repository"], call.body.id)


ALL = "/repositories/{repository}/tags"
ONE = ALL + "/{tag}"
OPERATIONS = (
    Operation("listTags", "GET", ALL, Action.LIST_TAGS, list_tags, wire.Refs, query=PageQuery),
    Operation(
        "createTag",
        "POST",
        ALL,
        Action.CREATE_TAG,
        create_tag,
        wire.Ref,
        201,
        body=wire.TagCreation,
        resource=_created,
    ),
    Operation("getTag", "GET", ONE, Action.READ_TAG, get_tag, wire.Ref),
    Operation("deleteTag", "DELETE", ONE, Action.DELETE_TAG, delete_tag, status=204, query=ForceQuery),
)
