"""s3fs, the file system that pandas, dask and others use, on aiobotocore."""

from typing import Any

import pandas  # type: ignore[import-untyped]
import pytest
import s3fs  # type: ignore[import-untyped]

from tests.compat.support import LARGE, MEBIBYTE, ODD_NAMES, PART_BYTES
from tests.server.live import ADMIN, REGION, Live

pytestmark = pytest.mark.xdist_group("compat")


def options(server: Live) -> dict[str, Any]:
    return {
        "key": ADMIN.access_key_id,
        "secret": ADMIN.secret,
        "endpoint_url": server.url,
        "client_kwargs": {"region_name": REGION},
    }


def test_a_round_trip(server: Live, repository: str) -> None:
    files = s3fs.S3FileSystem(**options(server), skip_instance_cache=True)
    dev = f"{repository}/dev"
    files.pipe(f"{dev}/a/small", b"0123456789")
    assert files.cat_file(f"{dev}/a/small", start=2, end=5) == b"234"
    with files.open(f"{dev}/a/large", "wb", block_size=PART_BYTES) as file:
        for at in range(0, len(LARGE), MEBIBYTE):
            file.write(LARGE[at : at + MEBIBYTE])
    with files.open(f"{dev}/a/large", "rb", block_size=MEBIBYTE) as file:
        file.seek(PART_BYTES - 10)
        assert file.read(20) == LARGE[PART_BYTES - 10 : PART_BYTES + 10]
        file.seek(-7, 2)
        assert file.read() == LARGE[-7:]
    assert files.info(f"{dev}/a/large")["size"] == len(LARGE)
    files.copy(f"{dev}/a/large", f"{dev}/b/copy")
    files.mv(f"{dev}/b/copy", f"{dev}/b/moved")
    assert files.cat(f"{dev}/b/moved") == LARGE
    assert files.ls(f"{dev}/", detail=False, refresh=True) == [f"{dev}/a", f"{dev}/b"]
    assert files.find(dev) == [f"{dev}/a/large", f"{dev}/a/small", f"{dev}/b/moved"]
    assert files.exists(f"{dev}/a")
    assert not files.exists(f"{dev}/none")
    files.rm(f"{dev}/b", recursive=True)
    assert files.glob(f"{dev}/*/*") == [f"{dev}/a/large", f"{dev}/a/small"]

    server.commit(repository, "dev")
    server.merge(repository, "dev")
    files.invalidate_cache()
    assert files.cat(f"{repository}/main/a/large") == LARGE
    assert [each.removeprefix(f"{repository}/") for each in files.ls(repository, refresh=True, detail=False)] == [
        "dev", "main",
    ]  # fmt: skip


def test_names_of_all_kinds(server: Live, repository: str) -> None:
    files = s3fs.S3FileSystem(**options(server), skip_instance_cache=True)
    for name in ODD_NAMES:
        files.pipe(f"{repository}/dev/{name}", name.encode())
    assert set(files.find(f"{repository}/dev")) == {f"{repository}/dev/{name}" for name in ODD_NAMES}
    for name in ODD_NAMES:
        assert files.cat_file(f"{repository}/dev/{name}") == name.encode()


def test_pandas_writes_and_reads_through_it(server: Live, repository: str) -> None:
    frame = pandas.DataFrame({"number": range(1000), "text": [f"row {n}" for n in range(1000)]})
    for extension, write, read in (
        ("parquet", frame.to_parquet, pandas.read_parquet),
        ("csv", lambda url, **more: frame.to_csv(url, index=False, **more), pandas.read_csv),
    ):
        url = f"s3://{repository}/dev/frame.{extension}"
        write(url, storage_options=options(server))
        found = read(url, storage_options=options(server))
        assert found["number"].tolist() == frame["number"].tolist()
        assert found["text"].tolist() == frame["text"].tolist()
