"""What a source gives: every object that can be an entry, in its order, from any place on; and what it leaves out."""

import gzip
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from lsmfs.blocks import locate, read_body
from lsmfs.imports import count, folders, manifest, open_source
from lsmfs.imports.apart import check_apart
from lsmfs.imports.buckets import base_address
from lsmfs.imports.folders import FolderSource
from lsmfs.imports.source import Place, Skip, Source, added
from lsmfs.model import Entry
from lsmfs.objectstore.memory import MemoryStore
from lsmfs.objectstore.open import open_store
from refstore.errors import Denied, Invalid, NotFound
from tests.aio import aio
from tests.lsm.support import content_of


async def entries(source: Source, prefix: str = "", place: Place | None = None) -> dict[str, Entry]:
    found: dict[str, Entry] = {}
    async for batch in source.batches(prefix, place or Place()):
        for key, entry in content_of(batch.rows).items():
            assert entry is not None
            assert key.decode() not in found
            found[key.decode()] = entry
    return found


async def skipped(source: Source, prefix: str = "", place: Place | None = None) -> Mapping[str, Skip]:
    total: dict[str, Skip] = {}
    async for batch in source.batches(prefix, place or Place()):
        total = added(total, batch.skipped)
    return total


def folder(root: Path, *names: str) -> FolderSource:
    """A folder with a file at each name; its body is the name."""
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return FolderSource(str(root))


# Folders


@aio
async def test_files_come_in_the_byte_order_of_their_whole_names(tmp_path: Path) -> None:
    source = folder(tmp_path, "a-b", "a.b/c", "a/b", "a/b-c", "a/d/e", "a!", "a0", "Z", "ä/ö", "z/z/z")
    found = list(await entries(source))
    assert found == sorted(found, key=str.encode)
    assert set(found) == {"a-b", "a.b/c", "a/b", "a/b-c", "a/d/e", "a!", "a0", "Z", "ä/ö", "z/z/z"}


@pytest.mark.parametrize("page", [1, 2, 500])
@aio
async def test_a_folder_goes_on_after_any_name(tmp_path: Path, page: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "PAGE_ENTRIES", page)
    monkeypatch.setattr(folders, "BATCH_FILES", 2)
    source = folder(tmp_path, "a-b", "a.b/c", "a/b", "a/b-c", "a/d/e", "a!", "a0", "Z", "ä/ö", "z/z/z")
    names = list(await entries(source))
    assert len(names) == 10
    for at, name in enumerate(names):
        assert list(await entries(source, "", Place(at + 1, name))) == names[at + 1 :]
    assert list(await entries(source, "", Place(0, "a/c"))) == [name for name in names if name > "a/c"]


@aio
async def test_an_entry_says_where_the_file_is_and_how_it_was(tmp_path: Path) -> None:
    source = folder(tmp_path, "d/f")
    os.utime(tmp_path / "d/f", ns=(1, 1_700_000_000_123_456_789))
    (entry,) = (await entries(source, "raw/")).values()
    assert entry.address == f"file://{tmp_path}/d/f"
    assert (entry.size_bytes, entry.mtime_us) == (3, 1_700_000_000_123_456)
    assert entry.etag


@pytest.mark.parametrize(
    "name", ["plain", "with space", "a?b#c%20", "100%", "ü/é", ".hidden", ".git/x", "a'b\"c", "x:y"]
)
@aio
async def test_whatever_its_name_a_file_can_be_read_back(tmp_path: Path, name: str) -> None:
    source = folder(tmp_path / "ro ot#1", name)
    (entry,) = (await entries(source)).values()
    pieces = read_body(entry, MemoryStore(), lambda url: open_store(url, {}))
    assert b"".join([piece async for piece in pieces]).decode() == name


