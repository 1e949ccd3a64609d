"""What a Key maps to, and what may be a Key.

An Entry describes an object by where its bytes are; lsmfs never looks into them. The first Extent is held inline
because one is the normal case, and that keeps an Entry flat: a row of a Table.
"""

import re
from datetime import UTC, datetime

import msgspec

from refstore.errors import Invalid

KEY_BYTES_MAX = 1024  # S3's limit, so that every key can be served by the gateway
INT64_MAX = 2**63 - 1
METADATA_BYTES_MAX = 8 * 1024  # S3 allows 2 KiB of user metadata; the rest is room for ours
BRANCH_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,254}")
REPOSITORY_NAME = re.compile(r"[a-z0-9][a-z0-9-]{2,62}")


class Extent(msgspec.Struct, frozen=True, array_like=True):
    """A piece of stored bytes."""

    address: str
    offset: int
    length: int


class Entry(msgspec.Struct, frozen=True):
    """One object version: its first extent inline, the rest of them if there are more."""

    address: str
    size_bytes: int
    etag: str = ""
    mtime_us: int = 0
    offset: int = 0
    content_type: str | None = None
    metadata: dict[str, str] | None = None
    rest: tuple[Extent, ...] = ()

    @property
    def extents(self) -> tuple[Extent, ...]:
        """Every piece, in the order of the object's bytes."""
        first = self.size_bytes - sum(extent.length for extent in self.rest)
        return (Extent(self.address, self.offset, first), *self.rest)

    @property
    def modified(self) -> datetime:
        return datetime.fromtimestamp(self.mtime_us / 1e6, UTC)


def key_of(path: str | bytes) -> bytes:
    """The Key of a path; `Invalid` if it cannot be one."""
    key = path.encode("utf-8", "surrogatepass") if isinstance(path, str) else bytes(path)
    if not 0 < len(key) <= KEY_BYTES_MAX or b"\0" in key or not key.isascii():
        _check_key(key)
    return key


def _check_key(key: bytes) -> None:
    if not key:
        raise Invalid("the key is empty: give a path inside the branch")
    if len(key) > KEY_BYTES_MAX:
        raise Invalid(f"the key {key[:40]!r}... has {len(key)} bytes, at most {KEY_BYTES_MAX} are allowed")
    if b"\0" in key:
        raise Invalid(f"the key {key!r} has a NUL byte")
    try:
        key.decode()
    except UnicodeDecodeError as error:
        raise Invalid(f"the key {key!r} is not UTF-8: {error.reason} at byte {error.start}") from None


def check_entry(entry: Entry) -> None:
    """`Invalid` if the entry contradicts itself or cannot be stored: found late, it would fail the puts beside it."""
    if not (
        0 <= entry.size_bytes <= INT64_MAX
        and 0 <= entry.offset <= INT64_MAX
        and -INT64_MAX <= entry.mtime_us <= INT64_MAX
    ):
        raise Invalid(f"entry for {entry.address!r}: size, offset or time is negative or has more than 64 bits")
    text = entry.address + entry.etag + (entry.content_type or "")
    if entry.rest or entry.metadata or not text.isascii():
        _check_unusual(entry)


def _check_unusual(entry: Entry) -> None:
    lengths = [extent.length for extent in entry.rest]
    if sum(lengths) > entry.size_bytes:
        raise Invalid(f"entry for {entry.address!r}: its extents are longer than its size {entry.size_bytes}")
    if min(lengths, default=0) < 0 or any(extent.offset < 0 for extent in entry.rest):
        raise Invalid(f"entry for {entry.address!r}: an extent has a negative offset or length")
    try:
        stored = msgspec.json.encode(entry)
        if msgspec.json.decode(stored, type=Entry) != entry:
            raise Invalid(f"entry for {entry.address!r}: it has values of another type than {Entry.__annotations__}")
    except (msgspec.MsgspecError, UnicodeEncodeError) as error:
        raise Invalid(f"entry for {entry.address!r}: {error}") from None
    if entry.metadata and sum(len(k) + len(v) for k, v in entry.metadata.items()) > METADATA_BYTES_MAX:
        raise Invalid(f"entry for {entry.address!r}: more than {METADATA_BYTES_MAX} bytes of user metadata")


def check_branch_name(name: str) -> str:
    if not BRANCH_NAME.fullmatch(name) or name.endswith((".", ".lock")) or ".." in name:
        raise Invalid(
            f"{name!r} is no branch name: use letters, digits, '_', '-' and '.', beginning with a letter, digit or '_'"
        )
    return name


def check_repository_name(name: str) -> str:
    if not REPOSITORY_NAME.fullmatch(name):
        raise Invalid(f"{name!r} is no repository name: 3 to 63 lower case letters, digits and '-'")
    return name
