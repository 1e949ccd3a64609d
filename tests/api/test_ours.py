"""What lakeFS has no operation for, and the settings, users, groups and policies."""

from pathlib import Path
from typing import Any

import pytest

from lsmfs.api.samples import create_sample, sample_files
from lsmfs.auth.permissions import read_repo
from tests.aio import aio
from tests.api.support import R, branch, commit, lake_with_repository, paths, put

MAIN = f"{R}/branches/main"


@aio
async def test_staged_changes_are_stashed_listed_popped_and_dropped(tmp_path: Path) -> None:
    async with lake_with_repository(tmp_path) as (_, client):
        await put(client, "a")
        made = await client.post(f"{MAIN}/stash", json={"message": "later"})
        assert made.status_code == 201, made.text
        assert paths(await client.get(f"{R}/refs/main/objects/ls")) == []
        listed = (await client.get(f"{MAIN}/stash")).json()["results"]
        assert [(each["id"], each["message"]) for each in listed] == [(made.json()["id"], "later")]
        assert (await client.post(f"{MAIN}/stash/pop")).status_code == 200
        assert paths(await client.get(f"{R}/refs/main/objects/ls")) == ["a"]
        again = (await client.post(f"{MAIN}/stash")).json()["id"]
        assert (await client.delete(f"{MAIN}/stash/{again}")).status_code == 204
        assert (await client.delete(f"{MAIN}/stash/{again}")).status_code == 404
        assert (await client.delete(f"{MAIN}/stash/x")).status_code == 404
        assert (await client.post(f"{MAIN}/stash/pop")).status_code == 404


@aio
async def test_bytes_are_appended_small_and_large(tmp_path: Path) -> None:
    async with lake_with_repository(tmp_path) as (_, client):
        large = b"x" * (9 * 1024 * 1024)
        for piece, size in ((b"one", 3), (b"two", 6), (large, 6 + len(large))):
            answer = await client.post(f"{MAIN}/objects/append?path=log", content=piece)
            assert (answer.status_code, answer.json()["size_bytes"]) == (201, size), answer.text
        got = await client.get(f"{R}/refs/main/objects?path=log")
        assert got.content == b"onetwo" + large
        assert (await client.post(f"{MAIN}/objects/append?path=log", content=b"")).status_code == 400


@aio
async def test_a_deleted_branch_comes_back(tmp_path: Path) -> None:
    async with lake_with_repository(tmp_path) as (_, client):
        await branch(client, "dev")
        await put(client, "a", branch="dev")
        await client.delete(f"{R}/branches/dev")
        gone = (await client.get(f"{R}/deleted_branches")).json()["results"]
        assert [each["id"] for each in gone] == ["dev"]
        assert (await client.post(f"{R}/branches/dev/restore")).status_code == 201
        assert paths(await client.get(f"{R}/refs/dev/objects/ls")) == ["a"]
        assert (await client.post(f"{R}/branches/dev/restore")).status_code == 404


@aio
async def test_a_branch_that_was_made_again_under_its_name_can_be_written_at_once(tmp_path: Path) -> None:
    async with lake_with_repository(tmp_path) as (_, client):
        for _round in range(3):
            await branch(client, "dev")
            await put(client, "a", branch="dev")
            assert (await client.delete(f"{R}/branches/dev")).status_code == 204


@aio
async def test_a_repository_that_was_made_again_under_its_name_is_another_one(tmp_path: Path) -> None:
    async with lake_with_repository(tmp_path) as (_, client):
        await put(client, "a")
        assert (await client.delete(R)).status_code == 204
        assert (await client.get(R)).status_code == 404
        await client.post("/repositories", json={"name": "lake", "storage_namespace": ""})
        assert paths(await client.get(f"{R}/refs/main/objects/ls")) == []
        await put(client, "b")


@aio
async def test_a_merge_is_previewed_and_hinted(tmp_path: Path) -> None:
    async with lake_with_repository(tmp_path) as (_, client):
        await branch(client, "dev")
        await put(client, "a", b"12", "dev")
        await commit(client, branch="dev")
        merge = f"{R}/refs/dev/merge/main"
        counts = (await client.get(f"{merge}/preview")).json()
        assert counts == {"added": 1, "removed": 0, "changed": 0, "bytes_before": 0, "bytes_after": 2}
        hint = (await client.post(f"{merge}/hint")).json()["hint"]
        assert (await client.post(merge, json={"hint": hint + "x"})).status_code == 400
        assert (await client.post(merge, json={"hint": hint})).status_code == 200
        assert (await client.post(merge, json={"allow_empty": True})).status_code == 200


