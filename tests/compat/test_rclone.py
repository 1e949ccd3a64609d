"""rclone, which compares the MD5 of what it copied, and makes buckets before it writes to them."""

import json
from pathlib import Path

import pytest

from tests.compat.support import LARGE, ODD_NAMES, aws_environment, program, run
from tests.server.live import Live

pytestmark = pytest.mark.xdist_group("compat")


def test_a_round_trip(server: Live, repository: str, tmp_path: Path) -> None:
    environment = {
        **aws_environment(server, tmp_path),
        "RCLONE_CONFIG": str(tmp_path / "rclone.conf"),
        "RCLONE_CONFIG_LAKE_TYPE": "s3",
        "RCLONE_CONFIG_LAKE_PROVIDER": "Other",
        "RCLONE_CONFIG_LAKE_ENV_AUTH": "true",
        "RCLONE_CONFIG_LAKE_ENDPOINT": server.url,
        "RCLONE_S3_CHUNK_SIZE": "5Mi",
        "RCLONE_S3_UPLOAD_CUTOFF": "5Mi",
        "RCLONE_RETRIES": "1",
        "RCLONE_LOW_LEVEL_RETRIES": "1",
    }
    rclone, dev = program("rclone"), f"lake:{repository}/dev"

    def do(*arguments: str) -> str:
        return run([rclone, *arguments], environment, tmp_path)

    folder = tmp_path / "folder"
    for name in ODD_NAMES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    (folder / "small.txt").write_text("0123456789")
    (folder / "large.bin").write_bytes(LARGE)
    (folder / "empty").touch()
    do("copy", "folder", f"{dev}/a")
    do("check", "--download", "folder", f"{dev}/a")
    do("check", "folder", f"{dev}/a")  # by what is listed: sizes and hashes
    assert {line.split(maxsplit=1)[1] for line in do("ls", f"{dev}/a").splitlines()} == {
        *ODD_NAMES, "small.txt", "large.bin", "empty",
    }  # fmt: skip
    assert [each["Name"] for each in json.loads(do("lsjson", f"lake:{repository}"))] == ["dev", "main"]
    assert f"{repository}/" in do("lsf", "lake:").split()
    assert do("cat", "--offset", "3", "--count", "3", f"{dev}/a/small.txt") == "345"
    assert str(len(LARGE)) in do("size", "--json", f"{dev}/a/large.bin")

    do("copyto", f"{dev}/a/large.bin", f"{dev}/b/copy.bin")
    do("moveto", f"{dev}/b/copy.bin", f"{dev}/b/moved.bin")
    do("copyto", f"{dev}/b/moved.bin", "back.bin")
    assert (tmp_path / "back.bin").read_bytes() == LARGE
    do("delete", f"{dev}/b")
    assert do("lsf", f"{dev}/") == "a/\n"

    server.commit(repository, "dev")
    server.merge(repository, "dev")
    do("sync", f"lake:{repository}/main/a", "copy")
    do("check", "folder", "copy")
