"""`tour`: what `make run` shows."""

import signal
import time

from tests.cli.support import Lake

STEPS = ["init", "put", "compact", "commit", "get", "scan", "list", "delete"]


def test_the_tour_takes_every_step_and_leaves_no_folder(empty: Lake) -> None:
    with empty.start("tour", "--entries", "3000", settings={"TMPDIR": str(empty.folder)}) as process:
        result = empty.finish(process)
    assert result.code == 0, result.err
    assert list(empty.folder.iterdir()) == []
    told = [line.split()[0] for line in result.out.splitlines() if line and not line.startswith(" ")]
    assert told == [*STEPS, "step", *STEPS, "Try"]
    assert "\x1b" not in result.out + result.err
    assert "lsmfs init lake" in result.out


def test_the_tour_in_a_named_folder_stays_and_can_be_used(empty: Lake) -> None:
    told = empty.json("tour", "--entries", "2000")
    assert [step["step"] for step in told["steps"]] == STEPS
    assert told["folder"] == str(empty.data)
    assert empty("get", "tour/main/events/day=010/part-00000010.parquet").out.startswith("One small object")
    assert empty("get", "tour/main/events/day=009/part-00000009.parquet").code == 3
    assert empty("log", "tour/main", "--json").lines[0]["message"] == "the tour's first commit"


def test_the_tour_refuses_a_folder_that_is_an_installation(lake: Lake) -> None:
    result = lake("tour", "--entries", "100")
    assert result.code == 4
    assert "leave --data out" in result.told


def test_the_tour_keeps_its_temporary_folder_if_told_to(empty: Lake) -> None:
    settings = {"TMPDIR": str(empty.folder)}
    with empty.start("tour", "--entries", "100", "--keep", settings=settings) as process:
        result = empty.finish(process)
    assert result.code == 0, result.err
    (kept,) = empty.folder.glob("lsmfs-tour-*")
    assert f"export LSMFS_DATA={kept}" in result.out
    assert (kept / "lsmfs.json").exists()


def test_ctrl_c_ends_the_tour_and_removes_its_folder(empty: Lake) -> None:
    settings = {"TMPDIR": str(empty.folder)}
    with empty.start("tour", "--entries", "1000000", settings=settings) as process:
        deadline = time.monotonic() + 30
        while not list(empty.folder.glob("lsmfs-tour-*/objects/tour/tables/*")):
            assert time.monotonic() < deadline, "the tour did not begin"
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        result = empty.finish(process)
    assert result.code == 130
    assert "interrupted" in result.told
    assert list(empty.folder.glob("lsmfs-tour-*")) == []
