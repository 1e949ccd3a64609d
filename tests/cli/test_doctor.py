"""`doctor`: what it finds in good and in bad installations."""

from datetime import UTC, datetime, timedelta

import pytest

from lsmfs.cli.doctor import _clock, file_system_of
from lsmfs.installation import Configuration, create_installation
from tests.cli.support import Lake
from tests.servers.process import free_port
from tests.servers.rclone import rclone_server
from tests.servers.redis import redis_server


def levels(lake: Lake) -> dict[str, str]:
    return {finding["what"]: finding["level"] for finding in lake("doctor", "--json").document}


def test_the_embedded_default_is_healthy_and_nothing_is_left_behind(lake: Lake) -> None:
    result = lake("doctor")
    assert result.code == 0
    assert {line.split()[0] for line in result.out.splitlines()} <= {"ok", "warn"}
    found = levels(lake)
    for what in ("object store", "conditions", "clock", "ref store", "durability", "versions"):
        assert found[what] == "ok"
    assert [path for path in (lake.data / "objects").rglob("*") if path.is_file() and "_doctor" in str(path)] == []


def test_a_ref_store_in_redis_is_asked_for_its_durability(empty: Lake) -> None:
    with redis_server("--appendonly", "no", "--maxmemory-policy", "allkeys-lru") as server:
        create_installation(empty.data, Configuration(refs=f"redis://127.0.0.1:{server.port}/0"))
        result = empty("doctor")
        assert result.code == 0
        warnings = [line for line in result.out.splitlines() if line.startswith("warn  durability")]
        assert any("set appendonly yes" in line for line in warnings)
        assert any("set it to noeviction" in line for line in warnings)


def test_a_ref_store_that_cannot_be_reached_fails_and_the_rest_is_still_checked(empty: Lake) -> None:
    create_installation(empty.data, Configuration(refs=f"redis://user:secret@127.0.0.1:{free_port()}/0"))
    result = empty("doctor")
    assert result.code == 1
    assert "fail  ref store: Redis cannot be reached" in result.out
    assert "ok    object store" in result.out
    assert "ok    versions" in result.out
    assert "secret" not in result.out


def test_a_bucket_that_ignores_conditions_and_holds_the_refs_fails(
    empty: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    with rclone_server() as address:
        for name, value in address.environment.items():
            monkeypatch.setenv(name, value)
        create_installation(empty.data, Configuration(store=address.url, refs="bucket"))
        result = empty("doctor")
        assert result.code == 1
        assert "fail  conditions: the store ignores conditions" in result.out
        (empty.data / "lsmfs.json").unlink()
        create_installation(empty.data, Configuration(store=address.url))
        assert levels(empty)["conditions"] == "warn"


def test_a_ref_store_that_is_no_database_fails(lake: Lake) -> None:
    for path in lake.data.glob("refs.db*"):
        path.unlink()
    (lake.data / "refs.db").write_text("not a database, but text that is long enough to be taken for one" * 20)
    result = lake("doctor")
    assert result.code == 1
    assert result.out.startswith("fail  installation: ")
    assert lake("doctor", "--json").document[0]["level"] == "fail"


def test_doctor_without_an_installation_says_what_to_do(empty: Lake) -> None:
    result = empty("doctor")
    assert result.code == 3
    assert "lsmfs init" in result.told


def test_a_clock_that_is_off_is_a_warning() -> None:
    now = datetime.now(UTC)
    assert _clock(now.replace(microsecond=0), now, now).level == "ok"
    assert _clock(now - timedelta(seconds=30), now, now).level == "warn"
    assert _clock(now + timedelta(seconds=30), now, now).level == "warn"


def test_the_file_system_of_a_path_is_that_of_the_nearest_mount() -> None:
    mounts = [("/", "ext4"), ("/data", "nfs4"), ("/data/local", "xfs"), ("/my\\040disk", "cifs")]
    assert file_system_of("/database/refs.db", mounts) == "ext4"
    assert file_system_of("/data/refs.db", mounts) == "nfs4"
    assert file_system_of("/data/local/refs.db", mounts) == "xfs"
    assert file_system_of("/my disk/refs.db", mounts) == "cifs"
