"""Bucket, key, ref and path of a request; and the small pure parts beside it."""

import pytest

from lsmfs.gateway.addressing import Address, Addressing, Place, check_bucket, place_of
from lsmfs.gateway.conditions import etags_of, seconds_of
from lsmfs.gateway.errors import S3Error
from lsmfs.gateway.properties import PARTS, packed_sizes, part_sizes
from lsmfs.gateway.request import Request
from lsmfs.gateway.tokens import read_token, token_of
from lsmfs.model import Entry


def address(path: bytes, host: bytes = b"127.0.0.1:8000", domains: tuple[str, ...] = ("s3.lake.test",)) -> Address:
    return Addressing(domains).of(Request.of("GET", path, b"", [(b"host", host)]))


@pytest.mark.parametrize(
    ("path", "host", "expected"),
    [
        (b"/", b"127.0.0.1", Address("", "", None)),
        (b"/lake", b"127.0.0.1", Address("lake", "", None)),
        (b"/lake/", b"127.0.0.1", Address("lake", "", None)),
        (b"/lake/main/a//b/../c/", b"127.0.0.1", Address("lake", "main/a//b/../c/", None)),
        (b"/lake/main%2Fa%20b", b"", Address("lake", "main/a b", None)),
        (b"//lake/main", b"", Address("", "lake/main", None)),
        (b"/main/a", b"lake.s3.lake.test", Address("lake", "main/a", "lake")),
        (b"/main/a", b"Lake.S3.Lake.Test:9000", Address("lake", "main/a", "lake")),
        (b"/main/a", b"lake.s3.lake.test.", Address("lake", "main/a", "lake")),
        (b"/", b"lake.s3.lake.test", Address("lake", "", "lake")),
        (b"/lake/main", b"s3.lake.test:9000", Address("lake", "main", None)),
        (b"/lake/main", b"xs3.lake.test", Address("lake", "main", None)),
        (b"/lake/main", b"[::1]:9000", Address("lake", "main", None)),
    ],
)
def test_addresses(path: bytes, host: bytes, expected: Address) -> None:
    assert address(path, host) == expected


def test_hosts_that_are_the_gateways() -> None:
    addressing = Addressing(["s3.lake.test"])
    assert [addressing.is_ours(host) for host in ("s3.lake.test:80", "a.s3.lake.test", "lake.test", "", "[::1]")] == [
        True,
        True,
        False,
        False,
        False,
    ]
    assert not Addressing([]).is_ours("anything")


def test_places() -> None:
    assert place_of("lake", "main/a//b") == Place("lake", "main", "a//b")
    assert place_of("lake", "main/") == Place("lake", "main", "")
    assert place_of("lake", "main") == Place("lake", "main", "", slashed=False)
    assert [place_of("lake", key).key for key in ("main/a", "main/", "main")] == ["main/a", "main/", "main"]
    assert place_of("lake", "main/" + "ä" * 512).path == "ä" * 512
    for key, code in [
        ("main/a\0", "InvalidArgument"),
        ("main/" + "ä" * 513, "KeyTooLongError"),
        ("x" * 301, "NoSuchKey"),
    ]:
        with pytest.raises(S3Error) as raised:
            place_of("lake", key)
        assert raised.value.code == code


def test_buckets_that_cannot_be() -> None:
    assert check_bucket("lake-1") == "lake-1"
    for name in ("ab", "Lake", "a_b_c", "..", "a/b", "x" * 64, "lake\n"):
        with pytest.raises(S3Error, match="NoSuchBucket"):
            check_bucket(name)


def test_tokens_come_back_and_others_do_not() -> None:
    for key in ("main/a", "main/ü/\U0001f600", "x" * 1300):
        assert read_token(token_of(key)) == key
    for token in ("", "a", "====", token_of("a")[:-1] + "*", "ä", "AgA="):
        with pytest.raises(S3Error):
            read_token(token)


def test_etags_and_dates_as_clients_write_them() -> None:
    assert etags_of('"a", W/"b",c') == ["a", "b", "c"]
    assert seconds_of("Thu, 01 Jan 1970 00:01:00 GMT") == 60
    for bad in (None, "", "x", "Thu, 99 Jan 1970 00:01:00 GMT", "9" * 400, "Thu, 01 Jan 99999999999 00:01:00 GMT"):
        assert seconds_of(bad) is None


def test_sizes_of_parts_in_short() -> None:
    assert packed_sizes([5, 5, 5, 2]) == "5*3,2"
    assert packed_sizes(range(1000)) is None
    assert part_sizes(Entry("x", 17, metadata={PARTS: "5*3,2"})) == [5, 5, 5, 2]
    for bad in ("", "5*3", "x", "5*99999,2", "-1,18", "17,"):
        assert part_sizes(Entry("x", 17, metadata={PARTS: bad})) == []
