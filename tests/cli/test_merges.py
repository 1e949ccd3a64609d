"""`diff`, `merge`, `cherry-pick` and `revert`."""

import pytest

from tests.cli.support import Lake


@pytest.fixture
def parted(lake: Lake) -> Lake:
    """main has a and b; dev, which began there, has a changed, b removed and c added."""
    lake.put("a", "b")
    lake.commit("first")
    assert lake("branch", "create", "lake/dev").code == 0
    lake.put("a", body="other", branch="dev")
    lake.put("c", branch="dev")
    assert lake("rm", "lake/dev/b").code == 0
    lake.commit("on dev", "dev")
    return lake


DIFFERENCES = "~ a  1 -> 5 bytes\n- b  1 bytes\n+ c  1 bytes\n"


def clashing(lake: Lake) -> None:
    """Change on main what dev has changed, too."""
    lake.put("a", body="third")
    lake.put("b", body="kept")
    lake.commit("on main")


def test_diff_tells_what_was_added_removed_and_changed(parted: Lake) -> None:
    lake = parted
    assert lake("diff", "lake/main", "dev").out == DIFFERENCES
    assert lake("diff", "lsmfs://lake/dev~1", "lsmfs://lake/dev").out == DIFFERENCES
    assert lake("diff", "lake/main", "dev", "--prefix", "c").out == "+ c  1 bytes\n"
    assert lake("diff", "lake/dev", "main").out == "~ a  5 -> 1 bytes\n+ b  1 bytes\n- c  1 bytes\n"
    same = lake("diff", "lake/main", "main")
    assert (same.code, same.out, same.err) == (0, "", "no differences\n")


def test_diff_as_json_has_both_sides_of_each_path(parted: Lake) -> None:
    changed, removed, added = parted("diff", "lake/main", "dev", "--json").lines
    assert (changed["type"], changed["path"]) == ("changed", "a")
    assert (changed["before"]["size_bytes"], changed["after"]["size_bytes"]) == (1, 5)
    assert (removed["type"], removed["after"]) == ("removed", None)
    assert (added["type"], added["before"]) == ("added", None)
    stat = parted.json("stat", "lake/dev/c")
    assert added["after"] == {name: value for name, value in stat.items() if name not in ("uri", "path")}


def test_diff_stat_counts_paths_and_bytes(parted: Lake) -> None:
    counts = {"added": 1, "removed": 1, "changed": 1, "bytes_before": 2, "bytes_after": 6}
    assert parted.json("diff", "lake/main", "dev", "--stat") == counts
    head, row = parted("diff", "lake/main", "dev", "--stat").out.splitlines()
    assert head.split() == ["added", "removed", "changed", "bytes", "before", "bytes", "after"]
    assert row.split() == ["1", "1", "1", "2", "6"]
    nothing = parted.json("diff", "lake/main", "main", "--stat")
    assert nothing == dict.fromkeys(counts, 0)


def test_a_diff_of_what_is_staged_is_counted_like_one_of_commits(parted: Lake) -> None:
    lake = parted
    for path in ("x/1", "x/y/2", "top"):
        lake.put(path, branch="dev")
    lake.put("a", body="longer", branch="dev")
    assert lake("rm", "lake/dev/c").code == 0
    forms = [["--stat"], ["--by", "/"], ["--by", "/", "--prefix", "x/"], ["--stat", "--prefix", "x/"]]
    staged = [lake("diff", "lake/dev", *options, "--json").lines for options in forms]
    lake.commit("all", "dev")
    assert [lake("diff", "lake/dev~1", "dev", *options, "--json").lines for options in forms] == staged
    assert [line["prefix"] for line in staged[1]] == ["a", "c", "top", "x/"]


def test_diff_of_a_branch_alone_is_what_is_staged(parted: Lake) -> None:
    lake = parted
    assert lake("diff", "lake/dev").err == "nothing is staged on lake/dev that differs\n"
    lake.put("d/1", branch="dev")
    assert lake("rm", "lake/dev/c").code == 0
    assert lake("diff", "lake/dev").out == "- c  1 bytes\n+ d/1  3 bytes\n"
    assert lake("diff", "lake/dev", "--prefix", "d/").out == "+ d/1  3 bytes\n"
    assert lake.json("diff", "lake/dev", "--stat")["added"] == 1
    between = lake("diff", "lake/main", "dev")
    assert (between.out, between.err) == (
        DIFFERENCES,
        "what is staged on lake/dev is left out: commit it first to have it, too\n",
    )


