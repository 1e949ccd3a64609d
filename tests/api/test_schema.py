"""The OpenAPI document is true: generated requests get no 5xx, and answers are what it says. Few examples, always the
same ones; `LSMFS_SCHEMA_EXAMPLES` asks for more."""

import os
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from lsmfs.api.app import OPERATIONS
from tests.api.live import serving
from tests.api.support import ADMIN

EXAMPLES = int(os.environ.get("LSMFS_SCHEMA_EXAMPLES", "4"))
UNBUILT = {each.name for each in OPERATIONS if each.status == 501}
# They would end what the others are tried on.
DESTRUCTIVE = {"deleteRepository", "setReadOnly", "deleteUser", "setUserDisabled", "deleteCredentials"}
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
KNOWN = {
    "repository": "lake",
    "branch": "main",
    "ref": "main",
    "sourceRef": "dev",
    "leftRef": "main",
    "rightRef": "dev",
    "commitId": "main",
    "tag": "v1",
    "userId": "admin",
    "groupId": "Admins",
    "policyId": "Admin",
}


@schemathesis.serializer("application/vnd.apache.arrow.stream", "application/vnd.apache.parquet")
def rows(_: Any, value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(tmp_path_factory.mktemp("schema") / "lake") as url:
        with httpx.Client(base_url=f"{url}/api/v1", auth=(ADMIN.access_key_id, ADMIN.secret)) as client:
            created = client.post("/repositories", json={"name": "lake", "storage_namespace": ""})
            assert created.status_code == 201
            at = "/repositories/lake"
            client.post(f"{at}/branches/main/objects?path=a/b", content=b"x").raise_for_status()
            client.post(f"{at}/branches/main/commits", json={"message": "m"}).raise_for_status()
            client.post(f"{at}/branches", json={"name": "dev", "source": "main"}).raise_for_status()
            client.post(f"{at}/tags", json={"id": "v1", "ref": "main"}).raise_for_status()
        yield url


@pytest.fixture(scope="module")
def operations(server: str) -> dict[str, Any]:
    schema = schemathesis.openapi.from_url(f"{server}/api/v1/openapi.json")
    results: Any = schema.get_all_operations()
    found = [result.ok() for result in results]
    return {each.definition.raw["operationId"]: each for each in found}


def test_the_document_has_every_operation(operations: dict[str, Any]) -> None:
    assert set(operations) == {each.name for each in OPERATIONS}


@pytest.mark.parametrize("known", [False, True], ids=["any names", "known names"])
@pytest.mark.parametrize("name", sorted({each.name for each in OPERATIONS} - UNBUILT - DESTRUCTIVE))
def test_answers_are_what_the_document_says(operations: dict[str, Any], name: str, known: bool) -> None:
    @given(case=operations[name].as_strategy())
    @settings(
        max_examples=EXAMPLES,
        derandomize=True,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def tried(case: Any) -> None:
        if known:
            case.path_parameters = {
                part: KNOWN.get(part, value) for part, value in (case.path_parameters or {}).items()
            }
            if case.query and "ref" in case.query:
                case.query["ref"] = "main"
        case.call_and_validate(checks=CHECKS, auth=(ADMIN.access_key_id, ADMIN.secret))

    tried()
