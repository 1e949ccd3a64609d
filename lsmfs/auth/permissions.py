"""What may be done to what, and who decides: pure, no store and no clock.

An `Action` is done to a `Resource`; a `Permission` allows or denies actions on resources that its patterns match.

    kind           the resource names                    examples
    installation   nothing                               list repositories, read the configuration
    repository     repository                            read, create, delete it; list its branches; its rules
    branch         repository, branch                    create, commit to, merge into, delete a branch
    tag            repository, branch (= the tag)        create, delete a tag
    object         repository, branch (= any ref), path  read, write, delete, list (path = the prefix)
    entity         entity: user/bob, group/x, policy/x   users, groups, policies, credentials (of user/bob)

Promises: what nothing allows is denied; one denial beats any number of allowances; a resource that lacks a part which
its action's kind has is denied, so a caller that forgets the path cannot slip past a pattern of paths.

Patterns are whole strings with `*` (any characters, also `/`) and `?` (one). They are matched in time O(n m) whatever
they are. In `entities`, `${user}` is the name of who asks. A pattern of branches sees the ref as it was asked for: an
allowance for `main` does not cover `main~1` or a commit id, and a denial of `main` does not stop a reader who knows a
commit id; so limit readers by allowances.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from functools import lru_cache
from typing import Final, Literal, NamedTuple

import msgspec

from refstore.errors import Invalid

Kind = Literal["installation", "repository", "branch", "tag", "object", "entity"]
KINDS: Final[tuple[Kind, ...]] = ("installation", "repository", "branch", "tag", "object", "entity")
Effect = Literal["allow", "deny"]

PATTERN_CHARACTERS_MAX = 1024  # as long as a key of an object
ACTIONS_MAX = 100  # globs in one permission: more than there are actions
PATTERNS_KEPT_MAX = 4096  # compiled patterns in memory: some thousand roles of a large installation

_ACTION = re.compile(r"\*|[a-z*]+:[A-Za-z*?]+")


class Action(Enum):
    """Everything that is checked. The value is the name in policies: lakeFS's where it has one."""

    kind: Kind

    def __new__(cls, name: str, kind: Kind) -> "Action":
        action = object.__new__(cls)
        action._value_ = name
        action.kind = kind
        return action

    __hash__ = object.__hash__  # there is one object of each: Enum would hash its name, in Python, at every check

    LIST_REPOSITORIES = ("fs:ListRepositories", "installation")  # then filter by READ_REPOSITORY
    READ_CONFIG = ("fs:ReadConfig", "installation")

    READ_REPOSITORY = ("fs:ReadRepository", "repository")
    CREATE_REPOSITORY = ("fs:CreateRepository", "repository")
    UPDATE_REPOSITORY = ("fs:UpdateRepository", "repository")  # metadata, read-only
    DELETE_REPOSITORY = ("fs:DeleteRepository", "repository")
    LIST_BRANCHES = ("fs:ListBranches", "repository")
    LIST_TAGS = ("fs:ListTags", "repository")
    LIST_COMMITS = ("fs:ListCommits", "repository")  # log, diff, events
    READ_COMMIT = ("fs:ReadCommit", "repository")
    READ_PROTECTION = ("branches:GetBranchProtectionRules", "repository")
    WRITE_PROTECTION = ("branches:SetBranchProtectionRules", "repository")
    READ_RETENTION = ("retention:GetGarbageCollectionRules", "repository")
    WRITE_RETENTION = ("retention:SetGarbageCollectionRules", "repository")
    READ_RUNS = ("ci:ReadAction", "repository")

    READ_BRANCH = ("fs:ReadBranch", "branch")
    CREATE_BRANCH = ("fs:CreateBranch", "branch")
    DELETE_BRANCH = ("fs:DeleteBranch", "branch")
    COMMIT = ("fs:CreateCommit", "branch")
    MERGE = ("fs:MergeBranch", "branch")  # the branch merged into; ours: lakeFS asks for fs:CreateCommit
    REVERT = ("fs:RevertBranch", "branch")  # also reset and cherry-pick
    IMPORT = ("fs:ImportFromStorage", "branch")

    READ_TAG = ("fs:ReadTag", "tag")
    CREATE_TAG = ("fs:CreateTag", "tag")
    DELETE_TAG = ("fs:DeleteTag", "tag")

    LIST_OBJECTS = ("fs:ListObjects", "object")
    READ_OBJECT = ("fs:ReadObject", "object")
    WRITE_OBJECT = ("fs:WriteObject", "object")
    DELETE_OBJECT = ("fs:DeleteObject", "object")

    LIST_USERS = ("auth:ListUsers", "entity")  # the entity of a list is "user/", "group/" or "policy/"
    READ_USER = ("auth:ReadUser", "entity")
    CREATE_USER = ("auth:CreateUser", "entity")
    UPDATE_USER = ("auth:UpdateUser", "entity")  # disable, enable
    DELETE_USER = ("auth:DeleteUser", "entity")
    LIST_GROUPS = ("auth:ListGroups", "entity")
    READ_GROUP = ("auth:ReadGroup", "entity")
    CREATE_GROUP = ("auth:CreateGroup", "entity")
    DELETE_GROUP = ("auth:DeleteGroup", "entity")
    ADD_MEMBER = ("auth:AddGroupMember", "entity")  # entity: the group
    REMOVE_MEMBER = ("auth:RemoveGroupMember", "entity")
    LIST_ROLES = ("auth:ListPolicies", "entity")
    READ_ROLE = ("auth:ReadPolicy", "entity")
    CREATE_ROLE = ("auth:CreatePolicy", "entity")
    UPDATE_ROLE = ("auth:UpdatePolicy", "entity")
    DELETE_ROLE = ("auth:DeletePolicy", "entity")
    ATTACH_ROLE = ("auth:AttachPolicy", "entity")  # entity: the user or group that gets it
    DETACH_ROLE = ("auth:DetachPolicy", "entity")
    LIST_KEYS = ("auth:ListCredentials", "entity")  # entity: the user whose keys they are
    READ_KEY = ("auth:ReadCredentials", "entity")
    CREATE_KEY = ("auth:CreateCredentials", "entity")
    UPDATE_KEY = ("auth:UpdateCredentials", "entity")  # disable, enable
    DELETE_KEY = ("auth:DeleteCredentials", "entity")