def test_merge_brings_the_changes_and_prints_the_commit(parted: Lake) -> None:
    lake = parted
    lake.put("d")
    before = lake.commit("on main")
    source = lake.json("status", "lake/dev")["base_commit"]
    done = lake.json("merge", "lake/dev", "lake/main", "-m", "together", "--committer", "me", "--meta", "k=v")
    assert (done["parents"], done["message"], done["committer"]) == ([before, source], "together", "me")
    assert (done["metadata"], done["branch"], done["source"]) == ({"k": "v"}, "main", "dev")
    assert lake.keys() == ["a", "c", "d"]
    assert f"merged     {source}\n" in lake("log", "lake/main", "-n", "1").out
    again = lake("merge", "lake/dev", "main")
    assert again.code == 2
    assert "has every commit of lake/dev already: there is nothing to do" in again.told


def test_merge_takes_a_revision_and_names_both_in_its_message(parted: Lake) -> None:
    lake = parted
    assert lake("tag", "create", "lake/v1", "dev").code == 0
    lake.put("later", branch="dev")
    lake.commit("later", "dev")
    merged = lake("merge", "lake/v1", "main")
    assert merged.out.startswith("merged lake/v1 into lake/main: ")
    assert lake.json("log", "lake/main", "-n", "1")["message"] == "Merge 'v1' into 'main'"
    assert lake.keys() == ["a", "c"]


def test_a_squashed_merge_has_one_parent(parted: Lake) -> None:
    assert len(parted.json("merge", "lake/dev", "main", "--squash")["parents"]) == 1
    assert parted.keys() == ["a", "c"]


def test_a_conflict_tells_each_path_and_merges_nothing(parted: Lake) -> None:
    lake = parted
    clashing(lake)
    base = lake.json("status", "lake/main")["base_commit"]
    result = lake("merge", "lake/dev", "main")
    assert result.code == 5
    assert result.out == "! a  dev: 5 bytes, main: 5 bytes\n! b  dev: removed, main: 4 bytes\n"
    assert "2 paths were changed on lake/dev and on lake/main, so nothing was merged: say --strategy" in result.told
    result = lake("merge", "lake/dev", "main", "--json")
    assert (result.code, [line["path"] for line in result.lines]) == (5, ["a", "b"])
    assert result.told
    removed = result.lines[1]
    assert (removed["type"], removed["source"], removed["destination"]["size_bytes"]) == ("conflict", None, 4)
    assert removed["base"]["size_bytes"] == 1
    assert lake.json("status", "lake/main")["base_commit"] == base


def test_many_conflicts_are_shortened_as_text_and_whole_as_json(lake: Lake) -> None:
    def staged(branch: str, size: int) -> None:
        rows = "".join(f"k{number:02},s3://x/{number},{size}\n" for number in range(30))
        assert lake("stage", lake.file("l.csv", f"key,address,size\n{rows}"), f"lake/{branch}").code == 0
        lake.commit(f"size {size}", branch)

    assert lake("branch", "create", "lake/dev").code == 0
    staged("main", 1)
    staged("dev", 2)
    text = lake("merge", "lake/dev", "main").out.splitlines()
    assert (len(text), text[-1]) == (21, "... and 10 more")
    assert len(lake("merge", "lake/dev", "main", "--json").lines) == 30


@pytest.mark.parametrize(
    ("options", "bodies"),
    [
        (["--strategy", "source-wins"], {"a": "other", "c": "c"}),
        (["--strategy", "dest-wins"], {"a": "third", "b": "kept", "c": "c"}),
        (["--strategy", "source-wins", "--rule", "b=dest-wins"], {"a": "other", "b": "kept", "c": "c"}),
        (["--rule", "a=dest-wins", "--rule", "b=source-wins"], {"a": "third", "c": "c"}),
    ],
)
def test_a_strategy_and_rules_decide_conflicts(parted: Lake, options: list[str], bodies: dict[str, str]) -> None:
    clashing(parted)
    assert parted("merge", "lake/dev", "main", *options).code == 0
    paths = parted.keys()
    assert {path: parted("get", f"lake/main/{path}").out for path in paths} == bodies


def test_a_rule_leaves_the_other_conflicts(parted: Lake) -> None:
    clashing(parted)
    result = parted("merge", "lake/dev", "main", "--rule", "a=dest-wins")
    assert (result.code, result.out) == (5, "! b  dev: removed, main: 4 bytes\n")
    assert "1 path was changed" in result.told


