"""Access keys: how ids and secrets are made, and how a secret is sealed so that a leaked database does not tell it.

Signatures need the secret itself, so it is encrypted and not hashed: AES-256-GCM under a key derived from the server
key, with the access key id, its user and the user's life as associated data. A record that was moved to another id or
user does not open. The id of the server key in each record tells a wrong server key from a tampered record.

The server key never goes to the store. It has at least 32 bytes of entropy; HKDF makes one key for each purpose of it.
Secrets come from the operating system's entropy and not from the clock: a simulation must not be able to replay them.
"""

import hashlib
import re
import secrets
import string
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from lsmfs.auth.records import Identity, KeyRecord
from refstore.errors import Corrupt, Invalid

SERVER_KEY_BYTES_MIN = 32  # 256 bits: as strong as AES-256
SEALED_VERSION = 1
NONCE_BYTES = 12  # random: safe for 2^32 seals under one server key

ID_PREFIX = "LSFS"
_ID_CHARACTERS = string.ascii_uppercase + "234567"  # 16 of 32: 80 random bits
_SECRET_CHARACTERS = string.ascii_letters + string.digits  # 40 of 62: 238 random bits
_ID = re.compile(r"[A-Za-z0-9_.-]{3,128}")
_SECRET = re.compile(r"[!-~]{8,128}")


class Pair(NamedTuple):
    """An access key id and its secret. Its text does not show the secret."""

    access_key_id: str
    secret: str

    def __repr__(self) -> str:
        return f"Pair({self.access_key_id!r}, ...)"


@dataclass(frozen=True, slots=True)
class Key:
    """A key that may be used now: neither it nor its user is disabled. Its text does not show the secret."""

    access_key_id: str
    secret: str = field(repr=False)
    identity: Identity

    @property
    def user(self) -> str:
        return self.identity.user


def new_pair() -> Pair:
    access_key_id = ID_PREFIX + "".join(secrets.choice(_ID_CHARACTERS) for _ in range(16))
    return Pair(access_key_id, "".join(secrets.choice(_SECRET_CHARACTERS) for _ in range(40)))


def check_pair(pair: Pair) -> Pair:
    """The same; `Invalid` if it cannot be a key. The message never has the secret."""
    if not _ID.fullmatch(pair.access_key_id):
        raise Invalid("an access key id has 3 to 128 of A-Z a-z 0-9 _ . -")
    if not _SECRET.fullmatch(pair.secret):
        raise Invalid("a secret access key has 8 to 128 printable ASCII characters without spaces")
    return pair


class ServerKey:
    """What is derived from the server key: `id` (public), `signing` (tokens), `csrf`, and the sealing of secrets."""

    def __init__(self, server_key: bytes) -> None:
        if len(server_key) < SERVER_KEY_BYTES_MIN:
            raise Invalid(
                f"the server key has {len(server_key)} bytes: make one with {SERVER_KEY_BYTES_MIN} random ones"
            )
        self.id = hashlib.sha256(_derived(server_key, b"id")).hexdigest()[:16]
        self.signing = _derived(server_key, b"tokens")
        self.csrf = _derived(server_key, b"csrf")
        self._sealing = AESGCM(_derived(server_key, b"secrets"))

    def __repr__(self) -> str:
        return f"ServerKey({self.id})"

    def sealed(self, record: KeyRecord, secret: str) -> KeyRecord:
        """The record with this secret, sealed under this server key."""
        nonce = secrets.token_bytes(NONCE_BYTES)
        data = nonce + self._sealing.encrypt(nonce, secret.encode(), _bound_to(record))
        return msgspec.structs.replace(record, sealed=data, server_key_id=self.id, version=SEALED_VERSION)

    def secret(self, record: KeyRecord) -> str:
        """The record's secret; `Corrupt` if it is not what was sealed for this id and user."""
        nonce, data = record.sealed[:NONCE_BYTES], record.sealed[NONCE_BYTES:]
        try:
            return self._sealing.decrypt(nonce, data, _bound_to(record)).decode()
        except (InvalidTag, ValueError):
            raise Corrupt(
                f"the sealed secret of key {record.access_key_id!r} was changed: delete the key and create another"
            ) from None


def open_secret(server_keys: Iterable[ServerKey], record: KeyRecord) -> str:
    """The record's secret, by that of these server keys which sealed it; `Corrupt` if it is none of them."""
    known = {key.id: key for key in server_keys}
    if record.server_key_id not in known:
        raise Corrupt(
            f"key {record.access_key_id!r} was sealed under server key {record.server_key_id!r}, and this server has "
            f"{', '.join(known)}: start it with the right server key, or rotate from the old one"
        )
    return known[record.server_key_id].secret(record)


def _derived(server_key: bytes, purpose: bytes) -> bytes:
    return HKDF(algorithm=SHA256(), length=32, salt=None, info=b"lsmfs auth " + purpose).derive(server_key)


def _bound_to(record: KeyRecord) -> bytes:
    return msgspec.json.encode([SEALED_VERSION, record.access_key_id, record.user, record.user_life])
