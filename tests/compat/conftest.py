"""One server for all clients: `lsmfs run` on local files and SQLite, and a new repository for each test."""

import itertools
import re
from collections.abc import Iterator

import pytest

from tests.gateway.running import certificate
from tests.server.live import Live, running

_numbers = itertools.count()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with running(tmp_path_factory.mktemp("server")) as live:
        yield live


@pytest.fixture(scope="session")
def tls_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    folder = tmp_path_factory.mktemp("tls")
    file = certificate(folder)
    server = Live(folder, environment={"LSMFS_TLS_CERTIFICATE_FILE": file, "LSMFS_TLS_KEY_FILE": file})
    server.certificate = file
    try:
        yield server.start()
    finally:
        server.close()


@pytest.fixture
def repository(request: pytest.FixtureRequest, server: Live) -> str:
    """A new one, with the branches `main` and `dev`."""
    name = new_name(request)
    server.branch(server.repository(name), "dev")
    return name


def new_name(request: pytest.FixtureRequest) -> str:
    words = re.sub("[^a-z0-9]+", "-", request.node.name.lower()).strip("-")
    return f"{words[:40].rstrip('-')}-{next(_numbers)}"
