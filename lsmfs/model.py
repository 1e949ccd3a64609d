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
EXTENTS_MAX = 10_000  # S3's limit of parts: 1 MB of a row, and as many requests to read the object
MD5 = re.compile(r"[0-9a-f]{32}")
COMMIT_ID = re.compile(r"[0-9a-f]{64}")
BRANCH_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,254}")
REPOSITORY_NAME = re.compile(r"[a-z0-9][a-z0-9-]{2,62}")


class Extent(msgspec.Struct, frozen=True, array_like=True):
    """A piece of stored bytes; `digest` is their MD5, if it is known."""

    address: str
    offset: int
    length: int
    digest: str = ""

    @property
    def is_ours(self) -> bool:
        """Whether it is in the installation's own store: other addresses are URLs."""
        return "://" not in self.address


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
    digest: str = ""  # of the first extent, if there are more; of one alone the etag says it

    @property
    def extents(self) -> tuple[Extent, ...]:
        """Every piece, in the order of the object's bytes."""
        length = self.size_bytes - sum(extent.length for extent in self.rest)
        first = Extent(self.address, self.offset, length, self.digest)
        # Somebody else's etag need not be an MD5, however much it looks like one.
        if not self.rest and first.is_ours and MD5.fullmatch(self.etag):
            first = Extent(self.address, self.offset, length, self.etag)
        return (first, *self.rest)

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
    if entry.rest or entry.metadata or entry.digest or not text.isascii():
        _check_unusual(entry)


def _check_unusual(entry: Entry) -> None:
    what = f"entry for {entry.address!r}"
    try:
        stored = msgspec.json.encode(entry)
        if msgspec.json.decode(stored, type=Entry) != entry:
            raise Invalid(f"{what}: it has values of another type than {Entry.__annotations__}")
    except (msgspec.MsgspecError, UnicodeEncodeError) as error:
        raise Invalid(f"{what}: {error}") from None
    if entry.digest and not entry.rest:
        raise Invalid(f"{what}: a digest is that of the first of several extents")
    if entry.rest:
        check_extents(entry.extents, what)
    if entry.metadata and sum(len(k) + len(v) for k, v in entry.metadata.items()) > METADATA_BYTES_MAX:
        raise Invalid(f"{what}: more than {METADATA_BYTES_MAX} bytes of user metadata")


def check_extents(extents: tuple[Extent, ...], what: str) -> None:
    """`Invalid` if they cannot be the extents of one object."""
    try:
        if msgspec.json.decode(msgspec.json.encode(extents), type=tuple[Extent, ...]) != extents:
            raise Invalid(f"{what}: its extents have values of another type than {Extent.__annotations__}")
    except (msgspec.MsgspecError, UnicodeEncodeError) as error:
        raise Invalid(f"{what}: {error}") from None
    if any(min(extent.offset, extent.length) < 0 or extent.offset > INT64_MAX for extent in extents):
        raise Invalid(f"{what}: an extent has a negative offset or length, or the extents are longer than the object")
    if sum(extent.length for extent in extents) > INT64_MAX:
        raise Invalid(f"{what}: its extents have more bytes than 64 bits can count")
    if any(extent.digest and not MD5.fullmatch(extent.digest) for extent in extents):
        raise Invalid(f"{what}: the digest of an extent is no MD5 in small letters")
    if len(extents) > EXTENTS_MAX:
        raise Invalid(
            f"{what}: it has {len(extents)} extents, at most {EXTENTS_MAX} are allowed: read it and store it as one"
        )


def check_branch_name(name: str, what: str = "branch") -> str:
    """The name, if a branch or a tag may have it; `Invalid` says what it cannot be."""
    if not BRANCH_NAME.fullmatch(name) or name.endswith((".", ".lock")) or ".." in name:
        raise Invalid(
            f"{name!r} is no {what} name: use letters, digits, '_', '-' and '.', beginning with a letter, digit or '_'"
        )
    if COMMIT_ID.fullmatch(name):
        raise Invalid(f"{name!r} is a commit id, no {what} name: a commit cannot be written to: name a branch")
    return name


def check_repository_name(name: str) -> str:
    if not REPOSITORY_NAME.fullmatch(name):
        raise Invalid(f"{name!r} is no repository name: 3 to 63 lower case letters, digits and '-'")
    return name
