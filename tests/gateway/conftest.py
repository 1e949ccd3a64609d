"""One running gateway for all tests of a worker, and a repository for each test."""

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from tests.gateway.running import Running

NUMBERS = itertools.count()


@pytest.fixture(scope="session")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with Running(tmp_path_factory.mktemp("gateway") / "lake") as running:
        yield running


@pytest.fixture(scope="session")
def tls_gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with Running(tmp_path_factory.mktemp("gateway-tls") / "lake", tls=True) as running:
        yield running


@pytest.fixture(params=["http", "https"])
def either(request: pytest.FixtureRequest) -> Running:
    """Over plain HTTP and over TLS: clients behave differently."""
    running: Running = request.getfixturevalue("gateway" if request.param == "http" else "tls_gateway")
    return running


def new_bucket(running: Running) -> str:
    return running.create(f"lake-{next(NUMBERS)}")


@pytest.fixture
def bucket(gateway: Running) -> str:
    return new_bucket(gateway)


@pytest.fixture(scope="session")
def s3(gateway: Running) -> Any:
    return gateway.client()
