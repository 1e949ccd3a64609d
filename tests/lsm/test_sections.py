"""Sections of several runs against a walk over every key, and what a run has in them."""

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from lsmfs.lsm.build import Shape, write_run
from lsmfs.lsm.run import EMPTY_RUN, Run
from lsmfs.lsm.sections import alike, sections
from lsmfs.lsm.tables import Tables
from tests.aio import aio
from tests.lsm.support import entry, keys, memory_tables, rows_of

NUMBERS = st.sets(st.integers(0, 60), max_size=40)
SHAPE = Shape(4, 1 << 20)


async def run_of(tables: Tables, numbers: set[int], value: int = 1) -> Run:
    rows = rows_of({key: entry(value) for key in keys(numbers)})
    return await write_run(tables, rows, 0, SHAPE) if numbers else EMPTY_RUN


def walked(runs: list[Run]) -> list[list[set[bytes]]]:
    """The maximal keys of the ranges of each run, section by section."""
    found: list[list[set[bytes]]] = []
    reach = b""
    ranges = [
        (low, high, at) for at, run in enumerate(runs) for low, high in zip(run.min_keys, run.max_keys, strict=True)
    ]
    for low, high, at in sorted(ranges):
        if low > reach:
            found.append([set() for _ in runs])
        reach = max(reach, high)
        found[-1][at].add(high)
    return found


@settings(max_examples=200, deadline=None)
@given(st.lists(NUMBERS, min_size=1, max_size=4))
def test_ranges_that_overlap_are_in_one_section_and_no_others(contents: list[set[int]]) -> None:
    async def check() -> None:
        tables = memory_tables()
        runs = [await run_of(tables, numbers) for numbers in contents]
        at = sections(*runs)
        count = len(at[0]) - 1
        found = [[set(run.max_keys[p[n] : p[n + 1]]) for run, p in zip(runs, at, strict=True)] for n in range(count)]
        assert found == walked(runs)

    asyncio.run(check())


@settings(max_examples=200, deadline=None)
@given(NUMBERS, NUMBERS)
def test_two_runs_are_alike_where_they_have_the_same_ranges(left: set[int], right: set[int]) -> None:
    async def check() -> None:
        tables = memory_tables()
        runs = [await run_of(tables, numbers) for numbers in (left, right)]
        at = sections(*runs)
        parts = [[run.files[p[n] : p[n + 1]] for n in range(len(p) - 1)] for run, p in zip(runs, at, strict=True)]
        expected = [mine == theirs for mine, theirs in zip(*parts, strict=True)]
        assert alike(runs[0], at[0], runs[1], at[1]).tolist() == expected

    asyncio.run(check())


@aio
async def test_ranges_of_the_same_keys_with_other_records_are_not_alike() -> None:
    tables = memory_tables()
    runs = [await run_of(tables, set(range(20)), value) for value in (1, 2)]
    at = sections(*runs)
    assert len(at[0]) > 2
    assert not alike(runs[0], at[0], runs[1], at[1]).any()


def test_runs_without_ranges_have_no_section() -> None:
    assert [positions.tolist() for positions in sections(EMPTY_RUN, EMPTY_RUN)] == [[0], [0]]
