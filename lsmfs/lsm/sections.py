"""Sections: where several Runs can be looked at apart from what is left and right of it.

Ranges whose bounds overlap, of whichever runs, are in one section, and no range reaches out of it. So what the runs
say of the keys of a section is in their ranges of that section alone, and two runs that have the same ranges there say
the same.

    run a     [--------]   [---]  [-----]
    run b       [---][----]       [-----]  [--]
    sections  |-----------------||-----||----|

All of it is done in columns, because a run may have thousands of ranges, and a merge that lost its race does little
else.
"""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lsmfs.lsm import records
from lsmfs.lsm.run import Run

Positions = np.ndarray[Any, np.dtype[np.int64]]
Flags = np.ndarray[Any, np.dtype[np.bool_]]


def sections(*runs: Run) -> list[Positions]:
    """For each run the positions of its ranges at which sections begin, and its end: section n has its ranges from
    position n on and before position n + 1."""
    lows, highs = _ranks(runs)
    order = np.argsort(lows, kind="stable")
    reach = np.maximum.accumulate(highs[order])
    begins = np.ones(len(order), np.bool_)
    begins[1:] = lows[order][1:] > reach[:-1]
    section = np.empty(len(order), np.int64)
    section[order] = np.cumsum(begins) - 1
    ends = np.cumsum([len(run) for run in runs])[:-1]
    numbers = np.arange(np.count_nonzero(begins) + 1)
    return [np.searchsorted(of_run, numbers) for of_run in np.split(section, ends)]


def _ranks(runs: tuple[Run, ...]) -> tuple[Positions, Positions]:
    """The lowest and the highest key of every range of every run, as numbers of the same order."""
    chunks = [chunk for name in ("min_key", "max_key") for run in runs for chunk in run.table[name].chunks]
    ranks = pc.rank(pa.chunked_array(chunks, pa.string()), tiebreaker="dense").to_numpy().astype(np.int64)
    return ranks[: len(ranks) // 2], ranks[len(ranks) // 2 :]


def alike(left: Run, left_at: Positions, right: Run, right_at: Positions) -> Flags:
    """For each section whether two runs have the same ranges there; a range's id tells what it says, its keys too."""
    return _all_in(left, left_at, right) & _all_in(right, right_at, left)


def _all_in(run: Run, at: Positions, other: Run) -> Flags:
    shared = pc.is_in(records.flat(run.table["id"]), records.flat(other.table["id"]))
    missing = np.concatenate([[0], np.cumsum(~shared.to_numpy(zero_copy_only=False))])
    flags: Flags = missing[at[1:]] == missing[at[:-1]]
    return flags
