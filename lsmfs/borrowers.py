"""Who refers to bytes of whom: entries that were copied from one repository to another share its bytes.

    partition "<lender>/borrowers"    key: the borrower's name    value: when the borrower was created, in microseconds

A lender is not deleted while a borrower exists. A record is written before the first entry that needs it, and after it
the lender is looked at once more; who deletes marks the lender first and then looks for records. So one of the two
sees the other, whatever their order.

A record says that there may be such entries, not that there are: only the end of the borrower removes it. One of a
borrower that is gone, or was made anew under its name, counts for nothing.
"""

from collections.abc import AsyncIterator

from lsmfs.policy import REPOSITORIES, RepositoryRecord, decode_record, read_record
from refstore.errors import Denied, Invalid, NotFound
from refstore.store import Store

TOLD_MAX = 10  # names in a message


def _partition(lender: str) -> str:
    return f"{lender}/borrowers"


async def lend(store: Store, lender: RepositoryRecord, borrower: RepositoryRecord) -> None:
    """Entries of the borrower may refer to bytes of the lender from now on; `NotFound` if it is being deleted."""
    if lender.storage != borrower.storage:
        raise Invalid(
            f"repositories {lender.name!r} and {borrower.name!r} have different storage: read the object and put it"
        )
    partition, key = _partition(lender.name), borrower.name.encode()
    await store.set(partition, key, str(borrower.created_us).encode())
    now, _ = await read_record(store, lender.name)
    if now.deleting or now.created_us != lender.created_us:
        await store.delete(partition, key)
        raise NotFound(f"repository {lender.name!r} is being deleted")


async def check_unborrowed(store: Store, lender: str) -> None:
    """`Denied` if a repository that exists may refer to bytes of this one."""
    found = [name async for name in _borrowers(store, lender)]
    if found:
        told = ", ".join(found[:TOLD_MAX]) + (f" and {len(found) - TOLD_MAX} more" if len(found) > TOLD_MAX else "")
        raise Denied(f"repository {lender!r} has bytes that objects copied to others refer to: delete {told} first")


async def _borrowers(store: Store, lender: str) -> AsyncIterator[str]:
    """The borrowers that exist; records of others are removed."""
    async for item in store.scan(_partition(lender)):
        data = await store.get(REPOSITORIES, item.key)
        if data is not None and str(decode_record(item.key.decode(), data).created_us).encode() == item.value:
            yield item.key.decode()
        else:
            await store.delete(_partition(lender), item.key)


async def forget(store: Store, name: str) -> None:
    """Remove what is written down of a repository that goes, as lender and as borrower."""
    async for item in store.scan(_partition(name)):
        await store.delete(_partition(name), item.key)
    async for other in store.scan(REPOSITORIES):
        lender = other.key.decode()
        if await store.get(_partition(lender), name.encode()) is not None:
            await store.delete(_partition(lender), name.encode())
