"""One server for the tests of a module, emptied before each; and the environment that names it."""

import os
from collections.abc import Iterator

import pytest

from tests.client.served import Served, serving, without_settings


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("server")) as server:
        server.add_user("ana")
        yield server


@pytest.fixture
def server(running: Served, monkeypatch: pytest.MonkeyPatch) -> Served:
    """The server without repositories; nothing in the environment names it."""
    for name in os.environ.keys() - without_settings(dict(os.environ)).keys():
        monkeypatch.delenv(name)
    running.empty()
    return running
