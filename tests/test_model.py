"""What may be a key, an entry and a name, and what is said to those that may not."""

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lsmfs.model import (
    KEY_BYTES_MAX,
    METADATA_BYTES_MAX,
    Entry,
    Extent,
    check_branch_name,
    check_entry,
    check_repository_name,
    key_of,
)
from refstore.errors import Invalid


@given(st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=200))
def test_a_key_is_the_utf_8_of_its_path(path: str) -> None:
    assert key_of(path) == path.encode()
    assert key_of(path.encode()) == path.encode()


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("", "empty"),
        (b"", "empty"),
        ("a" * (KEY_BYTES_MAX + 1), "1025 bytes, at most 1024"),
        ("ü" * (KEY_BYTES_MAX // 2 + 1), "1026 bytes"),
        ("a\0b", "NUL"),
        (b"\0", "NUL"),
        (b"a\xff", "not UTF-8: invalid start byte at byte 1"),
        (b"\xc3", "not UTF-8"),
        (b"\xed\xa0\x80", "not UTF-8"),
        ("a\ud800", "not UTF-8"),
        (b"\xc0\x80", "not UTF-8"),
    ],
)
def test_what_cannot_be_a_key_is_invalid_with_the_reason(path: str | bytes, reason: str) -> None:
    with pytest.raises(Invalid, match=reason):
        key_of(path)


def test_keys_of_exactly_the_limit_are_allowed() -> None:
    assert len(key_of("a" * KEY_BYTES_MAX)) == len(key_of("ü" * (KEY_BYTES_MAX // 2))) == KEY_BYTES_MAX


def test_the_extents_of_an_entry_are_its_first_inline_and_the_rest() -> None:
    assert Entry("a", 10, offset=3).extents == (Extent("a", 3, 10),)
    assert Entry("a", 10, rest=(Extent("b", 1, 4),)).extents == (Extent("a", 0, 6), Extent("b", 1, 4))
    assert Entry("a", 0).extents == (Extent("a", 0, 0),)


def test_the_time_of_an_entry_is_that_of_its_microseconds() -> None:
    assert Entry("a", 0, mtime_us=1_500_000).modified == datetime(1970, 1, 1, 0, 0, 1, 500_000, UTC)


GOOD: dict[str, Any] = {"address": "a", "size_bytes": 10}


@pytest.mark.parametrize(
    "change",
    [
        {"size_bytes": -1},
        {"offset": -1},
        {"size_bytes": 2**63},
        {"offset": 2**63},
        {"mtime_us": 2**63},
        {"mtime_us": -(2**63) - 1},
        {"rest": (Extent("b", 0, 11),)},
        {"rest": (Extent("b", 0, -1),)},
        {"rest": (Extent("b", -1, 1),)},
        {"rest": (Extent("b\ud800", 0, 1),)},
        {"metadata": {"k": "v" * METADATA_BYTES_MAX}},
        {"metadata": {"k": 1}},
        {"metadata": {1: "v"}},
        {"metadata": {"k": "\ud800"}},
        {"metadata": {"\ud800": "v"}},
        {"address": "\ud800"},
        {"etag": "a\ud800"},
        {"content_type": "\udfff"},
    ],
)
def test_an_entry_that_cannot_be_stored_or_contradicts_itself_is_invalid(change: dict[str, Any]) -> None:
    check_entry(Entry(**GOOD))
    with pytest.raises(Invalid, match="entry for"):
        check_entry(Entry(**{**GOOD, **change}))


@pytest.mark.parametrize(
    "entry",
    [
        Entry("", 0),
        Entry("a", 2**63 - 1, "é", 2**63 - 1, 2**63 - 1, "text/plain; charset=ü", {"ü": "é", "": ""}),
        Entry("a", 10, mtime_us=-1, rest=(Extent("b", 0, 5), Extent("c", 0, 5))),
    ],
)
def test_unusual_entries_that_are_right_are_allowed(entry: Entry) -> None:
    check_entry(entry)


@pytest.mark.parametrize("name", ["main", "a", "_x", "9", "feature-1.2_b", "a" * 255, "a" * 63, "a" * 65, "A" * 64])
def test_branch_names_that_are_allowed(name: str) -> None:
    assert check_branch_name(name) == name


@pytest.mark.parametrize(
    "name",
    ["", "-a", ".a", "a/b", "a b", "a..b", "a.", "a.lock", "ä", "a" * 256, "main\n", "a~1", "a@", "a\0", "HEAD^"],
)
def test_branch_names_that_are_not(name: str) -> None:
    with pytest.raises(Invalid, match="no branch name"):
        check_branch_name(name)


@pytest.mark.parametrize("what", ["branch", "tag"])
def test_a_name_that_reads_as_a_commit_id_is_refused(what: str) -> None:
    with pytest.raises(Invalid, match="is a commit id"):
        check_branch_name("0123456789abcdef" * 4, what)


@pytest.mark.parametrize("name", ["abc", "a-1", "0lake", "a" * 63])
def test_repository_names_that_are_allowed(name: str) -> None:
    assert check_repository_name(name) == name


@pytest.mark.parametrize("name", ["", "ab", "-abc", "Abc", "a_b", "a.b", "a/b", "a" * 64, "abc\n", "äbc"])
def test_repository_names_that_are_not(name: str) -> None:
    with pytest.raises(Invalid, match="no repository name"):
        check_repository_name(name)
