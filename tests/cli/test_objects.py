"""`put`, `get` and `stat`."""

import hashlib
import os
import signal
import stat
import subprocess
import time
from pathlib import Path

import pytest

from tests.cli.support import Lake


def bodies(lake: Lake) -> list[Path]:
    """The stored bodies, by the second route."""
    return list((lake.data / "objects/lake/data").glob("*"))


def test_what_is_put_is_got_and_described(lake: Lake) -> None:
    put = lake.json(
        *("put", lake.file("a", "hello"), "lsmfs://lake/main/x/a", "--content-type", "text/plain", "--meta", "who=me")
    )
    assert put["etag"] == hashlib.md5(b"hello").hexdigest()
    assert lake("get", "lsmfs://lake/main/x/a").out == "hello"
    found = lake.json("stat", "lake/main/x/a")
    assert found == put
    assert (found["size_bytes"], found["content_type"], found["metadata"]) == (5, "text/plain", {"who": "me"})
    text = lake("stat", "lake/main/x/a").out
    assert put["etag"] in text
    assert "text/plain" in text
    assert "meta who" in text


def test_put_takes_the_name_of_the_file_after_a_slash(lake: Lake) -> None:
    assert lake("put", lake.file("day.csv", "1,2"), "lsmfs://lake/main/x/").code == 0
    assert lake("put", lake.file("day.csv", "1,2"), "lsmfs://lake/main").code == 0
    assert lake.keys() == ["day.csv", "x/day.csv"]


