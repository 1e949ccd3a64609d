"""Objects of a directory tree in the byte order of their whole names, in bounded memory.

Walking directories name by name is not that order: `a-b` comes before `a/b`, though the directory `a` comes before
the file `a-b`. Here a directory sorts as its name with the slash, which makes the walk and the order the same. A
directory is read in pages of its smallest entries, so memory is bounded by the page and the depth; one of n pages is
read n times.
"""

import heapq
import os
from collections.abc import Iterator
from datetime import UTC, datetime

from lsmfs.objectstore.checks import RESERVED, is_name
from lsmfs.objectstore.local_files import tag_of
from lsmfs.objectstore.store import ObjectInfo

PAGE_ENTRIES = 50_000  # some 5 MB


def list_files(root: bytes, prefix: str, after: str) -> Iterator[ObjectInfo]:
    """Objects whose name begins with prefix and is > after, ascending."""
    folder, slash, _ = prefix.rpartition("/")
    if is_name(folder) or not folder:  # else nothing can be there, and `..` must not lead out of the root
        yield from _walk(root, (folder + slash).encode(), _bytes(prefix), _bytes(after))


def _bytes(text: str) -> bytes:
    return text.encode(errors="surrogatepass")  # what no name can have finds nothing, and is no error


def _walk(root: bytes, folder: bytes, prefix: bytes, after: bytes) -> Iterator[ObjectInfo]:
    cursor = b""
    while True:
        page = _page(root, folder, cursor, prefix, after)
        for key in page:
            if key.endswith(b"/"):
                yield from _walk(root, folder + key, prefix, after)
            elif info := _info(root, folder + key):
                yield info
        if len(page) < PAGE_ENTRIES:
            return
        cursor = page[-1]


def _page(root: bytes, folder: bytes, cursor: bytes, prefix: bytes, after: bytes) -> list[bytes]:
    """The smallest entries beyond the cursor that are, or may hold, what is asked for."""
    try:
        with os.scandir(root + b"/" + folder) as entries:
            keys = (_key(entry) for entry in entries)
            return heapq.nsmallest(
                PAGE_ENTRIES, (key for key in keys if key > cursor and _matches(folder + key, prefix, after))
            )
    except (FileNotFoundError, NotADirectoryError):
        return []


def _key(entry: os.DirEntry[bytes]) -> bytes:
    if entry.is_dir(follow_symlinks=False):
        return entry.name + b"/"
    return entry.name if entry.is_file(follow_symlinks=False) else b""  # sockets and links are not objects


def _matches(name: bytes, prefix: bytes, after: bytes) -> bool:
    if name == RESERVED.encode() + b"/":
        return False
    if name.endswith(b"/"):  # a directory: may anything in it match?
        return (name.startswith(prefix) or prefix.startswith(name)) and (name > after or after.startswith(name))
    return name.startswith(prefix) and name > after


def _info(root: bytes, name: bytes) -> ObjectInfo | None:
    try:
        status = os.stat(root + b"/" + name, follow_symlinks=False)
        modified = datetime.fromtimestamp(status.st_mtime_ns // 1_000_000_000, UTC)
        return ObjectInfo(name.decode(), status.st_size, tag_of(status), modified)
    except (FileNotFoundError, UnicodeDecodeError):  # deleted meanwhile, or a foreign file that cannot be an object
        return None
