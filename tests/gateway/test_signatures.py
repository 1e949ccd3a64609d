"""What botocore signs is accepted; what anybody changed afterwards is not."""

import re
import time
from urllib.parse import quote

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from lsmfs.gateway.errors import S3Error
from lsmfs.gateway.request import Request
from lsmfs.gateway.signatures import Kind, Mode, find_credentials, v4
from tests.gateway import signers
from tests.gateway.signers import KEY, SIGNERS, changed, check

HOSTILE = [
    "/",
    "/bucket",
    "/bucket/",
    "/bucket//double//slash/",
    "/bucket/a%2Fb",
    "/bucket/a%2fb",
    "/bucket/./../up",
    "/bucket/a+b%20c",
    "/bucket/%C3%A4%E2%82%AC%F0%9F%98%80",
    "/bucket/a=b&c:d,e;f@g!h*i'j(k)$l~m",
    "/bucket/100%25",
    "/bucket/key?x-id=GetObject",
    "/bucket?delimiter=&list-type=2&prefix=a%2Fb%20c&empty",
    "/bucket?prefix=a%2Bb&Marker=%C3%A4&marker=",
    "/bucket/key?uploads",
    "/bucket/key?partNumber=1&uploadId=a%2Fb%3D",
    "/bucket/key?response-content-type=text%2Fplain%3B%20charset%3Dutf-8&versionId=null",
]


def refused(request: Request, **arguments: object) -> str:
    with pytest.raises(S3Error) as caught:
        check(request, **arguments)  # type: ignore[arg-type]
    assert 400 <= caught.value.status < 500 or caught.value.status == 501
    return caught.value.code


def without(request: Request, *names: bytes) -> list[tuple[bytes, bytes]]:
    return [(name, value) for name, value in request.headers if name not in names]


@pytest.mark.parametrize("path", HOSTILE)
@pytest.mark.parametrize("signer", SIGNERS)
def test_what_botocore_signs_is_accepted(signer: str, path: str) -> None:
    for method in ("GET", "PUT", "DELETE", "HEAD", "POST"):
        verified = check(SIGNERS[signer](method, path))
        assert verified.access_key_id == KEY


@pytest.mark.parametrize("signer", SIGNERS)
def test_another_secret_is_refused(signer: str) -> None:
    assert refused(SIGNERS[signer]("GET", "/bucket/key"), secret="other") == "SignatureDoesNotMatch"


@pytest.mark.parametrize("signer", SIGNERS)
def test_another_method_is_refused(signer: str) -> None:
    assert refused(changed(SIGNERS[signer]("GET", "/bucket/key"), method="DELETE")) == "SignatureDoesNotMatch"


@pytest.mark.parametrize("signer", ["v4", "v4 presigned", "v2"])
def test_joined_duplicates_folded_blanks_and_unicode_in_headers_are_accepted(signer: str) -> None:
    headers = [
        ("x-amz-meta-a", "  one   two "),
        ("x-amz-meta-a", "three"),
        ("x-amz-meta-b", ""),
        ("content-type", "a/b"),
    ]
    if signer == "v2":  # SigV2 does not fold blanks
        headers[0] = ("x-amz-meta-a", "  one two ")
    request = SIGNERS[signer]("PUT", "/bucket/key", headers)
    assert check(request).access_key_id == KEY
    reordered = [pair for pair in request.headers if pair[1] == b"three"] + [
        p for p in request.headers if p[1] != b"three"
    ]
    assert refused(changed(request, headers=reordered)) == "SignatureDoesNotMatch"


def test_values_in_utf8_are_accepted_as_they_are_sent() -> None:
    assert check(signers.v4("PUT", "/bucket/key", [("x-amz-meta-name", "ä€")])).kind is Kind.V4_HEADER


segments = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=12) | st.sampled_from(
    ["", "/", "..", "%2F", "+", " ", "~", "%"]
)


def _url(parts: list[str], query: dict[str, str]) -> str:
    path = "/bucket/" + "/".join(quote(part, safe="") for part in parts)
    pairs = "&".join(f"{quote(name, safe='')}={quote(value, safe='')}" for name, value in query.items())
    return f"{path}?{pairs}" if pairs else path


RESERVED = {"X-Amz-Signature", "X-Amz-Algorithm", "Signature", "AWSAccessKeyId", "X-Amz-Security-Token", "Expires", ""}
queries = st.dictionaries(
    st.text(max_size=5).filter(lambda name: name not in RESERVED), st.text(max_size=8), max_size=4
)


