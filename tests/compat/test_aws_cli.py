"""The aws command: cp, ls, mv, sync, rm, and s3api."""

import json
from pathlib import Path

import pytest

from tests.compat.support import LARGE, PART_BYTES, aws_environment, program, run
from tests.server.live import Live

pytestmark = pytest.mark.xdist_group("compat")


def test_a_round_trip(server: Live, repository: str, tmp_path: Path) -> None:
    environment = aws_environment(server, tmp_path)
    settings = tmp_path / ".aws" / "config"
    settings.parent.mkdir()
    settings.write_text(
        f"[default]\ns3 =\n  multipart_threshold = {PART_BYTES}\n  multipart_chunksize = {PART_BYTES}\n"
        "  addressing_style = path\n"
    )
    aws, there = program("aws"), f"s3://{repository}/dev"

    def s3(*arguments: str) -> str:
        return run([aws, "s3", *arguments], environment, tmp_path)

    def api(*arguments: str) -> dict[str, object]:
        said = run([aws, "s3api", *arguments, "--bucket", repository], environment, tmp_path)
        answer: dict[str, object] = json.loads(said) if said else {}
        return answer

    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "small.txt").write_text("0123456789")
    (folder / "large.bin").write_bytes(LARGE)
    s3("sync", str(folder), f"{there}/a", "--no-progress")
    assert s3("sync", str(folder), f"{there}/a", "--no-progress") == ""  # nothing changed: sizes and times are right
    listed = [line.split()[2:] for line in s3("ls", f"{there}/a/").splitlines()]
    assert listed == [[str(len(LARGE)), "large.bin"], ["10", "small.txt"]]
    assert s3("ls", f"s3://{repository}/").split() == ["PRE", "dev/", "PRE", "main/"]
    assert str(api("head-object", "--key", "dev/a/large.bin")["ETag"]).endswith('-3"')

    answer = api("get-object", "--key", "dev/a/small.txt", "--range", "bytes=3-5", "part.txt")
    assert answer["ContentRange"] == "bytes 3-5/10"
    assert (tmp_path / "part.txt").read_text() == "345"
    s3("cp", f"{there}/a/large.bin", f"{there}/b/copy.bin", "--no-progress")
    s3("mv", f"{there}/b/copy.bin", f"{there}/b/moved.bin", "--no-progress")
    s3("cp", f"{there}/b/moved.bin", "back.bin", "--no-progress")
    assert (tmp_path / "back.bin").read_bytes() == LARGE
    s3("rm", f"{there}/b/", "--recursive")
    assert api("list-objects-v2", "--prefix", "dev/b/").get("Contents") is None

    server.commit(repository, "dev")
    server.merge(repository, "dev")
    s3("sync", f"s3://{repository}/main/a", "copy of main", "--no-progress")
    assert (tmp_path / "copy of main" / "large.bin").read_bytes() == LARGE
