"""`compactor`: once, as a daemon with signals and metrics, and as `python -m compactor`."""

import asyncio
import contextlib
import json
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from lsmfs.installation import open_installation
from tests.cli.support import WAIT_SECONDS_MAX, Lake

EAGER = ["--interval", "0.05", "--tables-min", "1"]


@contextlib.contextmanager
def daemon(lake: Lake, *arguments: str, module: str = "lsmfs") -> Iterator["subprocess.Popen[str]"]:
    """A compactor in a process of its own that has begun its work; killed if the test does not end it."""
    command = [*(["compactor"] if module == "lsmfs" else []), *EAGER, *arguments]
    with lake.start(*command, module=module) as process:
        try:
            yield process
        finally:
            process.kill()


def event(process: "subprocess.Popen[str]", name: str) -> Any:
    """The next log event of that name."""
    assert process.stderr is not None
    for line in process.stderr:
        found = json.loads(line)
        if found["event"] == name:
            return found
    raise AssertionError(f"the compactor ended without {name}")


def wait_until_merged(lake: Lake, repository: str = "lake") -> None:
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while lake.json("status", f"{repository}/main")["l1_tables"]:
        assert time.monotonic() < deadline, "nobody compacted"
        time.sleep(0.05)


def test_once_merges_what_is_due_and_ends(lake: Lake) -> None:
    lake.put("a", "b", "c")
    assert lake.json("compactor", "--once")["compactions"] == 0  # three tables are not due
    result = lake("compactor", "lake", "--once", "--age", "0", "--json")
    assert result.code == 0
    assert result.document["tables_merged"] == 3
    assert [json.loads(line)["event"] for line in result.err.splitlines()] == ["compacted"]
    assert lake.json("status", "lake/main")["l1_tables"] == 0
    assert lake.keys() == ["a", "b", "c"]
    assert "0 compactions, 0 errors" in lake("compactor", "--once").out


def test_once_is_a_failure_if_a_branch_cannot_be_compacted(lake: Lake) -> None:
    lake.put("a")
    (table,) = Path(lake.data / "objects/lake/tables").iterdir()
    table.write_bytes(b"not a table")
    result = lake("compactor", "--once", "--tables-min", "1", "--json")
    assert result.code == 1
    assert result.document["errors"] == 1
    assert "checksum" in result.err


def test_metrics_are_written_to_a_file(lake: Lake) -> None:
    lake.put("a")
    target = lake.folder / "compactor.prom"
    assert lake("compactor", "--once", "--tables-min", "1", "--metrics-file", str(target)).code == 0
    lines = target.read_text().splitlines()
    assert "lsmfs_compactor_compactions_total 1" in lines
    assert "# TYPE lsmfs_compactor_busy_seconds_total counter" in lines
    assert "lsmfs_compactor_repositories 1" in lines


MISTAKES = [
    (["laek"], 3, "did you mean 'lake'?"),
    (["lsmfs://lake/main"], 2, "without lsmfs:// and branch"),
    (["--metrics-file", "none/file"], 3, "there is no folder"),
    (["--interval", "0"], 2, "--interval"),
    (["--tables-min", "many"], 2, "--tables-min"),
]


def test_a_mistake_is_told_in_one_line(lake: Lake) -> None:
    lake.check_mistakes([(["compactor", "--once", *arguments], code, words) for arguments, code, words in MISTAKES])


@pytest.mark.parametrize(("number", "module"), [(signal.SIGTERM, "lsmfs"), (signal.SIGINT, "compactor")])
def test_a_daemon_compacts_until_a_signal_ends_it_in_peace(lake: Lake, number: int, module: str) -> None:
    with daemon(lake, "--json", module=module) as process:
        event(process, "started")
        lake.put("a")
        assert event(process, "compacted")["repository"] == "lake"
        process.send_signal(number)
        result = lake.finish(process)
    assert result.code == 0, result.err
    assert result.document["compactions"] == 1
    assert json.loads(result.err.splitlines()[-1])["event"] == "stopped"


def test_a_daemon_looks_at_repositories_that_come_later_and_serves_its_metrics(lake: Lake) -> None:
    with daemon(lake, "--metrics-port", "0") as process:
        address = event(process, "metrics")["address"]
        assert address.startswith("http://127.0.0.1:")
        assert lake("init", "later").code == 0
        assert lake("put", lake.file("a", "a"), "later/main/a").code == 0
        wait_until_merged(lake, "later")
        assert event(process, "compacted")["repository"] == "later"
        with urllib.request.urlopen(address) as answer:
            text = answer.read().decode()
        assert "lsmfs_compactor_compactions_total 1\n" in text
        assert "lsmfs_compactor_repositories 2\n" in text
        with pytest.raises(urllib.error.HTTPError, match="404") as refused:
            urllib.request.urlopen(address + "/other")
        refused.value.close()
        taken = lake("compactor", "--once", "--metrics-port", address.split(":")[2].split("/")[0])
        assert taken.code == 7
        assert "choose another --metrics-port" in taken.told


def test_a_second_signal_ends_a_daemon_at_once(lake: Lake) -> None:
    with daemon(lake, "--interval", "0.01") as process:
        event(process, "started")
        process.send_signal(signal.SIGSTOP)  # both signals are there before it can hear the first
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGCONT)
        assert process.wait(10) in (128 + signal.SIGINT, 128 + signal.SIGTERM)


def test_the_daemon_ends_a_deletion_that_was_begun_and_interrupted(lake: Lake) -> None:
    lake.put("a")
    lake("init", "pond")

    async def begin() -> None:
        async with open_installation(lake.data, {}) as installation, await installation.repository("pond") as pond:
            await pond.policy.change(lambda record: msgspec.structs.replace(record, deleting=True))

    with daemon(lake) as process:
        asyncio.run(begin())
        assert event(process, "deleted")["repository"] == "pond"
    assert [document["repository"] for document in lake("repo", "list", "--json").lines] == ["lake"]
    assert not [path for path in (lake.data / "objects" / "pond").rglob("*") if path.is_file()]
    assert lake.keys() == ["a"]
