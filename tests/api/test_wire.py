"""What goes wrong on the wire: each item that clients of lakeFS depend on."""

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.aio import aio
from tests.api.support import R, branch, commit, lake_with_repository, paths, put, world

OBJECTS = f"{R}/branches/main/objects"


async def _chunks(*pieces: bytes) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


@aio
async def test_a_raw_chunked_body_without_a_length_is_taken_as_it_is(tmp_path: Path) -> None:
    async with lake_with_repository(tmp_path) as (_, client):
        headers = {"content-type": "text/x-thing", "x-lakefs-meta-Colour": "red"}
        answer = await client.post(OBJECTS, params={"path": "a"}, content=_chunks(b"on", b"e"), headers=headers)
        assert answer.status_code == 201
        assert "content-length" not in answer.request.headers
        stats = answer.json()
        assert (stats["size_bytes"], stats["content_type"], stats["metadata"]) == (3, "text/x-thing", {"colour": "red"})
        assert (stats["path"], stats["path_type"]) == ("a", "object")
        got = await client.get(f"{R}/refs/main/objects", params={"path": "a"})
        assert (got.content, got.headers["content-type"]) == (b"one", "text/x-thing")


@aio
@pytest.mark.parametrize("body", [b"", b"some bytes\r\n--x\r\n", b"\0" * 3_000_000], ids=["empty", "tricky", "large"])
async def test_a_form_with_the_part_content_is_the_same_upload(tmp_path: Path, body: bytes) -> None:
    async with lake_with_repository(tmp_path) as (_, client):
        form = {"content": ("name", body, "text/plain")}
        answer = await client.post(OBJECTS, params={"path": "a"}, files={"other": b"no", **form})
        assert answer.status_code == 201, answer.text
        assert answer.json()["content_type"] == "text/plain"
        assert (await client.get(f"{R}/refs/main/objects", params={"path": "a"})).content == body


@aio
async def test_an_empty_raw_body_is_an_empty_object(tmp_path: Path) -> None:
    async with lake_with_repository(tmp_path) as (_, client):
        assert (await put(client, "a", b""))["size_bytes"] == 0
        got = await client.get(f"{R}/refs/main/objects", params={"path": "a"})
        assert (got.status_code, got.content, got.headers["content-length"]) == (200, b"", "0")


@aio
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"--b\r\n",
        b"no form at all",
        b'--b\r\nContent-Disposition: form-data; name="content"\r\n\r\ncut off',
        b'--b\r\nContent-Disposition: form-data; name="other"\r\n\r\nx\r\n--b--\r\n',
        b"--b\r\n" + b"x" * 20_000 + b": y\r\n\r\n\r\n--b--\r\n",
        b'--b\r\nContent-Disposition: form-data; name="content"\r\n\r\nx\r\n' * 2 + b"--b--\r\n",
    ],
)
async def test_a_broken_form_is_refused_and_leaves_nothing(tmp_path: Path, body: bytes) -> None:
    async with lake_with_repository(tmp_path) as (_, client):
        headers = {"content-type": "multipart/form-data; boundary=b"}
        answer = await client.post(OBJECTS, params={"path": "a"}, content=body, headers=headers)
        assert answer.status_code == 400
        assert answer.json()["message"]
        assert paths(await client.get(f"{R}/refs/main/objects/ls")) == []


@aio
@pytest.mark.parametrize("true", ["True", "true"])
async def test_booleans_come_in_two_spellings(tmp_path: Path, true: str) -> None:
    async with lake_with_repository(tmp_path) as (_, client):
        await client.post(f"{R}/branches", json={"name": "tx-1", "source": "main", "hidden": True})
        plain = await client.get(f"{R}/branches")
        assert [each["id"] for each in plain.json()["results"]] == ["main"]
        shown = await client.get(f"{R}/branches?show_hidden={true}")
        assert [each["id"] for each in shown.json()["results"]] == ["main", "tx-1"]


@aio
async def test_a_plus_in_a_query_is_a_space_and_slashes_come_escaped_or_not(tmp_path: Path) -> None:
    async with lake_with_repository(tmp_path) as (_, client):
        for query in ("path=a%2Fb+c.txt", "path=a/b%20c.txt"):
            assert (await client.post(f"{OBJECTS}?{query}", content=b"x")).status_code == 201
        assert paths(await client.get(f"{R}/refs/main/objects/ls")) == ["a/b c.txt"]


@aio
async def test_a_new_branch_is_answered_with_a_bare_commit_id_and_a_second_one_is_409(tmp_path: Path) -> None:
    async with lake_with_repository(tmp_path) as (_, client):
        assert re.fullmatch(r"[0-9a-f]{64}", await branch(client, "dev"))
        again = await client.post(f"{R}/branches", json={"name": "dev", "source": "main"})
        assert again.status_code == 409
        assert "already exists" in again.json()["message"]


