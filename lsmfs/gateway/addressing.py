"""What a request is about: bucket and key from host and path, and a key's ref and path.

    path style      /<repository>/<ref>/<path>              any host
    virtual host    <repository>.<domain> /<ref>/<path>     hosts below one of the gateway's domains

    Addressing(domain_names).of(request) -> Address(bucket, key, host_bucket)
    place_of(repository, key) -> Place(repository, ref, path)

Names are taken literally: `//`, `.` and `..` are characters of a key as in S3, and lead nowhere since a key is never a
name of a file. A key without a slash names a ref and no object.
"""

from collections.abc import Sequence
from typing import NamedTuple

from lsmfs.gateway.errors import S3Error
from lsmfs.gateway.request import Request
from lsmfs.model import KEY_BYTES_MAX, REPOSITORY_NAME

REF_CHARACTERS_MAX = 300  # a branch's name has 255 at most; the rest is for `~2^2`


class Address(NamedTuple):
    """Empty strings where there is no bucket or no key; `host_bucket` is the bucket that the host named."""

    bucket: str
    key: str
    host_bucket: str | None


class Place(NamedTuple):
    """An object, or a ref as a folder: then the path is empty, and `slashed` says if the key ended with a slash."""

    repository: str
    ref: str
    path: str
    slashed: bool = True

    @property
    def key(self) -> str:
        return f"{self.ref}/{self.path}" if self.slashed else self.ref


class Addressing:
    def __init__(self, domain_names: Sequence[str]) -> None:
        self._suffixes = tuple(f".{name.lower().strip('.')}" for name in domain_names if name.strip("."))

    def of(self, request: Request) -> Address:
        path = request.path[1:] if request.path.startswith("/") else request.path
        if self._suffixes:
            bucket = self._bucket_of_host(request.host)
            if bucket is not None:
                return Address(bucket, path, bucket)
        bucket, _, key = path.partition("/")
        return Address(bucket, key, None)

    def is_ours(self, host: str) -> bool:
        """Whether the host is one of the gateway's domains or below one."""
        name = _without_port(host)
        return f".{name}" in self._suffixes or self._bucket_of_host(host) is not None

    def _bucket_of_host(self, host: str) -> str | None:
        name = _without_port(host)
        for suffix in self._suffixes:
            if name.endswith(suffix) and len(name) > len(suffix):
                return name[: -len(suffix)]
        return None


def _without_port(host: str) -> str:
    name = host.lower()
    if name.startswith("["):  # an IPv6 address, which has no domain
        return name
    return name.partition(":")[0].rstrip(".")


def check_bucket(bucket: str) -> str:
    """The repository that a bucket is; one that cannot be a name cannot exist."""
    if not REPOSITORY_NAME.fullmatch(bucket):
        raise S3Error("NoSuchBucket", f"There is no repository {bucket[:80]!r}.", extra={"BucketName": bucket[:80]})
    return bucket


def place_of(repository: str, key: str) -> Place:
    """Where a key is; S3Error if it cannot be one."""
    if "\0" in key:
        raise S3Error("InvalidArgument", "The key has a NUL byte: it cannot be stored.")
    ref, slash, path = key.partition("/")
    if len(path) > KEY_BYTES_MAX // 4 and len(path.encode()) > KEY_BYTES_MAX:
        extra = {"Size": str(len(path.encode())), "MaxSizeAllowed": str(KEY_BYTES_MAX)}
        raise S3Error("KeyTooLongError", f"The path below the ref has more than {KEY_BYTES_MAX} bytes.", extra=extra)
    if len(ref) > REF_CHARACTERS_MAX:
        raise S3Error("NoSuchKey", f"No ref has a name of more than {REF_CHARACTERS_MAX} characters.")
    return Place(repository, ref, path, bool(slash))
