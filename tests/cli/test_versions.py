"""`branch`, `tag`, `log` and `show`, and every reading command at any revision."""

import pytest

from lsmfs.cli import history
from tests.cli.support import Lake


@pytest.fixture
def versions(lake: Lake) -> Lake:
    """Three versions of `a` on main, of 1, 2 and 3 bytes, the last one staged; the tag v1 is the first."""
    for body in ("1", "22"):
        lake.put("a", body=body)
        lake.commit(f"version {body}")
    lake.put("a", body="333")
    assert lake("tag", "create", "lake/v1", "main~").code == 0
    return lake


def test_a_branch_is_created_listed_shown_and_deleted(lake: Lake) -> None:
    lake.put("a")
    base = lake.commit("first")
    created = lake.json("branch", "create", "lsmfs://lake/dev")
    assert created == {"repository": "lake", "branch": "dev", "base_commit": base}
    lake.put("b", branch="dev")
    dev, main = lake("branch", "list", "lake", "--json").lines
    assert (dev["repository"], dev["branch"], dev["base_commit"]) == ("lake", "dev", base)
    assert (dev["default"], dev["dirty"], dev["hidden"]) == (False, True, False)
    assert (main["branch"], main["default"], main["dirty"]) == ("main", True, False)
    assert (
        lake("branch", "list", "lake").out == f"{base[:12]}  dev  (changes to commit)\n{base[:12]}  main  (default)\n"
    )
    assert lake("branch", "list", "lake", "--prefix", "d").out.count("\n") == 1
    assert "begins with x" in lake("branch", "list", "lake", "--prefix", "x").err
    assert lake.json("branch", "show", "lake/dev") == lake.json("status", "lake/dev")
    gone = lake("branch", "delete", "lake/dev")
    assert gone.out == f"deleted branch lake/dev, it was at {base}\n"
    assert gone.err == "`lsmfs branch restore lake/dev` brings it back\n"
    assert lake("ls", "lake/dev").code == 3
    assert lake.json("branch", "restore", "lake/dev")["dirty"] is True
    assert lake("get", "lake/dev/b").out == "b"


def test_a_branch_begins_at_any_revision_without_what_is_staged(versions: Lake) -> None:
    lake = versions
    for number, (start, body) in enumerate([("main", "22"), ("main~1", "1"), ("v1", "1"), ("lsmfs://lake/v1", "1")]):
        assert lake("branch", "create", f"lake/b{number}", "--from", start).code == 0
        assert lake("get", f"lake/b{number}/a").out == body
    result = lake("branch", "create", "lake/dev")
    assert "what is staged on lake/main is left out" in result.err


def test_a_branch_begins_at_the_default_branch_whatever_its_name(empty: Lake) -> None:
    assert empty("init", "lake", "--default-branch", "trunk").code == 0
    empty.put("a", branch="trunk")
    empty.commit("first", "trunk")
    assert empty("branch", "create", "lake/dev").code == 0
    assert empty("get", "lake/dev/a").out == "a"


def test_a_tag_is_created_listed_and_deleted(versions: Lake) -> None:
    lake = versions
    first, second = (line["id"] for line in lake("log", "lake/main", "--json").lines[2::-2])
    assert lake.json("tag", "create", "lake/v0", "main~2") == {"repository": "lake", "tag": "v0", "commit": first}
    assert lake("tag", "create", "lake/v0", first[:8]).code == 0  # to do it again changes nothing
    assert lake("tag", "create", "lake/w", f"lake/{second}").out == f"lake/w is {second}\n"
    assert [line["tag"] for line in lake("tag", "list", "lake", "--json").lines] == ["v0", "v1", "w"]
    assert lake("tag", "list", "lake", "--prefix", "w").out == f"{second[:12]}  w\n"
    assert lake("tag", "delete", "lake/v0").out == f"deleted tag lake/v0, it was {first}\n"
    assert [line["tag"] for line in lake("tag", "list", "lake", "--json").lines] == ["v1", "w"]
    assert lake("init", "empty").code == 0
    assert lake("tag", "list", "empty").err == "empty has no tags\n"


def test_every_reading_command_takes_every_form_of_a_revision(versions: Lake) -> None:
    lake = versions
    newest = lake.json("status", "lake/main")["base_commit"]
    forms = {"main": "333", "main@": "22", "main~": "1", "main^": "1", "v1": "1", "main^0": "22"}
    forms |= {newest: "22", newest[:8]: "22", f"{newest[:8]}~1": "1"}
    for form, body in forms.items():
        assert lake("get", f"lsmfs://lake/{form}/a").out == body, form
        assert lake.json("stat", f"lake/{form}/a")["size_bytes"] == len(body), form
        assert [line["size_bytes"] for line in lake("ls", f"lake/{form}", "--json").lines] == [len(body)], form
    assert [line["message"] for line in lake("log", "lake/main", "--json").lines][:2] == ["version 22", "version 1"]
    assert lake("log", "lake/v1", "--json").lines[0]["message"] == "version 1"
    assert len(lake("log", f"lake/{newest[:8]}~1", "--json").lines) == 2


