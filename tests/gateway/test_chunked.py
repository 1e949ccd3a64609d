"""Bodies come out as they were meant, however they are cut on the way; anything wrong with them is refused."""

import asyncio
import hashlib
import threading
from collections.abc import Iterable
from io import BytesIO

import pytest
from botocore.httpchecksum import AwsChunkedWrapper, CrtCrc64NvmeChecksum
from hypothesis import given, settings
from hypothesis import strategies as st

from lsmfs.gateway import frames
from lsmfs.gateway.checksums import Checksums
from lsmfs.gateway.chunked import HASHED_INLINE_BYTES_MAX, content_encoding, decode_body
from lsmfs.gateway.errors import S3Error
from lsmfs.gateway.request import Request
from lsmfs.gateway.signatures import Mode, Verified
from tests.aio import aio
from tests.gateway.framing import (
    SEED_WITH_TRAILER,
    encoded,
    in_pieces,
    signature_of_chunk,
    verified,
)

CHUNKED = [Mode.SIGNED_CHUNKS, Mode.SIGNED_CHUNKS_TRAILER, Mode.UNSIGNED_CHUNKS_TRAILER]
CRC64 = "x-amz-checksum-crc64nvme"
CRC32 = "x-amz-checksum-crc32"


def decoded(body: bytes, promise: Verified, cuts: Iterable[int] = (), checksums: Checksums | None = None) -> bytes:
    async def collect() -> bytes:
        return b"".join([piece async for piece in decode_body(in_pieces(body, cuts), promise, checksums)])

    return asyncio.run(collect())


def refused(body: bytes, promise: Verified, cuts: Iterable[int] = ()) -> str:
    with pytest.raises(S3Error) as caught:
        decoded(body, promise, cuts)
    assert caught.value.status in (400, 403)
    return caught.value.code


def outcome(body: bytes, promise: Verified) -> bytes | S3Error:
    try:
        return decoded(body, promise)
    except S3Error as error:
        return error


def trailers_of(mode: Mode) -> dict[str, str]:
    return {} if mode is Mode.SIGNED_CHUNKS else {"x-amz-checksum-crc32": "7cbVtQ=="}


def test_the_example_of_aws_with_signed_chunks_has_the_signatures_that_aws_documents() -> None:
    body = encoded(Mode.SIGNED_CHUNKS, [b"a" * 65536, b"a" * 1024])
    assert b"10000;chunk-signature=ad80c730a21e5b8d04586a2213dd63b9a0e99e0e2307b0ade35a65485a288648\r\n" in body
    assert b"400;chunk-signature=0055627c9e194cb4542bae2aa5492e3c1575bbb81b612b7d234b86a503ef5497\r\n" in body
    assert b"0;chunk-signature=b6c6ea8a5354eaf15b3cb7646744f4275b71ea724fed81ceb9323e279d449df9\r\n\r\n" in body
    assert len(body) == 66824
    assert decoded(body, verified(Mode.SIGNED_CHUNKS, 66560), [7, 40000, 66800]) == b"a" * 66560


def test_the_example_of_aws_with_signed_trailers_has_the_signatures_that_aws_documents() -> None:
    trailers = {"x-amz-checksum-crc32c": "sOO8/Q=="}
    body = encoded(Mode.SIGNED_CHUNKS_TRAILER, [b"a" * 65536, b"a" * 1024], trailers, SEED_WITH_TRAILER)
    assert b"10000;chunk-signature=b474d8862b1487a5145d686f57f013e54db672cee1c953b3010fb58501ef5aa2\r\n" in body
    assert b"0;chunk-signature=2ca2aba2005185cf7159c6277faf83795951dd77a3a99e6e65d5c9f85863f992\r\n" in body
    assert b"x-amz-trailer-signature:d81f82fc3505edab99d459891051a732e8730629a2e4a59689829ca17fe2e435\r\n" in body
    promise = verified(Mode.SIGNED_CHUNKS_TRAILER, 66560, trailers, SEED_WITH_TRAILER)
    request = Request.of("PUT", b"/", b"", [(b"x-amz-trailer", b"x-amz-checksum-crc32c")])
    checksums = Checksums.from_request(request)
    assert decoded(body, promise, [3, 66700], checksums) == b"a" * 66560
    assert checksums.values == trailers