@aio
async def test_links_and_what_is_no_file_are_left_out_and_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = folder(tmp_path / "in", "f", "d/g")
    folder(tmp_path / "out", "secret")
    (tmp_path / "in/link").symlink_to(tmp_path / "out/secret")
    (tmp_path / "in/folder-link").symlink_to(tmp_path / "out")
    (tmp_path / "in/loop").symlink_to(tmp_path / "in")
    os.mkfifo(tmp_path / "in/pipe")
    with socket.socket(socket.AF_UNIX) as server:
        monkeypatch.chdir(tmp_path / "in")  # the path of a socket is short
        server.bind("socket")
    assert set(await entries(source)) == {"f", "d/g"}
    assert await skipped(source) == {
        folders.LINK: Skip(3, "folder-link"),
        folders.SPECIAL: Skip(2, "pipe"),
    }


@aio
async def test_a_link_to_the_folder_is_followed_and_addresses_have_where_it_leads(tmp_path: Path) -> None:
    folder(tmp_path / "real", "f")
    (tmp_path / "link").symlink_to("real")
    source = open_source(str(tmp_path / "link"), {})
    assert source.url == f"file://{tmp_path}/real"
    assert [entry.address for entry in (await entries(source)).values()] == [f"file://{tmp_path}/real/f"]


@aio
async def test_names_that_no_key_or_reader_could_have_are_left_out_and_told(tmp_path: Path) -> None:
    source = folder(tmp_path, "good", "back\\slash", "line\nbreak", ".lsmfs")
    for name in (b"bad\xff", b"bad\xfe/f", b"\x80"):
        path = os.path.join(os.fsencode(tmp_path), name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        Path(os.fsdecode(path)).write_bytes(b"")
    assert set(await entries(source)) == {"good"}
    told = await skipped(source)
    assert told[folders.NOT_UTF8].count == 3
    assert told[folders.UNREADABLE] == Skip(3, ".lsmfs")
    assert len(await entries(source, "x" * 1019 + "/")) == 1
    assert (await skipped(source, "x" * 1020 + "/"))[folders.TOO_LONG] == Skip(1, "good")


@pytest.mark.parametrize("batch", [1, 3])
@aio
async def test_what_was_left_out_is_counted_once_by_an_import_that_goes_on(
    tmp_path: Path, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folders, "BATCH_FILES", batch)
    source = folder(tmp_path, "b", "d", "f")
    for name in "aceg":
        (tmp_path / name).symlink_to("b")
    first: dict[str, Skip] = {}
    async for one in source.batches("", Place()):
        first = added(first, one.skipped)
        rest = await skipped(source, "", Place(0, "b" if one.reached >= b"b" else "", one.reached))
        assert added(first, rest)[folders.LINK].count == 4


@aio
async def test_a_folder_that_may_not_be_read_ends_the_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = folder(tmp_path, "a/f", "b/f")
    scan = os.scandir

    def refused(path: Any) -> Any:
        if os.fsdecode(path).endswith("/b/"):
            raise PermissionError(13, "Permission denied", path)
        return scan(path)

    monkeypatch.setattr(os, "scandir", refused)  # root may read everything, and so may some who test
    with pytest.raises(Denied, match="/b/: Permission denied"):
        await entries(source)


@aio
async def test_files_that_go_while_a_folder_is_walked_are_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folders, "BATCH_FILES", 1)
    source = folder(tmp_path, "a", "b", "c/d")
    found = []
    async for batch in source.batches("", Place()):
        found += batch.rows["key"].to_pylist()
        (tmp_path / "b").unlink(missing_ok=True)
        (tmp_path / "c/d").unlink(missing_ok=True)
        if (tmp_path / "c").exists():
            (tmp_path / "c").rmdir()
    assert found == ["a"]


# Naming a source


def test_what_names_no_source_is_told_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "photo.jpg").write_bytes(b"")
    cases: list[tuple[str, type[Exception], str]] = [
        ("", Invalid, "the source is empty"),
        (str(tmp_path / "none"), NotFound, "does not exist: give a folder"),
        (str(tmp_path / "none.csv"), NotFound, "does not exist"),
        (str(tmp_path / "photo.jpg"), Invalid, "is a single file"),
        ("s3:/bucket/x", Invalid, "misspelt scheme"),
        ("s3:bucket", Invalid, "misspelt scheme"),
        ("s3a://bucket", Invalid, "say s3://"),
        ("abfss://container", Invalid, "say az://"),
        ("https://host/x", Invalid, "known are s3, gs, az and file"),
        ("file://host/x", Invalid, "file:///path"),
        ("file:///x?a=b", Invalid, "file:///path"),
        ("s3://", Invalid, "no bucket address"),
        ("s3://bucket?colour=red", Invalid, "unknown parameters"),
        ("s3://bucket/a//b", Invalid, "is no object name"),
        ("az://container", Invalid, "needs an account"),
    ]
    for text, kind, words in cases:
        with pytest.raises(kind, match=words.replace("?", r"\?")):
            open_source(text, {})


