"""A store from its address: the one place that knows all drivers.

    mem://            in memory, gone with the process        /a/path, a/path, file:///a/path    local files
    s3://... gs://... az://...    a bucket; `bucket_url` says which parameters and credentials

The environment is an argument: only the server, the CLI and the daemon hand in the process's own.
"""

from collections.abc import Mapping
from urllib.parse import unquote, urlsplit

from lsmfs.objectstore.local import LocalStore
from lsmfs.objectstore.memory import MemoryStore
from lsmfs.objectstore.store import ObjectStore
from refstore.errors import Invalid


def open_store(url: str, environment: Mapping[str, str]) -> ObjectStore:
    """The store at the address, without any wrapper; `Invalid` if the address is not one. Contacts nobody yet."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        return _open_local(url, url)
    if scheme == "mem":
        if rest:
            raise Invalid(f"{url!r}: a store in memory has no path, say mem://")
        return MemoryStore()
    if scheme == "file":
        return _open_local(url, _file_path(url))
    if scheme in ("s3", "gs", "az"):
        return _open_bucket(url, environment)
    raise Invalid(f"{url!r} is no store's address: expected mem://, file:///path, a path, s3://, gs:// or az://")


def _open_local(url: str, path: str) -> ObjectStore:
    if not path or "\0" in path:
        raise Invalid(f"{url!r} has no path")
    return LocalStore(path)


def _file_path(url: str) -> str:
    parts = urlsplit(url)
    if parts.netloc not in ("", "localhost"):
        raise Invalid(f"{url!r} names the host {parts.netloc!r}: a path begins after three slashes, file:///path")
    if parts.query or parts.fragment:
        raise Invalid(f"{url!r} has parameters; a local store takes none (write ? as %3F and # as %23)")
    return unquote(parts.path)


def _open_bucket(url: str, environment: Mapping[str, str]) -> ObjectStore:
    # Here and not above: obstore takes 50 ms to import, which a command on local files need not wait for.
    from lsmfs.objectstore.bucket import BucketStore
    from lsmfs.objectstore.bucket_url import open_bucket

    return BucketStore(open_bucket(url, environment))
