"""Real clients, unchanged, each through a whole round trip: write, list, read, ranges, parts, copy, delete."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as fs
import pyarrow.parquet as pq
import pytest

from tests.gateway.running import ADMIN, REGION, Running
from tests.gateway.test_listing import keys

BIG = bytes(range(256)) * 80_000  # 20 MB: several parts by every client's rules
SECONDS_MAX = 120


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "big").write_bytes(BIG)
    (tmp_path / "small").write_bytes(b"small")
    return tmp_path


def run(program: str, *arguments: object) -> str:
    environment = {
        **os.environ,
        "AWS_ACCESS_KEY_ID": ADMIN.access_key_id,
        "AWS_SECRET_ACCESS_KEY": ADMIN.secret,
        "AWS_DEFAULT_REGION": REGION,
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    path = Path(sys.executable).parent / program
    done = subprocess.run(
        [path, *map(str, arguments)], capture_output=True, text=True, timeout=SECONDS_MAX, env=environment
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_aws_command_line(gateway: Running, s3: Any, bucket: str, files: Path) -> None:
    def aws(*arguments: object) -> str:
        return run("aws", "--endpoint-url", gateway.url, "s3", *arguments)

    root = f"s3://{bucket}/main"
    aws("cp", files / "big", f"{root}/big")
    assert "PRE main/" in aws("ls", f"s3://{bucket}/")
    assert "20480000 big" in aws("ls", f"{root}/")
    aws("mv", f"{root}/big", f"{root}/moved")
    aws("cp", f"{root}/moved", files / "back")
    assert (files / "back").read_bytes() == BIG
    aws("sync", files, f"{root}/synced/", "--exclude", "back")
    assert keys(s3.list_objects_v2(Bucket=bucket, Prefix="main/synced/")) == ["main/synced/big", "main/synced/small"]
    assert aws("sync", files, f"{root}/synced/", "--exclude", "back") == ""  # nothing is left to do
    aws("rm", "--recursive", f"{root}/")
    assert keys(s3.list_objects_v2(Bucket=bucket, Prefix="main/")) == []


def test_s3cmd(gateway: Running, s3: Any, bucket: str, files: Path) -> None:
    host, root = f"127.0.0.1:{gateway.port}", f"s3://{bucket}/main"
    (files / "s3cfg").write_text(
        f"[default]\naccess_key={ADMIN.access_key_id}\nsecret_key={ADMIN.secret}\n"
        f"host_base={host}\nhost_bucket={host}\nuse_https=False\n"
    )

    def s3cmd(*arguments: object) -> str:
        return run("s3cmd", "-c", files / "s3cfg", *arguments)

    s3cmd("put", files / "small", files / "big", f"{root}/cmd/")
    assert f"{root}/cmd/small" in s3cmd("ls", f"{root}/cmd/")
    assert "File size: 5" in s3cmd("info", f"{root}/cmd/small")
    assert "ACL:       none" in s3cmd("info", f"s3://{bucket}")
    s3cmd("cp", f"{root}/cmd/big", f"{root}/cmd/copy")
    s3cmd("get", f"{root}/cmd/copy", files / "back")
    assert (files / "back").read_bytes() == BIG
    s3cmd("del", "--recursive", "--force", f"{root}/cmd/")
    assert keys(s3.list_objects_v2(Bucket=bucket, Prefix="main/")) == []


def test_rclone(gateway: Running, s3: Any, bucket: str, files: Path) -> None:
    configuration = files / "rclone.conf"
    configuration.write_text(
        f"[lake]\ntype=s3\nprovider=Other\naccess_key_id={ADMIN.access_key_id}\n"
        f"secret_access_key={ADMIN.secret}\nendpoint={gateway.url}\nregion={REGION}\n"
    )

    def rclone(*arguments: object) -> str:
        return run("rclone", "--config", configuration, "--retries", "1", *arguments)

    root, only = f"lake:{bucket}/main/rc", ["--include", "/big", "--include", "/small"]
    rclone("copy", files, root, *only)
    rclone("check", files, root, "--download", *only)
    assert rclone("lsf", f"lake:{bucket}") == "main/\n"
    rclone("moveto", f"{root}/big", f"{root}/moved")
    rclone("copyto", f"{root}/moved", files / "back")
    assert (files / "back").read_bytes() == BIG
    rclone("purge", root)
    assert keys(s3.list_objects_v2(Bucket=bucket, Prefix="main/")) == []


def test_pyarrow(either: Running) -> None:
    bucket = either.create(f"arrow-{either.port}")
    scheme, _, host = either.url.partition("://")
    trusted = {"tls_ca_file_path": str(either.folder / "certificate.pem")} if scheme == "https" else {}
    lake = fs.S3FileSystem(
        access_key=ADMIN.access_key_id,
        secret_key=ADMIN.secret,
        region=REGION,
        endpoint_override=host,
        scheme=scheme,
        allow_bucket_creation=True,
        **trusted,
    )
    root, table = f"{bucket}/main/arrow", pa.table({"a": list(range(1000))})
    lake.create_dir(f"{bucket}/main")
    lake.create_dir(f"{root}/dir", recursive=True)
    pq.write_table(table, f"{root}/t.parquet", filesystem=lake)
    assert pq.read_table(f"{root}/t.parquet", filesystem=lake).equals(table)
    ds.write_dataset(table, f"{root}/set", filesystem=lake, format="parquet")
    assert ds.dataset(f"{root}/set", filesystem=lake).to_table().num_rows == 1000
    with lake.open_output_stream(f"{root}/big") as stream:
        stream.write(BIG)
    with lake.open_output_stream(f"{root}/empty"):
        pass
    lake.copy_file(f"{root}/big", f"{root}/copy")
    lake.move(f"{root}/copy", f"{root}/moved")
    with lake.open_input_file(f"{root}/moved") as stream:
        stream.seek(10_000_000)
        assert stream.read(10) == BIG[10_000_000:10_000_010]
    names = {Path(info.path).name for info in lake.get_file_info(fs.FileSelector(root))}
    assert names == {"dir", "set", "big", "moved", "empty", "t.parquet"}
    lake.delete_dir(root)
    assert lake.get_file_info(root).type == fs.FileType.NotFound


def test_s3fs(gateway: Running, bucket: str, files: Path) -> None:
    import s3fs  # type: ignore[import-untyped]

    lake = s3fs.S3FileSystem(
        key=ADMIN.access_key_id, secret=ADMIN.secret, endpoint_url=gateway.url, skip_instance_cache=True
    )
    root = f"{bucket}/main/fs"
    lake.pipe(f"{root}/a", b"hello")
    lake.put(str(files / "big"), f"{root}/big")
    assert lake.cat(f"{root}/a") == b"hello"
    assert lake.cat_file(f"{root}/big", start=5, end=10) == BIG[5:10]
    with lake.open(f"{root}/written", "wb", block_size=5 * 2**20) as stream:
        stream.write(BIG)
    assert lake.ls(bucket) == [f"{bucket}/main"]
    assert lake.info(f"{bucket}/main")["type"] == "directory"
    lake.cp(f"{root}/big", f"{root}/copy")
    assert sorted(lake.find(root)) == [f"{root}/{name}" for name in ("a", "big", "copy", "written")]
    lake.rm(root, recursive=True)
    assert not lake.exists(root)


def test_polars(gateway: Running, bucket: str) -> None:
    import polars as pl

    options = {
        "aws_access_key_id": ADMIN.access_key_id,
        "aws_secret_access_key": ADMIN.secret,
        "aws_region": REGION,
        "aws_endpoint_url": gateway.url,
        "aws_allow_http": "true",
    }
    pl.DataFrame({"a": range(1000)}).write_parquet(f"s3://{bucket}/main/pl/t.parquet", storage_options=options)
    found = pl.scan_parquet(f"s3://{bucket}/main/pl/*.parquet", storage_options=options).sum().collect()
    assert found.item() == 499_500


def test_obstore_as_delta_commits_with_it(gateway: Running, bucket: str) -> None:
    import obstore
    from obstore.exceptions import AlreadyExistsError
    from obstore.store import S3Store

    store = S3Store(
        bucket,
        access_key_id=ADMIN.access_key_id,
        secret_access_key=ADMIN.secret,
        region=REGION,
        endpoint=gateway.url,
        client_options={"allow_http": True},
        virtual_hosted_style_request=False,
    )
    obstore.put(store, "main/log/0.json", b"first", mode="create")
    with pytest.raises(AlreadyExistsError):
        obstore.put(store, "main/log/0.json", b"second", mode="create")
    obstore.put(store, "main/log/big", BIG)
    obstore.copy(store, "main/log/big", "main/log/copy")
    assert obstore.get_range(store, "main/log/copy", start=7, end=9) == BIG[7:9]
    assert len(obstore.list(store, "main/log").collect()) == 3
    obstore.delete(store, ["main/log/0.json", "main/log/big", "main/log/copy"])
    assert obstore.list(store, "main/log").collect() == []
