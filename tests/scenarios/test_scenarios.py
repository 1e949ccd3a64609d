"""Every transcript beside this file, and the one in the README, prints what it says.

`LSMFS_REWRITE=1 pytest tests/scenarios` writes what is printed into them: read the difference before you commit it.
"""

import difflib
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from lsmfs.cli import app
from tests.scenarios.transcript import Step, files_of, parse, play, written

HERE = Path(__file__).parent
SCENARIOS = sorted(HERE.glob("*.txt"))
README = HERE.parent.parent / "README.md"
CONSOLE = re.compile(r"(?<=```console\n).*?(?=```)", re.DOTALL)
REWRITE = "LSMFS_REWRITE"
# They tell of the machine, or serve until they are stopped: tests/cli and tests/server have them.
ELSEWHERE = {"bench", "config check", "doctor", "run", "tour", "version"}


@pytest.fixture(autouse=True)
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with nothing in it, and a user whose name is known."""
    for name in [name for name in os.environ if name.startswith(("LSMFS_", "LAKECTL_")) and name != "LSMFS_REWRITE"]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("LOGNAME", "ana")
    monkeypatch.chdir(tmp_path)


def check(path: Path, text: str) -> None:
    """The transcript, which is in the file, prints what it says, or the file is rewritten."""
    steps = parse(text)
    promised, printed = written(steps), written(play(steps))
    if os.environ.get(REWRITE):
        path.write_text(path.read_text().replace(text, printed))
    elif promised != printed:
        lines = difflib.unified_diff(promised.splitlines(), printed.splitlines(), "promised", "printed", lineterm="")
        pytest.fail("\n".join([f"{path.name} ({REWRITE}=1 rewrites it):", *lines]), pytrace=False)


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_a_scenario_prints_what_it_says(path: Path) -> None:
    check(path, path.read_text())


def test_the_ten_minutes_of_the_readme_print_what_they_say() -> None:
    (text,) = CONSOLE.findall(README.read_text())
    check(README, text)


def _commands() -> Iterator[str]:
    yield from (str(command.name) for command in app.registered_commands)
    for group in app.registered_groups:
        inner = group.typer_instance
        assert inner is not None
        yield from (f"{inner.info.name} {command.name}" for command in inner.registered_commands)


def test_every_command_is_in_a_scenario() -> None:
    told = "".join(f"{step.command} " for path in SCENARIOS for step in parse(path.read_text()))
    assert [name for name in _commands() if f"lsmfs {name} " not in told and name not in ELSEWHERE] == []


def test_a_transcript_that_is_not_what_is_printed_is_rewritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "wrong.txt"
    file.write_text("# A comment.\n$ lsmfs repos\nnothing\n# And another one.\n\n$ echo a > b\n")
    monkeypatch.delenv(REWRITE, raising=False)
    with pytest.raises(pytest.fail.Exception, match=r"(?m)^-nothing$"):
        check(file, file.read_text())
    monkeypatch.setenv(REWRITE, "1")
    check(file, file.read_text())
    told = "error: lsmfs-data holds no installation: run `lsmfs init` first, or say --data FOLDER\n[exit 3]\n"
    assert file.read_text() == f"# A comment.\n$ lsmfs repos\n{told}\n# And another one.\n$ echo a > b\n"
    monkeypatch.delenv(REWRITE)
    check(file, file.read_text())


def test_a_step_has_its_comments_its_command_and_its_output() -> None:
    first, second = parse("# why\n$ one\na\n\nb\n\n# then\n$ two\n")
    assert first == Step(["# why"], "one", ["a", "", "b"])
    assert second == Step(["# then"], "two", [])
    with pytest.raises(ValueError, match="before any command"):
        parse("output\n$ one\n")


def test_files_are_made_of_comments() -> None:
    comments = ["# files:", "#   a.csv: 1,2", "#          3", "#   b/empty:", "# That is all: see above."]
    assert files_of(comments) == {"a.csv": "1,2\n3\n", "b/empty": ""}
