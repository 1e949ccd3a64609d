"""The `lakefs-spec` package from PyPI, unchanged, and pandas on it."""

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lakefs_spec import LakeFSFileSystem

from tests.api.live import serving
from tests.api.support import ADMIN

pd: Any = importlib.import_module("pandas")  # it has no types

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecatedSince20"),
]


@pytest.fixture
def files(tmp_path: Path) -> Iterator[LakeFSFileSystem]:
    with serving(tmp_path / "lake") as url:
        LakeFSFileSystem.clear_instance_cache()
        fs = LakeFSFileSystem(host=url, username=ADMIN.access_key_id, password=ADMIN.secret)
        fs.client.sdk_client.repositories_api.create_repository(
            {"name": "lake", "storage_namespace": "local://lake", "sample_data": True}
        )
        yield fs


def _options(fs: LakeFSFileSystem) -> dict[str, object]:
    return dict(fs.storage_options)


def test_sample_data_is_listed_and_read(files: LakeFSFileSystem) -> None:
    names = [each["name"] for each in files.ls("lake/main/")]
    assert "lake/main/README.md" in names
    assert "lake/main/lakes.parquet" in names
    assert (files.info("lake/main/lakes.parquet")["size"] or 0) > 512 * 1024
    assert files.exists("lake/main/data/notes.txt")
    assert not files.exists("lake/main/no-such-thing")
    assert files.cat_file("lake/main/README.md")[2:10] == b"A sample"


def test_pandas_reads_and_writes(files: LakeFSFileSystem) -> None:
    options = _options(files)
    lakes = pd.read_parquet("lakefs://lake/main/lakes.parquet", storage_options=options)
    assert len(lakes) == 40_000
    some = lakes.head(10)
    some.to_csv("lakefs://lake/work/tables/some.csv", index=False, storage_options=options)
    again = pd.read_csv("lakefs://lake/work/tables/some.csv", storage_options=options)
    assert again["name"].tolist() == some["name"].tolist()
    some.to_parquet("lakefs://lake/work/tables/some.parquet", storage_options=options)
    assert len(pd.read_parquet("lakefs://lake/work/tables/some.parquet", storage_options=options)) == 10


def test_local_files_go_up_come_down_and_away(files: LakeFSFileSystem, tmp_path: Path) -> None:
    local = tmp_path / "local.txt"
    local.write_text("one\n" * 1000)
    files.put_file(str(local), "lake/main/up.txt")
    files.get_file("lake/main/up.txt", str(tmp_path / "down.txt"))
    assert (tmp_path / "down.txt").read_text() == local.read_text()
    files.cp_file("lake/main/up.txt", "lake/main/copied.txt")
    assert files.cat_file("lake/main/copied.txt") == local.read_bytes()
    files.rm_file("lake/main/up.txt")
    assert not files.exists("lake/main/up.txt")


def test_a_transaction_commits_what_was_written(files: LakeFSFileSystem) -> None:
    with files.transaction("lake", "main", automerge=True) as tx:
        with files.open(f"lake/{tx.branch.id}/in-tx.txt", "wb") as target:
            target.write(b"together")
        tx.commit("in a transaction")
    assert files.cat_file("lake/main/in-tx.txt") == b"together"


def test_open_writes_in_pieces_and_seeks(files: LakeFSFileSystem) -> None:
    with files.open("lake/main/pieces.bin", "wb") as target:
        for number in range(20):
            target.write(bytes([number]) * 100_000)
    with files.open("lake/main/pieces.bin", "rb") as source:
        source.seek(1_900_000)
        assert source.read() == bytes([19]) * 100_000
