"""`python -m tests.sim --seeds N`: any number of simulated histories, on all processors, up to the first violation."""

import argparse
import os
import sys
import traceback
from concurrent.futures import ProcessPoolExecutor

from tests.sim.history import run_seed

REPORT_EVERY = 200


def attempt(seed: int) -> str:
    """Nothing, or how the history broke."""
    try:
        run_seed(seed)
    except BaseException:
        return traceback.format_exc()
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=500, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    options = parser.parse_args()
    seeds = range(options.first, options.first + options.seeds)
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for seed, broken in zip(seeds, pool.map(attempt, seeds, chunksize=4), strict=True):
            if broken:
                pool.shutdown(wait=False, cancel_futures=True)
                print(f"{broken}\nseed {seed} is broken; replay it: python -m tests.sim --first {seed} --seeds 1")
                return 1
            if (seed + 1 - options.first) % REPORT_EVERY == 0:
                print(f"{seed + 1 - options.first} of {options.seeds} histories are sound", flush=True)
    print(f"{options.seeds} histories are sound")
    return 0


if __name__ == "__main__":
    sys.exit(main())
