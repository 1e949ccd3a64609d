"""The command: choose benchmarks, run them one after the other, print the table, write latest.json.

Exit code 0 if every bar is met, 1 if one is missed, 2 for a wrong command, 130 after Ctrl-C. The temporary folder goes
in every case.
"""

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import msgspec
from rich.console import Console

from benchmarks import commit, compact, get, listing, put, report, serve, stage, versions
from benchmarks.report import Figure
from benchmarks.workspace import Workspace

BENCHMARKS: dict[str, Callable[[Workspace], Awaitable[list[Figure]]]] = {
    "put": put.measure,
    "stage": stage.measure,
    "compact": compact.measure,
    "commit": commit.measure_commit,
    "commit-scaling": commit.measure_scaling,
    "memory": commit.measure_memory,
    "get": get.measure,
    "list": listing.measure,
    "branch": versions.measure_branch,
    "diff": versions.measure_diff,
    "merge": versions.measure_merge,
    "contended-merge": versions.measure_contended,
    "log": versions.measure_log,
    "rest": serve.measure_rest,
    "s3-small": serve.measure_small,
    "s3-stream": serve.measure_stream,
}
LATEST = Path(__file__).parent / "latest.json"


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    console = Console(stderr=options.json)
    options.folder.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory(prefix="bench-", dir=options.folder) as folder:
            figures = asyncio.run(run(options.only, Path(folder), options.quick, console))
    except KeyboardInterrupt:
        console.print("interrupted: nothing was written")
        return 130
    except ModuleNotFoundError as error:
        console.print(f"[red]{error.name} is not installed:[/] pip install 'lsmfs[bench]'", highlight=False)
        return 2
    if not options.quick:
        report.write(figures, LATEST)
    if options.json:
        sys.stdout.buffer.write(msgspec.json.encode(figures) + b"\n")
    else:
        report.show(figures, console)
    return 0 if options.quick or all(row.met for row in figures) else 1


async def run(names: Sequence[str], folder: Path, quick: bool, console: Console) -> list[Figure]:
    """The rows of the report, in the order of the names."""
    figures: list[Figure] = []
    with console.status("starting") as status:
        workspace = Workspace(folder, quick, lambda step: status.update(step))
        for number, name in enumerate(names):
            status.update(name)
            rows = await BENCHMARKS[name](workspace)
            for row in rows:
                verdict = "met" if row.met else "MISSED"
                console.print(f"{number + 1}/{len(names)} {row.name}: {row.ratio:g}, bar {row.bar}: {verdict}")
            figures += rows
    return figures


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m benchmarks", description="Speed and size of lsmfs, beside baselines.")
    parser.add_argument("--only", type=_names, default=list(BENCHMARKS), help=f"some of {','.join(BENCHMARKS)}")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: tries the benchmarks, measures nothing")
    parser.add_argument("--json", action="store_true", help="the report as JSON on standard output")
    parser.add_argument(
        "--folder", type=Path, default=Path("build"), help="where the temporary folder is made (default: build)"
    )
    return parser


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown or not names:
        raise argparse.ArgumentTypeError(
            f"no benchmark {', '.join(map(repr, unknown)) or 'named'}: known are {', '.join(BENCHMARKS)}"
        )
    return names


if __name__ == "__main__":
    sys.exit(main())
