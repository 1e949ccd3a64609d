"""A process of its own that commits what is staged, and prints how long it took and how much memory it held.

python -m benchmarks.child <folder of an installation>    ->    {"seconds": s, "peak_bytes": n, "idle_bytes": n}
"""

import asyncio
import json
import re
import resource
import sys
from pathlib import Path

from benchmarks.workspace import opened, timed


def peak_bytes() -> int:
    """The most memory that was resident. Linux counts what the parent held into `ru_maxrss` of a child it starts, so
    there the kernel's mark for this program alone is read."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    match = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert match is not None
    return int(match[1]) * 1024


async def main(folder: Path) -> None:
    async with opened(folder) as repository:
        idle = peak_bytes()
        seconds, _ = await timed(repository.commit("main", "many changes"))
    print(json.dumps({"seconds": seconds, "peak_bytes": peak_bytes(), "idle_bytes": idle}))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
