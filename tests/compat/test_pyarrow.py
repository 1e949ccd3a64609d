"""pyarrow's S3FileSystem: the C++ SDK, which uploads everything in parts and frames bodies twice."""

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from tests.compat.support import LARGE, MEBIBYTE, ODD_NAMES, PART_BYTES
from tests.server.live import ADMIN, REGION, Live

pytestmark = pytest.mark.xdist_group("compat")


def files_of(server: Live) -> fs.S3FileSystem:
    return fs.S3FileSystem(
        access_key=ADMIN.access_key_id,
        secret_key=ADMIN.secret,
        endpoint_override=server.url.partition("//")[2],
        scheme="http",
        region=REGION,
    )


def read(files: fs.S3FileSystem, path: str) -> bytes:
    with files.open_input_stream(path) as stream:
        body: bytes = stream.read()
        return body


def test_a_round_trip(server: Live, repository: str) -> None:
    files, dev = files_of(server), f"{repository}/dev"
    files.create_dir(f"{dev}/a", recursive=True)
    with files.open_output_stream(f"{dev}/a/small", metadata={"Content-Type": "text/plain"}) as stream:
        stream.write(b"0123456789")
    with files.open_output_stream(f"{dev}/a/large") as stream:
        for at in range(0, len(LARGE), MEBIBYTE):
            stream.write(LARGE[at : at + MEBIBYTE])
    assert read(files, f"{dev}/a/large") == LARGE
    with files.open_input_file(f"{dev}/a/large") as file:
        assert file.read_at(20, PART_BYTES - 10) == LARGE[PART_BYTES - 10 : PART_BYTES + 10]
    assert server.s3().head_object(Bucket=repository, Key="dev/a/small")["ContentType"] == "text/plain"
    files.copy_file(f"{dev}/a/large", f"{dev}/a/copy")
    files.move(f"{dev}/a/copy", f"{dev}/a/moved")
    assert read(files, f"{dev}/a/moved") == LARGE
    found = files.get_file_info(fs.FileSelector(f"{dev}/a"))
    assert {(each.base_name, each.size) for each in found} == {
        ("small", 10), ("large", len(LARGE)), ("moved", len(LARGE)),
    }  # fmt: skip
    files.delete_file(f"{dev}/a/moved")
    kinds = files.get_file_info([f"{dev}/a", f"{dev}/a/moved", f"{dev}/a/small", dev, repository])
    kind = fs.FileType
    assert [each.type for each in kinds] == [
        kind.Directory, kind.NotFound, kind.File, kind.Directory, kind.Directory,
    ]  # fmt: skip

    server.commit(repository, "dev")
    server.merge(repository, "dev")
    assert read(files, f"{repository}/main/a/large") == LARGE
    files.delete_dir(f"{dev}/a")
    assert files.get_file_info(f"{dev}/a").type == kind.NotFound
    assert read(files, f"{repository}/main/a/small") == b"0123456789"


def test_names_of_all_kinds(server: Live, repository: str) -> None:
    files = files_of(server)
    for name in ODD_NAMES:
        with files.open_output_stream(f"{repository}/dev/{name}") as stream:
            stream.write(name.encode())
    found = files.get_file_info(fs.FileSelector(f"{repository}/dev", recursive=True))
    names = {each.path.removeprefix(f"{repository}/dev/") for each in found if each.type == fs.FileType.File}
    assert names == set(ODD_NAMES)
    for name in ODD_NAMES:
        assert read(files, f"{repository}/dev/{name}") == name.encode()


def test_a_partitioned_dataset_is_written_and_scanned(server: Live, repository: str) -> None:
    files, place = files_of(server), f"{repository}/dev/table"
    table = pa.table({"part": [n % 3 for n in range(3000)], "number": list(range(3000))})
    ds.write_dataset(
        table,
        place,
        filesystem=files,
        format="parquet",
        partitioning=ds.partitioning(flavor="hive", schema=pa.schema([("part", pa.int64())])),
    )
    found = ds.dataset(place, filesystem=files, format="parquet", partitioning="hive")
    assert found.count_rows() == 3000
    assert sorted(found.to_table(filter=ds.field("part") == 1)["number"].to_pylist()) == list(range(1, 3000, 3))
    assert pq.read_metadata(found.files[0], filesystem=files).num_rows == 1000
