"""Policies as lakeFS's clients write them, to permissions and back.

    {"statement": [{"effect": "allow", "action": ["fs:ReadObject"], "resource": "arn:lakefs:fs:::repository/x"}]}

    resource                                       the kinds of resource it is about
    *                                              all
    arn:lakefs:fs:::*                              all but entities
    arn:lakefs:fs:::repository/R                   repository; if R ends with *, also all that is in it
    arn:lakefs:fs:::repository/R/*                 branch, tag, object
    arn:lakefs:fs:::repository/R/branch/B          branch
    arn:lakefs:fs:::repository/R/tag/T             tag
    arn:lakefs:fs:::repository/R/object/P          object, on every ref
    arn:lakefs:fs:::repository/R/branch/B/object/P object, on refs that match B (ours)
    arn:lakefs:fs:::installation                   installation (ours)
    arn:lakefs:auth:::E                            entity: user/bob, group/*, policy/x, *

`resource` may be a list, or a list in a string. What comes in is hostile until parsed: anything else is `Invalid`.
"""

import re
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from lsmfs.auth.permissions import KINDS, Kind, Permission, check_permission, covered
from refstore.errors import Invalid

STATEMENTS_MAX = 100
RESOURCES_MAX = 100  # in one statement
_FS: Final = "arn:lakefs:fs:::"
_AUTH: Final = "arn:lakefs:auth:::"
_WITHIN: Final[tuple[Kind, ...]] = ("branch", "tag", "object")
_OF_REPOSITORY: Final[tuple[Kind, ...]] = ("repository", *_WITHIN)
_OF_FILES: Final[tuple[Kind, ...]] = ("installation", *_OF_REPOSITORY)
_REPOSITORY = re.compile(
    r"repository/(?P<repository>[^/]+)"
    r"(?:/(?P<all>\*)|/tag/(?P<tag>[^/]+)|/object/(?P<any>.+)|/branch/(?P<branch>[^/]+)(?:/object/(?P<path>.+))?)?",
    re.DOTALL,
)


def parse_policy(policy: object) -> tuple[Permission, ...]:
    """The permissions of a decoded JSON policy; `Invalid` says which statement is wrong."""
    statements = policy.get("statement") if isinstance(policy, dict) else None
    if not isinstance(statements, list) or not 0 < len(statements) <= STATEMENTS_MAX:
        raise Invalid(f'a policy is {{"statement": [...]}} with 1 to {STATEMENTS_MAX} statements')
    found: list[Permission] = []
    for number, statement in enumerate(statements, 1):
        try:
            found += _parse_statement(statement)
        except Invalid as error:
            raise Invalid(f"statement {number}: {error}") from None
    return tuple(found)


def print_policy(permissions: Iterable[Permission]) -> list[dict[str, Any]]:
    """Statements that mean the same, one for each resource."""
    return [statement for permission in permissions for statement in _print(permission)]


def _parse_statement(statement: object) -> list[Permission]:
    if not isinstance(statement, dict):
        raise Invalid("it is no object")
    effect = statement.get("effect")
    actions = statement.get("action")
    actions = [actions] if isinstance(actions, str) else actions
    if effect not in ("allow", "deny"):
        raise Invalid('"effect" is "allow" or "deny"')
    if not isinstance(actions, list) or not all(isinstance(action, str) for action in actions):
        raise Invalid('"action" is a list of names as "fs:ReadObject"')
    unknown = statement.keys() - {"effect", "action", "resource"}
    if unknown:
        # A condition that we do not know may be a restriction: leaving it out would allow more than was meant.
        raise Invalid(f"{sorted(map(str, unknown))[0][:80]!r} is not supported: leave it out")
    resources = _resources(statement.get("resource"))
    return [check_permission(Permission(effect, tuple(actions), **_parse_arn(arn))) for arn in resources]


def _resources(value: object) -> list[str]:
    if isinstance(value, str) and value.startswith("["):
        try:
            value = msgspec.json.decode(value)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            raise Invalid('"resource" begins with [ and is no JSON list') from None
    resources = [value] if isinstance(value, str) else value
    if not isinstance(resources, list) or not 0 < len(resources) <= RESOURCES_MAX:
        raise Invalid(f'"resource" is a name, or a list of 1 to {RESOURCES_MAX}')
    if not all(isinstance(resource, str) for resource in resources):
        raise Invalid('"resource" is a name as "arn:lakefs:fs:::repository/x"')
    return resources


def _parse_arn(arn: str) -> dict[str, Any]:
    """The fields of a permission that it stands for."""
    if arn == "*":
        return {}
    if arn.startswith(_AUTH) and arn != _AUTH:
        return {"kinds": ("entity",), "entities": arn.removeprefix(_AUTH)}
    if arn == f"{_FS}*":
        return {"kinds": _OF_FILES}
    if arn == f"{_FS}installation":
        return {"kinds": ("installation",)}
    match = _REPOSITORY.fullmatch(arn.removeprefix(_FS)) if arn.startswith(_FS) else None
    if match is None:
        raise Invalid(f'{arn[:200]!r} is no resource: write "*" or "arn:lakefs:fs:::repository/x/object/*"')
    fields: dict[str, Any] = {"repositories": match["repository"]}
    if match["all"]:
        return fields | {"kinds": _WITHIN}
    if match["tag"]:
        return fields | {"kinds": ("tag",), "branches": match["tag"]}
    if match["any"]:
        return fields | {"kinds": ("object",), "paths": match["any"]}
    if match["path"]:
        return fields | {"kinds": ("object",), "branches": match["branch"], "paths": match["path"]}
    if match["branch"]:
        return fields | {"kinds": ("branch",), "branches": match["branch"]}
    return fields | {"kinds": _OF_REPOSITORY if match["repository"].endswith("*") else ("repository",)}


def _print(permission: Permission) -> list[dict[str, Any]]:
    p = permission
    if p == Permission(p.effect, p.actions):
        return [{"effect": p.effect, "action": list(p.actions), "resource": "*"}]
    statements = []
    for kind in KINDS:
        actions = [action.value for action in covered(p) if action.kind == kind]
        if actions:  # by their names, so that a resource which stands for more kinds gives no more
            statements.append({"effect": p.effect, "action": actions, "resource": _arn(p, kind)})
    return statements


def _arn(permission: Permission, kind: Kind) -> str:
    repository = f"{_FS}repository/{permission.repositories}"
    on_branch = f"/branch/{permission.branches}" if permission.branches != "*" else ""
    return {
        "installation": f"{_FS}installation",
        "repository": repository,
        "branch": f"{repository}/branch/{permission.branches}",
        "tag": f"{repository}/tag/{permission.branches}",
        "object": f"{repository}{on_branch}/object/{permission.paths}",
        "entity": f"{_AUTH}{permission.entities}",
    }[kind]
