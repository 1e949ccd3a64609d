"""`lsmfs import` over a server: it reads what its configuration allows; a manifest is read here and staged."""

from pathlib import Path

import pytest

from lsmfs.cli import run
from tests.client.served import Served


@pytest.fixture(autouse=True)
def here(server: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in server.settings().items():
        monkeypatch.setenv(name, value)
    assert run(["init", "lake"]) == 0


def test_a_folder_of_the_servers_is_imported_and_committed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "1.txt").write_text("one")
    (tmp_path / "photos" / "2.txt").write_text("two")
    capsys.readouterr()
    url = f"file://{tmp_path}/photos"
    assert run(["import", url, "lake/main/p/"]) == 2
    assert "say --commit" in capsys.readouterr().err
    assert run(["import", url, "lake/main/p/", "-m", "photos"]) == 0
    assert "imported 2 objects on lake/main as one unit, committed as " in capsys.readouterr().out
    assert run(["cat", "lake/main/p/1.txt", "lake/main~0/p/2.txt"]) == 0
    assert capsys.readouterr().out == "onetwo"
    assert run(["import", url + "-none", "lake/main/p/", "-m", "x"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_manifest_is_staged_and_committed_if_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "manifest.csv").write_text("key,address,size\na,s3://raw/a,10\nb,s3://raw/b,20\n")
    capsys.readouterr()
    assert run(["import", "manifest.csv", "lake/main/raw/"]) == 0
    assert capsys.readouterr().out == "imported 2 objects on lake/main as one unit\n"
    assert run(["diff", "lake/main"]) == 0
    assert capsys.readouterr().out == "+ raw/a  10 bytes\n+ raw/b  20 bytes\n"
    assert run(["import", "manifest.csv", "lake/main/raw/", "--commit"]) == 0
    assert "committed as " in capsys.readouterr().out


def test_what_a_server_cannot_import_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "photos").mkdir()
    for arguments, code, words in (
        (["photos", "lake/main/"], 2, "is a folder here, and the server is elsewhere"),
        (["none", "lake/main/"], 3, "none does not exist"),
        (["photos", "lake/mian/"], 3, "did you mean 'main'?"),
        (["photos", "lake/main/", "--dry-run"], 2, "over a server there is no"),
        (["--list"], 2, "over a server there is no"),
        (["gs://elsewhere/x", "lake/main/", "--commit"], 6, "allowed_imports"),
    ):
        capsys.readouterr()
        assert run(["import", *arguments]) == code, arguments
        assert words in capsys.readouterr().err, arguments