def test_put_reads_the_standard_input_of_any_size(lake: Lake) -> None:
    with lake.start("put", "-", "lake/main/a", "--json", stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        for _ in range(20):
            process.stdin.write("x" * 1_000_000)
        result = lake.finish(process)
    assert result.code == 0, result.err
    assert result.document["size_bytes"] == 20_000_000
    target = lake.folder / "got"
    assert lake("get", "lake/main/a", "-o", str(target)).code == 0
    assert target.read_text() == "x" * 20_000_000


def test_put_of_the_standard_input_needs_a_whole_path(lake: Lake) -> None:
    result = lake("put", "-", "lake/main/x/")
    assert result.code == 2
    assert "names no object" in result.told


def test_put_if_absent_is_refused_the_second_time_and_leaves_no_body(lake: Lake) -> None:
    file = lake.file("a", "hello")
    assert lake("put", file, "lake/main/a", "--if-absent").code == 0
    assert len(bodies(lake)) == 1
    result = lake("put", file, "lake/main/a", "--if-absent")
    assert result.code == 5
    assert "exists" in result.told
    assert len(bodies(lake)) == 1


def test_put_if_match_needs_the_etag_that_is_there(lake: Lake) -> None:
    etag = lake.json("put", lake.file("a", "one"), "lake/main/a")["etag"]
    assert lake("put", lake.file("a", "two"), "lake/main/a", "--if-match", "0" * 32).code == 5
    assert lake("put", lake.file("a", "two"), "lake/main/a", "--if-match", etag).code == 0
    assert lake("get", "lake/main/a").out == "two"


MISTAKES = [
    (["put", "missing", "lake/main/a"], 3, "missing does not exist"),
    (["put", ".", "lake/main/a"], 2, ". is a directory"),
    (["put", "lsmfs://lake/main/a", "body"], 2, "the file comes first: lsmfs put body lsmfs://lake/main/a"),
    (["put", "body", "body"], 2, "names no branch"),
    (["put", "body", "s3://bucket/key"], 2, "has the scheme s3://"),
    (["put", "body", "lsmfs:/lake/main/a"], 2, "misspelt scheme"),
    (["put", "body", "lake/main/" + "k" * 1025], 2, "at most 1024"),
    (["put", "body", "lake/main/a", "--meta", "novalue"], 2, "'novalue' is no key=value"),
    (["put", "body", "lake/main/a", "--meta", "a=1", "--meta", "a=2"], 2, "given twice"),
    (["put", "body", "lake/main/a", "--if-absent", "--if-match", "x"], 2, "exclude each other"),
    (["put", "body", "leak/main/a"], 3, "did you mean 'lake'?"),
    (["put", "body", "lake/mian/a"], 3, "did you mean 'main'?"),
    (["put", "body", "other-name/main/a"], 3, "there is lake"),
    (["put", "body"], 2, "Missing argument"),
    (["get", "lake/main/missing"], 3, "'missing' does not exist on 'main'"),
    (["get", "lake/main/folder"], 3, "lsmfs ls lsmfs://lake/main/folder/"),
    (["get", "lake/main"], 2, "names no object"),
    (["get", "lake/main/folder/a", "-o", "."], 2, "is a directory"),
    (["get", "lake/main/folder/a", "-o", "none/a"], 3, "there is no folder"),
    (["get", "lake/main/folder/a", "-o", "lsmfs://lake/main/b"], 2, "is no file"),
    (["get", "lake/main/folder/a", "--json"], 2, "--json needs --output"),
    (["stat", "lake/main/missing"], 3, "does not exist"),
]


def test_a_mistake_is_told_in_one_line_and_stores_nothing(lake: Lake) -> None:
    lake.put("folder/a")
    stored = len(bodies(lake))
    lake.check_mistakes(MISTAKES)
    assert len(bodies(lake)) == stored


def test_get_writes_a_file_of_the_usual_rights_and_keeps_those_of_an_existing_one(lake: Lake) -> None:
    lake.put("a")
    target = lake.folder / "got"
    got = lake.json("get", "lake/main/a", "-o", str(target))
    assert (got["file"], target.read_text()) == (str(target), "a")
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE(target.stat().st_mode) == 0o666 & ~mask
    target.chmod(0o640)
    assert lake("get", "lake/main/a", "-o", str(target)).code == 0
    assert stat.S_IMODE(target.stat().st_mode) == 0o640


def test_get_that_fails_leaves_the_file_as_it_was_and_nothing_beside_it(lake: Lake) -> None:
    lake.put("a")
    (body,) = bodies(lake)
    body.write_bytes(b"b")
    folder = lake.folder / "out"
    folder.mkdir()
    (folder / "got").write_text("before")
    result = lake("get", "lake/main/a", "-o", str(folder / "got"))
    assert result.code == 8
    assert "SHA256" in result.told
    assert [(path.name, path.read_text()) for path in folder.iterdir()] == [("got", "before")]


def test_get_writes_through_a_link_and_into_a_device(lake: Lake) -> None:
    lake.put("a")
    (lake.folder / "link").symlink_to(lake.folder / "got")
    assert lake("get", "lake/main/a", "-o", str(lake.folder / "link")).code == 0
    assert (lake.folder / "link").is_symlink()
    assert (lake.folder / "got").read_text() == "a"
    assert lake("get", "lake/main/a", "-o", os.devnull).code == 0
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full on this system")
def test_a_full_disk_is_told_and_not_called_a_bug(lake: Lake) -> None:
    lake.put("a")
    assert "the disk is full" in lake("get", "lake/main/a", "-o", "/dev/full").told
    with open("/dev/full", "wb") as full, lake.start("get", "lake/main/a", stdout=full) as process:
        result = lake.finish(process)
    assert result.code == 7
    assert result.err == "error: the output: the disk is full: free some space, then try again\n"


def test_an_empty_object_is_an_object(lake: Lake) -> None:
    assert lake("put", lake.file("a", ""), "lake/main/a").code == 0
    target = lake.folder / "got"
    assert lake("get", "lake/main/a", "-o", str(target)).code == 0
    assert target.read_bytes() == b""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_put_that_waits_for_its_input_can_be_interrupted(lake: Lake, number: int, code: int) -> None:
    with lake.start("--debug", "put", "-", "lake/main/a", stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        process.stdin.write("x" * 100_000)
        process.stdin.flush()  # returns when half of it is read: a pipe holds 64 KiB
        time.sleep(0.2)
        process.send_signal(number)
        assert process.wait(10) == code
    assert lake.keys() == []
