"""Random stacks of layers, stored for real, and the dict that they must read as."""

from dataclasses import dataclass, field

from hypothesis import strategies as st

from lsmfs.lsm.build import Shape, write_run
from lsmfs.lsm.run import Run
from lsmfs.lsm.tables import Tables
from lsmfs.lsm.view import View
from lsmfs.model import Entry
from refstore.records import Branch, CommitId, RunId, Seal, SealId, TableId
from tests.lsm.support import Added, added, after, entry, rows_of

Content = dict[bytes, Entry | Added | None]

# Few characters, so that keys share prefixes; of one to four bytes, so that bytes and characters differ.
KEYS = st.one_of(
    st.text("ab/-", min_size=1, max_size=6),
    st.text("a/é€\U0001f600", min_size=1, max_size=4),
    st.integers(0, 40).map(lambda n: f"d/{n:02}"),
).map(str.encode)
VALUES = st.one_of(st.none(), st.integers(0, 9).map(entry), st.integers(0, 9).map(added))
CHANGES = st.dictionaries(KEYS, VALUES, min_size=1, max_size=25)
TOMBSTONES: st.SearchStrategy[Content] = st.lists(KEYS, min_size=1, max_size=40).map(lambda keys: dict.fromkeys(keys))


@dataclass
class Stack:
    """One l1 above one l2: of l1, oldest first, whether it is a unit, and its content."""

    l1: list[tuple[bool, Content]] = field(default_factory=list)
    l2: Content = field(default_factory=dict)

    def over(self, below: dict[bytes, Entry | None]) -> dict[bytes, Entry | None]:
        result = after(below, self.l2)
        for _, changes in self.l1:
            result = after(result, changes)
        return result

    async def save(self, tables: Tables, number: int, shape: Shape) -> tuple[tuple[TableId, ...], RunId | None]:
        l1: list[TableId] = []
        for at, (is_unit, changes) in enumerate(self.l1):
            rows, unique = rows_of(changes), f"{number}v{at}"
            if is_unit:
                l1.append(await tables.save_unit(await write_run(tables, rows, 0, shape), 0, unique, {}))
            else:
                l1.append(await tables.save_table(rows, 0, unique, {}))
        l2 = await tables.save_run(await write_run(tables, rows_of(self.l2), 0, shape), 0) if self.l2 else None
        return tuple(l1), l2


LAYERS = st.tuples(st.booleans(), st.one_of(CHANGES, TOMBSTONES))
STACKS = st.builds(Stack, l1=st.lists(LAYERS, max_size=3), l2=st.just({}) | CHANGES)


@dataclass
class World:
    """Everything a branch may have: what is staged, what is sealed (oldest first), and its base."""

    top: Stack
    sealed: list[Stack]
    base: dict[bytes, Entry]

    @property
    def content(self) -> dict[bytes, Entry]:
        merged: dict[bytes, Entry | None] = dict(self.base)
        for stack in (*self.sealed, self.top):
            merged = stack.over(merged)
        return {key: merged[key] for key in sorted(merged) if merged[key] is not None}  # type: ignore[misc]

    async def view(self, tables: Tables, shape: Shape) -> View:
        base: Run = await write_run(tables, rows_of(self.base), 0, shape)
        l1, l2 = await self.top.save(tables, 0, shape)
        sealed = [
            Seal(SealId(number), *await stack.save(tables, number, shape))
            for number, stack in enumerate(self.sealed, start=1)
        ]
        branch = Branch("main", "life", 1, 1, CommitId("0"), l1, l2, tuple(sealed))
        return await View.open(tables, branch, base)


WORLDS = st.builds(
    World,
    top=STACKS,
    sealed=st.lists(STACKS, max_size=2),
    base=st.dictionaries(KEYS, st.integers(10, 19).map(entry), max_size=60),
)
SHAPES = st.sampled_from([Shape(2, 1 << 20), Shape(5, 1 << 20), Shape(1 << 20, 300)])
