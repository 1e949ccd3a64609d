"""The local cache: bounded, shared, and never more than a cache."""

import multiprocessing
import os
import random
import secrets
from pathlib import Path

import pyarrow as pa
import pytest

from lsmfs.lsm import table
from lsmfs.lsm.cache import DiskCache
from lsmfs.lsm.table import OpenTable, Probe
from lsmfs.model import Entry, Extent
from tests.lsm.support import content_of, entry, keys, rows_of

LARGE = 1 << 30


def make(numbers: range, seed: int = 0) -> tuple[OpenTable, bytes]:
    rows = rows_of({key: entry(n + seed) for n, key in enumerate(keys(numbers))})
    decoded, facts, bloom = table.decode(table.encode(rows, "table", {"lsmfs.writer": "w"}), "t")
    return OpenTable(decoded, facts, bloom), bloom


def add(cache: DiskCache, name: str, seed: int = 0) -> OpenTable:
    opened, bloom = make(range(100), seed)
    cache.add(name, opened, bloom)
    return opened


def names(cache: DiskCache) -> set[str]:
    return set(os.listdir(cache.root))


def age(cache: DiskCache, name: str, seconds: int) -> None:
    """The file was last opened that long ago."""
    at = os.stat(cache.root / name).st_mtime_ns - seconds * 10**9
    os.utime(cache.root / name, ns=(at, at))


def test_what_was_added_is_opened_with_rows_facts_and_filter(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, LARGE)
    content = {b"a": Entry("x", 9, "e", 1, 2, "t", {"k": "v"}, (Extent("y", 1, 3),)), b"b": None}
    rows, facts, bloom = table.decode(table.encode(rows_of(content), "table", {"lsmfs.branch": "main"}), "t")
    cache.add("t1", OpenTable(rows, facts, bloom), bloom)
    found = cache.open("t1")
    assert found is not None
    assert content_of(found.rows) == content
    assert found.facts == facts
    assert found.may_hold(Probe(b"a"))
    assert found.may_hold(Probe(b"b"))
    assert not found.may_hold(Probe(b"aa"))
    assert cache.open("t2") is None


def test_a_table_without_rows_or_without_a_filter_is_kept_too(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, LARGE)
    empty, bloom = make(range(0))
    cache.add("t1", empty, bloom)
    cache.add("t2", make(range(3))[0], b"")
    first, second = cache.open("t1"), cache.open("t2")
    assert first is not None
    assert first.count == 0
    assert second is not None
    assert second.may_hold(Probe(b"k00001"))


def test_the_cache_stays_within_its_bytes(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, 200_000)
    for n in range(100):
        add(cache, f"t{n}")
        assert cache.size_bytes() <= 200_000 * (1 + 1 / 16) + 20_000  # one share and one file may be on top
    assert 5 < len(names(cache)) < 50
    cache.sweep()
    assert cache.size_bytes() <= 200_000


def test_the_least_recently_opened_files_go_first(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, LARGE)
    for n in range(10):
        add(cache, f"t{n}")
        age(cache, f"t{n}", 100 - n)
    assert cache.open("t0") is not None  # the oldest, but now the newest by use
    cache.bytes_max = cache.size_bytes() // 2
    cache.sweep()
    kept = names(cache)
    assert "t0" in kept
    assert kept == {"t0", *(f"t{n}" for n in range(10 - (len(kept) - 1), 10))}
    assert cache.size_bytes() <= cache.bytes_max * 0.9


def test_a_sweep_of_a_cache_that_fits_removes_nothing(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, LARGE)
    add(cache, "t1")
    cache.sweep()
    assert names(cache) == {"t1"}


def test_a_file_that_is_removed_while_open_stays_readable(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, LARGE)
    content = content_of(add(cache, "t1").rows)
    found = cache.open("t1")
    assert found is not None
    (cache.root / "t1").unlink()
    assert cache.open("t1") is None
    assert content_of(found.rows) == content
    assert found.find(b"k00050") == 50


def test_a_file_cut_off_anywhere_is_ignored(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, LARGE)
    opened, bloom = make(range(5))
    cache.add("t1", opened, bloom)
    data = (cache.root / "t1").read_bytes()
    for length in range(len(data)):
        (cache.root / "t1").write_bytes(data[:length])
        assert cache.open("t1") is None


@pytest.mark.parametrize(
    "garbage", [b"", b"ARROW1", os.urandom(5000), bytes(5000), b"ARROW1\0\0" + bytes(90) + b"ARROW1"]
)
def test_a_file_of_garbage_is_ignored(tmp_path: Path, garbage: bytes) -> None:
    cache = DiskCache(tmp_path, LARGE)
    (cache.root / "t1").write_bytes(garbage)
    assert cache.open("t1") is None


