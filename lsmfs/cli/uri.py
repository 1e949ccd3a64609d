"""What a user types to name a thing: `lsmfs://repository/branch/path`; the scheme may be left out.

Commands that write want a branch. Commands that read take any revision where the branch stands:
`lake/main~2/path`, `lake/v1/path`, `lake/1a2b3c4d/path`.
"""

from collections.abc import Iterable
from typing import NamedTuple

from lsmfs.model import check_branch_name, check_repository_name
from lsmfs.tree.revision import parse_revision
from refstore.errors import Invalid

SCHEME = "lsmfs://"


class Uri(NamedTuple):
    """`ref` is a branch, or any revision if the command only reads."""

    repository: str
    ref: str
    path: str = ""

    def __str__(self) -> str:
        return f"{SCHEME}{self.repository}/{self.ref}/{self.path}"

    @property
    def short(self) -> str:
        """For people: what has no path."""
        return f"{self.repository}/{self.ref}"


def parse_uri(text: str) -> Uri:
    """A repository, a branch, and a path that may be empty. Nothing is decoded: a path is what it is."""
    uri = _split(text)
    if _goes_back(uri.ref):
        raise not_a_branch(uri.ref)
    check_branch_name(uri.ref)
    return uri


def parse_version(text: str) -> Uri:
    """As `parse_uri`, with any revision where the branch stands."""
    uri = _split(text)
    parse_revision(uri.ref)
    return uri


def _split(text: str) -> Uri:
    scheme, separator, _ = text.partition("://")
    if separator and scheme != "lsmfs" and "/" not in scheme:
        raise Invalid(f"{text!r} has the scheme {scheme}://, expected lsmfs://repository/branch/path")
    if text.startswith(("lsmfs:", "lsmfs//")) and not separator:
        raise Invalid(f"{text!r} has a misspelt scheme, expected lsmfs://repository/branch/path")
    repository, _, rest = text.removeprefix(SCHEME).partition("/")
    ref, _, path = check_text(rest).partition("/")
    if not repository or not ref:
        raise Invalid(f"{text!r} names no branch: expected lsmfs://repository/branch/path")
    return Uri(check_repository_name(repository), ref, path)


def _goes_back(ref: str) -> bool:
    """Whether it is a revision that is no name, and so never a branch."""
    try:
        return not parse_revision(ref).is_plain
    except Invalid:
        return False


def not_a_branch(ref: str) -> Invalid:
    return Invalid(f"{ref!r} is a commit, with nothing staged, and a commit cannot be written to: name a branch")


def check_text(text: str) -> str:
    """The argument, if it is UTF-8: Python makes surrogates of the bytes of one that is not."""
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise Invalid(f"{text!r} is not UTF-8, and nothing else is stored: write it in another way")
    return text


def looks_like_uri(text: str) -> bool:
    """Whether the user meant it to be one: it says so."""
    return text.startswith("lsmfs:")


def with_path(uri: Uri) -> Uri:
    """The URI, if it names an object."""
    if not uri.path:
        raise Invalid(f"{uri.short!r} names no object: expected {SCHEME}{uri.short}/PATH")
    return uri


def without_path(uri: Uri, wanted: str = "a branch") -> Uri:
    """The URI, if it names no object."""
    if uri.path:
        raise Invalid(f"{str(uri)!r} names an object, and {wanted} is wanted: {SCHEME}{uri.short}")
    return uri


def parse_object(text: str) -> Uri:
    """An object, at any revision."""
    return with_path(parse_version(text))


def parse_branch(text: str) -> Uri:
    """A branch."""
    return without_path(parse_uri(text))


def parse_commit(text: str) -> Uri:
    """Any revision."""
    return without_path(parse_version(text), "a revision")


def parse_name(text: str, what: str) -> Uri:
    """A branch or tag, as `what` says, that may be new: its name must be one."""
    uri = without_path(_split(text), f"a {what}")
    check_branch_name(uri.ref, what)
    return uri


def parse_repository(text: str) -> str:
    """A repository, and nothing in it."""
    name, _, rest = text.removeprefix(SCHEME).partition("/")
    if rest:
        raise Invalid(f"{text!r} names more than a repository: say {name}")
    return check_repository_name(name)


def parse_beside(text: str, first: Uri) -> Uri:
    """A revision in the repository of the first argument: the repository's name may be left out."""
    uri = parse_commit(text if "/" in text else f"{first.repository}/{text}")
    if uri.repository != first.repository:
        raise Invalid(f"{first.short!r} and {uri.short!r} are in two repositories: both must be in one")
    return uri


def parse_pairs(pairs: list[str]) -> dict[str, str]:
    """`key=value` arguments."""
    return _mapping(pair.partition("=") for pair in pairs)


def parse_rules(rules: list[str]) -> dict[str, str]:
    """`prefix=rule` arguments: a prefix may have a = in it (`day=7/`), a rule has none."""
    return _mapping(rule.rpartition("=") for rule in rules)


def _mapping(parts: Iterable[tuple[str, str, str]]) -> dict[str, str]:
    found: dict[str, str] = {}
    for key, separator, value in parts:
        if not separator or not key:
            raise Invalid(f"{key + separator + value!r} is no key=value")
        if key in found:
            raise Invalid(f"{key!r} is given twice: {found[key]!r} and {value!r}")
        found[check_text(key)] = check_text(value)
    return found
