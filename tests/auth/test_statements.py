"""Policies in lakeFS's form: what comes in means what it says, what goes out means the same."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lsmfs.auth.permissions import PRECONFIGURED_ROLES, Action, Permission, Resource, decide
from lsmfs.auth.statements import parse_policy, print_policy
from refstore.errors import Invalid
from tests.auth.test_permissions import permissions, resources

ARN = "arn:lakefs:fs:::repository"


def one(resource: Any, action: Any = "fs:*", effect: str = "allow") -> tuple[Permission, ...]:
    return parse_policy({"statement": [{"effect": effect, "action": action, "resource": resource}]})


IN_REPOSITORY = [Action.DELETE_REPOSITORY, Action.COMMIT, Action.CREATE_TAG, Action.READ_OBJECT]


@pytest.mark.parametrize(
    ("resource", "allowed"),
    [
        ("*", "DELETE_REPOSITORY COMMIT CREATE_TAG READ_OBJECT"),
        ("arn:lakefs:fs:::*", "DELETE_REPOSITORY COMMIT CREATE_TAG READ_OBJECT"),
        (f"{ARN}/*", "DELETE_REPOSITORY COMMIT CREATE_TAG READ_OBJECT"),
        (f"{ARN}/re*", "DELETE_REPOSITORY COMMIT CREATE_TAG READ_OBJECT"),
        (f"{ARN}/repo", "DELETE_REPOSITORY"),
        (f"{ARN}/repo/*", "COMMIT CREATE_TAG READ_OBJECT"),
        (f"{ARN}/repo/branch/*", "COMMIT"),
        (f"{ARN}/repo/branch/main", "COMMIT"),
        (f"{ARN}/repo/branch/dev", ""),
        (f"{ARN}/repo/tag/main", "CREATE_TAG"),
        (f"{ARN}/repo/object/a/*", "READ_OBJECT"),
        (f"{ARN}/repo/object/b/*", ""),
        (f"{ARN}/repo/branch/main/object/a/*", "READ_OBJECT"),
        (f"{ARN}/repo/branch/dev/object/a/*", ""),
        (f"{ARN}/other/*", ""),
        ("arn:lakefs:auth:::*", ""),
        ([f"{ARN}/repo", f"{ARN}/repo/tag/*"], "DELETE_REPOSITORY CREATE_TAG"),
        (f'["{ARN}/repo", "{ARN}/repo/tag/*"]', "DELETE_REPOSITORY CREATE_TAG"),
    ],
)
def test_a_resource_is_about_what_its_name_says(resource: Any, allowed: str) -> None:
    parsed = one(resource)
    what = Resource("repo", "main", "a/b")
    assert [action.name for action in IN_REPOSITORY if decide(parsed, action, what)] == allowed.split()


@given(st.lists(permissions.filter(lambda p: "/" not in p.repositories + p.branches), max_size=4), resources)
def test_what_is_printed_and_parsed_again_decides_the_same(given_ones: list[Permission], resource: Resource) -> None:
    printed = print_policy(given_ones)
    again = parse_policy({"statement": printed}) if printed else ()
    for action in Action:
        assert decide(again, action, resource) == decide(given_ones, action, resource)


@pytest.mark.parametrize("role", PRECONFIGURED_ROLES)
def test_preconfigured_roles_can_be_shown_and_each_statement_has_one_resource(role: str) -> None:
    for statement in print_policy(PRECONFIGURED_ROLES[role]):
        assert statement.keys() == {"effect", "action", "resource"}
        assert isinstance(statement["resource"], str)
        assert isinstance(statement["action"], list)


@pytest.mark.parametrize(
    "policy",
    [
        None,
        [],
        {},
        {"statement": []},
        {"statement": [{}] * 101},
        {"statement": ["allow"]},
        {"statement": [{"effect": "Maybe", "action": ["fs:*"], "resource": "*"}]},
        {"statement": [{"effect": "allow", "action": [], "resource": "*"}]},
        {"statement": [{"effect": "allow", "action": [1], "resource": "*"}]},
        {"statement": [{"effect": "allow", "action": ["no action"], "resource": "*"}]},
        {"statement": [{"effect": "allow", "action": ["fs:*"]}]},
        {"statement": [{"effect": "allow", "action": ["fs:*"], "resource": []}]},
        {"statement": [{"effect": "allow", "action": ["fs:*"], "resource": ["*", 1]}]},
        {"statement": [{"effect": "allow", "action": ["fs:*"], "resource": "["}]},
        {"statement": [{"effect": "allow", "action": ["fs:*"], "resource": "[" * 5000}]},
        {"statement": [{"effect": "allow", "action": ["fs:*"], "resource": "arn:aws:s3:::bucket"}]},
        {"statement": [{"effect": "allow", "action": ["fs:*"], "resource": f"{ARN}/repo/branch/a/b"}]},
        {"statement": [{"effect": "allow", "action": ["fs:*"], "resource": "*", "condition": {"ip": "10.0.0.1"}}]},
    ],
)
def test_what_is_not_understood_is_refused_and_never_read_as_less(policy: object) -> None:
    with pytest.raises(Invalid):
        parse_policy(policy)
