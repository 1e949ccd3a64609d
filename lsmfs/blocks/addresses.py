"""Where somebody else's objects are, which entries refer to by URL."""

from urllib.parse import unquote, urlsplit

from refstore.errors import Invalid


def locate(address: str, store_url: str = "") -> tuple[str, str]:
    """The URL of the store that holds a foreign object, and the object's name there. Of the same cloud as our own
    store, it has the same endpoint and region, unless the address says others: s3://bucket?region=r/name."""
    scheme, _, rest = address.partition("://")
    if scheme == "file":
        folder, _, name = rest.rpartition("/")
        container, name = f"file://{folder or '/'}", unquote(name)
    else:
        bucket, _, name = rest.partition("/")
        own = urlsplit(store_url)
        is_plain = own.scheme == scheme and "?" not in bucket  # else it says itself how it is reached
        query = f"?{own.query}" if is_plain and own.query else ""
        container = f"{scheme}://{bucket}{query}"
    if not name:
        raise Invalid(f"{address!r} names no object: expected scheme://bucket/name")
    return container, name