@pytest.mark.parametrize("size", [0, 1, 1000, 3_000_000])
def test_what_botocore_frames_is_decoded_and_its_checksum_found_right(size: int) -> None:
    data = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    body = AwsChunkedWrapper(BytesIO(data), checksum_cls=CrtCrc64NvmeChecksum, checksum_name=CRC64).read()
    checksums = Checksums.from_request(Request.of("PUT", b"/", b"", [(b"x-amz-trailer", CRC64.encode())]))
    promise = verified(Mode.UNSIGNED_CHUNKS_TRAILER, size, [CRC64])
    assert decoded(body, promise, [5, 700, 1_500_000], checksums) == data
    assert list(checksums.values) == [CRC64]


chunk_lists = st.lists(st.binary(min_size=1, max_size=300), max_size=6)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(CHUNKED), chunk_lists, st.lists(st.integers(0, 5000), max_size=30))
def test_a_body_comes_out_whole_however_it_is_cut(mode: Mode, chunks: list[bytes], cuts: list[int]) -> None:
    whole, trailers = b"".join(chunks), trailers_of(mode)
    promise = verified(mode, len(whole), trailers)
    assert decoded(encoded(mode, chunks, trailers), promise, cuts) == whole


@pytest.mark.parametrize("mode", CHUNKED)
def test_a_body_comes_out_whole_byte_by_byte(mode: Mode) -> None:
    body = encoded(mode, [b"one\r\n", b"two"], trailers_of(mode))
    assert decoded(body, verified(mode, 8, trailers_of(mode)), range(len(body))) == b"one\r\ntwo"


@pytest.mark.parametrize("mode", CHUNKED)
def test_an_empty_body_is_one_last_chunk(mode: Mode) -> None:
    assert decoded(encoded(mode, [], trailers_of(mode)), verified(mode, 0, trailers_of(mode))) == b""
    assert refused(b"", verified(mode, 0, trailers_of(mode))) == "IncompleteBody"


@pytest.mark.parametrize("mode", CHUNKED)
def test_a_body_that_is_cut_off_anywhere_is_refused(mode: Mode) -> None:
    body = encoded(mode, [b"first chunk", b"second"], trailers_of(mode))
    for end in range(len(body)):
        assert refused(body[:end], verified(mode, 17, trailers_of(mode))) == "IncompleteBody"


@pytest.mark.parametrize("mode", [Mode.SIGNED_CHUNKS, Mode.SIGNED_CHUNKS_TRAILER])
def test_a_changed_byte_anywhere_in_a_signed_body_is_refused(mode: Mode) -> None:
    body = encoded(mode, [b"first chunk", b"second"], trailers_of(mode))
    for at in range(len(body)):
        other = body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :]
        assert refused(other, verified(mode, 17, trailers_of(mode)))


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(CHUNKED), st.binary(max_size=200), st.integers(0, 400), st.integers(0, 20))
def test_any_bytes_are_decoded_or_refused(mode: Mode, noise: bytes, at: int, dropped: int) -> None:
    body = encoded(mode, [b"first chunk", b"second"], trailers_of(mode))
    at %= len(body)
    found = outcome(body[:at] + noise + body[at + dropped :], verified(mode, 17, trailers_of(mode)))
    if isinstance(found, S3Error):
        assert found.status in (400, 403)
    else:
        assert len(found) == 17


@pytest.mark.parametrize("mode", CHUNKED)
@pytest.mark.parametrize("length", [0, 16, 18])
def test_a_body_of_another_length_than_it_said_is_refused(mode: Mode, length: int) -> None:
    body = encoded(mode, [b"first chunk", b"second"], trailers_of(mode))
    assert refused(body, verified(mode, length, trailers_of(mode))) == "IncompleteBody"


