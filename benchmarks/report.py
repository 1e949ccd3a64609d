"""What a benchmark reports: a figure, the baseline of the same run, and the bar that their ratio must meet."""

from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table


class Bar(msgspec.Struct, frozen=True):
    """A ratio's bound: `at_least` or at most `limit`. Written as ">= 10" or "<= 1.6"."""

    at_least: bool
    limit: float

    def __str__(self) -> str:
        return f"{'>=' if self.at_least else '<='} {self.limit:g}"

    def is_met(self, ratio: float) -> bool:
        return ratio >= self.limit if self.at_least else ratio <= self.limit


def at_least(limit: float) -> Bar:
    return Bar(True, limit)


def at_most(limit: float) -> Bar:
    return Bar(False, limit)


class Figure(msgspec.Struct, frozen=True):
    """One row of the report. `ratio` is the number the bar speaks of."""

    name: str
    figure: float
    unit: str
    baseline: float
    ratio: float
    bar: str
    met: bool
    against: str
    """What the baseline is, in a few words."""
    note: str = ""


def figure(
    name: str, value: float, unit: str, baseline: float, ratio: float, bar: Bar, against: str, note: str = ""
) -> Figure:
    return Figure(
        name, _rounded(value), unit, _rounded(baseline), _rounded(ratio), str(bar), bar.is_met(ratio), against, note
    )


def _rounded(value: float) -> float:
    """Four significant digits: more would only be noise."""
    return float(f"{value:.4g}")


def write(figures: list[Figure], path: Path) -> None:
    """Write the report. Rows that this run did not measure stay as an earlier one left them."""
    measured = {row.name for row in figures}
    kept = [row for row in _read(path) if row.name not in measured]
    path.write_bytes(msgspec.json.format(msgspec.json.encode([*kept, *figures]), indent=2) + b"\n")


def _read(path: Path) -> list[Figure]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=list[Figure])
    except (FileNotFoundError, msgspec.DecodeError):
        return []


def show(figures: list[Figure], console: Console) -> None:
    table = Table(title="lsmfs benchmarks")
    for heading in ("name", "figure", "unit", "baseline", "ratio", "bar", ""):
        table.add_column(heading, justify="right" if heading in ("figure", "baseline", "ratio") else "left")
    for row in figures:
        verdict = "[green]met[/]" if row.met else "[bold red]MISSED[/]"
        numbers = (_short(row.figure), row.unit, _short(row.baseline), f"{row.ratio:g}", row.bar)
        table.add_row(row.name, *numbers, verdict)
    console.print(table)
    for row in figures:
        note = f"; {row.note}" if row.note else ""
        console.print(f"{row.name}: baseline is {row.against}{note}", highlight=False)
    for row in figures:
        if not row.met:
            console.print(f"[bold red]{row.name} missed its bar:[/] {row.ratio:g}, wanted {row.bar}", highlight=False)


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:g}"