def test_a_source_is_opened_again_by_its_url(tmp_path: Path) -> None:
    (tmp_path / "a b.csv").write_text("key\n")
    (tmp_path / "f#o").mkdir()
    for text in (str(tmp_path / "a b.csv"), str(tmp_path / "f#o"), "s3://bucket/a/?region=r&endpoint=http://h:1"):
        url = open_source(text, {}).url
        assert open_source(url, {}).url == url
    assert open_source("s3://bucket/a/", {}).url == open_source("s3://bucket/a", {}).url == "s3://bucket/a"


def test_a_folder_of_parquet_files_is_a_folder_whatever_its_name(tmp_path: Path) -> None:
    (tmp_path / "table.parquet").mkdir()
    assert isinstance(open_source(str(tmp_path / "table.parquet"), {}), FolderSource)


# Addresses


@pytest.mark.parametrize(
    ("url", "own", "container"),
    [
        ("s3://b/raw", "", "s3://b"),
        ("s3://b/raw", "file:///lake", "s3://b"),
        ("s3://b/raw", "s3://own?region=r", "s3://b?"),
        ("s3://b?region=r&ordered=no", "s3://own?ordered=yes&region=r", "s3://b?ordered=yes&region=r"),
        ("s3://b?endpoint=http://h:1/&region=r", "", "s3://b?endpoint=http%3A%2F%2Fh%3A1%2F&region=r"),
        ("s3://b?endpoint=http://h:1", "s3://own?endpoint=http://g:2", "s3://b?endpoint=http%3A%2F%2Fh%3A1"),
        ("gs://b", "s3://own?region=r", "gs://b"),
    ],
)
def test_an_address_leads_to_the_store_that_it_was_listed_from(url: str, own: str, container: str) -> None:
    name = "raw/a?b%20c/d"
    assert locate(f"{base_address(url, own)}/{name}", own) == (container, name)


# The lake's own storage


@pytest.mark.parametrize(
    ("source", "store", "overlaps"),
    [
        ("s3://b", "s3://b/lakes", True),
        ("s3://b/lakes", "s3://b/lakes", True),
        ("s3://b/lakes/lake", "s3://b/lakes", True),
        ("s3://b/lakes/lake/data", "s3://b/lakes", True),
        ("s3://b/lakes/refstore", "s3://b/lakes", True),
        ("s3://b/lakes/raw", "s3://b/lakes", False),
        ("s3://b/raw", "s3://b", False),
        ("s3://b/lakes2", "s3://b/lakes", False),
        ("s3://c", "s3://b/lakes", False),
        ("gs://b", "s3://b", False),
        ("s3://b?endpoint=http://h", "s3://b", False),
        ("s3://b?endpoint=http://h&ordered=no", "s3://b/x?endpoint=http://h/", True),
        ("file:///home/u", "file:///home/u/lsmfs-data/objects", True),
        ("file:///home/u/lsmfs-data", "s3://b", True),
        ("file:///home/u/lsmfs-data/objects/other", "file:///home/u/lsmfs-data/objects", True),
        ("file:///home/u/lsmfs-data/cache", "s3://b", True),
        ("file:///home/u/photos", "file:///home/u/lsmfs-data/objects", False),
        ("file:///srv/raw", "file:///srv", False),
        ("file:///srv/lake", "file:///srv", True),
    ],
)
def test_the_lakes_own_storage_is_not_imported(source: str, store: str, overlaps: bool) -> None:
    if overlaps:
        with pytest.raises(Invalid, match="own storage"):
            check_apart(source, store, "/home/u/lsmfs-data", ["lake"])
    else:
        check_apart(source, store, "/home/u/lsmfs-data", ["lake"])