@aio
async def test_parts_of_what_is_staged_are_reset(tmp_path: Path) -> None:
    async with lake_with_repository(tmp_path) as (_, client):
        for name in ("a", "b/1", "b/2", "c"):
            await put(client, name)
        await client.put(MAIN, json={"type": "object", "path": "a"})
        await client.put(MAIN, json={"type": "common_prefix", "path": "b/"})
        assert paths(await client.get(f"{R}/refs/main/objects/ls")) == ["c"]
        assert (await client.put(MAIN, json={"type": "object"})).status_code == 400
        assert (await client.put(MAIN, json={"type": "all"})).status_code == 400
        assert (await client.put(f"{R}/branches/none", json={"type": "reset"})).status_code == 404


@aio
async def test_protection_is_set_as_a_whole_and_only_by_those_who_know_it(tmp_path: Path) -> None:
    async with lake_with_repository(tmp_path) as (_, client):
        url = f"{R}/settings/branch_protection"
        seen = (await client.get(url)).headers["etag"]
        rules = [{"pattern": "main"}, {"pattern": "release-*"}]
        assert (await client.put(url, json=rules, headers={"if-match": seen})).status_code == 204
        assert (await client.get(url)).json() == rules
        assert (await client.put(url, json=[], headers={"if-match": seen})).status_code == 412
        one = {"pattern": "main"}
        assert (await client.request("DELETE", f"{R}/branch_protection", json=one)).status_code == 204
        assert (await client.request("DELETE", f"{R}/branch_protection", json=one)).status_code == 404
        assert (await client.put(url, json=[{"pattern": ""}])).status_code == 400


@aio
async def test_what_is_not_built_says_so(tmp_path: Path) -> None:
    async with lake_with_repository(tmp_path) as (_, client):
        assert (await client.get(f"{R}/settings/gc_rules")).status_code == 404
        assert (await client.put(f"{R}/settings/gc_rules", json={})).status_code == 501
        assert (await client.put(f"{R}/refs/dump")).status_code == 501
        assert (await client.get(f"{R}/actions/runs")).json()["results"] == []
        assert (await client.get(f"{R}/actions/runs/x")).status_code == 404


@aio
async def test_repositories_are_listed_to_those_who_may_read_them(tmp_path: Path) -> None:
    async with lake_with_repository(tmp_path) as (there, client):
        for name in ("other", "third"):
            await client.post("/repositories", json={"name": name, "storage_namespace": ""})
        page = (await client.get("/repositories?amount=2")).json()
        assert [each["id"] for each in page["results"]] == ["lake", "other"]
        assert page["pagination"]["next_offset"] == "other"
        assert [each["id"] for each in (await client.get("/repositories?after=other")).json()["results"]] == ["third"]
        assert [each["id"] for each in (await client.get("/repositories?search=the")).json()["results"]] == ["other"]
        await there.authority.directory.create_role("some", [read_repo("t*")])
        pair = await there.user("ann", None)
        await there.authority.directory.attach_role_to_user("some", "ann")
        async with there.client(pair) as ann:
            assert [each["id"] for each in (await ann.get("/repositories")).json()["results"]] == ["third"]


@aio
async def test_metadata_of_a_repository_is_set_and_taken_away(tmp_path: Path) -> None:
    async with lake_with_repository(tmp_path) as (_, client):
        url = f"{R}/metadata"
        assert (await client.post(url, json={"metadata": {"a": "1", "b": "2"}})).status_code == 201
        assert (await client.request("DELETE", url, json={"keys": ["a"]})).status_code == 204
        assert (await client.get(url)).json() == {"b": "2"}
        assert (await client.post(url, json={"metadata": {"x": "y" * 70_000}})).status_code == 400


@aio
async def test_metadata_of_an_object_is_replaced(tmp_path: Path) -> None:
    async with lake_with_repository(tmp_path) as (_, client):
        before = await put(client, "a", b"body")
        url = f"{MAIN}/objects/stat/user_metadata?path=a"
        assert (await client.put(url, json={"set": {"k": "v"}})).status_code == 201
        after = (await client.get(f"{R}/refs/main/objects/stat?path=a")).json()
        assert (after["metadata"], after["checksum"]) == ({"k": "v"}, before["checksum"])