@pytest.mark.parametrize("mode", CHUNKED)
def test_bytes_after_the_end_are_refused(mode: Mode) -> None:
    body = encoded(mode, [b"data"], trailers_of(mode))
    for more in (b"\r\n", b"x", b"0\r\n\r\n", body):
        for cuts in ([], [len(body)]):
            assert refused(body + more, verified(mode, 4, trailers_of(mode)), cuts) == "InvalidRequest"


@pytest.mark.parametrize(
    "body",
    [
        b"\r\n",
        b"zz\r\n",
        b"-1\r\n",
        b"+4\r\ndata\r\n0\r\n\r\n",
        b"0x4\r\ndata\r\n0\r\n\r\n",
        b"4 \r\ndata\r\n0\r\n\r\n",
        b"4_0\r\n",
        b"4\ndata\r\n0\r\n\r\n",
        b"4\r\ndata0\r\n\r\n",
        b"4\r\ndata\n0\r\n\r\n",
        b"4\r\ndatax\r\n0\r\n\r\n",
        b"4;foo=bar\r\ndata\r\n0\r\n\r\n",
        b"4;chunk-signature=abc\r\ndata\r\n0\r\n\r\n",
        b"00000000000000004\r\ndata\r\n0\r\n\r\n",
        b"4" * 2000,
        b"4;" + b"x" * 5000 + b"\r\n",
    ],
)
def test_malformed_framing_is_refused(body: bytes) -> None:
    for cuts in (range(0), range(len(body))):
        assert refused(body, verified(Mode.UNSIGNED_CHUNKS_TRAILER, 4), cuts) == "InvalidRequest"


def test_a_chunk_that_says_it_is_huge_is_refused_at_once() -> None:
    for header in (b"ffffffffffffffff\r\n", b"5\r\n"):
        found = frames.Frames(verified(Mode.UNSIGNED_CHUNKS_TRAILER, 4).payload)
        with pytest.raises(S3Error, match="IncompleteBody"):
            next(found.feed(header + b"data that must not come out"))


@pytest.mark.parametrize("mode", [Mode.SIGNED_CHUNKS, Mode.SIGNED_CHUNKS_TRAILER])
def test_chunks_without_a_signature_are_refused_where_they_must_be_signed(mode: Mode) -> None:
    body = encoded(Mode.UNSIGNED_CHUNKS_TRAILER, [b"data"], trailers_of(mode))
    assert refused(body, verified(mode, 4, trailers_of(mode))) == "InvalidRequest"


def test_chunks_in_another_order_are_refused() -> None:
    first, second = b"first", b"other"
    one = signature_of_chunk("0" * 64, first)
    body = encoded(Mode.SIGNED_CHUNKS, [first, second])
    lines = body.split(b"\r\n")
    swapped = b"\r\n".join([*lines[2:4], *lines[0:2], *lines[4:]])
    assert refused(swapped, verified(Mode.SIGNED_CHUNKS, 10)) == "SignatureDoesNotMatch"
    assert one.encode() not in body  # each signature depends on the one before


@pytest.mark.parametrize(
    "trailers",
    [
        b"",
        b"x-amz-checksum-crc32 7cbVtQ==\r\n",
        b"x-amz-checksum-sha1:7cbVtQ==\r\n",
        b"x-amz-checksum-crc32:a\r\nx-amz-checksum-crc32:b\r\n",
        b"x-amz-checksum-crc32:a\r\nother:b\r\n",
        b"x-amz-checksum-crc32:a\nother:b\r\n",
        b"x-amz-trailer-signature:" + b"0" * 64 + b"\r\n",
    ],
)
def test_trailers_must_be_those_that_were_announced(trailers: bytes) -> None:
    body = b"4\r\ndata\r\n0\r\n" + trailers + b"\r\n"
    assert refused(body, verified(Mode.UNSIGNED_CHUNKS_TRAILER, 4, [CRC32])) == "MalformedTrailerError"


def test_signed_chunks_without_trailers_take_none() -> None:
    body = encoded(Mode.SIGNED_CHUNKS, [b"data"], {CRC32: "rfOjsQ=="})
    assert refused(body, verified(Mode.SIGNED_CHUNKS, 4, [CRC32])) == "MalformedTrailerError"


