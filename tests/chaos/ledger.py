"""The expected-state file: what a worker was about to do, and what it was told.

Each worker has one file, which its later lives go on with. A line is written before an operation is sent (`Intent`) and
after its answer came (`Answer`). Nothing is fsynced: what write(2) took survives a SIGKILL of the process, and this
machine does not lose power. A kill may tear the last line: an intent that is torn was not sent, an acknowledgement
that is torn was not given to anybody, so a torn line says nothing and is skipped.

Values are unique: a key that holds a value tells which operation wrote it.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

import msgspec

Kind = Literal["own", "absent"]
"""A write to keys that only this worker writes; or a put-if-absent to a key that all workers want."""

Outcome = Literal["acknowledged", "refused", "unknown"]
Changes = dict[str, str | None]
"""What keys become; None is deleted."""

Sizes = dict[str, int]
"""How long the file of each worker was at some moment: that is what had been written by then."""


class Life(msgspec.Struct, frozen=True, array_like=True, tag="life"):
    """A process has opened the repository and begins its work."""

    pid: int


class Intent(msgspec.Struct, frozen=True, array_like=True, tag="intent"):
    number: int
    kind: Kind
    changes: Changes


class Answer(msgspec.Struct, frozen=True, array_like=True, tag="answer"):
    number: int
    outcome: Outcome
    why: str = ""


class CommitDone(msgspec.Struct, frozen=True, array_like=True, tag="commit"):
    """A commit that was acknowledged, and what the ledgers said when it was asked for and when it was answered."""

    id: str
    before: Sizes
    after: Sizes


Line = Life | Intent | Answer | CommitDone
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Line).decode


@dataclass(frozen=True, slots=True)
class Ledger:
    """What one worker intended, in order, and what it was told of each."""

    intents: tuple[Intent, ...]
    outcomes: Mapping[int, Outcome]
    commits: tuple[CommitDone, ...] = ()

    def acknowledged(self, intent: Intent) -> bool:
        return self.outcomes.get(intent.number) == "acknowledged"


class LedgerFile:
    """The writing end. One process at a time has it; its numbers go on where an earlier one was killed."""

    def __init__(self, path: Path) -> None:
        self.worker, self.folder = path.stem, path.parent
        data = path.read_bytes() if path.exists() else b""
        past = parse(data).intents
        self._number = max((intent.number for intent in past), default=0)
        self.claims = sum(intent.kind == "absent" for intent in past)  # how many so far
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        if data and not data.endswith(b"\n"):
            os.write(self._file, b"\n")  # ends the line that a kill tore
        self.is_begun = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._file)

    def begin(self) -> None:
        """Say once that this process is at work."""
        if not self.is_begun:
            self.write(Life(os.getpid()))
            self.is_begun = True

    def intend(self, kind: Kind, keys: Mapping[str, bool]) -> Intent:
        """Note an operation that is about to be sent: each key gets the operation's value, or is deleted (False)."""
        self._number += 1
        self.claims += kind == "absent"
        value = f"{self.worker}-{self._number}"
        intent = Intent(self._number, kind, {key: value if kept else None for key, kept in keys.items()})
        self.write(intent)
        return intent

    def answered(self, intent: Intent, outcome: Outcome, why: str = "") -> None:
        self.write(Answer(intent.number, outcome, why))

    def write(self, line: Line) -> None:
        data = _encode(line) + b"\n"
        if os.write(self._file, data) != len(data):
            raise OSError(f"the ledger of {self.worker} cannot grow")


def parse(data: bytes) -> Ledger:
    """What a file says. Only a line that a kill tore may be unreadable: the last one, or the last one of a life."""
    intents: list[Intent] = []
    outcomes: dict[int, Outcome] = {}
    commits: list[CommitDone] = []
    torn = b""
    for raw in data.split(b"\n")[:-1]:
        line = _line(raw)
        if torn and not isinstance(line, Life):
            raise ValueError(f"the ledger has an unreadable line that no kill explains: {torn!r}")
        torn = b"" if line is not None else raw
        match line:
            case Intent():
                intents.append(line)
            case Answer():
                outcomes[line.number] = line.outcome
            case CommitDone():
                commits.append(line)
    return Ledger(tuple(intents), outcomes, tuple(commits))


def _line(raw: bytes) -> Line | None:
    try:
        line: Line = _decode(raw)
        return line
    except msgspec.DecodeError:
        return None


def sizes(folder: Path) -> Sizes:
    """How long every ledger in the folder is now."""
    return {path.stem: path.stat().st_size for path in folder.glob("*.ledger")}


def load(folder: Path, until: Sizes | None = None) -> dict[str, Ledger]:
    """Every ledger in the folder, as it was when it had that size; one that had no size was not there."""
    until = sizes(folder) if until is None else until
    return {name: parse((folder / f"{name}.ledger").read_bytes()[:size]) for name, size in sorted(until.items())}


def between(before: Mapping[str, Ledger], after: Mapping[str, Ledger]) -> dict[str, Ledger]:
    """What binds a read: it shows all that was acknowledged before it began, and only what was intended before it
    ended."""
    told = {name: before[name].outcomes if name in before else {} for name in after}
    return {name: Ledger(ledger.intents, told[name]) for name, ledger in after.items()}
