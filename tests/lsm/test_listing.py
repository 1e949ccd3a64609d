"""Listing: any stack of layers lists as the dict it stands for, page by page, without touching what it skips."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from lsmfs.lsm import listing
from lsmfs.lsm.build import Shape
from lsmfs.lsm.listing import PAGE_MAX, list_page
from lsmfs.lsm.records import beyond
from lsmfs.lsm.table import OpenTable
from lsmfs.model import Entry
from lsmfs.objectstore.counting import CountingStore
from lsmfs.objectstore.memory import MemoryStore
from refstore.errors import Invalid
from tests.aio import aio
from tests.lsm.stacks import KEYS, SHAPES, WORLDS, Stack, World
from tests.lsm.support import Added, added, entry, memory_tables

Items = list[tuple[bytes, Entry | None]]

PREFIXES = st.one_of(st.just(b""), st.sampled_from([b"a", b"a/", b"d/", b"d/1", b"/", "é".encode()]), KEYS)
DELIMITERS = st.sampled_from([b"", b"/", b"//", b"a/", b"ab", "é".encode(), b"/b-"])
AFTERS = st.one_of(st.just(b""), KEYS, st.sampled_from([b"d/", b"d/1", b"d0", b"zzz", b"a/\0"]))


def listed(
    content: dict[bytes, Entry], prefix: bytes, delimiter: bytes, after: bytes
) -> Iterator[tuple[bytes, Entry | None]]:
    """What a listing is, said in the plainest way."""
    last = None
    for key in sorted(content):
        if not key.startswith(prefix):
            continue
        at = key.find(delimiter, len(prefix)) if delimiter else -1
        item = key if at < 0 else key[: at + len(delimiter)]
        if item > after and item != last:
            yield item, content[key] if at < 0 else None
        last = item


@contextmanager
def short_leaps(dead: int, chunk: int, leap: int) -> Iterator[None]:
    """Small data takes the ways that large data takes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(listing, "DEAD_STEPS_MAX", dead)
        patch.setattr(listing, "CHUNK_ROWS_MIN", chunk)
        patch.setattr(listing, "LEAP_ROWS_MIN", leap)
        yield


WHAT: dict[str, Callable[[int], Entry | Added | None]] = {"x": lambda _: None, "o": entry, "+": added}
LEAPS = st.sampled_from([(32, 256, 64), (0, 1, 1), (1, 2, 1), (2, 5, 2), (32, 1, 3)])


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    world=WORLDS,
    shape=SHAPES,
    requests=st.lists(st.tuples(PREFIXES, DELIMITERS, AFTERS, st.integers(1, 12)), min_size=4, max_size=8),
    leaps=LEAPS,
)
def test_any_stack_lists_as_its_dict_and_pages_give_exactly_the_whole(
    world: World, shape: Shape, requests: list[tuple[bytes, bytes, bytes, int]], leaps: tuple[int, int, int]
) -> None:
    async def check() -> None:
        view = await world.view(memory_tables(), shape)
        content = world.content
        for prefix, delimiter, after, limit in requests:
            expected = list(listed(content, prefix, delimiter, after))
            page = await list_page(view, prefix, delimiter, after, PAGE_MAX)
            assert (page.items, page.after) == (expected, None)
            paged: Items = []
            place: bytes | None = after
            while place is not None:
                page = await list_page(view, prefix, delimiter, place, limit)
                assert 0 < len(page.items) <= limit or page.after is None
                assert page.after in (None, page.items[-1][0] if page.items else None)
                paged += page.items
                place = page.after
            assert paged == expected

    with short_leaps(*leaps):
        asyncio.run(check())


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    layers=st.lists(st.lists(st.sampled_from("-xxo+"), min_size=10, max_size=10), min_size=2, max_size=4),
    as_run=st.lists(st.booleans(), min_size=4, max_size=4),
    leaps=LEAPS,
)
@example([list("xx--------"), list("-o--------")], [False] * 4, (32, 256, 64))
def test_runs_of_tombstones_hide_exactly_their_own_keys(
    layers: list[list[str]], as_run: list[bool], leaps: tuple[int, int, int]
) -> None:
    """Each layer says of each of ten keys: nothing, deleted (mostly), there, or added to. The last is the base."""
    *upper, lowest = [
        {f"d/{n}".encode(): WHAT[what](at) for n, what in enumerate(layer) if what != "-"}
        for at, layer in enumerate(layers, start=1)
    ]
    base = {key: value for key, value in lowest.items() if isinstance(value, Entry)}
    stack = [(unit, layer) for unit, layer in zip(as_run, reversed(upper), strict=False) if layer]
    world = World(Stack(stack), [], base)

    async def check() -> None:
        view = await world.view(memory_tables(), Shape(3, 1 << 20))
        page = await list_page(view, b"d/", b"", b"", PAGE_MAX)
        assert page.items == list(world.content.items())

    with short_leaps(*leaps):
        asyncio.run(check())


@given(st.binary(max_size=6), st.binary(max_size=8))
@example(b"a\xff\xff", b"b")
@example(b"\xff", b"\xff\xff")
def test_beyond_is_the_first_key_after_a_prefix(prefix: bytes, key: bytes) -> None:
    end = beyond(prefix)
    if end is None:
        assert key < prefix or key.startswith(prefix)
    else:
        assert (key >= end) == (key > prefix and not key.startswith(prefix))


