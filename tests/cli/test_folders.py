"""`ls` and `rm`."""

import subprocess

from tests.cli.support import Lake


def test_ls_shows_one_level_by_default(lake: Lake) -> None:
    lake.put("a", "x/b", "x/y/c")
    lines = lake("ls", "lake/main", "--json").lines
    assert [line.get("path") or line.get("prefix") for line in lines] == ["a", "x/"]
    assert [line.get("prefix") for line in lake("ls", "lake/main/x", "--json").lines] == ["x/"]
    text = lake("ls", "lake/main/x/").out.splitlines()
    assert [line.split()[-1] for line in text] == ["x/b", "x/y/"]
    assert lake.keys() == ["a", "x/b", "x/y/c"]


def test_ls_begins_after_a_path_and_ends_at_its_limit(lake: Lake) -> None:
    lake.put("a", "b", "c/1", "d")
    found = lake("ls", "lake/main", "--after", "a", "--limit", "2", "--json").lines
    assert [line.get("path") or line.get("prefix") for line in found] == ["b", "c/"]
    assert lake("ls", "lake/main", "--limit", "0").code == 2


def test_ls_of_nothing_says_so_and_is_no_error(lake: Lake) -> None:
    result = lake("ls", "lake/main/none/")
    assert (result.code, result.out) == (0, "")
    assert "nothing begins with lsmfs://lake/main/none/" in result.err
    assert lake("ls", "lake/main/none/", "--json").err == ""


def test_ls_streams_more_than_a_page(lake: Lake) -> None:
    lines = "".join(f"k{number:05},s3://b/{number},1\n" for number in range(2500))
    assert lake("stage", lake.file("many.csv", "key,address,size\n" + lines), "lake/main").code == 0
    keys = lake.keys()
    assert len(keys) == 2500
    assert keys == sorted(keys)
    assert len(lake("ls", "lake/main", "--limit", "1500", "--json").lines) == 1500


def test_ls_into_a_pipe_whose_reader_goes_ends_quietly(lake: Lake) -> None:
    lines = "".join(f"k{number:05},s3://b/{number},1\n" for number in range(20_000))
    assert lake("stage", lake.file("many.csv", "key,address,size\n" + lines), "lake/main").code == 0
    with lake.start("ls", "lake/main") as process:
        head = subprocess.run(["head", "-1"], stdin=process.stdout, capture_output=True, text=True, check=True)
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == ""
        assert process.wait(30) == 141
    assert head.stdout.split()[-1] == "k00000"


def test_control_characters_in_a_key_do_not_reach_the_terminal(lake: Lake) -> None:
    lake.put("a\x1b[31mred")
    assert "\x1b" not in lake("ls", "lake/main").out
    assert "\x1b" not in lake("stat", "lake/main/a\x1b[31mred").out
    assert lake.keys() == ["a\x1b[31mred"]


def test_rm_removes_objects_and_reports_how_many(lake: Lake) -> None:
    lake.put("a", "b", "c")
    assert lake.json("rm", "lake/main/a", "lake/main/b") == {"repository": "lake", "branch": "main", "removed": 2}
    assert lake.keys() == ["c"]


def test_rm_of_a_path_that_is_not_there_removes_nothing(lake: Lake) -> None:
    lake.put("a", "x/b")
    result = lake("rm", "lake/main/a", "lake/main/none")
    assert result.code == 3
    assert "'none' does not exist" in result.told
    assert "--recursive" in lake("rm", "lake/main/x").told
    assert lake.keys() == ["a", "x/b"]


def test_rm_recursive_removes_a_folder_as_one_unit_and_not_its_neighbours(lake: Lake) -> None:
    lake.put("log", "log/1", "log/2/3", "log-old/4", "logs")
    before = lake.json("status", "lake/main")["version"]
    assert lake("rm", "--recursive", "lsmfs://lake/main/log").out == "removed 3 from lake/main\n"
    assert lake.json("status", "lake/main")["version"] == before + 1
    assert lake.keys() == ["log-old/4", "logs"]


def test_rm_recursive_takes_overlapping_paths(lake: Lake) -> None:
    lake.put("x/1", "x/y/2", "z")
    assert lake.json("rm", "-r", "lake/main/x/", "lake/main/x/y")["removed"] == 2
    assert lake.keys() == ["z"]


def test_rm_of_a_whole_branch_must_be_meant(lake: Lake) -> None:
    lake.put("a", "b/c")
    result = lake("rm", "--recursive", "lake/main")
    assert result.code == 2
    assert "--all" in result.told
    assert lake.json("rm", "--recursive", "--all", "lake/main")["removed"] == 2
    assert lake.keys() == []


def test_rm_recursive_of_nothing_is_an_error(lake: Lake) -> None:
    assert lake("rm", "-r", "lake/main/none").code == 3
    assert lake("rm", "lake/main").code == 2
