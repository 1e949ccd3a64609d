"""Putting what is named by its content: repeated or raced, it is the same put.

Whoever put the name before put the same content, so a name that is taken is as good as our put. It is looked at all the
same: a store that broke off half way may have left part of a body under the name, and only a put of the whole mends it.
"""

from lsmfs.objectstore.store import ABSENT, ObjectStore
from refstore.errors import AlreadyExists


async def put_content(store: ObjectStore, name: str, body: bytes) -> None:
    """Store the body under the name that its content gives it."""
    try:
        await store.put(name, body, ABSENT)
    except AlreadyExists:
        if await store.get(name) != body:
            await store.put(name, body)
