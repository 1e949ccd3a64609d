"""What may not be imported: the lake's own storage. Its objects come and go with the lake, and an import that reads
what it writes itself would never end.

A source overlaps if it holds the lake's store or its folder, or lies within what the lake keeps there. Data of others
may lie in the same bucket or folder, beside the repositories.
"""

import os
from collections.abc import Collection
from pathlib import PurePath
from typing import NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

from lsmfs.imports.source import CLOUDS
from lsmfs.objectstore.checks import RESERVED
from refstore.errors import Invalid

REFS = "refstore"  # where a bucket keeps its own refs
CACHE = "cache"


class _Location(NamedTuple):
    """A place in a store: what tells stores apart, and the path within."""

    store: tuple[str, ...]
    path: tuple[str, ...]


def check_apart(source_url: str, store_url: str, folder: str, repositories: Collection[str]) -> None:
    """`Invalid` if the source overlaps with the store of the lake, or with its folder."""
    source = _location(source_url)
    own = ((_location(store_url), {*repositories, RESERVED, REFS}), (_local(folder), {CACHE, "objects"}))
    for place, names in own:
        if _overlaps(source, place, names):
            shown = store_url.partition("?")[0] if place.store[0] in CLOUDS else folder
            raise Invalid(f"{source_url} overlaps with the lake's own storage, {shown}: import the folders beside it")


def _overlaps(source: _Location, own: _Location, names: Collection[str]) -> bool:
    if source.store != own.store:
        return False
    depth = len(source.path)
    if own.path[:depth] == source.path:
        return True
    inside = source.path[: len(own.path)] == own.path
    return inside and source.path[len(own.path)] in names


def _location(url: str) -> _Location:
    parts = urlsplit(url)
    if parts.scheme not in CLOUDS:
        return _local(unquote(parts.path) if parts.scheme == "file" else url)
    parameters = parse_qs(parts.query)
    reached = tuple(parameters.get(name, [""])[0].rstrip("/") for name in ("endpoint", "account"))
    path = tuple(segment for segment in unquote(parts.path).split("/") if segment)
    return _Location((parts.scheme, parts.netloc, *reached), path)


def _local(path: str) -> _Location:
    return _Location(("",), PurePath(os.path.realpath(path)).parts)
