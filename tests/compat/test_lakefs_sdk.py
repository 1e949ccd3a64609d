"""The generated `lakefs-sdk` package from PyPI, unchanged: what it sends is understood, and it reads every answer."""

import importlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lakefs_sdk.exceptions import ApiException

from lsmfs.api.app import Options
from tests.api.live import serving
from tests.api.support import ADMIN

lakefs_sdk: Any = importlib.import_module("lakefs_sdk")  # its types ask for every argument
LakeFSClient: Any = importlib.import_module("lakefs_sdk.client").LakeFSClient

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecatedSince20"),
]


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    folder = tmp_path / "raw"
    folder.mkdir()
    (folder / "one.txt").write_text("one")
    return folder


@pytest.fixture
def client(tmp_path: Path, raw: Path) -> Iterator[Any]:
    with serving(tmp_path / "lake", Options(allowed_imports=(f"file://{raw}",))) as url:
        settings = lakefs_sdk.Configuration(host=f"{url}/api/v1", username=ADMIN.access_key_id, password=ADMIN.secret)
        made = LakeFSClient(configuration=settings)
        made.repositories_api.create_repository(
            lakefs_sdk.RepositoryCreation(name="lake", storage_namespace="local://lake")
        )
        yield made


def test_a_form_upload_with_a_file_name_works(client: Any, tmp_path: Path) -> None:
    local = tmp_path / "local.bin"
    local.write_bytes(bytes(range(256)) * 1000)
    stats = client.objects_api.upload_object("lake", "main", "a/b", content=str(local))
    assert stats.size_bytes == 256_000
    assert client.objects_api.get_object("lake", "main", "a/b") == local.read_bytes()
    assert client.objects_api.get_object("lake", "main", "a/b", range="bytes=0-1") == b"\0\1"
    assert client.objects_api.stat_object("lake", "main", "a/b", user_metadata=True, presign=False).path == "a/b"
    client.objects_api.head_object("lake", "main", "a/b")
    listed = client.objects_api.list_objects("lake", "main", prefix="a/", delimiter="/", user_metadata=False)
    assert [each.path for each in listed.results] == ["a/b"]
    copy = lakefs_sdk.ObjectCopyCreation(src_path="a/b")
    assert client.objects_api.copy_object("lake", "main", "c", copy).path == "c"
    client.objects_api.delete_object("lake", "main", "c", force=False)
    errors = client.objects_api.delete_objects("lake", "main", lakefs_sdk.PathList(paths=["a/b"]))
    assert errors.errors == []


def test_commits_diffs_and_merges_are_read(client: Any) -> None:
    client.objects_api.upload_object("lake", "main", "a", content=b"x")
    made = client.commits_api.commit("lake", "main", lakefs_sdk.CommitCreation(message="m", metadata={"k": "v"}))
    assert client.commits_api.get_commit("lake", "main").id == made.id
    branch = client.branches_api.create_branch("lake", lakefs_sdk.BranchCreation(name="dev", source="main"))
    assert branch == made.id
    client.objects_api.upload_object("lake", "dev", "b", content=b"y")
    assert [each.path for each in client.branches_api.diff_branch("lake", "dev").results] == ["b"]
    client.commits_api.commit("lake", "dev", lakefs_sdk.CommitCreation(message="n"))
    diff = client.refs_api.diff_refs("lake", "main", "dev", type="two_dot", include_right_stats=True)
    assert diff.results[0].right is not None
    merged = client.refs_api.merge_into_branch("lake", "dev", "main", lakefs_sdk.Merge(message="merge"))
    assert client.refs_api.find_merge_base("lake", "dev", "main").destination_commit_id == merged.reference
    assert len(client.refs_api.log_commits("lake", "main", amount=10, first_parent=True).results) == 3
    with pytest.raises(ApiException) as failure:
        client.branches_api.revert_branch("lake", "main", lakefs_sdk.RevertCreation(ref="main", parent_number=0))
    assert failure.value.status == 409


def test_an_import_is_started_and_its_status_read(client: Any, raw: Path) -> None:
    place = lakefs_sdk.ImportLocation(type="common_prefix", path=f"file://{raw}", destination="in/")
    given = lakefs_sdk.ImportCreation(paths=[place], commit=lakefs_sdk.CommitCreation(message="imported"))
    started = client.import_api.import_start("lake", "main", given)
    while not (status := client.import_api.import_status("lake", "main", started.id)).completed:
        time.sleep(0.02)
    assert status.error is None
    assert status.commit is not None
    assert status.commit.message == "imported"


def test_config_settings_and_actions_are_read(client: Any) -> None:
    assert client.config_api.get_config().storage_config is not None
    assert client.internal_api.get_setup_state().state == "initialized"
    client.health_check_api.health_check()
    rule = lakefs_sdk.BranchProtectionRule(pattern="release-*")
    client.repositories_api.set_branch_protection_rules("lake", [rule])
    assert client.repositories_api.get_branch_protection_rules("lake") == [rule]
    assert client.actions_api.list_repository_runs("lake").results == []
    client.internal_api.set_repository_metadata("lake", lakefs_sdk.RepositoryMetadataSet(metadata={"a": "b"}))
    assert client.repositories_api.get_repository_metadata("lake") == {"a": "b"}
    with pytest.raises(ApiException) as failure:
        client.repositories_api.get_gc_rules("lake")
    assert failure.value.status == 404


def test_users_groups_policies_and_keys_are_read(client: Any) -> None:
    auth = client.auth_api
    assert auth.get_current_user().user.id == "admin"
    auth.create_user(lakefs_sdk.UserCreation(id="ann"))
    auth.create_group(lakefs_sdk.GroupCreation(id="team"))
    statement = lakefs_sdk.Statement(effect="allow", resource="*", action=["fs:Read*"])
    auth.create_policy(lakefs_sdk.Policy(id="readers", statement=[statement]))
    auth.add_group_membership("team", "ann")
    auth.attach_policy_to_group("team", "readers")
    auth.attach_policy_to_user("ann", "readers")
    key = auth.create_credentials("ann")
    assert auth.get_credentials("ann", key.access_key_id).access_key_id == key.access_key_id
    assert [each.id for each in auth.list_group_members("team").results] == ["ann"]
    assert [each.id for each in auth.list_user_policies("ann", effective=True).results] == ["readers"]
    assert auth.get_policy("readers").statement[0].action == ["fs:Read*"]
    token = auth.login(
        lakefs_sdk.LoginInformation(access_key_id=key.access_key_id, secret_access_key=key.secret_access_key)
    )
    assert token.token_expiration
    auth.delete_credentials("ann", key.access_key_id)
    auth.delete_user("ann")
    auth.delete_group("team")
    auth.delete_policy("readers")
    assert [each.id for each in auth.list_users().results] == ["admin"]


def test_a_physical_address_is_given_and_linked(client: Any) -> None:
    place = client.staging_api.get_physical_address("lake", "main", "a")
    assert place.physical_address is not None
    stored = Path(place.physical_address.removeprefix("file://"))
    stored.parent.mkdir(parents=True, exist_ok=True)
    stored.write_bytes(b"hello")
    given = lakefs_sdk.StagingMetadata(staging=place, checksum="5d41402abc4b2a76b9719d911017c592", size_bytes=5)
    assert client.staging_api.link_physical_address("lake", "main", "a", given).size_bytes == 5
    assert client.objects_api.get_object("lake", "main", "a") == b"hello"
