"""A worker that goes wrong is not overlooked, and none outlives its fleet."""

import asyncio
import multiprocessing
import time
from pathlib import Path

import pytest

from lsmfs.installation import Configuration, create_installation
from tests.chaos.fleet import Fleet
from tests.chaos.lake import create

WAIT_SECONDS_MAX = 30.0


def test_a_worker_that_ends_by_itself_is_reported_with_its_traceback(tmp_path: Path) -> None:
    create_installation(tmp_path, Configuration())  # and no repository in it
    with Fleet(tmp_path, {}, {"writer": 1}) as fleet, pytest.raises(AssertionError, match="writer-0 ended") as caught:
        _wait(fleet)
    assert "Traceback" in str(caught.value)
    assert "repository 'lake' does not exist" in str(caught.value)


def test_a_worker_that_complained_is_reported_when_all_are_stopped(tmp_path: Path) -> None:
    with Fleet(tmp_path, {}, {}) as fleet:
        (tmp_path / "output" / "compactor-0.log").write_text("2026-01-01 [error    ] failed  error=lost a table\n")
        with pytest.raises(AssertionError, match="lost a table"):
            fleet.stop()


def test_no_worker_outlives_its_fleet(tmp_path: Path) -> None:
    asyncio.run(create(tmp_path, Configuration(), {}))
    names = {"compactor-0", "compactor-1"}
    with Fleet(tmp_path, {}, {"compactor": 2}):
        assert names <= {child.name for child in multiprocessing.active_children()}
    assert not names & {child.name for child in multiprocessing.active_children()}


def _wait(fleet: Fleet) -> None:
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while time.monotonic() < deadline:
        fleet.check()
        time.sleep(0.05)
