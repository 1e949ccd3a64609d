"""A diff as counts and bytes by directory, against counting key by key."""

import asyncio
from collections.abc import AsyncIterator

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from lsmfs.lsm.build import Shape, write_run
from lsmfs.lsm.records import beyond
from lsmfs.lsm.run import EMPTY_RUN, Run
from lsmfs.lsm.tables import Tables
from lsmfs.model import Entry
from lsmfs.tree.diff import diff, diff_layers
from lsmfs.tree.summary import Summary, summarise
from tests.lsm.support import entry, memory_tables, rows_of

NAMES = st.lists(st.sampled_from(["a", "b", "é", "a.b", "日"]), min_size=1, max_size=3).map("/".join)
CONTENTS = st.dictionaries(NAMES.map(str.encode), st.integers(0, 9).map(entry), max_size=30)


async def run_of(tables: Tables, content: dict[bytes, Entry]) -> Run:
    return await write_run(tables, rows_of(content), 0, Shape(4, 1 << 20)) if content else EMPTY_RUN


def counted(left: dict[bytes, Entry], right: dict[bytes, Entry], prefix: str, delimiter: str) -> dict[str, Summary]:
    total: dict[str, Summary] = {}
    for key in sorted(left.keys() | right.keys()):
        before, after, path = left.get(key), right.get(key), key.decode()
        if before == after or not path.startswith(prefix):
            continue
        first, found, _ = path[len(prefix) :].partition(delimiter) if delimiter else ("", "", "")
        one = Summary(
            before is None,
            after is None,
            before is not None and after is not None,
            before.size_bytes if before else 0,
            after.size_bytes if after else 0,
        )
        name = prefix + first + found
        total[name] = total.get(name, Summary()).plus(one)
    return total


@settings(max_examples=200, deadline=None)
@given(CONTENTS, CONTENTS, st.sampled_from(["", "a", "a/", "é/", "日/a"]), st.sampled_from(["", "/", "."]))
def test_a_summary_counts_what_a_walk_over_all_keys_counts(
    left: dict[bytes, Entry], right: dict[bytes, Entry], prefix: str, delimiter: str
) -> None:
    async def check() -> None:
        tables = memory_tables()
        start = prefix.encode()
        pairs: AsyncIterator[tuple[pa.Table, pa.Table]] = diff(
            tables, await run_of(tables, left), await run_of(tables, right), start, beyond(start)
        )
        expected = counted(left, right, prefix, delimiter)
        found = await summarise(pairs, prefix, delimiter)
        assert list(found.items()) == sorted(expected.items(), key=lambda item: item[0].encode())

    asyncio.run(check())


CHANGES = st.dictionaries(NAMES.map(str.encode), st.none() | st.integers(0, 9).map(entry), max_size=12)


@settings(max_examples=100, deadline=None)
@given(CONTENTS, CHANGES, CHANGES, st.sampled_from(["", "a", "a/"]), st.sampled_from(["", "/", "."]))
def test_a_summary_of_what_is_staged_counts_what_the_layers_change_of_the_commit(
    base: dict[bytes, Entry],
    older: dict[bytes, Entry | None],
    newer: dict[bytes, Entry | None],
    prefix: str,
    delimiter: str,
) -> None:
    async def check() -> None:
        tables, shape = memory_tables(), Shape(4, 1 << 20)
        layers = [
            await tables.save_table(rows_of(changes), 0, f"{number:032x}", {})
            for number, changes in enumerate((newer, older))
            if changes
        ]
        start = prefix.encode()
        pairs = diff_layers(tables, await run_of(tables, base), layers, shape, start, beyond(start))
        after = {key: value for key, value in {**base, **older, **newer}.items() if value is not None}
        expected = counted(base, after, prefix, delimiter)
        found = await summarise(pairs, prefix, delimiter)
        assert list(found.items()) == sorted(expected.items(), key=lambda item: item[0].encode())

    asyncio.run(check())
