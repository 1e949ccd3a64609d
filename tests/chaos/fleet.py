"""The worker processes: started, killed, paused, stopped, and watched.

They are forked from a server process that has imported everything: a new interpreter for each of some sixty lives would
spend most of a run on importing modules. That server (`zygote`) ends with pytest, and the workers end with it.

Promises: when the context ends no worker is left. A worker that ended though nobody ended it, or whose output has a
traceback or a logged error, is an `AssertionError` with the end of its output.
"""

import multiprocessing
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.chaos.worker import main

STOP_SECONDS_MAX = 40.0  # an operation's deadline (20 s), twice: one that is under way, and its settling
OUTPUT_TAIL_BYTES = 4000
WRONG = (b"Traceback", b"Exception ignored", b"never retrieved", b"Timeout (", b"[error")


@dataclass(slots=True)
class Worker:
    """One process, in one of the lives of its name."""

    role: str
    name: str
    process: BaseProcess
    ledger: Path
    ledger_bytes: int  # when it was started

    @property
    def is_at_work(self) -> bool:
        """Whether it has opened the repository and begun."""
        return _size(self.ledger) > self.ledger_bytes + 1

    def signal(self, number: signal.Signals) -> None:
        if self.process.is_alive() and self.process.pid is not None:
            os.kill(self.process.pid, number)


class Fleet:
    """`with Fleet(folder, environment, {"writer": 3}) as fleet`: workers named writer-0, writer-1, writer-2."""

    def __init__(self, folder: Path, environment: Mapping[str, str], crew: Mapping[str, int]) -> None:
        self.folder = folder
        self.kills: dict[str, int] = dict.fromkeys(crew, 0)
        self._environment = dict(environment)
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["tests.chaos.zygote"])
        self._crew = crew
        self._workers: dict[str, Worker] = {}

    def __enter__(self) -> Self:
        for folder in ("ledgers", "output"):
            (self.folder / folder).mkdir()
        for role, count in self._crew.items():
            for number in range(count):
                self._start(role, f"{role}-{number}")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self._workers.values():
            worker.process.kill()
            worker.process.join()

    def at_work(self) -> list[Worker]:
        """The workers that have begun: nothing is learned by killing one that has not."""
        return [worker for worker in self._workers.values() if worker.is_at_work]

    def kill(self, worker: Worker) -> None:
        """SIGKILL; its next life begins at once."""
        self.check()
        worker.process.kill()
        worker.process.join()
        self.kills[worker.role] += 1
        self._start(worker.role, worker.name)

    def check(self) -> None:
        """Nobody has ended by itself."""
        for worker in self._workers.values():
            status = worker.process.exitcode
            assert status is None, f"{worker.name} ended by itself with status {status}:\n{self._tail(worker.name)}"

    def stop(self) -> None:
        """Ask all to end, and see that they do, and that none had anything to complain of."""
        self.check()
        for worker in self._workers.values():
            worker.signal(signal.SIGCONT)
            worker.signal(signal.SIGTERM)
        for worker in self._workers.values():
            worker.process.join(STOP_SECONDS_MAX)
            status = worker.process.exitcode
            # One that has just been started has no handler yet: SIGTERM simply ends it.
            fine = (0,) if worker.is_at_work else (0, -signal.SIGTERM)
            assert status in fine, f"{worker.name} stopped with status {status}:\n{self._tail(worker.name)}"
        self._check_output()

    def _check_output(self) -> None:
        for path in sorted((self.folder / "output").iterdir()):
            data = path.read_bytes()
            first = min((at for at in (data.find(word) for word in WRONG) if at >= 0), default=None)
            if first is not None:
                excerpt = data[max(0, first - 500) : first + OUTPUT_TAIL_BYTES]
                raise AssertionError(f"{path.stem} complained:\n{excerpt.decode(errors='replace')}")

    def _start(self, role: str, name: str) -> None:
        ledger = self.folder / "ledgers" / f"{name}.ledger"
        process = self._context.Process(target=main, args=(role, name, self.folder, self._environment), name=name)
        self._workers[name] = Worker(role, name, process, ledger, _size(ledger))
        process.start()

    def _tail(self, name: str) -> str:
        path = self.folder / "output" / f"{name}.log"
        return path.read_bytes()[-OUTPUT_TAIL_BYTES:].decode(errors="replace") if path.exists() else "(no output)"


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
