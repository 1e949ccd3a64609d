"""What a user types to name a thing: `lsmfs://repository/branch/path`; the scheme may be left out."""

from typing import NamedTuple

from lsmfs.model import check_branch_name, check_repository_name
from refstore.errors import Invalid

SCHEME = "lsmfs://"


class Uri(NamedTuple):
    repository: str
    branch: str
    path: str

    def __str__(self) -> str:
        return f"{SCHEME}{self.repository}/{self.branch}/{self.path}"


def parse_uri(text: str) -> Uri:
    """A repository, a branch, and a path that may be empty. Nothing is decoded: a path is what it is."""
    scheme, separator, _ = text.partition("://")
    if separator and scheme != "lsmfs" and "/" not in scheme:
        raise Invalid(f"{text!r} has the scheme {scheme}://, expected lsmfs://repository/branch/path")
    if text.startswith(("lsmfs:", "lsmfs//")) and not separator:
        raise Invalid(f"{text!r} has a misspelt scheme, expected lsmfs://repository/branch/path")
    repository, _, rest = text.removeprefix(SCHEME).partition("/")
    branch, _, path = check_text(rest).partition("/")
    if not repository or not branch:
        raise Invalid(f"{text!r} names no branch: expected lsmfs://repository/branch/path")
    return Uri(check_repository_name(repository), check_branch_name(branch), path)


def check_text(text: str) -> str:
    """The argument, if it is UTF-8: Python makes surrogates of the bytes of one that is not."""
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise Invalid(f"{text!r} is not UTF-8, and nothing else is stored: write it in another way")
    return text


def looks_like_uri(text: str) -> bool:
    """Whether the user meant it to be one: it says so."""
    return text.startswith("lsmfs:")


def parse_object(text: str) -> Uri:
    """As `parse_uri`, with a path."""
    uri = parse_uri(text)
    if not uri.path:
        raise Invalid(f"{text!r} names no object: expected lsmfs://{uri.repository}/{uri.branch}/PATH")
    return uri


def parse_branch(text: str) -> Uri:
    """As `parse_uri`, without a path."""
    uri = parse_uri(text)
    if uri.path:
        raise Invalid(f"{text!r} names an object, and a branch is wanted: lsmfs://{uri.repository}/{uri.branch}")
    return uri


def parse_pairs(pairs: list[str]) -> dict[str, str]:
    """`key=value` arguments."""
    found: dict[str, str] = {}
    for pair in pairs:
        key, separator, value = pair.partition("=")
        if not separator or not key:
            raise Invalid(f"{pair!r} is no key=value")
        if key in found:
            raise Invalid(f"{key!r} is given twice: {found[key]!r} and {value!r}")
        found[check_text(key)] = check_text(value)
    return found
