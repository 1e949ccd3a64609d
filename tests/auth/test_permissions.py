"""Deny by default, deny wins: `decide` against a model that does it the long way, and the preconfigured roles."""

import fnmatch
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lsmfs.auth.permissions import (
    KINDS,
    PRECONFIGURED_ROLES,
    Action,
    Permission,
    Resource,
    check_permission,
    create_repo,
    decide,
    delete_repo,
    matcher,
    read_repo,
    write_repo,
)
from refstore.errors import Invalid

PARTS = {
    "installation": (),
    "repository": ("repository",),
    "branch": ("repository", "branch"),
    "tag": ("repository", "branch"),
    "object": ("repository", "branch", "path"),
    "entity": ("entity",),
}
PATTERNS = {"repository": "repositories", "branch": "branches", "path": "paths", "entity": "entities"}

words = st.text("ab/", min_size=1, max_size=4)
globs = st.text("ab/*?", min_size=1, max_size=6)
permissions = st.builds(
    Permission,
    effect=st.sampled_from(["allow", "deny"]),
    actions=st.lists(
        st.sampled_from(["*", "fs:*", "fs:Read*", "auth:*", "*:List*"] + [a.value for a in Action]),
        min_size=1,
        max_size=3,
    ).map(tuple),
    repositories=globs,
    branches=globs,
    paths=globs,
    entities=globs,
    kinds=st.lists(st.sampled_from(KINDS), min_size=1, unique=True).map(tuple),
)
optional = st.none() | words
resources = st.builds(Resource, optional, optional, optional, optional)


def naive_match(pattern: str, text: str) -> bool:
    """Every way to read the first character of the pattern, tried in turn."""
    if not pattern:
        return not text
    if pattern[0] == "*":
        return naive_match(pattern[1:], text) or (bool(text) and naive_match(pattern, text[1:]))
    return bool(text) and pattern[0] in ("?", text[0]) and naive_match(pattern[1:], text[1:])


def naive_decide(given_permissions: list[Permission], action: Action, resource: Resource) -> bool:
    effects = set()
    for permission in given_permissions:
        applies = action.kind in permission.kinds
        applies &= any(fnmatch.fnmatchcase(action.value, name) for name in permission.actions)
        for part in PARTS[action.kind]:
            value = getattr(resource, part)
            applies &= value is not None and naive_match(getattr(permission, PATTERNS[part]), value)
        if applies:
            effects.add(permission.effect)
    return effects == {"allow"}


class TestDecision:
    @given(st.lists(permissions, max_size=5), st.sampled_from(list(Action)), resources)
    def test_it_is_that_of_the_model(
        self, given_permissions: list[Permission], action: Action, resource: Resource
    ) -> None:
        assert decide(given_permissions, action, resource) == naive_decide(given_permissions, action, resource)

    @given(globs, st.text("ab/\n", max_size=8))
    def test_a_pattern_matches_as_the_model_says(self, pattern: str, text: str) -> None:
        test = matcher(pattern)
        assert (test is None or bool(test(text))) == naive_match(pattern, text)

    def test_characters_that_mean_something_elsewhere_mean_themselves(self) -> None:
        test = matcher("a.b[c]+(d)$*")
        assert test is not None
        assert test("a.b[c]+(d)$x")
        assert not test("aXbc(d)$x")

    def test_a_pattern_of_many_stars_does_not_backtrack(self) -> None:
        test = matcher("*a" * 400 + "b")  # with backtracking: longer than anybody waits
        assert test is not None
        assert not test("a" * 1000)

    def test_nothing_is_allowed_by_nothing_and_one_denial_beats_two_allowances(self) -> None:
        resource = Resource("repo", "main", "a")
        everything = Permission("allow", ("*",))
        assert not any(decide([], action, Resource("r", "b", "p", "e")) for action in Action)
        assert decide([everything], Action.READ_OBJECT, resource)
        denial = Permission("deny", ("fs:ReadObject",), paths="a*")
        assert not decide([everything, denial, everything], Action.READ_OBJECT, resource)
        assert decide([everything, denial], Action.READ_OBJECT, Resource("repo", "main", "b"))

    def test_who_forgets_a_part_of_the_resource_is_denied_even_with_every_right(self) -> None:
        everything = [Permission("allow", ("*",))]
        assert decide(everything, Action.WRITE_OBJECT, Resource("repo", "main", "a"))
        for resource in (
            Resource("repo", "main"),
            Resource("repo", None, "a"),
            Resource(None, "main", "a"),
            Resource(),
        ):
            assert not decide(everything, Action.WRITE_OBJECT, resource)

    def test_a_path_that_looks_like_a_branch_does_not_reach_another_branch(self) -> None:
        mine = [write_repo("repo", branches="mine")]
        assert decide(mine, Action.WRITE_OBJECT, Resource("repo", "mine", "a"))
        assert not decide(mine, Action.WRITE_OBJECT, Resource("repo", "main", "x/branch/mine/object/a"))

    def test_the_name_of_who_asks_stands_in_a_pattern_and_is_no_pattern_itself(self) -> None:
        own = [Permission("allow", ("auth:*",), entities="user/${user}")]
        assert decide(own, Action.CREATE_KEY, Resource(entity="user/bob"), "bob")
        assert not decide(own, Action.CREATE_KEY, Resource(entity="user/eve"), "bob")

    @pytest.mark.parametrize(
        "permission",
        [
            Permission("allow", ()),
            Permission("allow", ("fs:ReadObject; x",)),
            Permission("allow", ("fs:Read",) * 101),
            Permission("allow", ("*",), repositories=""),
            Permission("allow", ("*",), repositories="a/branch/b"),
            Permission("allow", ("*",), branches="a/object/b"),
            Permission("allow", ("*",), paths="x" * 1025),
            Permission("allow", ("*",), kinds=()),
        ],
    )
    def test_what_is_malformed_or_too_large_is_refused(self, permission: Permission) -> None:
        with pytest.raises(Invalid):
            check_permission(permission)


