"""`lsmfs import`: what a person types, rightly and wrongly, and how it goes on after Ctrl-C."""

import json
import os
import signal
import time
import uuid
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.parquet
import pytest

from lsmfs.imports import work
from lsmfs.imports.source import Batch
from tests.cli.conftest import empty, lake
from tests.cli.support import WAIT_SECONDS_MAX, Lake
from tests.servers.bucket import s3_client
from tests.servers.seaweedfs import shared_s3

__all__ = ["empty", "lake"]  # fixtures


def photos(lake: Lake, *names: str) -> str:
    """A folder with a file at each name; its body is the name."""
    for name in names or ("a", "may/b", "may/c d"):
        path = lake.folder / "photos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return str(lake.folder / "photos")


def manifest(lake: Lake, count: int, name: str = "m.parquet") -> str:
    keys = pa.array([f"k{number:07}" for number in range(count)])
    columns = {"key": keys, "address": keys, "size": pa.repeat(7, count)}
    path = str(lake.folder / name)
    pyarrow.parquet.write_table(pa.table(columns), path)
    return path


def test_a_folder_is_imported_as_one_unit_and_read_from_where_it_is(lake: Lake) -> None:
    folder = photos(lake)
    before = lake.json("status", "lake/main")["version"]
    document = lake.json("import", folder, "lsmfs://lake/main/p/")
    assert (document["objects"], document["size_bytes"], document["resumed"]) == (3, 13, False)
    assert (document["prefix"], document["commit"], document["skipped"]) == ("p/", None, {})
    assert lake.json("status", "lake/main")["version"] == before + 1
    assert lake.keys() == ["p/a", "p/may/b", "p/may/c d"]
    assert lake("get", "lake/main/p/may/c d").out == "may/c d"
    assert not list((lake.data / "objects" / "lake").glob("data/*")), "a byte was copied"


def test_what_is_imported_is_told_in_words(lake: Lake) -> None:
    folder = photos(lake)
    os.symlink("a", f"{folder}/link")
    result = lake("import", folder, "lake/main")
    assert result.out == "imported 3 objects, 13 B, on lake/main as one unit\n"
    assert result.err == "warning: left out: 1 symbolic links, such as link\n"


def test_a_manifest_is_imported(lake: Lake) -> None:
    assert lake.json("import", manifest(lake, 100_000), "lake/main/m")["objects"] == 100_000
    assert lake.json("status", "lake/main")["l1_tables"] == 1
    assert lake.json("stat", "lake/main/m/k0099999")["size_bytes"] == 7


def test_a_dry_run_counts_and_writes_nothing(lake: Lake) -> None:
    folder = photos(lake)
    result = lake("import", folder, "lake/main", "--dry-run")
    assert (result.code, result.out) == (0, "would import 3 objects, 13 B, nothing is written\n")
    document = lake.json("import", folder, "lake/main", "--dry-run")
    assert (document["objects"], document["size_bytes"], document["skipped"]) == (3, 13, {})
    assert lake.keys() == []
    assert lake("import", "--list").err == "no unfinished imports\n"


def test_an_import_may_be_committed_at_once(lake: Lake) -> None:
    folder = photos(lake)
    commit = lake.json("import", folder, "lake/main", "--commit", "-m", "photos of May")["commit"]
    assert lake.json("log", "lake/main", "-n", "1")["id"] == commit
    assert lake.json("log", "lake/main", "-n", "1")["message"] == "photos of May"
    assert lake.json("import", folder, "lake/main", "-m", "again")["commit"] is None  # nothing has changed
    photos(lake, "new")
    assert lake.json("import", folder, "lake/main", "--commit")["commit"]
    assert lake.json("log", "lake/main", "-n", "1")["message"] == f"Import file://{folder}"


def test_the_same_import_again_takes_what_is_new_unless_it_is_meant_once(lake: Lake) -> None:
    folder = photos(lake)
    assert lake.json("import", folder, "lake/main")["objects"] == 3
    photos(lake, "new")
    assert lake.json("import", folder, "lake/main", "--once")["objects"] == 3
    assert lake.json("import", folder, "lake/main")["objects"] == 4
    assert lake.keys("n") == ["new"]


