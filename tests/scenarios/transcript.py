"""A transcript: what a user types at a prompt, and everything that is printed, as text that people read and tests run.

    # Any line that begins with # is a comment, between commands.
    # files:
    #   one.csv: id,value
    #            1,2
    #   empty.csv:

    $ lsmfs commit lake/main -m "first load"
    committed <commit 1> on lake/main

    # `files:` in a comment makes files, a line for each line of theirs; an indented line goes on with the one before.
    $ echo "a line" | lsmfs put - lake/main/a
    $ echo "a line" > one.csv
    $ cp one.csv two.csv
    $ lsmfs get lake/main/none
    error: 'none' does not exist on 'main'
    [exit 3]

Each command runs in this process: `lsmfs`, and of the shell `echo` and `cp` alone. What differs from run to run has a
name that stays: `<commit 2>` is the second commit that was met, and in a command it stands for its id (`<commit 2, 8>`
for eight characters of it); `<time>`, `<seconds>`, `<data 1>`, `<bytes>`, `<etag>` and `<here>` are others. stdout and
stderr are shown as a terminal would, in one stream. Blank lines at the end of an output are not compared.
"""

import contextlib
import io
import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from lsmfs.cli import run

PROMPT = "$ "
COMMENT = "#"
FILES = "# files:"

_HEX = re.compile(r"(?<![0-9a-z])[0-9a-f]{8,64}(?![0-9a-z])")
_COMMIT_LENGTHS = (64, 12)  # whole, and as short lists have it
_SHORT = 8
_IN_COMMAND = re.compile(r"<commit (\d+)(?:, (\d+))?>")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z")
_DATA = re.compile(r"(?<=/data/)(?:b[0-9a-f]+-[0-9a-f]{64}-[0-9a-f]+|d[0-9a-f]+-[0-9a-v]{20})")
_BYTES = re.compile(r'(\bl[12][ _]bytes(?: +|":))[1-9]\d*')  # of tables: they depend on how times compress
_ETAG = re.compile(r"\b[0-9a-f]{32}(?=-\d)")  # of an object of several pieces: it depends on where they are
_SECONDS = re.compile(r'("seconds": )[0-9.e-]+')


@dataclass
class Step:
    """A command, with the comments before it and the output after it."""

    comments: list[str] = field(default_factory=list)
    command: str = ""
    output: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        lines = [*self.comments, *([PROMPT + self.command] if self.command else []), *self.output]
        return "".join(f"{line}\n" for line in lines)


def parse(text: str) -> list[Step]:
    """The steps of a transcript; the last one may be comments alone."""
    steps = [Step()]
    for line in text.splitlines():
        is_new = line.startswith((PROMPT, COMMENT))
        if is_new and steps[-1].command:
            steps.append(Step())
        if line.startswith(PROMPT):
            steps[-1].command = line.removeprefix(PROMPT)
        elif line.startswith(COMMENT):
            steps[-1].comments.append(line)
        elif steps[-1].command:
            steps[-1].output.append(line)
        elif line:
            raise ValueError(f"the line {line!r} is neither a comment nor a command, and before any command")
    for step in steps:
        step.output = _without_blank_end(step.output)
    return steps


def written(steps: list[Step]) -> str:
    """The transcript as a file has it: a blank line goes before each comment."""
    parts = [("\n" if at and step.comments else "") + step.text for at, step in enumerate(steps)]
    return "".join(parts)


def _without_blank_end(lines: list[str]) -> list[str]:
    end = len(lines)
    while end and not lines[end - 1]:
        end -= 1
    return lines[:end]


def files_of(comments: list[str]) -> dict[str, str]:
    """The files that comments ask for."""
    files: dict[str, str] = {}
    name, is_inside = "", False
    for line in comments:
        if line.rstrip() == FILES:
            is_inside = True
        elif is_inside and (match := re.fullmatch(r"#   (\S+): ?(.*)", line)):
            name = match[1]
            files[name] = match[2] + "\n" if match[2] else ""
        elif is_inside and (match := re.fullmatch(r"#    +(.*)", line)):
            files[name] += match[1] + "\n"
        else:
            is_inside = False
    return files


