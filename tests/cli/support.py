"""The command line as tests use it: in this process for speed, or in one of its own where signals and pipes matter."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from lsmfs.cli import run

ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith(("LSMFS_", "LAKECTL_"))}
WAIT_SECONDS_MAX = 30.0


class Result(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        """The documents of an output that has one on each line."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def told(self) -> str:
        """The one line that an error is."""
        assert self.err.startswith("error: "), self.err
        assert self.err.count("\n") == 1, self.err
        assert "a bug in lsmfs" not in self.err
        return self.err


class Lake:
    def __init__(self, folder: Path, capture: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self.data = folder / "data"
        self._capture = capture

    def __call__(self, *arguments: str) -> Result:
        self._capture.readouterr()
        code = run(["--data", str(self.data), *arguments])
        return Result(code, *self._capture.readouterr())

    def json(self, *arguments: str) -> Any:
        """The document of a command that must succeed."""
        result = self(*arguments, "--json")
        assert result.code == 0, result.err
        return result.document

    def check_mistakes(self, cases: Sequence[tuple[list[str], int, str]]) -> None:
        """Each command fails with its code and one line that has the words, and says nothing on stdout."""
        for arguments, code, words in cases:
            result = self(*arguments)
            assert (result.code, result.out) == (code, ""), arguments
            assert words in result.told, arguments

    def file(self, name: str, content: str | bytes) -> str:
        """A file of the user's; its path."""
        path = self.folder / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return str(path)

    def put(self, *paths: str, branch: str = "main", body: str = "") -> None:
        """An object at each path of the branch; its body is its path, if nothing else is said."""
        for path in paths:
            assert self("put", self.file("body", body or path), f"lsmfs://lake/{branch}/{path}").code == 0

    def commit(self, message: str, branch: str = "main") -> str:
        """A commit of what is staged; its id."""
        return str(self.json("commit", f"lake/{branch}", "-m", message)["id"])

    def keys(self, prefix: str = "") -> list[str]:
        result = self("ls", f"lsmfs://lake/main/{prefix}", "--recursive", "--json")
        return [line["path"] for line in result.lines]

    def start(
        self, *arguments: str, module: str = "lsmfs", settings: dict[str, str] | None = None, **options: Any
    ) -> "subprocess.Popen[str]":
        """The command in a process of its own, with pipes to it; `settings` are its environment beside the usual."""
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
        own = {"LSMFS_DATA": str(self.data)} if settings is None else settings
        return subprocess.Popen(
            [sys.executable, "-m", module, *arguments], text=True, env={**ENVIRONMENT, **own}, **pipes
        )

    @contextlib.contextmanager
    def answering(self, answer: str, *arguments: str) -> Iterator["subprocess.Popen[str]"]:
        """The command on a terminal, where somebody types the answer."""
        ours, theirs = os.openpty()
        try:
            os.write(ours, f"{answer}\n".encode())
            with self.start(*arguments, stdin=theirs) as process:
                yield process
        finally:
            os.close(theirs)
            os.close(ours)

    def finish(self, process: "subprocess.Popen[str]") -> Result:
        """Wait for its end; it is killed if that does not come."""
        try:
            out, err = process.communicate(timeout=WAIT_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            raise AssertionError(f"it did not end in {WAIT_SECONDS_MAX} s: {out}{err}") from None
        return Result(process.returncode, out, err)