class Resource(NamedTuple):
    """What an action is done to; as many parts as the action's kind has."""

    repository: str | None = None
    branch: str | None = None
    path: str | None = None
    entity: str | None = None

    def __str__(self) -> str:
        parts = (("repository", self.repository), ("ref", self.branch), ("path", self.path), ("", self.entity))
        return " ".join(f"{name} {value!r}".strip() for name, value in parts if value is not None) or "installation"


class Permission(msgspec.Struct, frozen=True, omit_defaults=True):
    """Actions (globs of names, as "fs:Read*") on the resources of these kinds that all patterns match."""

    effect: Effect
    actions: tuple[str, ...]
    repositories: str = "*"
    branches: str = "*"
    paths: str = "*"
    entities: str = "*"
    kinds: tuple[Kind, ...] = KINDS


def allow(*actions: Action, repositories: str = "*", branches: str = "*", paths: str = "*") -> Permission:
    return Permission("allow", tuple(action.value for action in actions), repositories, branches, paths)


_READ = [a for a in Action if re.match(r"(fs|branches|retention|ci):(List|Read|Get)", a.value)]
_WRITE = [a for a in Action if a.kind in ("branch", "tag", "object") and a not in _READ]


def create_repo(pattern: str = "*") -> Permission:
    """CreateRepo."""
    return allow(Action.CREATE_REPOSITORY, repositories=pattern)


def delete_repo(pattern: str = "*") -> Permission:
    """DeleteRepo."""
    return allow(Action.DELETE_REPOSITORY, repositories=pattern)


def read_repo(pattern: str, branches: str = "*", paths: str = "*") -> Permission:
    """ReadRepo(pattern): see the repository, its history and rules, and read and list its objects."""
    return allow(*_READ, repositories=pattern, branches=branches, paths=paths)


def write_repo(pattern: str, branches: str = "*", paths: str = "*") -> Permission:
    """WriteRepo(pattern): change objects, branches and tags; not the repository's own settings and rules."""
    return allow(*_WRITE, repositories=pattern, branches=branches, paths=paths)


