"""A local folder as a source: every regular file below it, in the byte order of the names, in bounded memory.

Decided, and tested:
- A symbolic link is not followed and not imported: what it names may be anywhere, or change. The folder itself may be
  one; addresses have the path that it leads to.
- Hidden files are imported as any other: a key may begin with a dot.
- Left out and told, because no entry could have the key or nobody could read the bytes back: names that are not UTF-8
  or have control characters or backslashes, keys of more than 1,024 bytes, sockets, devices and pipes.
- A folder that may not be read ends the import: half of a tree is not what was asked for.

Walking directories name by name is not byte order: `a-b` comes before `a/b`. A directory therefore sorts as its name
with the slash. It is read in pages of its smallest entries; one of n pages is read n times.
"""

import asyncio
import errno
import heapq
import os
import re
from collections.abc import AsyncIterator, Iterator
from itertools import islice
from typing import Any, NamedTuple
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc

from lsmfs.imports.source import Batch, Place, Skip, added
from lsmfs.lsm import records
from lsmfs.model import KEY_BYTES_MAX
from lsmfs.objectstore.checks import is_name
from lsmfs.objectstore.local_files import tag_of
from refstore.errors import Denied, Error, NotFound, Unavailable

BATCH_FILES = 16 * 1024  # some 0.2 s of walking, which a cancellation waits for
PAGE_ENTRIES = 500_000  # some 50 MB of names

LINK, SPECIAL = "symbolic links", "not regular files"
NOT_UTF8, UNREADABLE, TOO_LONG = "names that are not UTF-8", "names that cannot be read back", "keys that are too long"
_SAFE = "/=,:+@"  # that a path in a URL may have as they are: partitions are named day=7
_PLAIN = re.compile(rf"[A-Za-z0-9_.~{_SAFE}-]*")


class Found(NamedTuple):
    """A file, or something that is left out for a reason. The name is relative to the root."""

    name: bytes
    status: os.stat_result | None
    reason: str = ""


class FolderSource:
    total: int | None = None
    is_ordered = True
    may_repeat = False
    mark = ""

    def __init__(self, path: str) -> None:
        self.root = os.path.realpath(path)

    @property
    def url(self) -> str:
        return f"file://{quote(os.fsencode(self.root))}"

    async def check(self) -> None:
        found = await asyncio.to_thread(lambda: next(_walk(os.fsencode(self.root), b"", b""), None))
        if found is None:
            raise NotFound(f"{self.root} holds no files: there is nothing to import")

    async def batches(self, prefix: str, place: Place) -> AsyncIterator[Batch]:
        walk = _walk(os.fsencode(self.root), b"", place.name.encode())
        while (batch := await asyncio.to_thread(self._batch, walk, prefix, place.counted)) is not None:
            yield batch

    async def aclose(self) -> None:
        """Nothing is held."""

    def _batch(self, walk: Iterator[Found], prefix: str, counted: bytes) -> Batch | None:
        names: list[str] = []
        statuses: list[os.stat_result] = []
        skipped: dict[str, Skip] = {}
        reached, room = b"", KEY_BYTES_MAX - len(prefix.encode())
        for found in islice(walk, BATCH_FILES):
            reached = found.name
            reason = found.reason or _unfit(found.name, room)
            if not reason:
                assert found.status is not None
                names.append(found.name.decode())
                statuses.append(found.status)
            elif found.name > counted:
                skipped = added(skipped, {reason: Skip(1, os.fsdecode(found.name).encode(errors="replace").decode())})
        return Batch(self._rows(names, statuses, prefix), reached, skipped) if reached else None

    def _rows(self, names: list[str], statuses: list[os.stat_result], prefix: str) -> pa.Table:
        if not names:
            return records.EMPTY
        keys = pa.array(names, pa.string())
        columns: dict[str, Any] = {
            "key": pc.binary_join_element_wise(prefix, keys, "") if prefix else keys,
            "address": self._addresses(names),
            "size_bytes": [status.st_size for status in statuses],
            "mtime": pa.array([status.st_mtime_ns // 1000 for status in statuses], pa.timestamp("us", "UTC")),
            "etag": [tag_of(status) for status in statuses],
        }
        return records.conform(pa.table(columns))

    def _addresses(self, names: list[str]) -> Any:
        quoted = [name if _PLAIN.fullmatch(name) else quote(name, _SAFE) for name in names]
        return pc.binary_join_element_wise(self.url.rstrip("/") + "/", pa.array(quoted, pa.string()), "")


def _unfit(name: bytes, room: int) -> str:
    """Why a file can be no entry; nothing if it can."""
    try:
        text = name.decode()
    except UnicodeDecodeError:
        return NOT_UTF8
    if not is_name(text.rpartition("/")[2]):
        return UNREADABLE
    return TOO_LONG if len(name) > room else ""


def _walk(root: bytes, folder: bytes, after: bytes) -> Iterator[Found]:
    """What is below the folder and after the name."""
    cursor, page = b"", _page(root, folder, b"", after)
    while page:
        for key, reason in page:
            name = folder + key
            if key.endswith(b"/"):
                yield from _walk(root, name, after)
            elif reason:
                yield Found(name, None, reason)
            elif status := _status(root, name):
                yield Found(name, status)
        cursor = page[-1][0]
        page = _page(root, folder, cursor, after) if len(page) == PAGE_ENTRIES else []


def _page(root: bytes, folder: bytes, cursor: bytes, after: bytes) -> list[tuple[bytes, str]]:
    """The smallest entries of a directory beyond the cursor that are after the name, or may hold what is."""
    path = root + b"/" + folder
    found: list[tuple[bytes, str]] = []
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                key, reason = _key(entry)
                if key > cursor and _follows(folder + key, after):
                    found.append((key, reason))
                    if len(found) >= 2 * PAGE_ENTRIES:
                        found = heapq.nsmallest(PAGE_ENTRIES, found)
    except FileNotFoundError:
        return []  # removed meanwhile
    except OSError as error:
        raise _translated(error, path) from None
    found.sort()
    return found[:PAGE_ENTRIES]


def _key(entry: os.DirEntry[bytes]) -> tuple[bytes, str]:
    if entry.is_file(follow_symlinks=False):
        return entry.name, ""
    if entry.is_dir(follow_symlinks=False):
        return entry.name + b"/", ""
    return entry.name, LINK if entry.is_symlink() else SPECIAL


def _follows(name: bytes, after: bytes) -> bool:
    return name > after or (name.endswith(b"/") and after.startswith(name))


def _status(root: bytes, name: bytes) -> os.stat_result | None:
    try:
        return os.stat(root + b"/" + name, follow_symlinks=False)
    except FileNotFoundError:
        return None  # removed meanwhile
    except OSError as error:
        raise _translated(error, root + b"/" + name) from None


def _translated(error: OSError, path: bytes) -> Error:
    kind = Denied if error.errno in (errno.EACCES, errno.EPERM) else Unavailable
    return kind(f"{os.fsdecode(path)}: {error.strerror}: change its rights, or import another folder")