def test_what_is_staged_must_be_committed_to_be_merged(parted: Lake) -> None:
    lake = parted
    lake.put("staged", branch="dev")
    merged = lake("merge", "lake/dev", "main")
    assert merged.err == "what is staged on lake/dev is left out: commit it first to have it, too\n"
    again = lake("merge", "lake/dev", "main")
    assert (again.code, again.out) == (2, "")
    assert "`lsmfs commit lake/dev` first" in again.told
    lake.commit("staged", "dev")
    lake.put("x")
    dirty = lake("merge", "lake/dev", "main")
    assert (dirty.code, dirty.out) == (2, "")
    assert "lake/main has changes that are not committed: `lsmfs commit lake/main` first" in dirty.told


def test_a_merge_that_was_prepared_uses_that_work_also_if_the_branch_has_moved(parted: Lake) -> None:
    lake = parted
    text = lake("merge", "lake/dev", "main", "--prepare").out.strip()
    assert lake.json("merge", "lake/dev", "main", "--prepare")["hint"] == text
    assert lake.keys() == ["a", "b"]
    lake.put("d")
    lake.commit("on main")
    lake.check_mistakes([(["merge", "lake/dev", "main", "--hint", "nonsense"], 2, "hint")])
    assert lake("merge", "lake/dev", "main", "--hint", text).code == 0
    assert lake.keys() == ["a", "c", "d"]


def test_revert_and_cherry_pick_print_the_commit_that_they_made(parted: Lake) -> None:
    lake = parted
    source = lake.json("status", "lake/dev")["base_commit"]
    picked = lake.json("cherry-pick", "lake/dev", "main", "-m", "here, too", "--committer", "me")
    assert [picked[name] for name in ("branch", "source", "message", "committer")] == ["main", "dev", "here, too", "me"]
    assert (len(picked["parents"]), picked["metadata"]) == (1, {"lsmfs.picked": source})
    assert lake.keys() == ["a", "c"]
    undone = lake.json("revert", "lake/main", "main")
    assert (undone["parents"], undone["metadata"]) == ([picked["id"]], {"lsmfs.reverts": picked["id"]})
    assert lake.keys() == ["a", "b"]


MISTAKES = [
    (["merge", "lake/main", "main"], 2, "cannot be merged into itself"),
    (["merge", "lake/main@", "main"], 2, "already"),
    (["merge", "lake/main"], 2, "Missing argument"),
    (["merge", "lake/dve", "main"], 3, "did you mean 'dev'?"),
    (["merge", "lake/dev", "mian"], 3, "did you mean 'main'?"),
    (["merge", "lake/dev", "pond/main"], 2, "in two repositories"),
    (["merge", "lake/dev", "main~1"], 2, "a commit cannot be written to: name a branch"),
    (["merge", "lake/dev", "main", "-m", " "], 2, "the message is empty"),
    (["merge", "lake/dev", "main", "--meta", "k"], 2, "is no key=value"),
    (["merge", "lake/dev", "main", "--strategy", "ours"], 2, "'source-wins', 'dest-wins'"),
    (["merge", "lake/dev", "main", "--rule", "a/=ours"], 2, "'ours' for 'a/' is no strategy"),
    (["merge", "lake/dev", "main", "--rule", "a/"], 2, "is no key=value"),
    (["merge", "lake/dev", "main", "--dry-run", "--prepare"], 2, "exclude each other"),
    (["merge", "lake/dev", "main", "--rule", "a=dest-wins", "--rule", "a=source-wins"], 2, "given twice"),
    (["diff", "lake/main~1"], 2, "with nothing staged"),
    (["diff", "lake/none"], 3, "there is dev, main"),
    (["diff", "lake/main", "dve"], 3, "did you mean 'dev'?"),
    (["diff", "lake/main", "pond/dev"], 2, "in two repositories"),
    (["diff", "lake/main/a", "dev"], 2, "a revision is wanted"),
    (["diff", "lake/main", "dev", "--prefix", "\udcff"], 2, "is not UTF-8"),
]


def test_a_mistake_is_told_in_one_line_and_merges_nothing(parted: Lake) -> None:
    base = parted.json("status", "lake/main")["base_commit"]
    parted.check_mistakes(MISTAKES)
    assert parted.json("status", "lake/main")["base_commit"] == base