OWN_KEYS: Final = Permission("allow", ("auth:ReadUser", "auth:*Credentials"), entities="user/${user}")
PRECONFIGURED_ROLES: Final[dict[str, tuple[Permission, ...]]] = {
    "Admin": (Permission("allow", ("*",)),),
    "Developer": (read_repo("*"), write_repo("*"), OWN_KEYS),
    "Analyst": (read_repo("*"), OWN_KEYS),
}
PRECONFIGURED_GROUPS: Final[dict[str, str]] = {"Admins": "Admin", "Developers": "Developer", "Viewers": "Analyst"}


def check_permission(permission: Permission) -> Permission:
    """The same; `Invalid` if it is malformed or beyond a limit."""
    if not permission.actions or len(permission.actions) > ACTIONS_MAX:
        raise Invalid(f"a permission names 1 to {ACTIONS_MAX} actions, not {len(permission.actions)}")
    for name in permission.actions:
        if len(name) > PATTERN_CHARACTERS_MAX or not _ACTION.fullmatch(name):
            raise Invalid(f'{name[:80]!r} is no action: write it as "fs:ReadObject", "fs:Read*" or "*"')
    for pattern in (permission.repositories, permission.branches, permission.paths, permission.entities):
        if not 0 < len(pattern) <= PATTERN_CHARACTERS_MAX:
            raise Invalid(f"a pattern has 1 to {PATTERN_CHARACTERS_MAX} characters, not {len(pattern)}")
    if "/" in permission.repositories + permission.branches:
        raise Invalid("names of repositories, branches and tags have no '/', so their patterns have none")
    if not permission.kinds:
        raise Invalid(f"a permission is about some of {', '.join(KINDS)}")
    return permission


@lru_cache(PATTERNS_KEPT_MAX)
def matcher(pattern: str) -> Callable[[str], object] | None:
    """A function that is true for strings the pattern matches; None if it matches all."""
    if pattern.strip("*") == "":
        return None if pattern else "".__eq__
    first, *rest = (re.escape(part).replace(r"\?", ".") for part in re.split(r"\*+", pattern))
    # Atomic groups take the first place where a part fits and never try another: no backtracking.
    between = "".join(f"(?>.*?{part})" for part in rest[:-1])
    last = f".*{rest[-1]}" if rest else ""
    return re.compile(f"{first}{between}{last}", re.DOTALL).fullmatch


def covered(permission: Permission) -> list[Action]:
    """The actions it is about."""
    tests = [matcher(name) for name in permission.actions]
    return [a for a in Action if a.kind in permission.kinds and any(t is None or t(a.value) for t in tests)]


_Test = Callable[[str], object] | None
_PARTS: Final[dict[Kind, tuple[int, ...]]] = {  # which fields of a Resource an action of the kind needs
    "installation": (),
    "repository": (0,),
    "branch": (0, 1),
    "tag": (0, 1),
    "object": (0, 1, 2),
    "entity": (3,),
}


class Rights:
    """Permissions compiled for one user: a decision is some microseconds."""

    def __init__(self, permissions: Iterable[Permission], user: str = "") -> None:
        self._denials: dict[Action, list[tuple[_Test, ...]]] = {}
        self._allowances: dict[Action, list[tuple[_Test, ...]]] = {}
        for permission in permissions:
            entities = permission.entities.replace("${user}", user)
            patterns = (permission.repositories, permission.branches, permission.paths, entities)
            tests = tuple(matcher(pattern) for pattern in patterns)
            into = self._allowances if permission.effect == "allow" else self._denials
            for action in covered(permission):
                into.setdefault(action, []).append(tuple(tests[part] for part in _PARTS[action.kind]))

    def allow(self, action: Action, resource: Resource) -> bool:
        allowances = self._allowances.get(action)
        if allowances is None:
            return False
        values = [resource[part] for part in _PARTS[action.kind]]
        if None in values:
            return False
        denials = self._denials.get(action)
        if denials is not None and any(_match(tests, values) for tests in denials):
            return False
        return any(_match(tests, values) for tests in allowances)


def _match(tests: tuple[_Test, ...], values: Sequence[str | None]) -> bool:
    return all(test is None or (value is not None and test(value)) for test, value in zip(tests, values, strict=True))


def decide(permissions: Iterable[Permission], action: Action, resource: Resource, user: str = "") -> bool:
    """Whether these permissions let `user` do this."""
    return Rights(permissions, user).allow(action, resource)