def _encodable(parts: list[str], query: dict[str, str]) -> bool:
    try:
        "".join([*parts, *query, *query.values()]).encode()
    except UnicodeEncodeError:
        return False
    return True


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(SIGNERS)), st.lists(segments, min_size=1, max_size=4), queries)
def test_any_key_and_any_parameters_that_botocore_signs_are_accepted(
    signer: str, parts: list[str], query: dict[str, str]
) -> None:
    assume(_encodable(parts, query))
    request = SIGNERS[signer]("GET", _url(parts, query))
    assert check(request).access_key_id == KEY
    assert request.path == "/bucket/" + "/".join(parts)
    assert query.items() <= request.query.items()


@settings(max_examples=300, deadline=None)
@given(st.data(), st.sampled_from(["v4", "v4 presigned"]))
def test_a_flipped_byte_in_anything_signed_is_refused(data: st.DataObject, signer: str) -> None:
    request = SIGNERS[signer]("PUT", "/bucket/some/k%C3%A9y?prefix=a%2Fb&x=1", [("x-amz-meta-a", "value")])
    part = data.draw(st.sampled_from(["path", "query", "header"]))
    if part == "header":
        headers = list(request.headers)
        at = data.draw(st.integers(0, len(headers) - 1))
        name, value = headers[at]
        headers[at] = (name, _flipped(data, value))
        other = _or_none(request, headers=headers)
        # White space at the ends and its folding is no change, nor is that between the parts of Authorization.
        same = other is not None and all(
            other.joined(name) == request.joined(name) for name in request.header_names if name != b"authorization"
        )
        same = same and other is not None and _squeezed(other) == _squeezed(request)
    elif part == "path":
        other = _or_none(request, path=_flipped(data, request.raw_path))
        same = other is not None and other.path == request.path
    else:
        other = _or_none(request, query=_flipped(data, request.raw_query))
        same = other is not None and other.query == request.query
    if other is not None and not same and claims(other):
        assert refused(other)


def _flipped(data: st.DataObject, value: bytes) -> bytes:
    at = data.draw(st.integers(0, len(value) - 1))
    byte = data.draw(st.integers(1, 255))
    return value[:at] + bytes([value[at] ^ byte]) + value[at + 1 :]


def _or_none(request: Request, **parts: object) -> Request | None:
    try:
        return changed(request, **parts)  # type: ignore[arg-type]
    except S3Error:
        return None


def _squeezed(request: Request) -> bytes:
    return re.sub(rb"\s+", b"", request.joined(b"authorization") or b"")


def claims(request: Request) -> bool:
    """Whether it makes a claim at all: one that became anonymous is refused by whoever checks rights."""
    try:
        return find_credentials(request) is not None
    except S3Error:
        return False


@pytest.mark.parametrize("signer", ["v2", "v2 presigned"])
def test_every_changed_byte_of_path_and_subresource_is_refused_with_sigv2(signer: str) -> None:
    request = SIGNERS[signer]("GET", "/bucket/key?uploadId=abc&partNumber=7")
    for at in range(len(request.raw_path)):
        path = request.raw_path[:at] + b"#" + request.raw_path[at + 1 :]
        assert refused(changed(request, path=path)) == "SignatureDoesNotMatch"
    for before, after in ((b"abc", b"abd"), (b"=7", b"=8"), (b"uploadId=abc&", b""), (b"partNumber", b"partNumbes")):
        assert refused(changed(request, query=request.raw_query.replace(before, after))) == "SignatureDoesNotMatch"


@pytest.mark.parametrize("name", ["uploads", "%75ploads", "acl", "versionId=3", "delete", "%64elet%65"])
def test_a_subresource_cannot_be_added_to_a_sigv2_request_however_it_is_encoded(name: str) -> None:
    request = signers.v2("POST", "/bucket/key")
    assert refused(changed(request, query=name.encode())) == "SignatureDoesNotMatch"


def test_sigv2_signs_the_bucket_of_a_virtual_host() -> None:
    request = signers.v2("GET", "/key?acl", auth_path="/bucket/key")
    assert check(request, bucket="bucket").kind is Kind.V2_HEADER
    assert refused(request, bucket="other") == "SignatureDoesNotMatch"
    assert refused(request) == "SignatureDoesNotMatch"


def test_sigv2_of_a_bucket_alone_is_signed_with_a_slash() -> None:
    assert check(signers.v2("GET", "/bucket", auth_path="/bucket/")).access_key_id == KEY


def test_sigv2_headers_are_signed() -> None:
    request = signers.v2("PUT", "/bucket/key", [("content-type", "text/plain"), ("x-amz-meta-a", "1")])
    assert check(request).payload.mode is Mode.UNSIGNED
    for name in (b"content-type", b"x-amz-meta-a"):
        assert refused(changed(request, headers=without(request, name))) == "SignatureDoesNotMatch"
    more = [*request.headers, (b"x-amz-copy-source", b"/other/secret")]
    assert refused(changed(request, headers=more)) == "SignatureDoesNotMatch"


