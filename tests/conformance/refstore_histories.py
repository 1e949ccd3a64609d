"""Histories of changes to one branch: each rule's own, and random ones that come near every rule.

A history is run against a driver and against the pure `apply` at once; after each step both must have the same record
or the same error, word for word.
"""

import itertools
import random
from collections.abc import Iterator

from refstore.errors import Error
from refstore.records import (
    Advance,
    Append,
    Aside,
    Branch,
    BranchChange,
    CommitId,
    Create,
    Delete,
    Move,
    RaiseFloor,
    Replace,
    Reset,
    Restore,
    Retire,
    RunId,
    Seal,
    SealId,
    SealLayers,
    Stash,
    StashLayers,
    TableId,
    TakeStash,
    WriterId,
)
from refstore.refs import L1_TABLES_MAX, SEALS_MAX, STASHES_MAX, WRITERS_MAX, Refs, apply

LIFE = "life-1"


def create(life: str = LIFE, floor: int = 0, hidden: bool = False) -> Create:
    return Create(incarnation=life, base_commit=CommitId("c0"), floor=floor, hidden=hidden)


def append(
    seq: int,
    writer: str = "w",
    opened_at: int = 1,
    table: str | None = None,
    generation: int = 0,
    view: int | None = None,
    life: str = LIFE,
) -> Append:
    return Append(
        incarnation=life,
        writer=WriterId(writer),
        seq=seq,
        opened_at=opened_at,
        table=TableId(table or f"{writer}-{seq}"),
        generation=generation,
        expected_view=view,
    )


def replace(tables: tuple[str, ...], old: str | None, new: str, generation: int = 0, life: str = LIFE) -> Replace:
    ids = tuple(TableId(table) for table in tables)
    return Replace(
        incarnation=life, tables=ids, old=RunId(old) if old is not None else None, new=RunId(new), generation=generation
    )


def seal(life: str = LIFE) -> SealLayers:
    return SealLayers(incarnation=life)


def advance(old: str, new: str, seals: tuple[int, ...], generation: int = 0, life: str = LIFE) -> Advance:
    ids = tuple(SealId(number) for number in seals)
    return Advance(incarnation=life, old=CommitId(old), new=CommitId(new), seals=ids, generation=generation)


def retire(seq: int, writer: str = "w", life: str = LIFE) -> Retire:
    return Retire(incarnation=life, writer=WriterId(writer), seq=seq)


def move(old: str, new: str, view: int, generation: int = 0, life: str = LIFE, jump: bool = False) -> Move:
    ids = CommitId(old), CommitId(new)
    return Move(incarnation=life, old=ids[0], new=ids[1], expected_view=view, generation=generation, jump=jump)


def reset(write: str, base: str | None = None, clean: bool = False, life: str = LIFE) -> Reset:
    return Reset(incarnation=life, write=write, base=None if base is None else CommitId(base), clean=clean)


def stash(write: str, message: str = "", life: str = LIFE) -> StashLayers:
    return StashLayers(incarnation=life, write=write, message=message)


def take(write: str, number: int, drop: bool = False, life: str = LIFE) -> TakeStash:
    return TakeStash(incarnation=life, write=write, stash=number, drop=drop)


def restore(branch: Branch, life: str) -> Restore:
    return Restore(incarnation=life, branch=branch)


def raise_floor(floor: int, life: str = LIFE) -> RaiseFloor:
    return RaiseFloor(incarnation=life, floor=floor)


def delete(life: str = LIFE, version: int | None = None) -> Delete:
    return Delete(incarnation=life, expected_version=version)


DELETED = Branch(
    name="main",
    incarnation=LIFE,
    version=9,
    view=7,
    base_commit=CommitId("c7"),
    l1=(TableId("t1"), TableId("t2")),
    l2=RunId("r1"),
    sealed=(Seal(SealId(8), (TableId("t0"),), None),),
    floor=2,
    aside=Aside(stashes=(Stash(5, CommitId("c1"), (Seal(SealId(5), (), RunId("r0")),)),)),
)

