"""Which server a command is for, and with which key: options, variables, files, and what takes the place of what."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from lsmfs.cli import run
from lsmfs.cli.session import Session
from lsmfs.client.endpoint import is_loopback, parse_endpoint
from lsmfs.client.profile import Profile, endpoint_in_files, endpoint_of, profile
from refstore.errors import Denied, Error, Invalid
from tests.cli.support import Lake
from tests.client.served import ADMIN, Served, serving, without_settings

HERE, THERE = "http://here:1", "http://there:2"
KEY = {"LSMFS_ACCESS_KEY_ID": "K", "LSMFS_SECRET_ACCESS_KEY": "S"}
LAKECTL_KEY = {"LAKECTL_CREDENTIALS_ACCESS_KEY_ID": "LK", "LAKECTL_CREDENTIALS_SECRET_ACCESS_KEY": "LS"}


def write(folder: Path, name: str, endpoint: str = "", key: str = "", secret: str = "") -> dict[str, str]:
    """A file of settings in a home folder; the environment that has that home."""
    lines = ["server:", f"  endpoint_url: {endpoint}"] if endpoint else []
    lines += ["credentials:", f"  access_key_id: {key}", f"  secret_access_key: {secret}"] if key else []
    (folder / name).write_text("\n".join(lines) + "\n")
    return {"HOME": str(folder)}


def test_an_endpoint_may_end_with_the_path_of_the_api() -> None:
    for text in ("http://x:80", "http://x:80/", "http://x:80/api/v1", " http://X:80/api/v1/ "):
        assert parse_endpoint(text) == "http://x:80"
    assert parse_endpoint("https://lake.example.com/lsmfs/api/v1") == "https://lake.example.com/lsmfs"
    for text in ("", "x", "x:80", "ftp://x", "http://", "http://x:y", "http://k:s@x", "http://x?q=1", "http://[x"):
        with pytest.raises(Invalid) as caught:
            parse_endpoint(text)
        assert "k:s" not in str(caught.value)
    assert [is_loopback(f"http://{host}") for host in ("127.0.0.9:1", "[::1]", "localhost", "example.com")] == [
        True,
        True,
        True,
        False,
    ]


def test_our_own_variables_are_before_those_of_lakectl() -> None:
    assert endpoint_of({}) == ""
    lakectl = {"LAKECTL_SERVER_ENDPOINT_URL": THERE}
    assert endpoint_of(lakectl) == THERE
    assert endpoint_of({**lakectl, "LSMFS_ENDPOINT_URL": HERE}) == HERE
    assert profile(HERE, "", LAKECTL_KEY) == Profile(HERE, "LK", "LS")
    assert profile(HERE, "", {**LAKECTL_KEY, **KEY}) == Profile(HERE, "K", "S")
    assert profile(HERE, "LK", {**LAKECTL_KEY, **KEY}) == Profile(HERE, "LK", "LS")


def test_a_key_without_a_secret_is_none(tmp_path: Path) -> None:
    for key, environment in (
        ("", {}),
        ("other", KEY),
        ("", {"LSMFS_ACCESS_KEY_ID": "K"}),
        ("", {"HOME": str(tmp_path)}),
    ):
        with pytest.raises(Denied, match="there is no secret"):
            profile(HERE, key, environment)
    secret = {"LSMFS_SECRET_ACCESS_KEY": "S"}
    assert profile(HERE, "K", secret) == Profile(HERE, "K", "S")
    with pytest.raises(Denied, match="without an access key id"):
        profile(HERE, "", secret)


def test_a_file_of_ours_is_before_that_of_lakectl(tmp_path: Path) -> None:
    home = write(tmp_path, ".lakectl.yaml", THERE, "LK", "LS")
    assert endpoint_in_files(home) == THERE
    assert profile(f"{THERE}/api/v1", "", home) == Profile(THERE, "LK", "LS")
    write(tmp_path, ".lsmfs.yaml", HERE, "K", "S")
    assert endpoint_in_files(home) == HERE
    assert profile(HERE, "", home) == Profile(HERE, "K", "S")
    assert profile(HERE, "", {**home, **LAKECTL_KEY}) == Profile(HERE, "LK", "LS")


def test_the_key_of_a_file_goes_only_to_the_server_that_the_file_names(tmp_path: Path) -> None:
    home = write(tmp_path, ".lsmfs.yaml", HERE, "K", "S")
    with pytest.raises(Denied, match=f"no secret for {THERE}"):
        profile(THERE, "", home)
    write(tmp_path, ".lsmfs.yaml", "", "K", "S")
    assert profile(THERE, "", home) == Profile(THERE, "K", "S")


def test_a_file_that_cannot_be_read_is_told_without_its_secret(tmp_path: Path) -> None:
    home, file = {"HOME": str(tmp_path)}, tmp_path / ".lsmfs.yaml"
    for text in (
        "credentials: [",
        "credentials:\n  secret_access_key: [hidden-secret]\n",
        "credentials:\n\tsecret_access_key: hidden-secret\n",
        "- hidden-secret",
        "!!python/object/apply:os.system [hidden-secret]",
        "x" * 2_000_000,
    ):
        file.write_text(text)
        with pytest.raises(Invalid, match=r"\.lsmfs\.yaml") as caught:
            endpoint_in_files(home)
        assert "hidden-secret" not in str(caught.value)
    file.write_text("")
    assert endpoint_in_files(home) == ""


def test_what_says_where_a_command_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    home, said = write(tmp_path, ".lakectl.yaml", THERE), {"LSMFS_ENDPOINT_URL": HERE}
    folder = Path("folder")
    assert Session(environment={}).server == ""
    assert Session(environment=home).server == THERE
    assert Session(environment=home).said_server == ""
    assert Session(environment=home | said).server == HERE
    assert Session(data=folder, environment=home | said).server == ""
    assert Session(endpoint="http://third/api/v1", environment=home | said).server == "http://third"
    variable = {"LSMFS_DATA": "folder"}
    assert Session(data=folder, endpoint=THERE, environment=said | variable).server == THERE
    with pytest.raises(Invalid, match="exclude each other"):
        _ = Session(data=folder, endpoint=THERE, environment={}).server
    # An installation that is there is not passed over because of a file.
    assert run(["--data", "lsmfs-data", "init", "lake"]) == 0
    assert Session(environment=home).server == ""
    assert Session(environment=home | said).server == HERE


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("server")) as server:
        yield server


@pytest.fixture
def server(running: Served, empty: Lake, monkeypatch: pytest.MonkeyPatch) -> Served:
    for name in os.environ.keys() - without_settings(dict(os.environ)).keys():
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(empty.folder))
    running.empty()
    return running


def test_every_way_to_name_a_server_and_a_key_reaches_it(
    server: Served, empty: Lake, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LSMFS_ACCESS_KEY_ID", ADMIN[0])
    monkeypatch.setenv("LSMFS_SECRET_ACCESS_KEY", ADMIN[1])
    assert run(["--endpoint", server.url, "init", "lake"]) == 0
    assert capsys.readouterr().out == f"created repository lake at {server.url}; its branch is lsmfs://lake/main\n"

    def lists(*arguments: str) -> bool:
        assert run([*arguments]) == 0, capsys.readouterr().err
        return capsys.readouterr().out.endswith("lake/main\n")

    assert lists("repos", "--endpoint", f"{server.url}/api/v1")
    assert lists("repo", "--endpoint", server.url, "list", "--access-key-id", ADMIN[0])
    monkeypatch.setenv("LSMFS_ENDPOINT_URL", server.url)
    assert lists("repos")
    for name in ("LSMFS_ACCESS_KEY_ID", "LSMFS_SECRET_ACCESS_KEY", "LSMFS_ENDPOINT_URL"):
        monkeypatch.delenv(name)
    write(empty.folder, ".lakectl.yaml", server.url, *ADMIN)
    assert lists("repos")
    (empty.folder / ".lakectl.yaml").unlink()
    monkeypatch.setenv("LAKECTL_SERVER_ENDPOINT_URL", f"{server.url}/api/v1")
    monkeypatch.setenv("LAKECTL_CREDENTIALS_ACCESS_KEY_ID", ADMIN[0])
    monkeypatch.setenv("LAKECTL_CREDENTIALS_SECRET_ACCESS_KEY", ADMIN[1])
    assert lists("repos")


def test_init_makes_an_installation_here_if_only_a_file_names_a_server(server: Served, empty: Lake) -> None:
    write(empty.folder, ".lsmfs.yaml", server.url, *ADMIN)
    assert run(["init", "lake"]) == 0
    assert (empty.folder / "lsmfs-data" / "lsmfs.json").exists()


def test_mistakes_are_told_in_one_line(
    server: Served, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    at = ["--endpoint", server.url]
    cases = [
        ([*at, "repos"], 6, "there is no secret"),
        (["--endpoint", "nowhere", "repos"], 2, "is no endpoint"),
        ([*at, "--data", "x", "repos"], 2, "exclude each other"),
        ([*at, "compactor", "--once"], 2, "works on stores and not over"),
        ([*at, "doctor"], 2, "works on stores and not over"),
        ([*at, "bench"], 2, "works on stores and not over"),
        ([*at, "tour"], 2, "works on stores and not over"),
        ([*at, "run"], 2, "works on stores and not over"),
        ([*at, "init", "lake", "--store", "x"], 2, "leave --store and --refs out"),
        ([*at, "repo", "create", "lake", "--storage", "x"], 2, "the server is elsewhere"),
        ([*at, "commit", "lake/main", "-m", "x", "--committer", "ben"], 2, "leave --committer out"),
    ]
    for arguments, code, words in cases:
        assert run(arguments) == code, arguments
        told = capsys.readouterr().err
        assert words in told, arguments
        assert told.count("\n") == 1, told
    monkeypatch.setenv("LSMFS_ACCESS_KEY_ID", ADMIN[0])
    monkeypatch.setenv("LSMFS_SECRET_ACCESS_KEY", "wrong-secret")
    assert run([*at, "repos"]) == 6
    told = capsys.readouterr().err
    assert "does not know this access key id" in told
    assert "wrong-secret" not in told


def test_there_is_no_option_for_a_secret(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--help"], ["repos", "--help"], ["repo", "--help"]):
        assert run(arguments) == 0
        told = capsys.readouterr().out
        assert "--endpoint" in told
        assert "--access-key-id" in told
        assert "secret-access" not in told


def test_errors_of_a_session_are_ours() -> None:
    for environment in ({"LSMFS_ENDPOINT_URL": "x"}, {"LAKECTL_SERVER_ENDPOINT_URL": "http://k:s@x"}):
        with pytest.raises(Error):
            _ = Session(environment=environment).server
