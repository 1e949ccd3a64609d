"""The benchmarks of version control on tiny sizes: that they run, and that what is counted is what it should be."""

import json
from pathlib import Path

import pytest

from benchmarks import __main__ as program


def test_the_benchmarks_of_version_control_report_their_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("polars", reason="it comes with the bench extra")
    names = "branch,diff,merge,contended-merge,log"
    assert program.main(["--quick", "--json", "--folder", str(tmp_path), "--only", names]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert list(rows) == ["branch", "diff", "merge", "contended-merge", "contended-writes", "log"]
    assert all(row["figure"] > 0 and row["baseline"] > 0 for row in rows.values())
    assert list(tmp_path.iterdir()) == []