HISTORIES: dict[str, list[BranchChange]] = {
    "nothing_without_a_branch": [append(1), replace(("a",), None, "r"), seal(), advance("c0", "c1", ()), delete()],
    "create_twice": [create(), create(), create("life-2")],
    "another_life": [create(), append(1), delete(), create("life-2"), append(1), append(1, life="life-2"), seal()],
    "append_repeated": [create(), append(1), append(1), append(2), append(2), append(1)],
    "append_out_of_sequence": [create(), append(2), append(1), append(3), append(0), append(2)],
    "append_conditional": [create(), append(1, view=1), append(2, view=1), append(2, view=2), append(3, view=2)],
    "append_stale_generation": [create(floor=3), append(1, generation=2), append(1, generation=3)],
    "replace_prefix": [
        create(floor=1),
        *(append(seq, generation=1) for seq in range(1, 5)),
        replace(("w-1", "w-2"), None, "r1", generation=0),
        replace(("w-1", "w-2"), None, "r1", generation=1),
        replace(("w-1", "w-2"), None, "r1", generation=1),
        replace(("w-4",), "r1", "r2", generation=1),
        replace(("w-3",), "r0", "r2", generation=1),
        replace(("w-3", "w-4", "w-5"), "r1", "r2", generation=1),
        replace((), "r1", "r2", generation=1),
        replace(("w-3", "w-4"), "r1", "r2", generation=1),
    ],
    "replace_by_part_of_an_id": [create(), append(1, table="ab"), append(2, table="c"), replace(("a",), None, "r")],
    "replace_after_seal": [create(), append(1), seal(), replace(("w-1",), None, "r1"), append(2), seal()],
    "move": [
        create(floor=1),
        move("c9", "c1", 1, generation=1),
        move("c0", "c1", 1, generation=0),
        move("c0", "c1", 1, generation=1),
        move("c0", "c1", 1, generation=1),
        append(1, generation=1),
        move("c1", "c2", 3, generation=1),
        seal(),
        move("c1", "c2", 3, generation=1),
        advance("c1", "c2", (4,), generation=1),
        move("c2", "c3", 2, generation=1),
        move("c2", "c3", 3, generation=1, life="life-2"),
        move("c2", "c3", 3, generation=1),
    ],
    "reset": [
        create(),
        append(1),
        reset("x1", clean=True),
        seal(),
        append(2),
        reset("x1"),
        reset("x1"),
        advance("c0", "c1", (3,)),
        append(2),
        append(3),
        reset("x2", base="c5"),
        reset("x2", base="c5"),
        reset("x3", base="c6", clean=True),
        reset("x4", life="life-2"),
        append(4),
        reset("x3"),
    ],
    "stash": [
        create(),
        stash("x1"),
        append(1),
        seal(),
        append(2),
        replace(("w-2",), None, "r1"),
        append(3),
        stash("x1", 'my \u00fcnfinished "work"\n'),
        stash("x1"),
        stash("x2"),
        append(4),
        stash("x2"),
        append(4),
        take("x3", 7),
        take("x3", 7, drop=True),
        take("x3", 7, drop=True),
        take("x4", 7),
        reset("x5"),
        take("x6", 9),
        take("x6", 9),
        append(5),
        seal(),
        advance("c0", "c1", (13,)),
    ],
    "stash_comes_back_as_it_was": [
        create(),
        append(1),
        seal(),
        append(2),
        stash("x1"),
        move("c0", "c1", 5),
        take("x2", 5),
        replace(("w-2",), None, "r1"),
        advance("c1", "c2", (3,)),
    ],
    "stashes_full": [
        create(),
        *(c for seq in range(1, STASHES_MAX + 2) for c in (append(seq), stash(f"x{seq}"))),
        take("y", 3, drop=True),
        stash("z"),
    ],
    "restore": [
        create(),
        append(1),
        seal(),
        append(2),
        restore(DELETED, "life-2"),
        delete(),
        restore(DELETED, "life-2"),
        restore(DELETED, "life-2"),
        restore(DELETED, "life-3"),
        append(3, life="life-2"),
        append(1, "v", opened_at=8, life="life-2"),
        append(1, "v", opened_at=10, life="life-2"),
        delete("life-2"),
        create("life-4"),
    ],
    "delete_at_a_version": [create(), append(1), delete(version=1), delete(version=2), delete(version=2)],
    "hidden": [create(hidden=True), append(1), seal(), move("c0", "c1", 1)],
    "fast_forward": [create(), move("c0", "c1", 1, jump=True), move("c1", "c2", 2)],
    "floor": [
        create(floor=1),
        append(1, generation=1),
        raise_floor(3),
        raise_floor(3),
        raise_floor(2),
        append(2, generation=2),
        append(2, generation=3),
        raise_floor(4, life="life-2"),
        replace(("w-1",), None, "r1", generation=2),
        seal(),
        advance("c0", "c1", (5,), generation=2),
        advance("c0", "c1", (5,), generation=3),
    ],
    "seal_empty": [create(), seal(), append(1), seal(), seal()],
    "advance_prefix": [
        create(floor=1),
        append(1, generation=1),
        seal(),
        append(2, generation=1),
        seal(),
        advance("c0", "c1", (5,), generation=1),
        advance("c0", "c1", (3,), generation=0),
        advance("c0", "c1", (3,), generation=1),
        advance("c0", "c1", (3,), generation=1),
        advance("c0", "c2", (5,), generation=1),
        advance("c1", "c2", (3, 5), generation=1),
        advance("c1", "c2", (5, 7), generation=1),
        advance("c1", "c2", (5,), generation=1),
        advance("c2", "c3", (), generation=1),
    ],
    "retire": [
        create(),
        append(1),
        retire(1),
        retire(2),
        append(2),
        append(1),
        append(1, "v", opened_at=2),
        append(1, "v", opened_at=3),
        retire(1, "unknown"),
    ],
    "l1_full": [
        create(),
        *(append(seq) for seq in range(1, L1_TABLES_MAX + 2)),
        replace(("w-1",), None, "r"),
        append(L1_TABLES_MAX + 1),
        append(L1_TABLES_MAX + 2),
    ],
    "seals_full": [
        create(),
        *(change for seq in range(1, SEALS_MAX + 2) for change in (append(seq), seal())),
        advance("c0", "c1", (3,)),
        seal(),
    ],
    "writers_pushed_out": [
        create(),
        *(append(1, f"w{number}") for number in range(WRITERS_MAX)),
        append(2, "w0"),
        append(1, "newcomer"),
        append(1, "w1"),
        append(2, "w1"),
        append(1, "late", opened_at=2),
        append(1, "late", opened_at=3),
        append(1, "later", opened_at=4),
        append(3, "w0"),
    ],
}


