"""How things look: an entry, a difference, a commit as a JSON document and as text for people."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from lsmfs.cli.uri import Uri
from lsmfs.model import Entry
from lsmfs.policy import Rule
from lsmfs.tree.commits import Commit
from lsmfs.tree.diff import Difference
from lsmfs.tree.merge import Clash
from lsmfs.tree.summary import Summary
from refstore.records import CommitId

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SIGNS = {"added": "+", "removed": "-", "changed": "~"}
_CONTROL = {code: f"\\x{code:02x}" for code in (*range(32), 127)}


def printable(text: str) -> str:
    """The text without control characters: a key may hold some, and a terminal would obey them."""
    return text.translate(_CONTROL)


def time_text(microseconds: int) -> str:
    """A time for people and machines; the bare number if it is none that a calendar knows."""
    try:
        return f"{EPOCH + timedelta(microseconds=microseconds):%Y-%m-%dT%H:%M:%SZ}"
    except OverflowError:
        return str(microseconds)


def entry_document(path: str, entry: Entry) -> dict[str, object]:
    return {"path": path, **entry_facts(entry)}


def entry_facts(entry: Entry) -> dict[str, object]:
    return {
        "size_bytes": entry.size_bytes,
        "etag": entry.etag,
        "mtime": time_text(entry.mtime_us),
        "content_type": entry.content_type,
        "metadata": entry.metadata or {},
        "extents": [list(extent) for extent in _extents(entry)],
    }


def _extents(entry: Entry) -> list[tuple[str, int, int]]:
    return [(extent.address, extent.offset, extent.length) for extent in entry.extents]


def entry_text(uri: Uri, entry: Entry) -> str:
    """All that is known of an object, a line for each thing."""
    rows = [
        ("object", printable(str(uri))),
        ("size", f"{entry.size_bytes} bytes"),
        ("etag", entry.etag),
        ("modified", time_text(entry.mtime_us)),
        ("type", entry.content_type or "-"),
        *((f"meta {key}", value) for key, value in (entry.metadata or {}).items()),
        *(("stored at", f"{address} [{offset}, +{length}]") for address, offset, length in _extents(entry)),
    ]
    return fields([(name, printable(value)) for name, value in rows])


def listing_text(path: str, entry: Entry | None) -> str:
    """A line of a listing; no entry: a common prefix."""
    if entry is None:
        return f"{'':20}  {'-':>12}  {printable(path)}"
    return f"{time_text(entry.mtime_us):20}  {entry.size_bytes:>12}  {printable(path)}"


def difference_document(difference: Difference) -> dict[str, object]:
    return {
        "type": difference.type,
        "path": difference.key.decode(),
        "before": _facts_or_none(difference.before),
        "after": _facts_or_none(difference.after),
    }


def difference_text(difference: Difference) -> str:
    """A line such as `~ path  3 -> 5 bytes`."""
    sizes = [str(entry.size_bytes) for entry in (difference.before, difference.after) if entry is not None]
    return f"{SIGNS[difference.type]} {printable(difference.key.decode())}  {' -> '.join(sizes)} bytes"


def clash_document(clash: Clash) -> dict[str, object]:
    return {
        "type": "conflict",
        "path": clash.key.decode(),
        "base": _facts_or_none(clash.base),
        "source": _facts_or_none(clash.source),
        "destination": _facts_or_none(clash.destination),
    }


def clash_text(clash: Clash, source: str, destination: str) -> str:
    sides = ((source, clash.source), (destination, clash.destination))
    told = (f"{side}: {'removed' if entry is None else f'{entry.size_bytes} bytes'}" for side, entry in sides)
    return f"! {printable(clash.key.decode())}  {', '.join(told)}"


def _facts_or_none(entry: Entry | None) -> dict[str, object] | None:
    return None if entry is None else entry_facts(entry)


def commit_document(identity: CommitId, commit: Commit) -> dict[str, object]:
    return {
        "id": identity,
        "parents": list(commit.parents),
        "message": commit.message,
        "committer": commit.committer,
        "created": time_text(commit.created_us),
        "generation": commit.generation,
        "metadata": commit.metadata,
    }


def commit_text(identity: CommitId, commit: Commit, entries: int | None = None) -> str:
    """A commit for people: in a log, where its first parent is the next one; or alone, if its entries are counted."""
    is_alone = entries is not None
    rows = [
        ("commit", identity),
        *(("parent", parent) for parent in commit.parents[:1] if is_alone),
        *(("merged", parent) for parent in commit.parents[1:]),
        ("committer", commit.committer or "-"),
        ("created", time_text(commit.created_us)),
        *((f"meta {key}", value) for key, value in commit.metadata.items()),
        *([("entries", f"{entries}")] if is_alone else []),
    ]
    message = "\n".join(f"    {printable(line)}" for line in commit.message.splitlines())
    return f"{fields([(name, printable(value)) for name, value in rows])}\n\n{message}\n"


def rule_text(rule: Rule) -> str:
    """A rule for branches, such as `release-*  stage, commit`."""
    return f"{printable(rule.pattern)}  {', '.join(rule.blocks)}"


def fields(rows: Sequence[tuple[str, object]]) -> str:
    """Names and values, a line each."""
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:{width}}  {value}" for name, value in rows)


def table(head: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """Columns, the first `left` of them aligned at their beginning, the others at their end."""
    widths = [max(len(row[at]) for row in (head, *rows)) for at in range(len(head))]
    lines = []
    for row in (head, *rows):
        cells = [f"{cell:{'<' if at < left else '>'}{widths[at]}}" for at, cell in enumerate(row)]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def summary_text(parts: Sequence[tuple[str, Summary]]) -> str:
    """How many paths differ, and their bytes: a line for each part; one without a name is all there is."""
    head = [name.replace("_", " ") for name in Summary._fields]
    rows = [(printable(name), *(f"{number:,}" for number in part)) for name, part in parts]
    if any(name for name, _ in parts):
        return table(("", *head), rows)
    return table(head, [row[1:] for row in rows], left=0)


def seconds_text(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 0.1 else f"{seconds * 1000:.1f} ms"


def rate_text(count: int, seconds: float) -> str:
    return f"{count / seconds:,.0f}/s" if seconds > 0 else "-"


def bytes_text(size: int) -> str:
    """A size for people."""
    value, unit = float(size), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