def test_a_commit_is_never_written_to(versions: Lake) -> None:
    lake = versions
    lake.file("l.csv", "key,address,size\na,s3://x/a,5\n")
    newest = lake.json("status", "lake/main")["base_commit"]
    commands = [
        *(["put", "body", "{}/a"], ["rm", "{}/a"], ["rm", "-r", "{}/a/"], ["stage", "l.csv", "{}"], ["status", "{}"]),
        *(["commit", "{}", "-m", "x"], ["branch", "delete", "{}"], ["merge", "lake/main", "{}"]),
    ]
    words = "a commit cannot be written to: name a branch"
    for ref in ("v1", "main~", "main@", newest[:8], newest):
        lake.check_mistakes([([part.format(f"lake/{ref}") for part in command], 2, words) for command in commands])


def test_show_tells_a_commit_and_what_it_changed(lake: Lake) -> None:
    lake.put("a", "b")
    first = lake.commit("first")
    lake.put("c")
    lake.put("a", body="longer")
    assert lake("rm", "lake/main/b").code == 0
    done = lake.json("commit", "lake/main", "-m", "second", "--committer", "me", "--meta", "k=v")
    commit, *changes = lake("show", "lake/main", "--json").lines
    assert (commit["type"], commit["id"], commit["parents"]) == ("commit", done["id"], [first])
    assert (commit["entries"], commit["committer"], commit["metadata"]) == (2, "me", {"k": "v"})
    assert [(line["type"], line["path"]) for line in changes] == [("changed", "a"), ("removed", "b"), ("added", "c")]
    text = lake("show", f"lake/{done['id'][:8]}").out
    assert f"parent     {first}\n" in text
    assert "entries    2\n" in text
    assert text.endswith("    second\n\n~ a  1 -> 6 bytes\n- b  1 bytes\n+ c  1 bytes\n")
    assert lake.json("show", "lake/main~2")["message"] == "Repository created"


def test_show_ends_at_its_limit_and_says_so(lake: Lake) -> None:
    count = history.CHANGES_SHOWN_MAX + 1
    rows = "".join(f"k{number:03},s3://x/{number},5\n" for number in range(count))
    assert lake("stage", lake.file("l.csv", f"key,address,size\n{rows}"), "lake/main").code == 0
    lake.commit("many")
    result = lake("show", "lake/main")
    assert result.out.count("\n+ ") == history.CHANGES_SHOWN_MAX
    assert "say --all" in result.err
    everything = lake("show", "lake/main", "--all", "--json")
    assert (len(everything.lines), everything.err) == (count + 1, "")


MISTAKES = [
    (["branch", "create", "lake/main"], 4, "'main' exists already"),
    (["branch", "create", "lake/a~1"], 2, "is no branch name"),
    (["branch", "create", "lake/dev/path"], 2, "names an object, and a branch is wanted"),
    (["branch", "create", "dev"], 2, "names no branch"),
    (["branch", "create", "lake/dev", "--from", "mian"], 3, "did you mean 'main'?"),
    (["branch", "create", "lake/dev", "--from", "pond/main"], 2, "in two repositories"),
    (["branch", "delete", "lake/main"], 6, "the default branch"),
    (["branch", "delete", "lake/mian"], 3, "did you mean 'main'?"),
    (["branch", "list", "lake/main"], 2, "names more than a repository: say lake"),
    (["branch", "list", "leak"], 3, "did you mean 'lake'?"),
    (["branch", "lst", "lake"], 2, "See `lsmfs branch --help`"),
    (["branch", "list", "lake", "--prefix", "\udcff"], 2, "is not UTF-8"),
    (["tag", "create", "lake/v1", "main"], 4, "tag already exists"),
    (["tag", "create", "lake/v 2", "main"], 2, "'v 2' is no tag name"),
    (["tag", "delete", "lake/v~2"], 2, "'v~2' is no tag name"),
    (["tag", "create", "lake/v2"], 2, "Missing argument"),
    (["tag", "create", "lake/v2", "none"], 3, "there is main, v1"),
    (["tag", "delete", "lake/v2"], 3, "there is v1"),
    (["get", "lake/mian/a"], 3, "no branch, tag or commit 'mian': did you mean 'main'?"),
    (["get", "lake/mian~2/a"], 3, "did you mean 'main'?"),
    (["get", "lake/main~9/a"], 3, "the first of its history"),
    (["get", "lake/main^2/a"], 3, "there is no parent 2"),
    (["get", "lake/main~/none"], 3, "'none' does not exist on 'main~'"),
    (["get", "lake/v1"], 2, "names no object"),
    (["ls", "lake/" + "0" * 64], 3, "no branch, tag or commit"),
    (["ls", "lake/main~x"], 2, "is no revision"),
    (["log", "lake/v1/a"], 2, "a revision is wanted"),
    (["log", "lake/abcd"], 2, "several commits: abcd1111"),
    (["show", "lake/nothing"], 3, "there is main, v1"),
    (["show", "lake/main/a"], 2, "a revision is wanted"),
]


def test_a_mistake_is_told_in_one_line(versions: Lake) -> None:
    commits = versions.data / "objects/lake/commits"
    for number in "12":
        (commits / f"abcd{number * 60}.json").write_text("{}")
    versions.check_mistakes(MISTAKES)
