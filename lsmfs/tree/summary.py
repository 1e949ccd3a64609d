"""A diff as counts and bytes, for all of it or for each directory; in columns, whatever its size.

Made of pairs of tables, as `diff` gives them for two runs and `diff_layers` for what is staged."""

from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from lsmfs.lsm import records
from lsmfs.tree.diff import ADDED, CHANGED, REMOVED, kinds_of


class Summary(NamedTuple):
    added: int = 0
    removed: int = 0
    changed: int = 0
    bytes_before: int = 0
    bytes_after: int = 0

    def plus(self, other: "Summary") -> "Summary":
        return Summary(*(mine + its for mine, its in zip(self, other, strict=True)))


async def summarise(
    pairs: AsyncIterator[tuple[pa.Table, pa.Table]], prefix: str = "", delimiter: str = ""
) -> dict[str, Summary]:
    """What differs, by directory below the prefix: the path up to the delimiter, or the whole path where there is none;
    in ascending order of their bytes. Without a delimiter there is one item, of the prefix, if anything differs."""
    total: dict[str, Summary] = {}
    async for left, right in pairs:
        for name, part in _summarised(left, right, prefix, delimiter).items():
            total[name] = total.get(name, Summary()).plus(part)
    return dict(sorted(total.items(), key=lambda item: item[0].encode()))


def _summarised(left: pa.Table, right: pa.Table, prefix: str, delimiter: str) -> dict[str, Summary]:
    kinds = pa.array(kinds_of(left, right))
    columns = [
        _directories(records.flat(right["key"]), prefix, delimiter),
        *(pc.equal(kinds, kind).cast(pa.int64()) for kind in (ADDED, REMOVED, CHANGED)),
        *(records.flat(side["size_bytes"]).cast(pa.int64()) for side in (left, right)),
    ]
    names = ["directory", *Summary._fields]
    grouped = pa.table(columns, names).group_by("directory").aggregate([(name, "sum") for name in Summary._fields])
    numbers = zip(*(grouped[f"{name}_sum"].to_pylist() for name in Summary._fields), strict=True)
    return {name: Summary(*each) for name, each in zip(grouped["directory"].to_pylist(), numbers, strict=True)}


def _directories(keys: Any, prefix: str, delimiter: str) -> Any:
    if not delimiter:
        return pa.repeat(prefix, len(keys))
    rest = pc.utf8_slice_codeunits(keys, len(prefix))
    first = pc.list_element(pc.split_pattern(rest, delimiter, max_splits=1), 0)
    whole = pc.if_else(pc.match_substring(rest, delimiter), pc.binary_join_element_wise(first, delimiter, ""), first)
    return pc.binary_join_element_wise(prefix, whole, "")