@pytest.mark.parametrize("signer", ["v4", "v2"])
def test_clocks_may_differ_by_fifteen_minutes(signer: str) -> None:
    request = SIGNERS[signer]("GET", "/bucket/key")
    for later in (-890, 890):
        assert check(request, later=later).access_key_id == KEY
    for later in (-910, 910):
        assert refused(request, later=later) == "RequestTimeTooSkewed"


@pytest.mark.parametrize("signer", ["v4 presigned", "v2 presigned"])
def test_a_presigned_url_lives_until_it_expires_and_not_by_the_clock_skew(signer: str) -> None:
    request = SIGNERS[signer]("GET", "/bucket/key")
    assert check(request, later=3590).access_key_id == KEY
    with pytest.raises(S3Error, match="Request has expired") as caught:
        check(request, later=3610)
    assert (caught.value.code, caught.value.status) == ("AccessDenied", 403)


def test_a_presigned_url_from_the_future_is_refused() -> None:
    assert refused(signers.v4_presigned("GET", "/bucket/key"), later=-910) == "AccessDenied"


@pytest.mark.parametrize("expires", [0, -1, 604_801, 10**12])
def test_presigned_urls_live_one_second_to_seven_days(expires: int) -> None:
    assert refused(signers.v4_presigned("GET", "/b/k", expires=expires)) == "AuthorizationQueryParametersError"


def test_a_lifetime_of_seven_days_is_accepted() -> None:
    assert check(signers.v4_presigned("GET", "/b/k", expires=604_800), later=604_000).kind is Kind.V4_QUERY


@pytest.mark.parametrize("signer", ["v4", "v4 presigned"])
def test_an_amz_header_that_is_not_signed_is_refused(signer: str) -> None:
    request = SIGNERS[signer]("PUT", "/bucket/key")
    more = [*request.headers, (b"x-amz-copy-source", b"/other/secret")]
    with pytest.raises(S3Error) as caught:
        check(changed(request, headers=more))
    assert caught.value.code == "AccessDenied"
    assert caught.value.extra == {"HeadersNotSigned": "x-amz-copy-source"}


@pytest.mark.parametrize("signer", ["v4", "v4 presigned"])
def test_a_signed_header_that_was_lost_is_refused_even_if_it_was_empty(signer: str) -> None:
    request = SIGNERS[signer]("PUT", "/bucket/key", [("x-amz-meta-a", "")])
    assert check(request).access_key_id == KEY
    assert refused(changed(request, headers=without(request, b"x-amz-meta-a"))) == "SignatureDoesNotMatch"


def test_other_headers_need_not_be_signed() -> None:
    request = signers.v4("GET", "/bucket/key")
    assert check(changed(request, headers=[*request.headers, (b"range", b"bytes=0-1")])).kind is Kind.V4_HEADER


def test_the_host_must_be_signed() -> None:
    request = signers.v4("GET", "/bucket/key")
    authorization = (request.header("authorization") or "").replace("host;", "").encode()
    headers = [*without(request, b"authorization"), (b"authorization", authorization)]
    assert refused(changed(request, headers=headers)) == "AccessDenied"


@pytest.mark.parametrize("name", [b"host", b"authorization", b"x-amz-content-sha256", b"x-amz-date"])
def test_what_must_be_one_is_refused_twice(name: bytes) -> None:
    request = signers.v4("GET", "/bucket/key")
    with pytest.raises(S3Error, match="sent twice"):
        changed(request, headers=[*request.headers, (name, b"other")])


def test_a_parameter_with_two_values_is_refused() -> None:
    with pytest.raises(S3Error, match="given twice"):
        Request.of("GET", b"/b", b"prefix=a&prefix=b", [])


def test_any_region_is_taken_if_it_was_signed() -> None:
    assert check(signers.v4("GET", "/bucket/key", region="mars-north-9")).access_key_id == KEY
    request = signers.v4("GET", "/bucket/key")
    authorization = (request.header("authorization") or "").replace("eu-central-1", "us-east-1").encode()
    headers = [*without(request, b"authorization"), (b"authorization", authorization)]
    assert refused(changed(request, headers=headers)) == "SignatureDoesNotMatch"


def test_a_client_that_sends_plus_and_signs_percent_twenty_is_accepted() -> None:
    request = signers.v4("GET", "/bucket?prefix=a%20b")
    other = changed(request, query=b"prefix=a+b")
    assert check(other).kind is Kind.V4_HEADER
    assert other.query == {"prefix": "a b"}


