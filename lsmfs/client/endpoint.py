"""The endpoint of a server: a URL that may or may not end with the path of its API."""

import ipaddress
from urllib.parse import urlsplit

from refstore.errors import Invalid

API = "/api/v1"


def parse_endpoint(text: str) -> str:
    """The URL of a server without what stands for its API; `Invalid`."""
    try:
        parts = urlsplit(text.strip())
        port = parts.port
    except ValueError as error:
        raise Invalid(f"{text!r} is no endpoint: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise Invalid(f"{text!r} is no endpoint: say http://HOST:PORT or https://HOST")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise Invalid("an endpoint has no credentials and no query: say http://HOST:PORT, and set LSMFS_ACCESS_KEY_ID")
    return f"{parts.scheme}://{parts.netloc.lower()}{parts.path.rstrip('/').removesuffix(API).rstrip('/')}"


def is_loopback(endpoint: str) -> bool:
    """Whether it is on this machine: no proxy is asked for that."""
    host = urlsplit(endpoint).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
