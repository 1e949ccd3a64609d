"""What all commands have in common: options, help, exit codes, and how they end."""

import os

import pytest

from lsmfs.cli import app, run
from lsmfs.cli.exits import CODES
from lsmfs.cli.suggest import advice_on
from lsmfs.cli.uri import Uri, parse_beside, parse_rules, parse_uri, parse_version
from refstore.errors import Invalid
from tests.cli.support import Lake

GROUPS = {
    group.typer_instance.info.name: group.typer_instance for group in app.registered_groups if group.typer_instance
}
COMMANDS = [*(f"{command.name}" for command in app.registered_commands), *map(str, GROUPS)]
WITH_EXAMPLE = [*(f"{command.name}" for command in app.registered_commands)]
WITH_EXAMPLE += [f"{name} {command.name}" for name, group in GROUPS.items() for command in group.registered_commands]


@pytest.mark.parametrize("name", WITH_EXAMPLE)
def test_every_command_has_help_with_an_example_and_the_common_options(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*name.split(), "--help"]) == 0
    text = capsys.readouterr().out
    assert all(option in text for option in ("--json", "--data", "--debug"))
    assert f"  lsmfs {name}" in text or f"| lsmfs {name}" in text


def test_the_help_lists_every_command_and_every_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(f"  {name} " in text for name in COMMANDS)
    assert all(f"{code} {kind.__name__}" in text for kind, (code, _) in CODES.items())


def test_no_arguments_at_all_show_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([]) == 2
    assert capsys.readouterr().err.startswith("Usage: lsmfs [OPTIONS]")
    assert run(["branch"]) == 2
    assert "\n  create   Create a branch" in capsys.readouterr().err


def test_the_common_options_are_taken_before_and_after_the_command(lake: Lake) -> None:
    lake.put("a")
    assert lake("--json", "ls", "lake/main").lines == lake("ls", "lake/main", "--json").lines
    assert lake("ls", "lake/main", "--data", str(lake.folder / "other")).code == 3  # the nearer one counts


def test_the_common_options_are_taken_anywhere_around_the_commands_of_a_group(lake: Lake) -> None:
    listed = lake("branch", "list", "lake", "--json").lines
    assert [line["branch"] for line in listed] == ["main"]
    assert lake("--json", "branch", "list", "lake").lines == listed
    assert lake("branch", "--json", "list", "lake").lines == listed
    other = str(lake.folder / "other")
    assert lake("branch", "--data", other, "list", "lake").code == 3
    assert lake("branch", "--data", other, "list", "lake", "--data", str(lake.data)).code == 0
    assert "Traceback" in lake("branch", "--debug", "list", "none").err
    assert "Traceback" in lake("tag", "list", "none", "--debug").err


