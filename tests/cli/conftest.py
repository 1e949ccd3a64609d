"""A lake of one's own: an installation in a temporary folder, and its command line."""

import os
from pathlib import Path

import pytest

from tests.cli.support import Lake


@pytest.fixture
def empty(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Lake:
    """A folder with no installation yet; the working directory is beside it."""
    for name in [name for name in os.environ if name.startswith(("LSMFS_", "LAKECTL_")) and name != "LSMFS_REWRITE"]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return Lake(tmp_path, capsys)


@pytest.fixture
def lake(empty: Lake) -> Lake:
    """An installation with the repository `lake`."""
    assert empty("init", "lake").code == 0
    return empty
