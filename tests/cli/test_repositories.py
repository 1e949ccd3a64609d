"""`init`, `repos` and `repo`."""

import asyncio
import json
import stat

import msgspec
import pytest

from lsmfs.installation import Configuration, create_installation, open_installation, without_password
from tests.cli.support import Lake
from tests.servers.rclone import rclone_server
from tests.servers.seaweedfs import shared_s3


def test_init_makes_an_installation_and_a_repository_that_can_be_written(empty: Lake) -> None:
    created = empty.json("init", "lake", "--default-branch", "trunk")
    assert created["repository"] == "lake"
    assert created["default_branch"] == "trunk"
    assert created["installation_created"] is True
    assert empty("put", empty.file("a", "body"), "lsmfs://lake/trunk/a").code == 0


def test_init_adds_repositories_to_an_installation(lake: Lake) -> None:
    assert lake.json("init", "second")["installation_created"] is False
    assert [line["repository"] for line in lake("repos", "--json").lines] == ["lake", "second"]
    assert "second/main" in lake("repos").out


def test_init_of_a_repository_that_exists_is_refused(lake: Lake) -> None:
    result = lake("init", "lake")
    assert result.code == 4
    assert "'lake' exists already" in result.told


def test_init_takes_stores_that_an_installation_has_already(lake: Lake) -> None:
    assert lake("init", "second", "--store", "data/objects").code == 0  # the same folder, said in another way


def test_init_on_a_second_machine_finds_the_repository_in_shared_stores(empty: Lake) -> None:
    shared = ["--store", "shared", "--refs", "bucket"]
    assert empty("init", "lake", *shared).code == 0
    empty.put("a")
    empty.data = empty.folder / "second"
    result = empty("init", "lake", *shared)
    assert result.code == 4
    assert "now refers to them" in result.told
    assert empty.keys() == ["a"]


@pytest.mark.parametrize(("option", "url"), [("--store", "elsewhere"), ("--refs", "redis://user:secret@host")])
def test_init_refuses_stores_that_contradict_the_installation(lake: Lake, option: str, url: str) -> None:
    result = lake("init", "second", option, url)
    assert result.code == 2
    assert f"leave {option} out" in result.told
    assert "secret" not in result.err


MISTAKES = [
    (["Lake"], "no repository name"),
    (["lsmfs://lake/main"], "without lsmfs:// and branch"),
    (["lake", "--default-branch", "a b"], "no branch name"),
    (["lake", "--store", "mem://"], "gone when the command ends"),
    (["lake", "--store", "ftp://host"], "no store's address"),
    (["lake", "--store", ""], "--store is empty"),
    (["lake", "--refs", "refs.db"], "names no ref store"),
    (["lake", "--refs", "sqlite://refs.db"], "sqlite:///absolute/path"),
]


def test_init_that_cannot_be_right_leaves_no_installation(empty: Lake) -> None:
    for arguments, words in MISTAKES:
        empty.check_mistakes([(["init", *arguments], 2, words)])
        assert not (empty.data / "lsmfs.json").exists()


def test_init_tells_if_the_folder_is_a_file(empty: Lake) -> None:
    empty.data.write_text("a file")
    result = empty("init", "lake")
    assert result.code == 2
    assert "cannot be a folder" in result.told


def test_init_in_a_bucket_that_holds_its_own_refs(empty: Lake) -> None:
    created = empty.json("init", "lake", "--store", "shared", "--refs", "bucket")
    assert created["store"] == f"file://{empty.folder}/shared"
    empty.put("a")
    assert empty.keys() == ["a"]
    assert not (empty.data / "refs.db").exists()


def test_init_on_a_real_s3_server_that_honours_conditions(empty: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    address = shared_s3().below(empty.folder.name)
    for name, value in address.environment.items():
        monkeypatch.setenv(name, value)
    assert empty("init", "lake", "--store", address.url, "--refs", "bucket").code == 0
    empty.put("a")
    assert empty("get", "lake/main/a").out == "a"


def test_init_refuses_a_bucket_that_ignores_conditions_as_ref_store(
    empty: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    with rclone_server() as address:
        for name, value in address.environment.items():
            monkeypatch.setenv(name, value)
        result = empty("init", "lake", "--store", address.url, "--refs", "bucket")
        assert result.code == 2
        assert "ignores conditions" in result.told
        assert not (empty.data / "lsmfs.json").exists()


def test_repos_of_an_empty_installation_says_what_to_do(empty: Lake) -> None:
    create_installation(empty.data, Configuration())
    result = empty("repos")
    assert (result.code, result.out) == (0, "")
    assert "lsmfs init" in result.err


def test_a_configuration_with_a_password_is_for_its_owner_only(empty: Lake) -> None:
    create_installation(empty.data, Configuration(refs="redis://user:secret@host"))
    assert stat.S_IMODE((empty.data / "lsmfs.json").stat().st_mode) == 0o600
    assert without_password("redis://user:secret@host") == "redis://user:***@host"


@pytest.mark.parametrize(
    ("text", "words"),
    [('{"version": 2}', "use a newer lsmfs"), ("{", "correct the file"), ('{"stoer": "x"}', "correct the file")],
)
def test_a_configuration_that_cannot_be_understood_is_told(lake: Lake, text: str, words: str) -> None:
    (lake.data / "lsmfs.json").write_text(text)
    result = lake("repos")
    assert result.code == 2
    assert words in result.told


def test_an_embedded_installation_can_be_moved(lake: Lake) -> None:
    lake.put("a")
    assert "{folder}" in json.loads((lake.data / "lsmfs.json").read_text())["store"]
    lake.data.rename(lake.folder / "moved")
    lake.data = lake.folder / "moved"
    assert lake("get", "lake/main/a").out == "a"


def test_a_deletion_that_was_interrupted_is_shown_and_goes_on(lake: Lake) -> None:
    async def begin() -> None:
        async with open_installation(lake.data, {}) as installation, await installation.repository("pond") as pond:
            await pond.policy.change(lambda record: msgspec.structs.replace(record, deleting=True))

    assert lake("init", "pond").code == 0
    asyncio.run(begin())
    assert "pond/main  (being deleted)\n" in lake("repos").out
    assert lake("compactor", "--once").code == 0  # it leaves that one out
    for arguments in (["compactor", "pond", "--once"], ["ls", "pond/main"], ["repo", "create", "pond"]):
        result = lake(*arguments)
        assert result.code == 3
        assert "`lsmfs repo delete pond` goes on with it" in result.told
    assert lake.json("repo", "delete", "pond")["repository"] == "pond"
    assert lake("repos").out.count("\n") == 1
    assert not (lake.data / "objects/pond").exists() or not list((lake.data / "objects/pond").rglob("*.*"))


def test_deleting_a_repository_is_asked_for_on_a_terminal(lake: Lake) -> None:
    with lake.answering("n", "repo", "delete", "lake") as process:
        result = lake.finish(process)
    assert (result.code, result.out) == (6, "")
    assert "Delete repository lake and everything in it, for good? [y/N]" in result.err
    assert lake("repos").out.count("\n") == 1