@aio
async def test_a_commit_is_found_by_any_ref(tmp_path: Path) -> None:
    async with lake_with_repository(tmp_path) as (_, client):
        await put(client, "a")
        made = await commit(client)
        await client.post(f"{R}/tags", json={"id": "v1", "ref": "main"})
        for ref in ("main", "v1", made["id"], made["id"][:12], "main@", "main~0", "main^0"):
            found = await client.get(f"{R}/commits/{ref}")
            assert found.json()["id"] == made["id"], ref


@aio
async def test_success_has_the_codes_that_clients_expect(tmp_path: Path) -> None:
    async with lake_with_repository(tmp_path) as (_, client):
        await put(client, "a")
        first = await commit(client)
        await branch(client, "dev")
        await put(client, "b", branch="dev")
        second = await commit(client, branch="dev")
        merged = await client.post(f"{R}/refs/dev/merge/main")
        assert merged.status_code == 200
        assert set(merged.json()) == {"reference"}
        base = await client.get(f"{R}/refs/dev/merge/main")
        assert base.json() == {
            "source_commit_id": second["id"],
            "destination_commit_id": merged.json()["reference"],
            "base_commit_id": second["id"],
        }
        await branch(client, "old", first["id"])
        picked = await client.post(f"{R}/branches/old/cherry-pick", json={"ref": second["id"]})
        assert (picked.status_code, picked.json()["message"]) == (201, "some")
        revert = {"ref": second["id"], "parent_number": 0}
        assert (await client.post(f"{R}/branches/old/revert", json=revert)).status_code == 204
        assert (await client.put(f"{R}/branches/old", json={"type": "reset"})).status_code == 204
        assert (await client.put(f"{R}/branches/old/hard_reset?ref={first['id']}")).status_code == 204
        copied = await client.post(f"{OBJECTS}/copy?dest_path=c", json={"src_path": "a", "src_ref": "dev"})
        assert copied.status_code == 201
        deleted = await client.post(f"{OBJECTS}/delete", json={"paths": ["c", "nothing"]})
        assert (deleted.status_code, deleted.json()) == (200, {"errors": []})
        assert (await client.delete(OBJECTS, params={"path": "a"})).status_code == 204
        assert (await client.post(f"{R}/tags", json={"id": "v1", "ref": "main"})).status_code == 201
        assert (await client.delete(f"{R}/tags/v1")).status_code == 204
        assert (await client.delete(f"{R}/branches/dev")).status_code == 204
        assert (await client.post("/statistics", json={"events": []})).status_code == 204
        assert (await client.delete(R)).status_code == 204


@aio
async def test_errors_have_the_codes_and_words_that_clients_match(tmp_path: Path) -> None:
    async with lake_with_repository(tmp_path) as (_, client):

        async def refused(status: int, words: str, answer: httpx.Response) -> None:
            assert (answer.status_code, words in answer.json()["message"]) == (status, True), answer.text

        await refused(400, "no changes", await client.post(f"{R}/branches/main/commits", json={"message": "m"}))
        await branch(client, "dev")
        await refused(400, "no changes", await client.post(f"{R}/refs/dev/merge/main"))
        await put(client, "a", b"1", "dev")
        await commit(client, branch="dev")
        await put(client, "a", b"2")
        await refused(400, "dirty branch", await client.post(f"{R}/refs/dev/merge/main"))
        await commit(client)
        await refused(409, "Conflict", await client.post(f"{R}/refs/dev/merge/main"))
        await refused(400, "strategy", await client.post(f"{R}/refs/dev/merge/main", json={"strategy": "mine"}))
        assert (await client.post(f"{R}/refs/dev/merge/main", json={"strategy": "dest-wins"})).status_code == 200
        await refused(
            409, "merge", await client.post(f"{R}/branches/main/revert", json={"ref": "main", "parent_number": 0})
        )
        await refused(400, "no revision", await client.get(f"{R}/commits/a:b"))
        await refused(404, "no branch", await client.get(f"{R}/commits/nothing"))
        await client.post(f"{R}/tags", json={"id": "v1", "ref": "main"})
        await refused(409, "tag already exists", await client.post(f"{R}/tags", json={"id": "v1", "ref": "main"}))
        await refused(403, "default branch", await client.delete(f"{R}/branches/main"))
        await refused(404, "does not exist", await client.get("/repositories/nothing"))
        await refused(404, "does not exist", await client.get(f"{R}/refs/main/objects?path=nothing"))
        await refused(404, "does not exist", await client.get(f"{R}/tags/nothing"))
        await refused(400, "empty", await client.post(f"{OBJECTS}?path=", content=b"x"))
        await refused(400, "path", await client.post(OBJECTS, content=b"x"))
        await client.put(f"{R}/settings/branch_protection", json=[{"pattern": "main"}])
        await refused(403, "protected", await client.post(f"{OBJECTS}?path=x", content=b"x"))
        await client.put(f"{R}/settings/read_only", json={"read_only": True})
        await refused(403, "read-only", await client.post(f"{R}/branches", json={"name": "n", "source": "main"}))
        await refused(409, "exists", await client.post("/repositories", json={"name": "lake", "storage_namespace": ""}))


