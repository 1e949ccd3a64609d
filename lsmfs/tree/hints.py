"""Merge hints: what a merge has built, for the client that tries it again.

A merge that nobody sees yet has a merged run and knows the destination that it was merged with. Merging again with that
run as source and that destination as base gives the same result with less work (`merger`). The client keeps it as a
text that only this repository can have made: signed, because a forged one would merge anything.
"""

import base64
import binascii
import hashlib
import hmac

import msgspec

from lsmfs.clock import Clock
from refstore.errors import Conflict, Invalid
from refstore.records import CommitId, RunId
from refstore.store import ABSENT, Store

KEY = b"merge-hints"


class Hint(msgspec.Struct, frozen=True, array_like=True):
    """`merged` is `source` merged into branch `into`, by the rules, when that was at `below`."""

    source: CommitId
    into: str
    rules: str
    below: CommitId
    merged: RunId


class Hints:
    """Signs and verifies the hints of one repository."""

    def __init__(self, store: Store, repository: str, clock: Clock) -> None:
        self._store = store
        self._partition = f"{repository}/secrets"
        self._clock = clock

    async def sign(self, hint: Hint) -> str:
        data = msgspec.json.encode(hint)
        return base64.urlsafe_b64encode(await self._digest(data) + data).decode()

    async def read(self, text: str) -> Hint:
        """`Invalid` if it was not made by this repository."""
        try:
            signed = base64.b64decode(text.encode(), b"-_", validate=True)
        except (binascii.Error, UnicodeEncodeError):
            raise Invalid("the merge hint cannot be read: merge without it") from None
        digest, data = signed[:32], signed[32:]
        if not hmac.compare_digest(digest, await self._digest(data)):
            raise Invalid("the merge hint was not made by this repository: merge without it")
        return msgspec.json.decode(data, type=Hint)

    async def _digest(self, data: bytes) -> bytes:
        return hmac.digest(await self._secret(), data, hashlib.sha256)

    async def _secret(self) -> bytes:
        found = await self._store.get(self._partition, KEY)
        if found is None:
            fresh = (self._clock.new_id() + self._clock.new_id()).encode()
            try:
                await self._store.set_if(self._partition, KEY, fresh, ABSENT)
                return fresh
            except Conflict:
                return await self._secret()
        return found
