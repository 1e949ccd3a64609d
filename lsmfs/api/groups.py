"""Groups and their members."""

from msgspec import Struct

from lsmfs.api.operations import Call, Operation, entity
from lsmfs.api.paging import Listed, PageQuery
from lsmfs.api.users import WireGroup, WireUser, group_of, groups_page, users_page, wanted
from lsmfs.auth import Action, Resource


class GroupCreation(Struct, frozen=True):
    id: str
    description: str = ""


async def list_groups(call: Call) -> Listed[WireGroup]:
    return groups_page(await call.services.directory.groups(*wanted(call.query)))


async def create_group(call: Call) -> WireGroup:
    return group_of(await call.services.directory.create_group(call.body.id, call.body.description))


async def get_group(call: Call) -> WireGroup:
    return group_of(await call.services.directory.group(call.path["groupId"]))


async def delete_group(call: Call) -> None:
    await call.services.directory.delete_group(call.path["groupId"])


async def members(call: Call) -> Listed[WireUser]:
    return users_page(await call.services.directory.members(call.path["groupId"], *wanted(call.query)))


async def add_member(call: Call) -> None:
    await call.services.directory.add_to_group(call.path["userId"], call.path["groupId"])


async def remove_member(call: Call) -> None:
    await call.services.directory.remove_from_group(call.path["userId"], call.path["groupId"])


def _created(call: Call) -> Resource:
    return Resource(entity=f"group/{call.body.id}")


GROUPS = "/auth/groups"
GROUP = GROUPS + "/{groupId}"
MEMBER = GROUP + "/members/{userId}"
_all, _group = entity("group"), entity("group", "groupId")
OPERATIONS = (
    Operation(
        "listGroups",
        "GET",
        GROUPS,
        Action.LIST_GROUPS,
        list_groups,
        Listed[WireGroup],
        query=PageQuery,
        resource=_all,
    ),
    Operation(
        "createGroup",
        "POST",
        GROUPS,
        Action.CREATE_GROUP,
        create_group,
        WireGroup,
        201,
        body=GroupCreation,
        resource=_created,
    ),
    Operation("getGroup", "GET", GROUP, Action.READ_GROUP, get_group, WireGroup, resource=_group),
    Operation("deleteGroup", "DELETE", GROUP, Action.DELETE_GROUP, delete_group, status=204, resource=_group),
    Operation(
        "listGroupMembers",
        "GET",
        f"{GROUP}/members",
        Action.READ_GROUP,
        members,
        Listed[WireUser],
        query=PageQuery,
        resource=_group,
    ),
    Operation("addGroupMembership", "PUT", MEMBER, Action.ADD_MEMBER, add_member, status=201, resource=_group),
    Operation(
        "deleteGroupMembership", "DELETE", MEMBER, Action.REMOVE_MEMBER, remove_member, status=204, resource=_group
    ),
)