@aio
async def test_pages_go_on_where_the_last_one_ended(tmp_path: Path) -> None:
    async with lake_with_repository(tmp_path) as (_, client):
        for name in ("a", "b/1", "b/2", "c", "d/1"):
            await put(client, name)
        found, after = [], ""
        while True:
            answer = await client.get(
                f"{R}/refs/main/objects/ls", params={"amount": 1, "after": after, "delimiter": "/"}
            )
            page = answer.json()
            assert page["pagination"]["results"] == len(page["results"]) == 1
            assert page["pagination"]["max_per_page"] == 1000
            found += [(each["path"], each["path_type"]) for each in page["results"]]
            after = page["pagination"]["next_offset"]
            if not page["pagination"]["has_more"]:
                break
        kinds = {"a": "object", "b/": "common_prefix", "c": "object", "d/": "common_prefix"}
        assert found == list(kinds.items())
        assert after == ""
        for amount, status in ((-1, 200), (0, 200), (1000, 200), (1001, 400), (-2, 400), ("x", 400)):
            assert (await client.get(f"{R}/refs/main/objects/ls?amount={amount}")).status_code == status, amount


@aio
async def test_ranges_give_their_bytes_and_the_size(tmp_path: Path) -> None:
    async with lake_with_repository(tmp_path) as (_, client):
        await put(client, "a", b"0123456789")
        url = f"{R}/refs/main/objects?path=a"
        for given, status, body, told in (
            ("bytes=0-1", 206, b"01", "bytes 0-1/10"),
            ("bytes=8-", 206, b"89", "bytes 8-9/10"),
            ("bytes=-3", 206, b"789", "bytes 7-9/10"),
            ("bytes=5-99", 206, b"56789", "bytes 5-9/10"),
            ("bytes=0-0,5-6", 200, b"0123456789", None),
            ("bytes=6-5", 200, b"0123456789", None),
            ("lines=1-2", 200, b"0123456789", None),
        ):
            got = await client.get(url, headers={"range": given})
            assert (got.status_code, got.content, got.headers.get("content-range")) == (status, body, told), given
            assert got.headers["content-length"] == str(len(body))
            head = await client.head(url, headers={"range": given})
            assert (head.status_code, head.headers["content-length"], head.content) == (status, str(len(body)), b"")
        for given in ("bytes=10-", "bytes=99-100", "bytes=-0", f"bytes={10**18}-"):
            got = await client.get(url, headers={"range": given})
            assert (got.status_code, got.headers["content-range"]) == (416, "bytes */10"), given
        tag = (await client.head(url)).headers["etag"]
        assert (await client.get(url, headers={"if-none-match": tag})).status_code == 304


@aio
async def test_conditions_of_an_upload_hold_or_are_412(tmp_path: Path) -> None:
    async with lake_with_repository(tmp_path) as (_, client):

        async def upload(body: bytes, **headers: str) -> int:
            given = {name.replace("_", "-"): value for name, value in headers.items()}
            return (await client.post(f"{OBJECTS}?path=a", content=body, headers=given)).status_code

        assert await upload(b"1", if_none_match="*") == 201
        assert await upload(b"2", if_none_match="*") == 412
        stats = (await client.get(f"{R}/refs/main/objects/stat?path=a")).json()
        assert await upload(b"3", if_match=f'"{stats["checksum"]}"') == 201
        assert await upload(b"4", if_match=f'"{stats["checksum"]}"') == 412
        assert await upload(b"5", if_none_match='"some"') == 400
        assert (await client.get(f"{R}/refs/main/objects?path=a")).content == b"3"


@aio
async def test_the_first_commit_and_sample_data_are_as_clients_know_them(tmp_path: Path) -> None:
    async with world(tmp_path) as there, there.client() as client:
        given = {"name": "lake", "storage_namespace": "local://x", "sample_data": True}
        assert (await client.post("/repositories", json=given)).status_code == 201
        log = (await client.get(f"{R}/refs/main/commits")).json()["results"]
        assert log[-1]["message"] == "Repository created"
        assert all(re.fullmatch(r"[0-9a-f]{64}", each["id"]) for each in log)
        found = (await client.get(f"{R}/refs/main/objects/ls")).json()["results"]
        sizes = {each["path"]: each["size_bytes"] for each in found}
        assert sizes["lakes.parquet"] > 512 * 1024
        assert {"README.md", "data/notes.txt", "images/waves.png"} <= sizes.keys()
        assert (await client.get(f"{R}/branches/main/diff")).json()["results"] == []


