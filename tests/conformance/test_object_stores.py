"""Every driver against the one suite, on the real thing where there is one; and a real server that fails it."""

import os
from pathlib import Path

import pytest

from lsmfs.objectstore.conditions import honours_conditions
from lsmfs.objectstore.open import open_store
from tests.aio import aio
from tests.conformance import objectstore_backends as backends
from tests.conformance.objectstore_backends import Backend
from tests.conformance.objectstore_suite import ObjectStoreSuite, TwoRouteSuite
from tests.servers import gcs
from tests.servers.azurite import shared_azure
from tests.servers.rclone import rclone_server
from tests.servers.seaweedfs import shared_s3


class TestMemory(ObjectStoreSuite):
    @pytest.fixture
    def backend(self) -> Backend:
        return backends.memory()


class TestLocal(TwoRouteSuite):
    @pytest.fixture
    def backend(self, tmp_path: Path) -> Backend:
        return backends.local(tmp_path / "not" / "there" / "yet")


@pytest.mark.xdist_group("s3")
class TestS3(TwoRouteSuite):
    @pytest.fixture
    def backend(self) -> Backend:
        return backends.bucket(shared_s3(), backends.S3Route)


@pytest.mark.xdist_group("azure")
class TestAzure(TwoRouteSuite):
    @pytest.fixture
    def backend(self) -> Backend:
        return backends.bucket(shared_azure(), backends.AzureRoute)


if gcs.ADDRESS in os.environ:  # one line in the report, not one for each test of the suite

    class TestGoogle(ObjectStoreSuite):
        @pytest.fixture
        def backend(self) -> Backend:
            return backends.bucket(gcs.shared_gcs())

else:

    def test_google() -> None:
        pytest.skip(gcs.MISSING)


@aio
async def test_a_server_that_ignores_conditions_is_found_out() -> None:
    with rclone_server() as address:
        store = open_store(address.url, address.environment)
        report = await honours_conditions(store, "probe/")
        assert not report.honoured
        assert any("racing puts (create)" in problem for problem in report.problems)
        assert any("absence" in problem for problem in report.problems)
