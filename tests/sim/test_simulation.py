"""Five hundred simulated histories, and the proof that a seed replays."""

import hashlib
import os
import subprocess
import sys

import pytest

from refstore.records import encode
from tests.sim.history import run_seed
from tests.sim.truth import REPOSITORY, Violation

SEEDS = 500
SEEDS_PER_TEST = 20  # so that two workers share them evenly


@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS_PER_TEST))
def test_every_history_keeps_every_promise(first: int) -> None:
    for seed in range(first, first + SEEDS_PER_TEST):
        try:
            run_seed(seed)
        except Violation as violation:
            pytest.fail(f"seed {seed}: {violation} (replay it: python -m tests.sim --first {seed} --seeds 1)")


def fingerprint(seed: int) -> str:
    """Of everything that happened to the branches."""
    journal = run_seed(seed).truth._journal[REPOSITORY]
    return hashlib.sha256(b"".join(encode(event) for event in journal)).hexdigest()


def test_a_seed_replays_exactly_also_in_another_process() -> None:
    script = "from tests.sim.test_simulation import fingerprint; print(*map(fingerprint, (3, 7)))"
    printed = {
        subprocess.check_output(
            [sys.executable, "-c", script], env={**os.environ, "PYTHONHASHSEED": hashing}, text=True
        )
        for hashing in ("1", "2")
    }
    assert printed == {f"{fingerprint(3)} {fingerprint(7)}\n"}
