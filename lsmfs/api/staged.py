"""`main$`: a branch as if it had nothing but what is staged on it."""

from lsmfs.api.differences import staged
from lsmfs.lsm.listing import Page
from lsmfs.lsm.records import beyond
from lsmfs.model import Entry, check_branch_name, key_of
from lsmfs.repository import Repository
from refstore.errors import NotFound

MARK = "$"


def is_staged_only(ref: str) -> bool:
    return ref.endswith(MARK)


async def staged_entry(repository: Repository, ref: str, path: str) -> Entry:
    key = key_of(path)
    async for difference in staged(repository, check_branch_name(ref[:-1]), path)(key):
        if difference.key == key and difference.after is not None:
            return difference.after
        break
    raise NotFound(f"{path!r} is not staged on {ref[:-1]!r}")


async def staged_page(repository: Repository, ref: str, prefix: str, delimiter: str, after: str, limit: int) -> Page:
    """What is staged and not deleted, in order; a delimiter groups as it does in any listing."""
    items: list[tuple[bytes, Entry | None]] = []
    start, cut = prefix.encode(), delimiter.encode()
    last = after.encode()
    if last:
        at = last.find(cut, len(start)) if cut and last.startswith(start) else -1
        start = max(start, last + b"\0") if at < 0 else beyond(last[: at + len(cut)]) or last + b"\0"
    async for difference in staged(repository, check_branch_name(ref[:-1]), prefix)(start):
        if difference.after is None:
            continue
        at = difference.key.find(cut, len(prefix.encode())) if cut else -1
        name, entry = (difference.key, difference.after) if at < 0 else (difference.key[: at + len(cut)], None)
        if items and items[-1][0] == name:
            continue
        if len(items) == limit:
            return Page(items, items[-1][0])
        items.append((name, entry))
    return Page(items)
