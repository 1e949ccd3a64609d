"""Equal bytes at two places are one content: in a diff, in what is staged, and in a merge."""

from typing import Any

import msgspec
import pytest

from lsmfs.lsm import records
from lsmfs.model import Entry, Extent
from lsmfs.tree.diff import same
from lsmfs.tree.merge import MergeConflict
from tests.aio import aio
from tests.lsm.support import memory_repository, put_all, visible
from tests.tree.test_branches import committed, diffed

BYTES = Entry("repo/data/1", 7, "96d0893a613cf560c6eaf1a613cb371b", 1, metadata={"k": "v"}, content_type="text/plain")
ELSEWHERE = msgspec.structs.replace(BYTES, address="s3://bucket/2", offset=3, mtime_us=2)
OTHER = Entry("repo/data/3", 7, "8bed2f3cca49dc66b60a42a59e8daafa", 3)


@pytest.mark.parametrize(
    ("change", "alike"),
    [
        ({"address": "s3://elsewhere", "offset": 4, "mtime_us": 9}, True),
        ({"address": "b", "rest": (Extent("c", 0, 3),)}, True),
        ({"size_bytes": 8}, False),
        ({"etag": "another"}, False),
        ({"etag": ""}, False),
        ({"metadata": None}, False),
        ({"content_type": None}, False),
    ],
)
def test_records_are_the_same_if_etag_size_type_and_metadata_are(change: dict[str, Any], alike: bool) -> None:
    left = records.from_entries([(b"a", BYTES), (b"b", None), (b"c", OTHER)])
    changed = msgspec.structs.replace(BYTES, **change)
    right = records.from_entries([(b"a", changed), (b"b", None), (b"c", OTHER)])
    assert same(left, right).tolist() == [alike, True, True]
    assert same(right, left).tolist() == [alike, True, True]
    assert same(left, right, exactly=True).tolist() == [False, True, True]


@pytest.mark.parametrize(
    "change", [{"address": "b"}, {"offset": 4}, {"address": "a", "rest": (Extent("c", 0, 3),)}, {"size_bytes": 8}]
)
def test_an_empty_etag_names_nothing_so_that_the_place_decides(change: dict[str, Any]) -> None:
    nameless = Entry("a", 7, "", 1)
    left = records.from_entries([(b"a", nameless), (b"b", nameless), (b"c", BYTES)])
    other = msgspec.structs.replace(nameless, **change)
    later = msgspec.structs.replace(nameless, mtime_us=5)
    right = records.from_entries([(b"a", other), (b"b", later), (b"c", ELSEWHERE)])
    assert same(left, right).tolist() == [False, True, True]


def test_a_removal_is_a_change_also_of_an_empty_object_without_a_name() -> None:
    left = records.from_entries([(b"a", Entry("", 0))])
    assert same(left, records.from_entries([(b"a", None)])).tolist() == [False]


@aio
async def test_equal_content_put_again_shows_no_difference_staged_or_committed() -> None:
    repository = await memory_repository()
    await committed(repository, {b"a": BYTES, b"b": BYTES})
    await put_all(repository, {b"a": ELSEWHERE, b"b": OTHER})
    assert [found.key async for found in repository.diff_uncommitted("main")] == [b"b"]
    await repository.commit("main", "again")
    assert await diffed(repository, "main~", "main") == [("changed", b"b")]
    assert (await repository.get("main", "a")).address == ELSEWHERE.address


@aio
async def test_equal_content_put_on_two_branches_is_no_conflict_and_the_destinations_stays() -> None:
    repository = await memory_repository()
    await committed(repository, {b"a": OTHER, b"z": OTHER})
    await repository.create_branch("dev", "main")
    await committed(repository, {b"a": ELSEWHERE, b"new": ELSEWHERE, b"only": OTHER}, "dev")
    await committed(repository, {b"a": BYTES, b"new": BYTES})
    await repository.merge("dev", "main")
    assert await visible(repository) == {b"a": BYTES, b"new": BYTES, b"only": OTHER, b"z": OTHER}


@aio
async def test_a_change_is_applied_over_equal_content_that_the_destination_put_again() -> None:
    repository = await memory_repository()
    await committed(repository, {b"a": BYTES, b"b": BYTES})
    await repository.create_branch("dev", "main")
    await committed(repository, {b"a": OTHER, b"b": None}, "dev")
    await committed(repository, {b"a": ELSEWHERE, b"b": ELSEWHERE})
    await repository.merge("dev", "main")
    assert await visible(repository) == {b"a": OTHER}


@aio
async def test_without_etags_puts_of_both_sides_still_conflict() -> None:
    repository = await memory_repository()
    await repository.create_branch("dev", "main")
    await committed(repository, {b"a": Entry("x", 7)}, "dev")
    await committed(repository, {b"a": Entry("y", 7)})
    with pytest.raises(MergeConflict):
        await repository.merge("dev", "main")