# A: Admin, D: Developer, N: Analyst on any repository; o, f: a user with ReadRepo and WriteRepo of `own-*`, on a
# repository of its own and on a foreign one; k: Developers and Analysts on their own user.
MATRIX = """
    fs:ListRepositories                   A D N o f
    fs:ReadConfig                         A D N o f
    fs:ReadRepository                     A D N o
    fs:CreateRepository                   A
    fs:UpdateRepository                   A
    fs:DeleteRepository                   A
    fs:ListBranches                       A D N o
    fs:ListTags                           A D N o
    fs:ListCommits                        A D N o
    fs:ReadCommit                         A D N o
    branches:GetBranchProtectionRules     A D N o
    branches:SetBranchProtectionRules     A
    retention:GetGarbageCollectionRules   A D N o
    retention:SetGarbageCollectionRules   A
    ci:ReadAction                         A D N o
    fs:ReadBranch                         A D N o
    fs:CreateBranch                       A D   o
    fs:DeleteBranch                       A D   o
    fs:CreateCommit                       A D   o
    fs:MergeBranch                        A D   o
    fs:RevertBranch                       A D   o
    fs:ImportFromStorage                  A D   o
    fs:ReadTag                            A D N o
    fs:CreateTag                          A D   o
    fs:DeleteTag                          A D   o
    fs:ListObjects                        A D N o
    fs:ReadObject                         A D N o
    fs:WriteObject                        A D   o
    fs:DeleteObject                       A D   o
    auth:ListUsers                        A
    auth:ReadUser                         A k
    auth:CreateUser                       A
    auth:UpdateUser                       A
    auth:DeleteUser                       A
    auth:ListGroups                       A
    auth:ReadGroup                        A
    auth:CreateGroup                      A
    auth:DeleteGroup                      A
    auth:AddGroupMember                   A
    auth:RemoveGroupMember                A
    auth:ListPolicies                     A
    auth:ReadPolicy                       A
    auth:CreatePolicy                     A
    auth:UpdatePolicy                     A
    auth:DeletePolicy                     A
    auth:AttachPolicy                     A
    auth:DetachPolicy                     A
    auth:ListCredentials                  A k
    auth:ReadCredentials                  A k
    auth:CreateCredentials                A k
    auth:UpdateCredentials                A k
    auth:DeleteCredentials                A k
"""
ROWS = {line.split()[0]: set(line.split()[1:]) for line in MATRIX.strip().splitlines()}


class TestRoles:
    def test_the_table_has_every_action(self) -> None:
        assert set(ROWS) == {action.value for action in Action}

    @pytest.mark.parametrize("action", list(Action), ids=lambda action: action.value)
    def test_each_role_may_do_what_the_table_says_and_nothing_else(self, action: Action) -> None:
        own, foreign = (Resource(repo, "main", "a", "user/eve") for repo in ("own-data", "foreign"))
        limited = (read_repo("own-*"), write_repo("own-*"))
        may = {
            mark
            for mark, roles, resource in (
                ("A", PRECONFIGURED_ROLES["Admin"], foreign),
                ("D", PRECONFIGURED_ROLES["Developer"], foreign),
                ("N", PRECONFIGURED_ROLES["Analyst"], foreign),
                ("o", limited, own),
                ("f", limited, foreign),
            )
            if decide(roles, action, resource, "bob")
        }
        if action.kind == "entity":
            me = Resource(entity="user/bob")
            each = {decide(PRECONFIGURED_ROLES[role], action, me, "bob") for role in ("Developer", "Analyst")}
            may |= {"k"} if each == {True} else set()
            assert len(each) == 1
        assert may == ROWS[action.value]

    def test_the_four_permissions_of_the_seed_do_not_overlap(self) -> None:
        resource = Resource("repo", "main", "a")
        bundles = [create_repo(), delete_repo(), read_repo("*"), write_repo("*")]
        for action in Action:
            assert sum(decide([bundle], action, resource) for bundle in bundles) <= 1

    def test_names_of_actions_have_the_form_that_policies_accept(self) -> None:
        assert all(re.fullmatch(r"[a-z]+:[A-Z][A-Za-z]+", action.value) for action in Action)