def test_a_client_that_sends_less_encoded_than_it_signs_is_accepted() -> None:
    request = signers.v4("GET", "/bucket/a%3Db%40c?prefix=x%2Fy")
    other = changed(request, path=b"/bucket/a=b@c", query=b"prefix=x/y")
    assert check(other).kind is Kind.V4_HEADER


def test_a_date_header_serves_as_well_as_the_amz_one() -> None:
    request = signers.v4("GET", "/bucket/key", [("Date", "now")])
    assert b"x-amz-date" not in request.header_names
    assert check(request).kind is Kind.V4_HEADER
    assert refused(request, later=910) == "RequestTimeTooSkewed"


@pytest.mark.parametrize(
    ("authorization", "code"),
    [
        ("Bearer abc", "InvalidArgument"),
        ("", "InvalidArgument"),
        ("AWS", "InvalidArgument"),
        ("AWS key", "InvalidArgument"),
        ("AWS4-HMAC-SHA256", "AuthorizationHeaderMalformed"),
        ("AWS4-HMAC-SHA256 Credential=a", "AuthorizationHeaderMalformed"),
        ("AWS4-ECDSA-P256-SHA256 Credential=a", "NotImplemented"),
        (
            "AWS4-HMAC-SHA256 Credential=a/20200101/r/s3/aws4_request,SignedHeaders=host,Signature=",
            "AuthorizationHeaderMalformed",
        ),
        (
            "AWS4-HMAC-SHA256 Credential=a/TODAY/r/sts/aws4_request,SignedHeaders=host,Signature=",
            "AuthorizationHeaderMalformed",
        ),
        ("AWS4-HMAC-SHA256 Credential=a/TODAY/r/s3/aws5,SignedHeaders=host,Signature=", "AuthorizationHeaderMalformed"),
        (
            "AWS4-HMAC-SHA256 Credential=a/TODAY/r/s3/aws4_request,SignedHeaders=Host,Signature=",
            "AuthorizationHeaderMalformed",
        ),
        (
            "AWS4-HMAC-SHA256 Credential=a/TODAY/r/s3/aws4_request,SignedHeaders=host;host,Signature=",
            "AuthorizationHeaderMalformed",
        ),
        (
            "AWS4-HMAC-SHA256 Credential=a/TODAY/r/s3/aws4_request,SignedHeaders=host,Signature=ä",
            "SignatureDoesNotMatch",
        ),
        (
            "AWS4-HMAC-SHA256 Credential=a/TODAY/r/s3/aws4_request,SignedHeaders=host;gone,Signature=00",
            "SignatureDoesNotMatch",
        ),
    ],
)
def test_authorization_headers_that_cannot_be_right_are_refused(authorization: str, code: str) -> None:
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    headers = [(b"host", b"h"), (b"x-amz-date", stamp.encode()), (b"x-amz-content-sha256", b"UNSIGNED-PAYLOAD")]
    said = authorization.replace("TODAY", stamp[:8]).encode()
    assert refused(Request.of("GET", b"/b/k", b"", [*headers, (b"authorization", said)])) == code


@pytest.mark.parametrize(
    "date", ["", "20261301T000000Z", "20260101T250000Z", "00000101T000000Z", "yesterday", "9" * 500]
)
def test_a_date_that_is_none_is_refused(date: str) -> None:
    request = signers.v4("GET", "/bucket/key")
    headers = [*without(request, b"x-amz-date"), (b"x-amz-date", date.encode())]
    assert refused(changed(request, headers=headers)) == "AccessDenied"


@pytest.mark.parametrize("missing", ["Algorithm", "Credential", "Date", "Expires", "SignedHeaders", "Signature"])
def test_a_presigned_url_with_a_parameter_missing_is_refused(missing: str) -> None:
    request = signers.v4_presigned("GET", "/bucket/key")
    query = b"&".join(p for p in request.raw_query.split(b"&") if not p.startswith(f"X-Amz-{missing}=".encode()))
    assert refused(changed(request, query=query)) == "AuthorizationQueryParametersError"


def test_a_sigv2_url_with_a_parameter_missing_is_refused() -> None:
    request = signers.v2_presigned("GET", "/bucket/key")
    for missing in (b"Expires=", b"AWSAccessKeyId=", b"Signature="):
        query = b"&".join(pair for pair in request.raw_query.split(b"&") if not pair.startswith(missing))
        assert refused(changed(request, query=query)) == "AccessDenied"