@pytest.mark.xdist_group("s3")
def test_a_bucket_with_an_endpoint_of_its_own_is_imported_and_read(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    address = shared_s3().below(uuid.uuid4().hex)
    client = s3_client(address)
    for name in ("a/b", "a-b", "c?d"):
        client.put_object(Bucket=address.bucket, Key=address.prefix + name, Body=name.encode())
    for name, value in address.environment.items():
        monkeypatch.setenv(name, value)
    assert lake.json("import", address.url, "lake/main/raw")["objects"] == 3
    assert lake.keys() == ["raw/a-b", "raw/a/b", "raw/c?d"]
    assert lake("get", "lake/main/raw/c?d").out == "c?d"
    client.delete_object(Bucket=address.bucket, Key=address.prefix + "a/b")
    assert "which the entry refers to, does not exist" in lake("get", "lake/main/raw/a/b").told
    missing = urlsplit(address.url)._replace(path="/none").geturl()
    lake.check_mistakes([(["import", missing, "lake/main"], 3, "there is nothing below")])


# Going on


def interrupted(lake: Lake, *more: str) -> str:
    """An import that Ctrl-C ends; its id."""
    process = lake.start("import", manifest(lake, 3_000_000), "lake/main/big", *more)
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    ranges = lake.data / "objects" / "lake" / "ranges"
    while time.monotonic() < deadline and process.poll() is None:
        if ranges.is_dir() and len(list(ranges.iterdir())) > 4:
            break
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    result = lake.finish(process)
    assert result.code == 130, result
    assert result.err.endswith("error: interrupted; what was acknowledged is safe\n"), result.err
    (hint,) = [line for line in result.err.splitlines() if "to go on:" in line]
    return hint.partition("--resume ")[2]


def test_ctrl_c_says_how_to_go_on_and_the_import_goes_on_where_it_was(lake: Lake) -> None:
    identity, _, rest = interrupted(lake, "-m", "all of it").partition(" ")
    assert rest == f"-m 'all of it' --data {lake.data}"
    assert lake.keys() == []
    (state,) = lake("import", "--list", "--json").lines
    assert (state["id"], state["branch"], state["prefix"]) == (identity, "main", "big/")
    assert 0 < state["objects"] < 3_000_000
    assert identity in lake("import", "--list", "lake").out
    document = lake.json("import", "--resume", identity, "-m", "all of it")
    assert (document["objects"], document["resumed"]) == (3_000_000, True)
    assert lake.json("log", "lake/main", "-n", "1")["id"] == document["commit"]
    again = lake.json("import", "--resume", identity)
    assert (again["objects"], again["commit"]) == (3_000_000, None)
    assert lake.json("status", "lake/main")["l1_tables"] == 0  # it was not published again
    assert lake("import", "--list", "--json").out == ""


def test_an_interrupted_import_is_forgotten_when_it_is_cancelled(lake: Lake) -> None:
    identity = interrupted(lake).partition(" ")[0]
    assert lake.json("import", "--cancel", identity) == {"id": identity, "repository": "lake", "published": False}
    assert lake("import", "--list").err == "no unfinished imports\n"
    lake.check_mistakes([(["import", "--cancel", identity], 3, "no unfinished import")])


def test_the_same_command_goes_on_with_what_was_interrupted(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    listing = manifest(lake, 200_000)
    monkeypatch.setattr(work, "SAVE_SECONDS", 0.0)
    take, batches = work.Work.take, 0

    async def breaks(self: work.Work, batch: Batch) -> work.Progress:
        nonlocal batches
        batches += 1
        if batches == 3:
            raise KeyboardInterrupt
        return await take(self, batch)

    with monkeypatch.context() as patch:
        patch.setattr(work.Work, "take", breaks)
        assert lake("import", listing, "lake/main").code == 130
    result = lake("import", listing, "lake/main")
    assert (result.code, result.out) == (0, "imported 200,000 objects, 1.3 MiB, on lake/main as one unit\n")
    assert "going on with import" in result.err


# Mistakes


def test_what_a_tired_person_types_is_answered_in_one_line(lake: Lake) -> None:
    folder = photos(lake)
    lake.put("x")
    lake.commit("first")
    assert lake("tag", "create", "lsmfs://lake/v1", "main").code == 0
    (lake.folder / "void").mkdir()
    void, data = str(lake.folder / "void"), str(lake.data)
    text = lake.file("notes.txt", "no listing")
    twice = lake.file("twice.csv", "key,address,size\nb,s3://x/b,1\na,s3://x/a,1\nb,s3://x/b,1\n")
    columns = lake.file("columns.csv", "file,address,size\na,s3://x/a,1\n")
    lake.check_mistakes(
        [
            (["import"], 2, "say what to import, and where to"),
            (["import", folder], 2, "say what to import, and where to"),
            (["import", "lsmfs://lake/main/p/", folder], 2, f"the source comes first: lsmfs import {folder} lsmfs://"),
            (["import", folder, "lake/mian"], 3, "did you mean 'main'?"),
            (["import", folder, "laek/main"], 3, "did you mean 'lake'?"),
            (["import", folder, "lake/v1"], 2, "a commit cannot be written to"),
            (["import", folder, "lake/main~1"], 2, "a commit cannot be written to"),
            (["import", folder, "s3://lake/main"], 2, "has the scheme s3://"),
            (["import", f"{folder}/none", "lake/main"], 3, "does not exist"),
            (["import", void, "lake/main"], 3, "holds no files"),
            (["import", text, "lake/main"], 2, "is a single file"),
            (["import", "s3:/bucket", "lake/main"], 2, "misspelt scheme"),
            (["import", "az://container", "lake/main"], 2, "needs an account"),
            (["import", str(lake.folder), "lake/main"], 2, "own storage"),
            (["import", data, "lake/main"], 2, "own storage"),
            (["import", f"{data}/objects/lake", "lake/main"], 2, "own storage"),
            (["import", twice, "lake/main"], 2, "twice.csv: 1 keys are there more than once, such as 'b'"),
            (["import", columns, "lake/main"], 2, "columns.csv: unknown columns file"),
            (["import", "--resume", "abc"], 3, "no unfinished import 'abc': there is none"),
            (["import", "--cancel", "abc"], 3, "no unfinished import 'abc': there is none"),
            (["import", "--resume", "abc", folder], 2, "give its id alone"),
            (["import", "--list", "--cancel", "abc"], 2, "exclude each other"),
            (["import", "--list", "nolake"], 3, "'nolake' does not exist"),
        ]
    )
    assert lake.keys() == ["x"]
    assert lake("import", "--list", "--json").out == ""


def test_missing_credentials_are_named(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:1")  # this machine has no identity of its own
    result = lake("import", "s3://some-bucket/raw", "lake/main")
    assert (result.code, "AWS_ACCESS_KEY_ID" in result.told) == (6, True)


def test_progress_without_a_terminal_is_a_line_now_and_then(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lsmfs.cli.import_progress.FIRST_LINE_SECONDS", 0.0)
    result = lake("import", manifest(lake, 200_000), "lake/main")
    assert result.code == 0
    first = result.err.splitlines()[0]
    assert first.startswith("reading: 65,536 of 200,000 objects, 448.0 KiB, "), first
    assert json.loads(lake("import", manifest(lake, 10), "lake/main", "--json").out)["objects"] == 10
