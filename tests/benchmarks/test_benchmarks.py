"""The benchmark program on tiny sizes: that it runs, what it reports and what it refuses. Nothing here is timed."""

import json
from pathlib import Path

import pytest

from benchmarks import __main__ as program
from benchmarks import report

FIELDS = {"name", "figure", "unit", "baseline", "ratio", "bar", "met", "against", "note"}


def run(folder: Path, capsys: pytest.CaptureFixture[str], *names: str) -> list[dict[str, object]]:
    code = program.main(["--quick", "--json", "--folder", str(folder), "--only", ",".join(names)])
    assert code == 0
    rows: list[dict[str, object]] = json.loads(capsys.readouterr().out)
    return rows


def check(rows: list[dict[str, object]], names: list[str], folder: Path) -> None:
    assert [row["name"] for row in rows] == names
    for row in rows:
        assert set(row) == FIELDS
        assert isinstance(row["figure"], float)
        assert str(row["bar"]).startswith((">= ", "<= "))
    assert list(folder.iterdir()) == []  # the temporary folder is gone


def test_benchmarks_without_other_engines_report_every_field(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = run(tmp_path, capsys, "stage", "commit-scaling", "memory", "get", "list")
    check(rows, ["stage", "commit-scaling", "memory", "get", "get-missing", "list"], tmp_path)


def test_benchmarks_beside_polars_report_every_field(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("polars", reason="it comes with the bench extra")
    check(run(tmp_path, capsys, "compact", "commit"), ["compact", "commit"], tmp_path)


def test_the_put_benchmark_reports_every_field(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("slatedb", reason="it comes with the bench extra")
    check(run(tmp_path, capsys, "put"), ["put"], tmp_path)


def test_an_unknown_name_is_refused_with_those_that_are_known(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        program.main(["--only", "put,gte"])
    assert refused.value.code == 2
    message = capsys.readouterr().err
    assert "'gte'" in message
    for name in program.BENCHMARKS:
        assert name in message


def test_a_bar_is_met_on_its_own_side_only() -> None:
    assert report.at_least(10).is_met(10)
    assert not report.at_least(10).is_met(9.9)
    assert report.at_most(1.6).is_met(1.6)
    assert not report.at_most(1.6).is_met(1.7)
    assert str(report.at_most(1.6)) == "<= 1.6"


def test_a_report_keeps_the_rows_that_a_later_run_did_not_measure(tmp_path: Path) -> None:
    path = tmp_path / "latest.json"
    first = report.figure("put", 1.0, "puts/s", 1.0, 12.34567, report.at_least(10), "slatedb")
    second = report.figure("get", 1.0, "us", 1.0, 7.0, report.at_most(6), "SQLite")
    report.write([first], path)
    report.write([second], path)
    rows = json.loads(path.read_text())
    assert [(row["name"], row["met"], row["ratio"]) for row in rows] == [("put", True, 12.35), ("get", False, 7.0)]
