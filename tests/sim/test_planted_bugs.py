"""The net is tested too: each planted bug is caught within three hundred histories, most within ten."""

from collections.abc import Callable

import pytest

from refstore.errors import Error
from tests.sim.bugs import BUGS
from tests.sim.history import run_seed
from tests.sim.truth import Violation
from tests.sim.world import PROFILES

SEEDS_MAX = 300


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_planted_bug_is_caught(bug: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    bug(monkeypatch)
    for seed in range(SEEDS_MAX):
        try:
            run_seed(seed, PROFILES[BUGS[bug]])
        except (Violation, Error) as caught:  # anything else is a mistake in the planted code, and fails the test
            print(f"caught at seed {seed}: {caught}")
            return
    pytest.fail(f"{SEEDS_MAX} histories did not show it")
