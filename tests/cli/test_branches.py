"""`status`, `commit` and `log`."""

from tests.cli.support import Lake


def test_status_counts_what_a_branch_is_made_of(lake: Lake) -> None:
    clean = lake.json("status", "lsmfs://lake/main")
    assert (clean["dirty"], clean["l1_tables"], clean["l2_ranges"], clean["seals"]) == (False, 0, 0, 0)
    lake.put("a", "b")
    dirty = lake.json("status", "lake/main")
    assert (dirty["dirty"], dirty["l1_tables"], dirty["writers"]) == (True, 2, 2)
    assert dirty["version"] == clean["version"] + 2
    assert dirty["base_commit"] == clean["base_commit"]
    assert lake("compactor", "--once", "--tables-min", "1").code == 0
    merged = lake.json("status", "lake/main")
    assert (merged["l1_tables"], merged["l2_ranges"], merged["l2_records"]) == (0, 1, 2)
    assert "changes to commit" in lake("status", "lake/main").out


def test_commit_makes_a_branch_clean_and_is_in_the_log(lake: Lake) -> None:
    lake.put("a")
    done = lake.json("commit", "lake/main", "-m", "first load", "--meta", "source=x", "--committer", "me")
    assert lake.json("status", "lake/main")["base_commit"] == done["id"]
    assert lake.json("status", "lake/main")["dirty"] is False
    newest, first = lake("log", "lake/main", "--json").lines
    assert (newest["id"], newest["message"], newest["committer"]) == (done["id"], "first load", "me")
    assert (newest["metadata"], newest["parents"]) == ({"source": "x"}, [first["id"]])
    text = lake("log", "lake/main").out
    assert "    first load\n" in text
    assert "meta source" in text
    assert lake.keys() == ["a"]


def test_log_ends_at_its_limit(lake: Lake) -> None:
    for number in range(3):
        assert lake("commit", "lake/main", "-m", f"number {number}", "--allow-empty").code == 0
    assert [line["message"] for line in lake("log", "lake/main", "-n", "2", "--json").lines] == ["number 2", "number 1"]


def test_commit_of_nothing_says_what_to_do(lake: Lake) -> None:
    result = lake("commit", "lake/main", "-m", "nothing")
    assert result.code == 2
    assert "--allow-empty" in result.told


def test_what_is_lost_for_good_is_asked_for_on_a_terminal_only(lake: Lake) -> None:
    for name in ("one", "two", "three"):
        assert lake("branch", "create", f"lake/{name}").code == 0
        lake.put("a", branch=name)
    with lake.answering("no", "branch", "delete", "lake/one") as process:
        kept = lake.finish(process)
    assert (kept.code, kept.out) == (6, "")
    assert kept.err.startswith("lake/one has changes that are not committed. Delete it with them? [y/N] ")
    with lake.answering("yes", "branch", "delete", "lake/one") as process:
        assert lake.finish(process).code == 0
    with lake.answering("no", "branch", "delete", "lake/two", "--yes") as process:
        assert lake.finish(process).code == 0
    assert lake("branch", "delete", "lake/three").code == 0
    assert lake("branch", "list", "lake").out.count("\n") == 1


MISTAKES = [
    (["commit", "lake/main"], 2, "Missing option '--message'"),
    (["commit", "lake/main", "-m", " "], 2, "the message is empty"),
    (["commit", "lake/main/a", "-m", "x"], 2, "a branch is wanted"),
    (["status", "lake"], 2, "names no branch"),
    (["status", "lake/other"], 3, "there is main"),
    (["log", "lake/main", "-n", "0"], 2, "--limit"),
]


def test_a_mistake_is_told_in_one_line(lake: Lake) -> None:
    lake.check_mistakes(MISTAKES)
