"""XML going out, by f-strings: a list of 1,000 keys is the hot path.

    escape(text) -> str                        text for use between tags
    element(name, text) -> str                 <name>text</name>, escaped
    document(root, *children) -> bytes         a whole answer in S3's namespace; children are ready XML
    url_encode_key(key) -> str                 a key as encoding-type=url wants it: "/" stays, a space is %20

A character that XML 1.0 cannot hold becomes a numeric reference, as AWS does it: strict parsers refuse that, which is
why clients ask for encoding-type=url. A carriage return does too, because parsers turn a bare one into a line feed.
"""

import re
from urllib.parse import quote

NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"
DECLARATION = '<?xml version="1.0" encoding="UTF-8"?>\n'

_SPECIAL = re.compile('[&<>"\x00-\x08\x0b-\x1f\x7f\ud800-\udfff\ufffe\uffff]')
_NAMED = {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;"}


def escape(text: str) -> str:
    return _SPECIAL.sub(_reference, text)


def _reference(found: re.Match[str]) -> str:
    character = found.group()
    return _NAMED.get(character) or f"&#x{ord(character):x};"


def element(name: str, text: str | int) -> str:
    """The name is ours and is not escaped."""
    return f"<{name}>{_SPECIAL.sub(_reference, str(text))}</{name}>"


def document(root: str, *children: str) -> bytes:
    return f'{DECLARATION}<{root} xmlns="{NAMESPACE}">{"".join(children)}</{root}>'.encode()


def url_encode_key(key: str) -> str:
    return quote(key, safe="/*")