@pytest.mark.parametrize("metadata", [None, {"facts": "{}"}, {"facts": "{", "bloom": ""}, {"facts": "{}", "bloom": ""}])
def test_an_arrow_file_of_somebody_else_is_ignored(tmp_path: Path, metadata: dict[str, str] | None) -> None:
    cache = DiskCache(tmp_path, LARGE)
    rows = pa.table({"key": ["a"]}).replace_schema_metadata(metadata)
    with pa.OSFile(str(cache.root / "t1"), "wb") as sink, pa.ipc.new_file(sink, rows.schema) as writer:
        writer.write_table(rows)
    assert cache.open("t1") is None


def test_a_file_that_is_ignored_is_replaced_by_the_next_add(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, LARGE)
    (cache.root / "t1").write_bytes(b"garbage")
    add(cache, "t1")
    assert cache.open("t1") is not None
    assert names(cache) == {"t1"}


def test_a_folder_in_the_place_of_a_file_is_ignored(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, LARGE)
    (cache.root / "t1").mkdir()
    assert cache.open("t1") is None
    add(cache, "t1")
    assert cache.open("t1") is None


def test_a_name_that_leads_out_of_the_folder_is_ignored(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path / "cache", LARGE)
    add(cache, "t1")
    (cache.root / "t1").rename(tmp_path / "t1")
    assert cache.open("../../t1") is None
    assert cache.open(str(tmp_path / "t1")) is None


def test_a_disk_that_takes_nothing_is_no_error(tmp_path: Path) -> None:
    """A folder that has gone refuses every file, as a full disk does, also when the tests run as root."""
    cache = DiskCache(tmp_path, 1)  # so small that every add sweeps
    add(cache, "t0")
    for item in cache.root.iterdir():
        item.unlink()
    cache.root.rmdir()
    add(cache, "t1")
    cache.sweep()
    assert cache.open("t1") is None
    assert cache.size_bytes() == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, which every Linux has")
def test_a_full_disk_leaves_no_half_written_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = DiskCache(tmp_path, LARGE)
    monkeypatch.setattr(secrets, "token_hex", lambda count: "known")
    temporary = cache.root / ".t1.known"
    temporary.symlink_to("/dev/full")  # every write to it fails with "no space left on device"
    add(cache, "t1")
    assert names(cache) == set()


def test_a_root_that_is_a_file_is_an_os_error_that_the_caller_can_do_without(tmp_path: Path) -> None:
    (tmp_path / "cache").write_bytes(b"")
    with pytest.raises(OSError, match="cache"):
        DiskCache(tmp_path / "cache", LARGE)


def test_the_folders_of_earlier_boots_are_removed_and_nothing_else(tmp_path: Path) -> None:
    boot = tmp_path / "01234567-89ab-cdef-0123-456789abcdef"
    boot.mkdir()
    (boot / "t1").write_bytes(b"x")
    for precious in ("photos", ".ssh", "objects"):
        (tmp_path / precious).mkdir()
        (tmp_path / precious / "file").write_bytes(b"x")
    (tmp_path / "notes.txt").write_bytes(b"x")
    cache = DiskCache(tmp_path, LARGE)
    assert not boot.exists()
    assert {item.name for item in tmp_path.iterdir()} == {cache.root.name, "photos", ".ssh", "objects", "notes.txt"}
    assert (tmp_path / "photos" / "file").exists()


def test_a_second_cache_on_the_same_folder_finds_what_the_first_has(tmp_path: Path) -> None:
    add(DiskCache(tmp_path, LARGE), "t1")
    assert DiskCache(tmp_path, LARGE).open("t1") is not None


def busy(root: str, seed: int, rounds: int, answers: "multiprocessing.Queue[str]") -> None:
    """One of several processes: adds, opens and sweeps the same names, and says what it saw wrong."""
    cache = DiskCache(Path(root), 100_000)  # holds less than half of the names: every process removes all the time
    opened, bloom = make(range(100))
    expected = opened.rows
    draw, wrong, hits = random.Random(seed), 0, 0
    for _ in range(rounds):
        name = f"t{draw.randrange(20)}"
        found = cache.open(name)
        if found is None:
            cache.add(name, opened, bloom)
        else:
            hits += 1
            wrong += not found.rows.equals(expected)
    answers.put(f"{wrong} wrong, {hits > 0}")


def test_processes_share_one_cache_and_never_see_half_a_file(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    answers: multiprocessing.Queue[str] = context.Queue()
    workers = [context.Process(target=busy, args=(str(tmp_path), seed, 400, answers)) for seed in range(2)]
    for worker in workers:
        worker.start()
    assert [answers.get(timeout=60) for _ in workers] == ["0 wrong, True"] * 2
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0
    cache = DiskCache(tmp_path, 100_000)
    cache.sweep()
    assert 0 < cache.size_bytes() <= 100_000
    assert not [name for name in names(cache) if name.startswith(".")]
