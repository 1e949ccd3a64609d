"""A body with a checksum is what its sender meant, or it is refused."""

import base64
import hashlib

import pytest
from botocore.httpchecksum import CrtCrc32cChecksum, CrtCrc64NvmeChecksum
from hypothesis import given
from hypothesis import strategies as st

from lsmfs.gateway.checksums import ALGORITHMS, Checksums, digest_of
from lsmfs.gateway.errors import S3Error
from lsmfs.gateway.request import Request

# "123456789" is the usual check of CRCs; the values are those of the catalogues.
CHECK = b"123456789"
KNOWN = {
    "CRC32": bytes.fromhex("cbf43926"),
    "CRC32C": bytes.fromhex("e3069283"),
    "CRC64NVME": bytes.fromhex("ae8b14860a799888"),
    "SHA1": hashlib.sha1(CHECK).digest(),
    "SHA256": hashlib.sha256(CHECK).digest(),
}


def text(value: bytes) -> str:
    return base64.b64encode(value).decode()


def request_with(*headers: tuple[str, str]) -> Request:
    return Request.of("PUT", b"/b/k", b"", [(name.encode(), value.encode()) for name, value in headers])


def checked(checksums: Checksums, *pieces: bytes, trailers: dict[str, str] | None = None) -> dict[str, str]:
    for piece in pieces:
        checksums.update(piece)
    checksums.check(trailers or {})
    return checksums.values


def code_of(*headers: tuple[str, str], body: bytes = CHECK) -> str:
    with pytest.raises(S3Error) as caught:
        checked(Checksums.from_request(request_with(*headers)), body)
    assert caught.value.status == 400
    return caught.value.code


def test_the_algorithms_are_those_that_are_tested() -> None:
    assert set(KNOWN) == ALGORITHMS


@pytest.mark.parametrize("algorithm", KNOWN)
def test_a_checksum_in_the_header_is_checked_and_answered(algorithm: str) -> None:
    header = f"x-amz-checksum-{algorithm.lower()}"
    right = (header, text(KNOWN[algorithm]))
    assert checked(Checksums.from_request(request_with(right)), b"1234", b"", b"56789") == dict([right])
    wrong = KNOWN[algorithm][:-1] + bytes([KNOWN[algorithm][-1] ^ 1])
    assert code_of((header, text(wrong))) == "BadDigest"
    for malformed in (
        "",
        "x",
        text(KNOWN[algorithm][:-1]),
        text(KNOWN[algorithm]) + "-2",
        "ä" * 8,
        text(KNOWN[algorithm])[:-1],
    ):
        assert code_of((header, malformed)) == "InvalidRequest"


@pytest.mark.parametrize("algorithm", KNOWN)
def test_a_checksum_in_the_trailer_is_checked_and_answered(algorithm: str) -> None:
    name = f"x-amz-checksum-{algorithm.lower()}"
    request = request_with(("x-amz-trailer", name), ("x-amz-sdk-checksum-algorithm", algorithm))
    right = {name: text(KNOWN[algorithm])}
    assert checked(Checksums.from_request(request), CHECK, trailers=right) == right
    with pytest.raises(S3Error, match="BadDigest"):
        checked(Checksums.from_request(request), CHECK + b"0", trailers=right)
    with pytest.raises(S3Error, match="MalformedTrailerError"):
        checked(Checksums.from_request(request), CHECK)


@given(st.lists(st.binary(max_size=50), max_size=5))
def test_crcs_in_pieces_are_those_of_botocore(pieces: list[bytes]) -> None:
    for algorithm, oracle in (("CRC32C", CrtCrc32cChecksum()), ("CRC64NVME", CrtCrc64NvmeChecksum())):
        digest = digest_of(algorithm)
        for piece in pieces:
            digest.update(piece)
            oracle.update(piece)
        assert digest.digest() == oracle.digest()


def test_content_md5_is_checked() -> None:
    right = ("content-md5", text(hashlib.md5(CHECK).digest()))
    assert checked(Checksums.from_request(request_with(right)), CHECK) == {}
    assert code_of(right, body=b"other") == "BadDigest"
    for malformed in ("", "x", "YWJj", hashlib.md5(CHECK).hexdigest()):
        assert code_of(("content-md5", malformed)) == "InvalidDigest"


def test_an_md5_and_a_checksum_are_both_checked() -> None:
    md5, crc = ("content-md5", text(hashlib.md5(CHECK).digest())), ("x-amz-checksum-crc32", text(KNOWN["CRC32"]))
    assert checked(Checksums.from_request(request_with(md5, crc)), CHECK) == dict([crc])
    assert code_of(md5, ("x-amz-checksum-crc32", "AAAAAA==")) == "BadDigest"
    assert code_of(("content-md5", text(bytes(16))), crc) == "BadDigest"


def test_two_checksums_are_refused() -> None:
    crc, sha = ("x-amz-checksum-crc32", text(KNOWN["CRC32"])), ("x-amz-checksum-sha1", text(KNOWN["SHA1"]))
    assert code_of(crc, sha) == "InvalidRequest"
    assert code_of(crc, ("x-amz-trailer", "x-amz-checksum-sha1")) == "InvalidRequest"


def test_a_checksum_that_nobody_knows_is_refused_and_not_passed_over() -> None:
    assert code_of(("x-amz-checksum-crc16", "AAA=")) == "InvalidRequest"
    assert code_of(("x-amz-trailer", "x-amz-checksum-crc16")) == "InvalidRequest"


def test_an_announced_algorithm_without_a_value_is_refused() -> None:
    assert code_of(("x-amz-sdk-checksum-algorithm", "CRC32")) == "InvalidRequest"


def test_headers_of_the_same_prefix_that_are_no_checksums_are_passed_over() -> None:
    request = request_with(("x-amz-checksum-mode", "ENABLED"), ("x-amz-checksum-type", "FULL_OBJECT"))
    assert Checksums.from_request(request).algorithm is None


def test_checksums_of_an_object_are_left_alone_where_only_the_md5_is_of_the_body() -> None:
    md5 = ("content-md5", text(hashlib.md5(CHECK).digest()))
    request = request_with(md5, ("x-amz-checksum-crc32", "of parts-3"))
    assert checked(Checksums.from_request(request, md5_only=True), CHECK) == {}
    with pytest.raises(S3Error, match="BadDigest"):
        checked(Checksums.from_request(request, md5_only=True), b"other")
