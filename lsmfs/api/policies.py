"""Policies: roles, as lakeFS's clients write them, and who has them."""

from typing import Any

import msgspec
from msgspec import Struct

from lsmfs.api.login import SECOND_US
from lsmfs.api.operations import Call, Operation, entity
from lsmfs.api.paging import Listed, PageQuery, listed
from lsmfs.api.users import wanted
from lsmfs.auth import Action, Page, Permission, Resource, Role
from lsmfs.auth.statements import parse_policy, print_policy
from refstore.errors import Invalid


class Policy(Struct, frozen=True):
    id: str
    statement: list[dict[str, Any]]
    creation_date: int = 0


class UserPoliciesQuery(PageQuery, frozen=True):
    effective: bool = False


def policy_of(role: Role) -> Policy:
    return Policy(role.name, print_policy(role.permissions), role.created_us // SECOND_US)


def _page(page: Page[Role]) -> Listed[Policy]:
    return listed([policy_of(role) for role in page.items], page.items[-1].name if page.more else None)


def _permissions(policy: Policy) -> tuple[Permission, ...]:
    return parse_policy(msgspec.to_builtins({"statement": policy.statement}))


async def list_policies(call: Call) -> Listed[Policy]:
    return _page(await call.services.directory.roles(*wanted(call.query)))


async def create_policy(call: Call) -> Policy:
    return policy_of(await call.services.directory.create_role(call.body.id, _permissions(call.body)))


async def get_policy(call: Call) -> Policy:
    return policy_of(await call.services.directory.role(call.path["policyId"]))


async def update_policy(call: Call) -> Policy:
    name = call.path["policyId"]
    if call.body.id != name:
        raise Invalid(f"the body is of policy {call.body.id[:80]!r}, the path of {name!r}: a policy keeps its name")
    return policy_of(await call.services.directory.update_role(name, _permissions(call.body)))


async def delete_policy(call: Call) -> None:
    await call.services.directory.delete_role(call.path["policyId"])


async def user_policies(call: Call) -> Listed[Policy]:
    directory, query = call.services.directory, call.query
    return _page(await directory.roles_of_user(call.path["userId"], *wanted(query), effective=query.effective))


async def attach_to_user(call: Call) -> None:
    await call.services.directory.attach_role_to_user(call.path["policyId"], call.path["userId"])


async def detach_from_user(call: Call) -> None:
    await call.services.directory.detach_role_from_user(call.path["policyId"], call.path["userId"])


async def group_policies(call: Call) -> Listed[Policy]:
    return _page(await call.services.directory.roles_of_group(call.path["groupId"], *wanted(call.query)))


async def attach_to_group(call: Call) -> None:
    await call.services.directory.attach_role_to_group(call.path["policyId"], call.path["groupId"])


async def detach_from_group(call: Call) -> None:
    await call.services.directory.detach_role_from_group(call.path["policyId"], call.path["groupId"])


def _created(call: Call) -> Resource:
    return Resource(entity=f"policy/{call.body.id}")


ALL = "/auth/policies"
ONE = ALL + "/{policyId}"
OF_USER = "/auth/users/{userId}/policies"
OF_GROUP = "/auth/groups/{groupId}/policies"
_all, _policy = entity("policy"), entity("policy", "policyId")
_user, _group = entity("user", "userId"), entity("group", "groupId")
OPERATIONS = (
    Operation(
        "listPolicies", "GET", ALL, Action.LIST_ROLES, list_policies, Listed[Policy], query=PageQuery, resource=_all
    ),
    Operation(
        "createPolicy", "POST", ALL, Action.CREATE_ROLE, create_policy, Policy, 201, body=Policy, resource=_created
    ),
    Operation("getPolicy", "GET", ONE, Action.READ_ROLE, get_policy, Policy, resource=_policy),
    Operation("updatePolicy", "PUT", ONE, Action.UPDATE_ROLE, update_policy, Policy, body=Policy, resource=_policy),
    Operation("deletePolicy", "DELETE", ONE, Action.DELETE_ROLE, delete_policy, status=204, resource=_policy),
    Operation(
        "listUserPolicies",
        "GET",
        OF_USER,
        Action.READ_USER,
        user_policies,
        Listed[Policy],
        query=UserPoliciesQuery,
        resource=_user,
    ),
    Operation(
        "attachPolicyToUser",
        "PUT",
        f"{OF_USER}/{{policyId}}",
        Action.ATTACH_ROLE,
        attach_to_user,
        status=201,
        resource=_user,
    ),
    Operation(
        "detachPolicyFromUser",
        "DELETE",
        f"{OF_USER}/{{policyId}}",
        Action.DETACH_ROLE,
        detach_from_user,
        status=204,
        resource=_user,
    ),
    Operation(
        "listGroupPolicies",
        "GET",
        OF_GROUP,
        Action.READ_GROUP,
        group_policies,
        Listed[Policy],
        query=PageQuery,
        resource=_group,
    ),
    Operation(
        "attachPolicyToGroup",
        "PUT",
        f"{OF_GROUP}/{{policyId}}",
        Action.ATTACH_ROLE,
        attach_to_group,
        status=201,
        resource=_group,
    ),
    Operation(
        "detachPolicyFromGroup",
        "DELETE",
        f"{OF_GROUP}/{{policyId}}",
        Action.DETACH_ROLE,
        detach_from_group,
        status=204,
        resource=_group,
    ),
)
