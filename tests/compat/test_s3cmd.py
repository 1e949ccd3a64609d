"""s3cmd, which asks for a bucket's location, policy and rules around what it is told to do."""

import hashlib
from pathlib import Path

import pytest

from tests.compat.support import LARGE, aws_environment, program, run
from tests.server.live import ADMIN, REGION, Live

pytestmark = pytest.mark.xdist_group("compat")


@pytest.mark.parametrize("signature", ["v4", "v2"])
def test_a_round_trip(server: Live, repository: str, tmp_path: Path, signature: str) -> None:
    address, settings = server.url.partition("//")[2], tmp_path / "s3cfg"
    settings.write_text(
        f"[default]\naccess_key = {ADMIN.access_key_id}\nsecret_key = {ADMIN.secret}\nbucket_location = {REGION}\n"
        f"host_base = {address}\nhost_bucket = {address}\nuse_https = False\nmultipart_chunk_size_mb = 5\n"
        f"signature_v2 = {signature == 'v2'}\nmax_retries = 1\n"
    )
    command, dev = [program("s3cmd"), "-c", str(settings), "--no-progress"], f"s3://{repository}/dev"

    def do(*arguments: str) -> str:
        return run([*command, *arguments], aws_environment(server, tmp_path), tmp_path)

    (tmp_path / "small.txt").write_text("0123456789")
    (tmp_path / "large.bin").write_bytes(LARGE)
    do("put", "small.txt", "large.bin", f"{dev}/a/")
    listed = [line.split()[2:] for line in do("ls", "--list-md5", f"{dev}/a/").splitlines()]
    assert [size for size, *_ in listed] == [str(len(LARGE)), "10"]
    assert listed[1][1] == hashlib.md5(b"0123456789", usedforsecurity=False).hexdigest()
    assert f"s3://{repository}" in do("ls")
    assert f"{len(LARGE)}" in do("info", f"{dev}/a/large.bin")
    do("info", f"s3://{repository}")
    do("get", f"{dev}/a/large.bin", "back.bin")
    assert (tmp_path / "back.bin").read_bytes() == LARGE
    (tmp_path / "partial.bin").write_bytes(LARGE[:1_000_000])
    do("get", "--continue", f"{dev}/a/large.bin", "partial.bin")  # by a range
    assert (tmp_path / "partial.bin").read_bytes() == LARGE
    do("cp", f"{dev}/a/large.bin", f"{dev}/b/copy.bin")
    do("mv", f"{dev}/b/copy.bin", f"{dev}/b/moved.bin")
    assert do("ls", "--recursive", dev + "/").split()[3::4] == [
        f"{dev}/a/large.bin", f"{dev}/a/small.txt", f"{dev}/b/moved.bin",
    ]  # fmt: skip
    do("del", "--recursive", "--force", f"{dev}/b/")
    assert do("ls", f"{dev}/b/") == ""

    server.commit(repository, "dev")
    server.merge(repository, "dev")
    do("get", f"s3://{repository}/main/a/small.txt", "main.txt")
    assert (tmp_path / "main.txt").read_text() == "0123456789"
