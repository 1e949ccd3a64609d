"""Places outside our own store that users name: only those below what the configuration allows.

A user must not make the server read or write wherever it can: file:///etc, another bucket of its account, a host of the
inner network. So a name is compared, part by part, with the URLs that are allowed; it may have no parameters (an
endpoint is one) and no `..`; a local path is taken as it is after all symbolic links. Nothing is allowed by default.
"""

import os
from urllib.parse import quote, unquote, urlsplit

from refstore.errors import Denied, Invalid

NAME_CHARACTERS_MAX = 2048


def permitted(text: str, allowed: tuple[str, ...], key: str) -> str:
    """The URL to open for what the user named; `Denied` says which key of the configuration would allow it."""
    if len(text) > NAME_CHARACTERS_MAX or any(ord(character) < 32 for character in text):
        raise Invalid(f"an address has up to {NAME_CHARACTERS_MAX} printable characters")
    scheme, separator, rest = text.partition("://")
    if not separator or "?" in text or "#" in text or "\\" in text:
        raise Invalid(f"{text[:200]!r} is no address: write scheme://place, without parameters")
    if ".." in unquote(rest).split("/"):
        raise Invalid(f"{text[:200]!r} has '..' in it: write the place itself")
    if scheme == "file":
        text = _real(text)
    for each in allowed:
        place, question, parameters = each.partition("?")
        base = (_real(place) if each.startswith("file://") else place).rstrip("/")
        if text == base or text.startswith(base + "/"):
            return text + question + parameters
    raise Denied(f"{text[:200]!r} is not below a place that is allowed: ask for it in {key} of the configuration")


def _real(url: str) -> str:
    parts = urlsplit(url)
    if parts.netloc not in ("", "localhost"):
        raise Invalid(f"{url[:200]!r} has a host: a local place is file:///path")
    path = unquote(parts.path)
    slash = "/" if path.endswith("/") and path != "/" else ""
    return f"file://{quote(os.path.realpath(path))}{slash}"