def test_two_claims_at_once_are_refused() -> None:
    presigned = signers.v4_presigned("GET", "/bucket/key")
    header = signers.v4("GET", "/bucket/key")
    assert refused(changed(presigned, headers=list(header.headers))) == "InvalidArgument"
    assert refused(changed(presigned, query=presigned.raw_query + b"&Signature=a")) == "InvalidArgument"


def test_session_tokens_are_refused_and_said_so() -> None:
    assert refused(signers.v4("GET", "/b/k", [("x-amz-security-token", "t")])) == "InvalidToken"
    assert refused(signers.v4_presigned("GET", "/b/k?X-Amz-Security-Token=t")) == "InvalidToken"
    assert refused(signers.v2_presigned("GET", "/b/k?x-amz-security-token=t")) == "InvalidToken"


def test_a_presigned_url_may_name_the_hash_of_its_body_if_that_is_signed() -> None:
    said = "ab" * 32
    request = signers.v4_presigned("PUT", "/b/k", [("x-amz-content-sha256", said)])
    assert check(request).payload.sha256 == said
    plain = signers.v4_presigned("PUT", "/b/k")
    assert check(plain).payload.mode is Mode.UNSIGNED
    more = [*plain.headers, (b"x-amz-content-sha256", said.encode())]
    assert refused(changed(plain, headers=more)) == "AccessDenied"


def test_sigv4_in_a_header_must_say_what_the_body_is() -> None:
    request = signers.v4("GET", "/bucket/key")
    assert refused(changed(request, headers=without(request, b"x-amz-content-sha256"))) == "InvalidRequest"


def test_a_request_without_a_claim_is_anonymous() -> None:
    assert find_credentials(Request.of("GET", b"/b/k", b"prefix=Signature", [(b"host", b"h")])) is None


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ("STREAMING-AWS4-ECDSA-P256-SHA256-PAYLOAD", "NotImplemented"),
        ("STREAMING-", "NotImplemented"),
        ("hex sha256", "InvalidArgument"),
        ("abc", "InvalidArgument"),
        ("STREAMING-AWS4-HMAC-SHA256-PAYLOAD", "MissingContentLength"),
    ],
)
def test_payload_modes_that_are_not_known_are_refused_before_the_body(
    said: str, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("botocore.auth.S3SigV4Auth.payload", lambda self, request: said)
    assert refused(signers.v4("PUT", "/b/k")) == code


@pytest.mark.parametrize("length", ["-1", "1e3", "٣", "9" * 17, "9" * 16, " "])
def test_lengths_that_are_none_are_refused(length: str) -> None:
    headers = [("content-encoding", "aws-chunked"), ("x-amz-decoded-content-length", length)]
    assert refused(signers.v2("PUT", "/b/k", headers)) == "InvalidArgument"


def test_sigv2_with_framing_is_known_by_its_content_encoding() -> None:
    headers = [
        ("content-encoding", "gzip, aws-chunked"),
        ("x-amz-decoded-content-length", "5"),
        ("x-amz-trailer", "x-amz-checksum-crc32"),
    ]
    payload = check(signers.v2("PUT", "/b/k", headers)).payload
    assert payload.mode is Mode.UNSIGNED_CHUNKS_TRAILER
    assert (payload.length, payload.trailers) == (5, frozenset(["x-amz-checksum-crc32"]))


def test_a_hashed_body_with_framing_is_refused_rather_than_stored_with_it() -> None:
    headers = [("content-encoding", "aws-chunked"), ("x-amz-decoded-content-length", "5")]
    assert refused(signers.v4("PUT", "/b/k", headers)) == "InvalidRequest"


def test_the_key_of_signed_chunks_does_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("botocore.auth.S3SigV4Auth.payload", lambda self, request: Mode.SIGNED_CHUNKS.value)
    verified = check(signers.v4("PUT", "/b/k", [("x-amz-decoded-content-length", "5")]))
    assert verified.payload.signing is not None
    assert repr(verified.payload.signing.key) not in repr(verified)


def test_signing_keys_are_kept_in_a_bounded_number() -> None:
    assert v4.signing_key.cache_info().maxsize == v4.SIGNING_KEYS_MAX


@given(st.text(max_size=60))
@settings(max_examples=200, deadline=None)
def test_any_authorization_is_read_or_refused(said: str) -> None:
    assume(_encodable([said], {}))
    for start in ("", "AWS ", "AWS4-HMAC-SHA256 ", "AWS4-HMAC-SHA256 Credential="):
        request = Request.of(
            "GET", b"/", b"", [(b"authorization", (start + said).encode()), (b"x-amz-date", b"20260101T000000Z")]
        )
        with pytest.raises(S3Error):
            check(request)