class Names:
    """Names that stay, for what differs from run to run."""

    def __init__(self, here: Path) -> None:
        self._here = str(here)
        self._commits: list[str] = []
        self._data: list[str] = []

    def hide(self, text: str) -> str:
        """An output with the names that stay."""
        text = _TIME.sub("<time>", text.replace(self._here, "<here>"))
        text = _DATA.sub(lambda match: f"<data {_number(self._data, match[0])}>", text)
        text = _SECONDS.sub(r"\g<1><seconds>", _BYTES.sub(r"\g<1><bytes>", text))
        return _HEX.sub(self._commit, _ETAG.sub("<etag>", text))

    def _commit(self, match: re.Match[str]) -> str:
        word = match[0]
        for number, known in enumerate(self._commits, 1):
            if known.startswith(word) or word.startswith(known):
                if len(word) > len(known):
                    self._commits[number - 1] = word  # until now only its beginning was met
                return f"<commit {number}, {_SHORT}>" if len(word) == _SHORT else f"<commit {number}>"
            if known.startswith(word[:_SHORT]):
                return f"<commit {number}, {_SHORT}>{word[_SHORT:]}"
        return f"<commit {_number(self._commits, word)}>" if len(word) in _COMMIT_LENGTHS else word

    def show(self, command: str) -> str:
        """A command with what the names stand for."""

        def identity(match: re.Match[str]) -> str:
            return self._commits[int(match[1]) - 1][: int(match[2] or 64)]

        return _IN_COMMAND.sub(identity, command)


def _number(met: list[str], word: str) -> int:
    if word not in met:
        met.append(word)
    return met.index(word) + 1


def play(steps: list[Step]) -> list[Step]:
    """Run every command, in the working directory; the steps with what was printed."""
    names = Names(Path.cwd())
    played = []
    for step in steps:
        for name, content in files_of(step.comments).items():
            Path(name).parent.mkdir(parents=True, exist_ok=True)
            Path(name).write_text(content)
        output = names.hide(_run(names.show(step.command))) if step.command else ""
        played.append(Step(step.comments, step.command, _without_blank_end(output.splitlines())))
    return played


def _run(command: str) -> str:
    """What a command prints, and how it ends if it fails."""
    words = shlex.split(command)
    if words[0] == "echo":
        return _echo(words)
    if words[0] == "cp":
        shutil.copyfile(*words[1:])
        return ""
    if words[0] != "lsmfs":
        raise ValueError(f"{command!r}: a transcript knows lsmfs, echo and cp")
    with _shown() as shown:
        code = run(words[1:])
    text = shown.getvalue().decode()
    text += "\n[no newline at the end]\n" if text and not text.endswith("\n") else ""
    return text + (f"[exit {code}]\n" if code else "")


def _echo(words: list[str]) -> str:
    """`echo TEXT > FILE`, or `echo TEXT | lsmfs ...`."""
    at = next(at for at, word in enumerate(words) if word in (">", "|"))
    text = " ".join(words[1:at]) + "\n"
    if words[at] == ">":
        Path(words[at + 1]).write_text(text)
        return ""
    with _standard_input(text):
        return _run(shlex.join(words[at + 1 :]))


@contextlib.contextmanager
def _shown() -> Iterator[io.BytesIO]:
    """What is written to stdout and stderr, in the order in which it is."""
    raw = io.BytesIO()
    both = io.TextIOWrapper(raw, "utf-8", newline="\n", write_through=True)
    with contextlib.redirect_stdout(both), contextlib.redirect_stderr(both):
        yield raw
    both.detach()  # or it would close what was written


@contextlib.contextmanager
def _standard_input(text: str) -> Iterator[None]:
    kept = os.dup(0)
    try:
        with tempfile.TemporaryFile() as file:
            file.write(text.encode())
            file.seek(0)
            os.dup2(file.fileno(), 0)
            yield
    finally:
        os.dup2(kept, 0)
        os.close(kept)
