"""Staged appends in a diff."""

from lsmfs.tree.diff import Difference
from tests.aio import aio
from tests.lsm.support import added, entry, memory_repository, put_all


@aio
async def test_what_is_appended_is_seen_with_the_object_that_it_is_appended_to() -> None:
    repository = await memory_repository()
    await put_all(repository, {b"a": entry(4), b"b": entry(5), b"c": entry(6)})
    await repository.commit("main", "base")
    await put_all(repository, {b"a": added(3), b"b": added(0), b"c": None, b"d": added(2)})
    await put_all(repository, {b"a": added(1), b"c": added(2)})
    found = [difference async for difference in repository.diff_uncommitted("main")]
    a, c = added(1).over(added(3).over(entry(4))), added(2).over(None)
    assert found == [
        Difference("changed", b"a", entry(4), a),
        Difference("changed", b"c", entry(6), c),
        Difference("added", b"d", None, added(2).over(None)),
    ]