# Manifests


def rows(count: int) -> pa.Table:
    keys = [f"k{number:04}" for number in range(count)]
    return pa.table({"key": keys, "address": [f"s3://b/{key}" for key in keys], "size": range(count)})


def written(path: Path, suffix: str, count: int) -> str:
    table, file = rows(count), path / f"m{suffix}"
    if suffix == ".parquet":
        pyarrow.parquet.write_table(table, file, row_group_size=7)
    elif suffix.startswith(".csv"):
        text = "key,address,size\n" + "".join(f"{r['key']},{r['address']},{r['size']}\n" for r in table.to_pylist())
        file.write_bytes(gzip.compress(text.encode()) if suffix.endswith(".gz") else text.encode())
    else:
        file.write_text(
            "".join(
                f'{{"key":"{r["key"]}","address":"{r["address"]}","size":{r["size"]}}}\n' for r in table.to_pylist()
            )
        )
    return str(file)


@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".csv.gz", ".ndjson", ".jsonl"])
@aio
async def test_a_manifest_goes_on_after_any_row(tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest, "BATCH_ROWS", 5)
    monkeypatch.setattr(manifest, "BLOCK_BYTES", 100)
    source = open_source(written(tmp_path, suffix, 50), {})
    await source.check()
    assert source.total == (50 if suffix == ".parquet" else None)
    keys = rows(50)["key"].to_pylist()
    for skip in (0, 1, 4, 5, 7, 14, 33, 49, 50):
        found = await entries(source, "p/", Place(skip))
        assert list(found) == [f"p/{key}" for key in keys[skip:]]


@aio
async def test_a_manifest_may_use_other_names_for_its_columns(tmp_path: Path) -> None:
    file = tmp_path / "m.csv"
    file.write_text("path,url,size,e_tag,last_modified\n007,s3://b/7,7,0e1,2024-01-02T03:04:05Z\n")
    (entry,) = (await entries(open_source(str(file), {}))).values()
    assert (entry.address, entry.size_bytes, entry.etag) == ("s3://b/7", 7, "0e1")
    assert entry.mtime_us == 1_704_164_645_000_000


@aio
async def test_a_manifest_that_was_written_again_is_another_one(tmp_path: Path) -> None:
    path = written(tmp_path, ".csv", 5)
    mark = open_source(path, {}).mark
    assert open_source(path, {}).mark == mark
    written(tmp_path, ".csv", 6)
    assert open_source(path, {}).mark != mark


@aio
async def test_a_bad_manifest_is_told_before_anything_is_read(tmp_path: Path) -> None:
    cases = [
        ("", "is empty"),
        ("key,address,size\n", "it has no rows"),
        ("name,address,size\na,b,1\n", "unknown columns name"),
        ("key,size\na,1\n", "no column address"),
        ("key,address\na,b\n", "no column size_bytes"),
        ("address,size\nb,1\n", "no column key"),
        ("key,address,size\na,b,large\n", "cannot be read"),
        ("key,path,address,size\na,a,b,1\n", "more than once"),
    ]
    file = tmp_path / "m.csv"
    for text, words in cases:
        file.write_text(text)
        with pytest.raises(Invalid, match=f"m.csv.*{words}"):
            await open_source(str(file), {}).check()


@aio
async def test_counting_says_what_an_import_would_take(tmp_path: Path) -> None:
    source = folder(tmp_path, "a", "bb/cc")
    (tmp_path / "link").symlink_to("a")
    told: list[tuple[int, int]] = []
    counted = await count(source, "p/", lambda objects, size: told.append((objects, size)))
    assert (counted.objects, counted.size_bytes) == (2, 6)
    assert counted.skipped == {folders.LINK: Skip(1, "link")}
    assert told == [(2, 6)]
    (tmp_path / "empty").mkdir()
    with pytest.raises(NotFound, match="holds no files"):
        await count(FolderSource(str(tmp_path / "empty")))