def test_the_folder_is_taken_from_the_environment(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LSMFS_DATA", str(lake.data))
    assert run(["repos"]) == 0
    monkeypatch.setenv("LSMFS_DATA", str(lake.folder / "other"))
    assert lake("repos").code == 0  # what the user types wins, wherever it stands
    assert run(["repos", "--data", str(lake.data)]) == 0


def test_version_is_printed(lake: Lake) -> None:
    assert lake("version").out.strip() == lake.json("version")["version"]


def test_a_wrong_command_line_is_one_line_with_where_to_look(lake: Lake) -> None:
    assert lake("putt").told == "error: No such command 'putt'. Did you mean 'put'? See `lsmfs --help`.\n"
    result = lake("ls", "--lmit", "3", "lake/main")
    assert result.code == 2
    assert "See `lsmfs ls --help`" in result.told


def test_no_installation_is_told(empty: Lake) -> None:
    for arguments in (["ls", "lake/main"], ["compactor", "--once"], ["bench"], ["repos"]):
        result = empty(*arguments)
        assert result.code == 3
        assert "run `lsmfs init` first" in result.told


def test_a_traceback_is_shown_only_if_asked_for(lake: Lake) -> None:
    assert "Traceback" not in lake("get", "lake/main/none").err
    result = lake("get", "lake/main/none", "--debug")
    assert "Traceback" in result.err
    assert result.err.splitlines()[-1] == "error: 'none' does not exist on 'main'"


def test_ctrl_c_while_the_program_is_still_loading_is_one_line(empty: Lake) -> None:
    (empty.folder / "typer.py").write_text(
        "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(30)\n"
    )
    with empty.start("version", settings={"PYTHONPATH": str(empty.folder)}) as process:
        result = empty.finish(process)
    assert (result.code, result.told) == (130, "error: interrupted\n")


def test_corrupt_metadata_has_its_own_exit_code(lake: Lake) -> None:
    lake.put("a")
    for table in (lake.data / "objects/lake/tables").iterdir():
        table.write_bytes(b"not a table")
    result = lake("get", "lake/main/a")
    assert result.code == 8
    assert "checksum" in result.told


@pytest.mark.skipif(not os.path.isdir("/sys/kernel"), reason="no /sys, where not even root may make a folder")
def test_a_folder_that_may_not_be_written_is_told(empty: Lake) -> None:
    result = empty("init", "lake", "--data", "/sys/kernel/lsmfs")
    assert result.code == 6
    assert "change its rights" in result.told


def test_a_uri_may_leave_its_scheme_out_and_keeps_its_path_as_it_is() -> None:
    assert parse_uri("lake/main/a//b%20c/") == Uri("lake", "main", "a//b%20c/")
    assert parse_uri("lsmfs://lake/main") == Uri("lake", "main", "")
    assert parse_uri("lake/main/http://x") == Uri("lake", "main", "http://x")


@pytest.mark.parametrize(
    "text", ["", "lake", "/main/a", "lsmfs://", "lsmfs//lake/main", "Lake/main", "lake/main/\udcff"]
)
def test_what_is_no_uri_is_refused(text: str) -> None:
    with pytest.raises(Invalid):
        parse_uri(text)


def test_a_revision_may_stand_where_only_is_read() -> None:
    assert parse_version("lsmfs://lake/main~2^2/a/b") == Uri("lake", "main~2^2", "a/b")
    assert parse_version("lake/main@") == Uri("lake", "main@", "")
    for text in ("lake/main~2/a", "lake/main@", "lake/main^"):
        with pytest.raises(Invalid, match="a commit cannot be written to: name a branch"):
            parse_uri(text)
    for text in ("lake/main~x/a", "lake/a b", "lake/~2"):
        with pytest.raises(Invalid, match="is no revision"):
            parse_version(text)


def test_a_second_revision_may_leave_the_repository_out() -> None:
    first = Uri("lake", "main")
    assert parse_beside("dev~1", first) == parse_beside("lsmfs://lake/dev~1", first) == Uri("lake", "dev~1")
    with pytest.raises(Invalid, match="in two repositories"):
        parse_beside("pond/dev", first)


def test_the_prefix_of_a_rule_may_have_an_equals_sign() -> None:
    assert parse_rules(["day=7/=source-wins"]) == {"day=7/": "source-wins"}


def test_arguments_that_are_not_utf_8_are_refused(lake: Lake) -> None:
    bad = "\udcff"
    lake.file("body", "x")
    lake.check_mistakes(
        [
            (["put", "body", "lake/main/a", "--meta", f"a={bad}"], 2, "is not UTF-8"),
            (["put", "body", "lake/main/a", "--content-type", bad], 2, "is not UTF-8"),
            (["put", "body", f"lake/main/{bad}"], 2, "is not UTF-8"),
            (["ls", "lake/main", "--after", bad], 2, "is not UTF-8"),
            (["commit", "lake/main", "--allow-empty", "-m", bad], 2, "is not UTF-8"),
            (["commit", "lake/main", "--allow-empty", "-m", "x", "--committer", bad], 2, "is not UTF-8"),
        ]
    )


def test_advice_is_the_near_name_or_else_the_names_there_are() -> None:
    assert advice_on("mian", ["dev", "main"]) == "did you mean 'main'?"
    assert advice_on("x", ["dev", "main"]) == "there is dev, main"
    assert advice_on("x", [str(number) * 9 for number in range(9)]).endswith(", ...")
    assert advice_on("x", []) == ""