@pytest.mark.parametrize("limit", [0, -1, PAGE_MAX + 1])
@aio
async def test_a_page_of_no_items_or_too_many_is_invalid(limit: int) -> None:
    view = await World(Stack(), [], {}).view(memory_tables(), Shape())
    with pytest.raises(Invalid, match="1 to 1000 items"):
        await list_page(view, b"", b"", b"", limit)


def numbered(folder: str, count: int, number: int = 1) -> dict[bytes, Entry]:
    return {f"{folder}{n:05}".encode(): entry(number) for n in range(count)}


async def cost(world: World, prefix: bytes, delimiter: bytes, after: bytes, limit: int) -> tuple[Items, int]:
    """The page, and how many files it fetched beside the layers that are always open."""
    store = CountingStore(MemoryStore())
    shape = Shape(16, 1 << 20)
    await world.view(memory_tables(store), shape)
    cold = memory_tables(store)
    view = await world.view(cold, shape)
    before = store.calls("get")
    page = await list_page(view, prefix, delimiter, after, limit)
    return page.items, store.calls("get") - before


@aio
async def test_listing_above_a_folder_of_many_ranges_loads_none_of_those_between() -> None:
    base = {b"a": entry(1), **numbered("dir/", 3000), b"z": entry(1)}
    items, fetched = await cost(World(Stack(), [], base), b"", b"/", b"", 1000)
    assert items == [(b"a", entry(1)), (b"dir/", None), (b"z", entry(1))]
    assert fetched <= 2  # of some 190: the first and the last


@aio
async def test_listing_many_folders_loads_about_two_ranges_for_each_whatever_they_hold() -> None:
    base = {key: value for folder in "abcde" for key, value in numbered(f"{folder}/", 1000).items()}
    items, fetched = await cost(World(Stack(l2=dict(base)), [Stack(l2=dict(base))], base), b"", b"/", b"", 1000)
    assert [item for item, _ in items] == [b"a/", b"b/", b"c/", b"d/", b"e/"]
    assert fetched <= 2 * 5  # the layers are equal, so are their ranges: each is fetched once


@aio
async def test_a_page_after_a_key_loads_only_the_ranges_of_the_page() -> None:
    items, fetched = await cost(World(Stack(), [], numbered("dir/", 3000)), b"dir/", b"", b"dir/02000", 3)
    assert [item for item, _ in items] == [b"dir/02001", b"dir/02002", b"dir/02003"]
    assert fetched <= 2


@aio
async def test_a_page_after_a_place_inside_a_folder_continues_beyond_the_folder() -> None:
    base = {**numbered("dir/", 3000), b"z": entry(1)}
    items, fetched = await cost(World(Stack(), [], base), b"", b"/", b"dir/01000", 3)
    assert items == [(b"z", entry(1))]
    assert fetched <= 1


class Touched:
    """Counts the rows whose key or kind is looked at one by one."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.rows = 0
        for name in ("key", "is_tombstone", "lower_bound"):
            self._count(patch, name)

    def _count(self, patch: pytest.MonkeyPatch, name: str) -> None:
        original = getattr(OpenTable, name)

        def counted(table: OpenTable, *args: object) -> object:
            self.rows += 1
            return original(table, *args)

        patch.setattr(OpenTable, name, counted)


async def rows_touched(world: World, delimiter: bytes, monkeypatch: pytest.MonkeyPatch) -> tuple[Items, int]:
    view = await world.view(memory_tables(), Shape(2000, 1 << 24))
    await list_page(view, b"", b"", b"", 1)
    with monkeypatch.context() as patch:
        touched = Touched(patch)
        page = await list_page(view, b"", delimiter, b"", 1000)
    return page.items, touched.rows


@pytest.mark.parametrize("delimiter", [b"", b"/"])
@aio
async def test_staged_tombstones_over_everything_are_not_passed_row_by_row(
    delimiter: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = numbered("dir/", 20_000)
    tombstones = Stack([(False, dict.fromkeys(base))])
    items, rows = await rows_touched(World(tombstones, [], {**base, b"z": entry(1)}), delimiter, monkeypatch)
    assert items == [(b"z", entry(1))]
    assert rows < 1000


@aio
async def test_tombstones_over_nothing_are_not_passed_row_by_row(monkeypatch: pytest.MonkeyPatch) -> None:
    tombstones = Stack([(False, dict.fromkeys(numbered("dir/", 20_000)))])
    items, rows = await rows_touched(World(tombstones, [], {b"z": entry(1)}), b"", monkeypatch)
    assert items == [(b"z", entry(1))]
    assert rows < 1000


@aio
async def test_tombstones_scattered_over_several_layers_are_not_passed_row_by_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    base = numbered("dir/", 20_000)
    dead = list(base)
    layers = [(False, dict.fromkeys(dead[at::3])) for at in range(3)]  # no two neighbours in one layer
    items, rows = await rows_touched(World(Stack(layers), [], {**base, b"z": entry(1)}), b"", monkeypatch)
    assert items == [(b"z", entry(1))]
    assert rows < 2000


@aio
async def test_a_folder_hides_its_tombstones_without_passing_them(monkeypatch: pytest.MonkeyPatch) -> None:
    base = {b"dir/": entry(1), **numbered("dir/", 20_000), b"z": entry(1)}
    tombstones = Stack([(False, dict.fromkeys(numbered("dir/", 20_000)))])
    items, rows = await rows_touched(World(tombstones, [], base), b"/", monkeypatch)
    assert items == [(b"dir/", None), (b"z", entry(1))]
    assert rows < 200