@aio
async def test_revisions_name_what_is_committed_or_only_what_is_staged(tmp_path: Path) -> None:
    async with lake_with_repository(tmp_path) as (_, client):
        await put(client, "a/1", b"1")
        await commit(client)
        await put(client, "a/2", b"2")
        await put(client, "b/3", b"3")
        await client.delete(OBJECTS, params={"path": "a/1"})
        for ref, found in (
            ("main", ["a/2", "b/3"]),
            ("main@", ["a/1"]),
            ("main$", ["a/2", "b/3"]),
            ("main~1", []),
            ("main%5E1", []),
        ):
            assert paths(await client.get(f"{R}/refs/{ref}/objects/ls")) == found, ref
        assert paths(await client.get(f"{R}/refs/main$/objects/ls?delimiter=/&amount=1")) == ["a/"]
        assert paths(await client.get(f"{R}/refs/main$/objects/ls?delimiter=/&after=a/")) == ["b/"]
        assert (await client.get(f"{R}/refs/main$/objects?path=b/3")).content == b"3"
        assert (await client.get(f"{R}/refs/main$/objects?path=a/1")).status_code == 404


@aio
async def test_diffs_have_types_sizes_and_changed_prefixes(tmp_path: Path) -> None:
    async with lake_with_repository(tmp_path) as (_, client):
        for name in ("gone", "other", "x/1"):
            await put(client, name)
        await commit(client)
        await branch(client, "dev")
        await put(client, "new", b"12345", "dev")
        await put(client, "other", b"changed", "dev")
        await put(client, "x/2", b"", "dev")
        await put(client, "x/3", b"", "dev")
        await client.delete(f"{R}/branches/dev/objects", params={"path": "gone"})
        staged = await client.get(f"{R}/branches/dev/diff?delimiter=/")
        lines = [(each["type"], each["path"], each.get("size_bytes")) for each in staged.json()["results"]]
        expected = [
            ("removed", "gone", 1),
            ("added", "new", 5),
            ("changed", "other", 7),
            ("prefix_changed", "x/", None),
        ]
        assert lines == expected
        await commit(client, branch="dev")
        await put(client, "main-only")
        await commit(client)
        two = await client.get(f"{R}/refs/main/diff/dev?type=two_dot&delimiter=/")
        three = await client.get(f"{R}/refs/main/diff/dev?delimiter=/")
        assert [each["path"] for each in two.json()["results"]] == ["gone", "main-only", "new", "other", "x/"]
        assert [each["path"] for each in three.json()["results"]] == ["gone", "new", "other", "x/"]
        page = (await client.get(f"{R}/refs/main/diff/dev?amount=2&after=new")).json()
        assert [each["path"] for each in page["results"]] == ["other", "x/2"]
        assert page["pagination"] == {"has_more": True, "next_offset": "x/2", "results": 2, "max_per_page": 1000}
        right = (await client.get(f"{R}/refs/main/diff/dev?include_right_stats=true&prefix=new")).json()["results"]
        assert right[0]["right"]["checksum"] == "827ccb0eea8a706c4c34a16891f84e7b"


@aio
async def test_the_log_is_paged_and_filtered(tmp_path: Path) -> None:
    async with lake_with_repository(tmp_path) as (_, client):
        for number in range(4):
            await put(client, f"d{number % 2}/f", str(number).encode())
            await commit(client, f"c{number}")

        async def log(**query: Any) -> list[str]:
            found, after = [], ""
            while True:
                answer = await client.get(f"{R}/refs/main/commits", params={**query, "amount": 2, "after": after})
                page = answer.json()
                found += [each["message"] for each in page["results"]]
                after = page["pagination"]["next_offset"]
                if not page["pagination"]["has_more"]:
                    return found

        assert await log() == ["c3", "c2", "c1", "c0", "Repository created"]
        assert await log(first_parent="True") == ["c3", "c2", "c1", "c0", "Repository created"]
        assert await log(prefixes=["d1/"]) == ["c3", "c1"]
        assert await log(objects=["d0/f", "d1/f"]) == ["c3", "c2", "c1", "c0"]
        assert await log(limit="true") == ["c3", "c2"]
        second = (await client.get(f"{R}/commits/main~2")).json()["id"]
        assert await log(stop_at=second) == ["c3", "c2", "c1"]
        assert await log(since="2999-01-01T00:00:00Z") == []
        assert (await client.get(f"{R}/refs/main/commits?since=yesterday")).status_code == 400