def test_a_trailer_line_is_bounded() -> None:
    body = b"0\r\n" + b"x-amz-checksum-crc32:" + b"a" * frames.LINE_BYTES_MAX + b"\r\n\r\n"
    for cuts in (range(0), range(len(body))):
        assert refused(body, verified(Mode.UNSIGNED_CHUNKS_TRAILER, 0, [CRC32]), cuts) == "InvalidRequest"


@pytest.mark.parametrize(("value", "code"), [("rfPzYw==", None), ("rfPzYg==", "BadDigest"), ("x", "InvalidRequest")])
def test_the_checksum_in_the_trailer_is_checked(value: str, code: str | None) -> None:
    body = encoded(Mode.UNSIGNED_CHUNKS_TRAILER, [b"da", b"ta"], {CRC32: value})
    checksums = Checksums.from_request(Request.of("PUT", b"/", b"", [(b"x-amz-trailer", CRC32.encode())]))
    promise = verified(Mode.UNSIGNED_CHUNKS_TRAILER, 4, [CRC32])
    if code is None:
        assert decoded(body, promise, [], checksums) == b"data"
        assert checksums.values == {CRC32: value}
    else:
        with pytest.raises(S3Error) as caught:
            decoded(body, promise, [], checksums)
        assert caught.value.code == code
        assert checksums.values == {}


@pytest.mark.parametrize("length", [9, None])
def test_a_plain_body_must_hash_to_what_it_said(length: int | None) -> None:
    body = b"some body"
    right = verified(Mode.HASHED, length, sha256=hashlib.sha256(body).hexdigest())
    assert decoded(body, right, [3, 5]) == body
    wrong = verified(Mode.HASHED, length, sha256=hashlib.sha256(b"other").hexdigest())
    assert refused(body, wrong, [3, 5]) == "XAmzContentSHA256Mismatch"


@pytest.mark.parametrize("length", [0, 8, 10])
def test_a_plain_body_must_be_as_long_as_it_said(length: int) -> None:
    assert refused(b"some body", verified(Mode.UNSIGNED, length), [3]) == "IncompleteBody"


@aio
async def test_a_plain_body_gives_out_nothing_beyond_the_length_that_it_said() -> None:
    pieces = decode_body(in_pieces(b"some body", [4]), verified(Mode.UNSIGNED, 5))
    assert await anext(pieces) == b"some"
    with pytest.raises(S3Error, match="IncompleteBody"):
        await anext(pieces)


def test_an_unsigned_body_passes_as_it_is() -> None:
    for length in (9, None):
        assert decoded(b"some body", verified(Mode.UNSIGNED, length), [3]) == b"some body"


def test_large_pieces_are_hashed_in_another_thread_and_small_ones_here() -> None:
    threads: list[int] = []

    class Watched(Checksums):
        def update(self, piece: bytes) -> None:
            threads.append(threading.get_ident())
            super().update(piece)

    small, large = b"a" * 100, b"b" * HASHED_INLINE_BYTES_MAX
    promise = verified(Mode.HASHED, None, sha256=hashlib.sha256(small + large).hexdigest())
    assert decoded(small + large, promise, [len(small)], Watched(None, None, None)) == small + large
    here = threading.get_ident()
    assert [thread == here for thread in threads] == [True, False]


def test_a_piece_inside_a_chunk_is_given_out_without_a_copy() -> None:
    piece = b"d" * 1000
    found = frames.Frames(verified(Mode.UNSIGNED_CHUNKS_TRAILER, 3000).payload)
    assert list(found.feed(b"bb8\r\n")) == []
    assert next(found.feed(piece)) is piece


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ([], None),
        (["aws-chunked"], None),
        (["gzip"], "gzip"),
        (["gzip,aws-chunked"], "gzip"),
        (["aws-chunked, gzip"], "gzip"),
        (["AWS-Chunked", "br"], "br"),
    ],
)
def test_only_the_token_of_the_framing_is_taken_from_the_content_encoding(said: list[str], kept: str | None) -> None:
    headers = [(b"content-encoding", value.encode()) for value in said]
    assert content_encoding(Request.of("PUT", b"/", b"", headers)) == kept