async def run_history(
    refs: Refs, repository: str, name: str, history: Iterator[BranchChange] | list[BranchChange]
) -> None:
    """Run it step by step against the driver and the pure function."""
    model: Branch | None = None
    for step, change in enumerate(history):
        expected: Branch | Error | None
        try:
            expected = apply(model, name, change)
        except Error as error:
            expected = error
        actual: Branch | Error
        try:
            actual = await refs.change(repository, name, change)
        except Error as error:
            actual = error
        where = f"step {step}: {change}"
        if isinstance(expected, Error):
            assert (type(actual), str(actual)) == (type(expected), str(expected)), where
        elif expected is None:
            assert actual == model, where
            model = None
        else:
            assert actual == expected, where
            model = expected
        if model is not None:
            assert await refs.read(repository, name) == model, where


class RandomHistory:
    """Changes that a run of this seed sends, made from what the branch is at that moment: mostly right, often wrong in
    one respect. It follows the branch by itself, as `run_history` does."""

    def __init__(self, seed: int, steps: int, writers: int = 6) -> None:
        self._random = random.Random(seed)
        self._steps = steps
        self._writers = writers
        self._lives = itertools.count(1)
        self._names = itertools.count(1)
        self._branch: Branch | None = None

    def __iter__(self) -> Iterator[BranchChange]:
        for _ in range(self._steps):
            change = self._next()
            yield change
            try:
                self._branch = apply(self._branch, "main", change)
            except Error:
                continue

    def _next(self) -> BranchChange:
        branch = self._branch
        if branch is None:
            return create(f"life-{next(self._lives)}", floor=self._random.choice((0, 2)))
        life = branch.incarnation if self._random.random() < 0.97 else "life-0"
        kinds = [self._append, self._replace, self._seal, self._advance, self._retire, self._raise_floor, self._end]
        kind = self._random.choices(kinds, weights=(60, 10, 8, 10, 4, 2, 2))[0]
        return kind(branch, life)

    def _slip(self, right: int) -> int:
        return right + self._random.choices((0, -1, 1), weights=(18, 1, 1))[0]

    def _append(self, branch: Branch, life: str) -> BranchChange:
        writer = WriterId(f"w{self._random.randrange(self._writers)}")
        mark = branch.writers.get(writer)
        seq = (mark.seq if mark else 0) + self._random.choices((1, 0, 2), weights=(16, 2, 1))[0]
        opened_at = self._random.choice((branch.version, branch.fence, max(1, branch.fence - 1)))
        view = self._random.choice((None, None, None, self._slip(branch.view)))
        table = f"t{next(self._names)}"
        return append(seq, writer, opened_at, table, self._slip(branch.floor), view, life)

    def _replace(self, branch: Branch, life: str) -> BranchChange:
        count = self._random.randint(0, len(branch.l1))
        tables = branch.l1[:count] if self._random.random() < 0.85 else tuple(reversed(branch.l1))
        old = branch.l2 if self._random.random() < 0.85 else self._random.choice((None, "r0"))
        return replace(tables, old, f"r{next(self._names)}", self._slip(branch.floor), life)

    def _seal(self, branch: Branch, life: str) -> BranchChange:
        return seal(life)

    def _advance(self, branch: Branch, life: str) -> BranchChange:
        count = self._random.randint(0, len(branch.sealed))
        seals = [layer.id for layer in branch.sealed][:count]
        if self._random.random() < 0.15:
            seals = [SealId(7), *seals[1:]]
        old = branch.base_commit if self._random.random() < 0.85 else "c-other"
        new = self._random.choice((f"c{next(self._names)}", f"c{next(self._names)}", branch.base_commit))
        return advance(old, new, tuple(seals), self._slip(branch.floor), life)

    def _retire(self, branch: Branch, life: str) -> BranchChange:
        writer = WriterId(f"w{self._random.randrange(self._writers)}")
        mark = branch.writers.get(writer)
        return retire((mark.seq if mark else 0) + self._random.choice((0, 1)), writer, life)

    def _raise_floor(self, branch: Branch, life: str) -> BranchChange:
        return raise_floor(self._slip(branch.floor + 1), life)

    def _end(self, branch: Branch, life: str) -> BranchChange:
        return self._random.choice((delete(life), create(life), create("life-0")))
