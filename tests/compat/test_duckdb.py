"""DuckDB with its httpfs extension, which the package `duckdb-extension-httpfs` brings along."""

from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

from tests.compat.support import LARGE
from tests.server.live import ADMIN, REGION, Live

pytestmark = pytest.mark.xdist_group("compat")


def extension() -> Path:
    """The file, of exactly this version of DuckDB: no other one loads it."""
    import duckdb_extension_httpfs  # type: ignore[import-untyped]

    file = "httpfs.duckdb_extension"
    return Path(duckdb_extension_httpfs.__file__).parent / "extensions" / f"v{duckdb.__version__}" / file


@pytest.fixture
def database(server: Live, tmp_path: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect(config={"home_directory": str(tmp_path), "autoinstall_known_extensions": False}) as database:
        database.execute(f"LOAD '{extension()}'")
        database.execute(
            f"CREATE SECRET (TYPE s3, KEY_ID '{ADMIN.access_key_id}', SECRET '{ADMIN.secret}', REGION '{REGION}',"
            f" ENDPOINT '{server.url.partition('//')[2]}', URL_STYLE 'path', USE_SSL false)"
        )
        yield database


def test_a_round_trip(server: Live, repository: str, database: duckdb.DuckDBPyConnection) -> None:
    dev, rows = f"s3://{repository}/dev", 1_500_000
    numbers = f"SELECT i, hash(i) AS h, 'row ' || i AS t FROM range({rows}) r(i)"
    database.execute("SET s3_uploader_max_filesize = '50GB'")  # parts of 5 MiB
    database.execute(f"COPY ({numbers}) TO '{dev}/a/large.parquet' (COMPRESSION uncompressed)")
    database.execute(f"COPY (SELECT * FROM range(10) r(i)) TO '{dev}/a/small.csv' (HEADER)")
    head = server.s3().head_object(Bucket=repository, Key="dev/a/large.parquet")
    assert head["ContentLength"] > len(LARGE)
    assert '-1"' not in head["ETag"]
    assert "-" in head["ETag"]  # it came in parts
    counted = f"SELECT count(*), sum(i), bit_xor(h) FROM '{dev}/a/large.parquet'"
    found = database.execute(counted).fetchone()
    assert found == database.execute(f"SELECT count(*), sum(i), bit_xor(h) FROM ({numbers})").fetchone()
    # By ranges: one column of the row groups that can have it.
    assert database.execute(f"SELECT t FROM '{dev}/a/large.parquet' WHERE i = 777777").fetchall() == [("row 777777",)]
    assert database.execute(f"SELECT sum(i) FROM '{dev}/a/*.csv'").fetchone() == (45,)
    globbed = database.execute(f"SELECT file FROM glob('{dev}/**') ORDER BY 1").fetchall()
    assert [name for (name,) in globbed] == [f"{dev}/a/large.parquet", f"{dev}/a/small.csv"]

    server.commit(repository, "dev")
    server.merge(repository, "dev")
    assert database.execute(counted.replace("/dev/", "/main/")).fetchone() == found
    # Two versions of a table in one query.
    database.execute(f"COPY (SELECT * FROM range(12) r(i)) TO '{dev}/a/small.csv' (HEADER)")
    newer = f"SELECT i FROM '{dev}/a/small.csv' EXCEPT SELECT i FROM 's3://{repository}/main/a/small.csv' ORDER BY 1"
    assert database.execute(newer).fetchall() == [(10,), (11,)]


def test_a_table_in_folders_is_written_and_pruned(
    server: Live, repository: str, database: duckdb.DuckDBPyConnection
) -> None:
    place = f"s3://{repository}/dev/table"
    database.execute(
        f"COPY (SELECT i, i % 3 AS part FROM range(3000) r(i)) TO '{place}' (FORMAT parquet, PARTITION_BY (part))"
    )
    found = database.execute(f"SELECT count(*), min(i) FROM read_parquet('{place}/*/*.parquet') WHERE part = 2")
    assert found.fetchone() == (1000, 2)
