"""Imports in small: what in production takes millions of objects and minutes happens with hundreds, at once."""

import pytest

from lsmfs.imports import sorting, work


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small spills, and a save after every batch."""
    monkeypatch.setattr(work, "SAVE_SECONDS", 0.0)
    monkeypatch.setattr(sorting, "SPILL_ROWS", 50)
    monkeypatch.setattr(sorting, "SPILLS_MAX", 3)
