"""Who may do what: every operation, by every role, on a repository that is theirs and on one that is not.

The sets below are written by hand: an operation that is added is for administrators until somebody says otherwise here.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from lsmfs.api.app import OPERATIONS, tree_of
from lsmfs.api.operations import Open, Operation
from lsmfs.auth import Action
from lsmfs.auth.permissions import PRECONFIGURED_ROLES, read_repo, write_repo
from tests.aio import aio
from tests.api.support import World, world

TO_ALL = {"healthCheck", "login", "logout", "getSetupState", "setup"}
TO_USERS = {"getConfig", "getStorageConfig", "getLakeFSVersion", "postStatsEvents", "getCurrentUser"}
OF_INSTALLATION = {"listRepositories", "getGarbageCollectionConfig", "exactRepositories"}
READS = {
    *("getRepository", "getRepositoryMetadata", "getBranchProtectionRules", "internalGetBranchProtectionRules"),
    *("getGCRules", "internalGetGarbageCollectionRules", "listRepositoryRuns", "getRun", "listRunHooks"),
    *("listBranches", "listDeletedBranches", "getBranch", "findMergeBase", "listStashes", "previewMerge"),
    *("diffBranch", "listObjects", "listEntries", "listTags", "getTag", "getCommit", "logCommits", "diffRefs"),
    *("getObject", "headObject", "statObject", "getUnderlyingProperties", "dumpRefs", "dumpSubmit", "dumpStatus"),
    *("createPresignMultipartUpload", "completePresignMultipartUpload", "abortPresignMultipartUpload"),
    *("exactRepository", "exactBranches", "exactBranch", "exactDeleted", "exactRun", "exactCommit", "exactLog"),
    *("exactEntries", "exactList", "exactDiff", "exactSummary", "exactPreview"),
    "deleteObjects",  # it tells of each path that it may not be deleted
}
WRITES = {
    *("createBranch", "restoreBranch", "deleteBranch", "resetBranch", "hardResetBranch", "revertBranch", "cherryPick"),
    *("createStash", "popStash", "dropStash", "createTag", "deleteTag", "commit", "mergeIntoBranch", "mergeHint"),
    *("deleteObject", "copyObject", "updateObjectUserMetadata", "uploadObjectPreflight", "uploadObject"),
    *("getPhysicalAddress", "linkPhysicalAddress", "stageObject", "appendObject", "stageRows"),
    *("importStart", "importStatus", "importCancel"),
    *("exactMakeCommit", "exactMerge", "exactHint", "exactRevert", "exactPick", "exactPushStash", "exactTakeStash"),
    *("exactWrite", "exactUpload"),
}
# About oneself; of other users they are for administrators.
OWN = {
    *("getUser", "listUserGroups", "listUserPolicies", "listUserCredentials", "createCredentials"),
    *("getCredentials", "deleteCredentials", "setCredentialsDisabled", "rotateCredentials"),
}
COMMIT = {"message": "m"}
BODIES: dict[str, Any] = {
    "createRepository": {"name": "new-one", "storage_namespace": ""},
    "setRepositoryMetadata": {"metadata": {}},
    "deleteRepositoryMetadata": {"keys": []},
    "setBranchProtectionRules": [],
    "internalCreateBranchProtectionRule": {"pattern": "nothing-*"},
    "internalDeleteBranchProtectionRule": {"pattern": "none"},
    "createBranch": {"name": "made", "source": "main"},
    "resetBranch": {"type": "reset"},
    "revertBranch": {"ref": "main", "parent_number": 0},
    "cherryPick": {"ref": "main"},
    "createTag": {"id": "made", "ref": "main"},
    "commit": COMMIT,
    "deleteObjects": {"paths": ["none"]},
    "copyObject": {"src_path": "none"},
    "updateObjectUserMetadata": {"set": {}},
    "linkPhysicalAddress": {"staging": {"physical_address": "x"}, "checksum": "x", "size_bytes": 1},
    "stageObject": {"physical_address": "x", "checksum": "x", "size_bytes": 1},
    "importStart": {"paths": [{"type": "object", "path": "nowhere", "destination": "d"}], "commit": COMMIT},
    "setReadOnly": {"read_only": False},
    "createUser": {"id": "made"},
    "setUserDisabled": {"disabled": False},
    "setCredentialsDisabled": {"disabled": False},
    "createGroup": {"id": "made"},
    "createPolicy": {"id": "made", "statement": [{"effect": "allow", "action": ["fs:*"], "resource": "*"}]},
    "updatePolicy": {"id": "none", "statement": [{"effect": "allow", "action": ["fs:*"], "resource": "*"}]},
    "exactEntries": {"ref": "main", "paths": ["none"]},
    "exactSetMetadata": {"metadata": {}},
    "exactProtect": {"pattern": "none", "blocks": []},
    "exactMakeCommit": COMMIT,
    "exactMerge": {"source": "main"},
    "exactPreview": {"source": "main"},
    "exactHint": {"source": "main"},
    "exactRevert": {"ref": "main"},
    "exactPick": {"ref": "main"},
    "exactPushStash": {},
    "exactTakeStash": {},
    "exactWrite": {"writes": [{"path": "none"}]},
    "login": {"access_key_id": "a", "secret_access_key": "b"},
    "setup": {"username": "second"},
    "postStatsEvents": {"events": []},
}
# Names that exist where a refusal would otherwise look the same: a branch that is not the default one.
PARTS = {
    "branch": "main",
    "ref": "main",
    "sourceRef": "main",
    "leftRef": "main",
    "rightRef": "main",
    "commitId": "main",
}
QUERY = {"path": "none", "dest_path": "made", "ref": "main", "id": "none", "left": "main", "right": "main"}


def _request(operation: Operation, repository: str, user: str) -> tuple[str, str, dict[str, Any]]:
    parts = {**PARTS, "repository": repository, "userId": user}
    if operation.name == "deleteBranch":
        parts["branch"] = "nothing"
    path = re.sub(r"\{(\w+)\}", lambda match: parts.get(match[1], "none"), operation.path)
    names = set(operation.query.__struct_fields__) & QUERY.keys() - ({"id"} if operation.name == "popStash" else set())
    more: dict[str, Any] = {"params": {name: QUERY[name] for name in sorted(names)}}
    if operation.name in BODIES:
        more["json"] = BODIES[operation.name]
    return operation.method, path, more


def _expected(operation: Operation, role: str, owns: bool, is_self: bool) -> bool:
    name = operation.name
    if role == "Admin" or name in TO_ALL or name in TO_USERS:
        return True
    if role == "nobody":
        return False
    if name in OWN:
        return is_self and role != "Owner"
    if role == "Owner" and not owns and name not in OF_INSTALLATION:
        return False
    if name in READS or name in OF_INSTALLATION:
        return True
    return name in WRITES and role in ("Developer", "Owner")


def test_every_operation_says_what_it_needs_and_those_open_are_known() -> None:
    assert {each.name for each in OPERATIONS if each.action is Open.TO_ALL} == TO_ALL
    assert {each.name for each in OPERATIONS if each.action is Open.TO_USERS} == TO_USERS
    assert all(isinstance(each.action, Action) for each in OPERATIONS if each.name not in TO_ALL | TO_USERS)
    assert len({each.name for each in OPERATIONS}) == len(OPERATIONS)
    known = READS | WRITES | OWN | TO_ALL | TO_USERS | OF_INSTALLATION
    assert known <= {each.name for each in OPERATIONS}


def test_an_operation_without_an_action_cannot_be_made() -> None:
    with pytest.raises(TypeError, match="Action"):
        Operation("bad", "GET", "/bad", None, lambda call: None)  # type: ignore[arg-type, return-value]


def test_two_operations_at_one_place_cannot_be_made() -> None:
    with pytest.raises(ValueError, match="already"):
        tree_of([OPERATIONS[0], OPERATIONS[0]])


async def _clients(there: World) -> dict[str, httpx.AsyncClient]:
    directory = there.authority.directory
    await directory.create_role("mine-only", [read_repo("mine"), write_repo("mine")])
    await directory.create_user("other")
    clients = {}
    for role in ("Admin", "Developer", "Analyst", "Owner", "nobody"):
        pair = await there.user(f"a-{role}", role if role in PRECONFIGURED_ROLES else None)
        clients[role] = there.client(pair)
    await directory.attach_role_to_user("mine-only", "a-Owner")
    return clients


async def _make(client: httpx.AsyncClient, name: str) -> None:
    there = await client.get(f"/repositories/{name}")
    if there.status_code == 404:
        assert (await client.post("/repositories", json={"name": name, "storage_namespace": ""})).status_code == 201


def _cases(clients: dict[str, httpx.AsyncClient]) -> Iterator[tuple[Operation, str, str, str]]:
    for operation in OPERATIONS:
        for role in clients:
            for repository in ("mine", "theirs") if "{repository}" in operation.path else ("mine",):
                for user in (f"a-{role}", "other") if "{userId}" in operation.path else ("other",):
                    yield operation, role, repository, user


@aio
async def test_every_operation_is_for_those_who_may_and_for_nobody_else(tmp_path: Path) -> None:
    async with world(tmp_path) as there:
        clients = await _clients(there)
        async with there.client() as root, there.client(None) as stranger:
            for operation, role, repository, user in _cases(clients):
                await _make(root, repository)
                method, path, more = _request(operation, repository, user)
                if operation.name == "deleteUser" and role == "Admin" and user != "other":
                    continue  # it would be done
                answer = await clients[role].request(method, path, **more)
                allowed = _expected(operation, role, repository == "mine", user != "other")
                what = f"{operation.name} by {role} on {repository}, {user}: {answer.status_code} {answer.text}"
                if operation.name == "login":
                    assert answer.status_code == 401, what
                else:
                    assert (answer.status_code != 403) == allowed, what
                    assert answer.status_code not in (401, 500, 503), what
            for operation in OPERATIONS:
                method, path, more = _request(operation, "mine", "other")
                answer = await stranger.request(method, path, **more)
                open_to_all = operation.name in TO_ALL and operation.name != "login"
                assert (answer.status_code == 401) == (not open_to_all), operation.name
        for client in clients.values():
            await client.aclose()
