"""What to merge and when: a pure function of the branch record, as a table of cases and as properties."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactor.planner import Triggers, batch, due, plan, size_of
from lsmfs.paths import TableFile, run_id
from refstore.errors import Corrupt
from refstore.records import Branch, CommitId, RunId, TableId

TRIGGERS = Triggers(tables_min=4, bytes_min=1000, age_seconds=60, tables_max=6, bytes_max=2000)
L2 = run_id(0, "0" * 64)


def table(size_bytes: int, kind: str = "t", number: int = 0) -> TableId:
    return TableId(str(TableFile(kind, 0, f"{number:020}", size_bytes, "0" * 32)))


def branch(*sizes: int, l2: RunId | None = L2) -> Branch:
    l1 = tuple(table(size, number=number) for number, size in enumerate(sizes))
    return Branch("main", "life", 1, 1, CommitId("0"), l1, l2)


@pytest.mark.parametrize(
    ("sizes", "waited", "reason", "taken"),
    [
        ((), 0, None, 0),
        ((), 1e9, None, 0),  # nothing is never due
        ((10,), 59.9, None, 0),
        ((10,), 60, "age", 1),
        ((10, 10, 10), 0, None, 0),
        ((10, 10, 10, 10), 0, "count", 4),
        ((10,) * 6, 0, "count", 6),
        ((10,) * 9, 0, "count", 6),  # at most tables_max at once, the oldest
        ((999,), 0, None, 0),
        ((1000,), 0, "bytes", 1),
        ((500, 500), 0, "bytes", 2),
        ((900, 900, 900), 0, "bytes", 2),  # the third would exceed bytes_max
        ((5000, 10), 0, "bytes", 1),  # one table is taken however large it is
        ((10, 5000), 0, "bytes", 1),
        ((1000, 1000, 10), 0, "bytes", 2),  # exactly bytes_max is within it
        ((0, 0, 0, 0), 0, "count", 4),
    ],
)
def test_what_is_due_and_how_much_of_it_is_taken(
    sizes: tuple[int, ...], waited: float, reason: str | None, taken: int
) -> None:
    seen = branch(*sizes)
    work = plan(seen, waited, TRIGGERS)
    if reason is None:
        assert work is None
    else:
        assert work is not None
        assert (work.reason, work.tables, work.l2, work.branch) == (reason, seen.l1[:taken], L2, seen)


def test_a_branch_without_an_l2_is_planned_with_none() -> None:
    work = plan(branch(1, 1, 1, 1, l2=None), 0, TRIGGERS)
    assert work is not None
    assert work.l2 is None


def test_a_unit_is_streamed_and_so_counts_no_bytes() -> None:
    unit = table(10**9, "u")
    assert size_of(unit) == 0
    l1 = (table(600), unit, table(600, number=1), unit, table(900, number=2))
    seen = Branch("main", "life", 1, 1, CommitId("0"), l1)
    assert due(seen, 0, TRIGGERS) == "count"
    assert batch(seen, TRIGGERS) == l1[:4]


def test_a_name_that_is_no_table_is_corrupt() -> None:
    seen = Branch("main", "life", 1, 1, CommitId("0"), (TableId("t0-oops"),))
    with pytest.raises(Corrupt):
        plan(seen, 100, TRIGGERS)


@given(
    st.lists(st.tuples(st.sampled_from("tu"), st.integers(0, 3000)), max_size=40),
    st.floats(0, 200),
    st.builds(
        Triggers,
        tables_min=st.integers(1, 20),
        bytes_min=st.integers(1, 5000),
        age_seconds=st.floats(0, 100),
        tables_max=st.integers(1, 20),
        bytes_max=st.integers(1, 5000),
    ),
)
def test_a_plan_is_the_longest_prefix_within_the_bounds(
    layers: list[tuple[str, int]], waited: float, triggers: Triggers
) -> None:
    l1 = tuple(table(size, kind, number) for number, (kind, size) in enumerate(layers))
    seen = Branch("main", "life", 1, 1, CommitId("0"), l1, L2)
    work = plan(seen, waited, triggers)
    sizes = [size_of(name) for name in l1]
    expected = bool(l1) and (
        len(l1) >= triggers.tables_min or sum(sizes) >= triggers.bytes_min or waited >= triggers.age_seconds
    )
    assert (work is not None) == expected
    if work is None:
        return
    count = len(work.tables)
    assert count >= 1
    assert work.tables == l1[:count]
    assert count <= triggers.tables_max
    assert count == 1 or sum(sizes[:count]) <= triggers.bytes_max
    could_take_more = count < min(len(l1), triggers.tables_max) and sum(sizes[: count + 1]) <= triggers.bytes_max
    assert not could_take_more