@aio
async def test_users_groups_policies_and_keys_are_managed(tmp_path: Path) -> None:
    async with lake_with_repository(tmp_path) as (_, client):

        async def done(status: int, method: str, path: str, json: Any = None) -> Any:
            answer = await client.request(method, f"/auth{path}", json=json)
            assert answer.status_code == status, answer.text
            return answer.json() if answer.content else None

        await done(201, "POST", "/users", {"id": "ann"})
        await done(409, "POST", "/users", {"id": "ann"})
        await done(400, "POST", "/users", {"id": "a/b"})
        await done(201, "POST", "/groups", {"id": "team", "description": "us"})
        statement = [{"effect": "allow", "action": ["fs:*"], "resource": "arn:lakefs:fs:::*"}]
        await done(201, "POST", "/policies", {"id": "files", "statement": statement})
        await done(400, "POST", "/policies", {"id": "bad", "statement": [{"effect": "perhaps"}]})
        assert (await done(200, "GET", "/policies/files"))["statement"]
        await done(200, "PUT", "/policies/files", {"id": "files", "statement": statement})
        await done(400, "PUT", "/policies/files", {"id": "other", "statement": statement})
        await done(201, "PUT", "/groups/team/members/ann")
        await done(201, "PUT", "/groups/team/policies/files")
        assert [each["id"] for each in (await done(200, "GET", "/groups/team/members"))["results"]] == ["ann"]
        assert [each["id"] for each in (await done(200, "GET", "/users/ann/groups"))["results"]] == ["team"]
        assert (await done(200, "GET", "/users/ann/policies"))["results"] == []
        effective = (await done(200, "GET", "/users/ann/policies?effective=True"))["results"]
        assert [each["id"] for each in effective] == ["files"]
        key = await done(201, "POST", "/users/ann/credentials")
        shown = (await done(200, "GET", "/users/ann/credentials"))["results"]
        assert [each["access_key_id"] for each in shown] == [key["access_key_id"]]
        assert "secret_access_key" not in shown[0]
        pair = key["access_key_id"], key["secret_access_key"]
        assert (await client.get(R, auth=pair)).status_code == 200
        at = f"/users/ann/credentials/{key['access_key_id']}"
        await done(404, "GET", f"/users/admin/credentials/{key['access_key_id']}")
        await done(404, "DELETE", f"/users/admin/credentials/{key['access_key_id']}")
        await done(204, "PUT", f"{at}/disabled", {"disabled": True})
        assert (await client.get(R, auth=pair)).status_code == 401
        fresh = await done(201, "POST", f"{at}/rotate")
        await done(404, "GET", at)
        assert (await client.get(R, auth=(fresh["access_key_id"], fresh["secret_access_key"]))).status_code == 200
        await done(204, "DELETE", "/groups/team/policies/files")
        await done(204, "DELETE", "/groups/team/members/ann")
        await done(204, "DELETE", "/policies/files")
        await done(204, "DELETE", "/groups/team")
        await done(400, "DELETE", "/users/admin")
        await done(204, "DELETE", "/users/ann")
        await done(404, "GET", "/users/ann")


@aio
@pytest.mark.parametrize("what", ["users", "groups", "policies"])
async def test_lists_of_people_are_paged(tmp_path: Path, what: str) -> None:
    async with lake_with_repository(tmp_path) as (there, client):
        for name in ("x1", "x2", "x3"):
            await there.user(name, None)
        first = (await client.get(f"/auth/{what}?amount=1")).json()
        assert (first["pagination"]["has_more"], len(first["results"])) == (True, 1)
        after = first["pagination"]["next_offset"]
        second = (await client.get(f"/auth/{what}?amount=1&after={after}")).json()
        assert second["results"][0]["id"] > after


@aio
async def test_the_doctor_is_for_administrators_and_finds_nothing_wrong(tmp_path: Path) -> None:
    async with lake_with_repository(tmp_path) as (_, client):
        found = (await client.get("/doctor")).json()["results"]
        assert found
        assert all(each["level"] != "fail" for each in found)


@aio
async def test_sample_data_is_made_once_and_is_the_same_every_time(tmp_path: Path) -> None:
    assert sample_files() == sample_files()
    async with lake_with_repository(tmp_path) as (there, client):
        for _round in range(2):
            await create_sample(there.lake, "lake")
        log = (await client.get(f"{R}/refs/main/commits")).json()["results"]
        assert [each["message"] for each in log] == ["Add sample data", "Repository created"]
        assert set(paths(await client.get(f"{R}/refs/main@/objects/ls"))) == set(sample_files())
