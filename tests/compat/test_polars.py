"""polars, whose own reader (Rust's object_store) asks for suffix ranges and signs no payloads."""

from typing import Any

import polars as pl
import pytest

from tests.compat.support import LARGE, PART_BYTES
from tests.server.live import ADMIN, REGION, Live

pytestmark = pytest.mark.xdist_group("compat")


def options(server: Live) -> dict[str, Any]:
    return {
        "aws_access_key_id": ADMIN.access_key_id,
        "aws_secret_access_key": ADMIN.secret,
        "aws_endpoint_url": server.url,
        "aws_region": REGION,
        "aws_allow_http": "true",
    }


def test_a_round_trip(server: Live, repository: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLARS_UPLOAD_CHUNK_SIZE", str(PART_BYTES))
    dev, keys = f"s3://{repository}/dev", options(server)
    rows = 700_000
    frame = pl.select(number=pl.int_range(rows)).with_columns(
        mixed=pl.col("number").hash(7), text=pl.format("row {}", "number")
    )
    frame.write_parquet(f"{dev}/a/large.parquet", compression="uncompressed", storage_options=keys)
    frame.head(100).write_parquet(f"{dev}/a/small.parquet", storage_options=keys)
    head = server.s3().head_object(Bucket=repository, Key="dev/a/large.parquet")
    assert head["ContentLength"] > len(LARGE)
    assert "-" in head["ETag"]  # it came in parts
    assert pl.read_parquet(f"{dev}/a/large.parquet", storage_options=keys).equals(frame)
    scanned = pl.scan_parquet(f"{dev}/a/large.parquet", storage_options=keys)
    assert scanned.filter(pl.col("number") == 654_321).select("text").collect().item() == "row 654321"
    assert pl.scan_parquet(f"{dev}/a/*.parquet", storage_options=keys).select(pl.len()).collect().item() == rows + 100
    frame.head(3).lazy().sink_csv(f"{dev}/a/table.csv", storage_options=keys)
    assert pl.scan_csv(f"{dev}/a/table.csv", storage_options=keys).collect()["text"].to_list() == [
        "row 0", "row 1", "row 2",
    ]  # fmt: skip

    server.commit(repository, "dev")
    server.merge(repository, "dev")
    merged = pl.read_parquet(f"s3://{repository}/main/a/large.parquet", columns=["mixed"], storage_options=keys)
    assert merged["mixed"].equals(frame["mixed"])
