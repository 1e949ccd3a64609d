"""XML goes out so that any parser reads it back, and comes in from anybody without harm."""

import xml.etree.ElementTree as ElementTree
from urllib.parse import unquote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lsmfs.gateway import errors, xml
from lsmfs.gateway.errors import CODES, S3Error, from_error, render
from refstore import errors as categories

texts = st.text(st.characters(codec="utf-8"), max_size=40)
# What XML 1.0 can hold at all.
printable = st.text(
    st.one_of(
        st.sampled_from("\t\n\r &<>\"']"),
        st.characters(codec="utf-8", min_codepoint=32, exclude_characters="\ufffe\uffff"),
    ),
    max_size=40,
)


def refused(data: bytes, root: str = "Delete", **arguments: int) -> str:
    with pytest.raises(S3Error) as caught:
        xml.parse(data, root, **arguments)
    assert caught.value.status == 400
    return caught.value.code


@given(printable)
def test_any_text_that_xml_can_hold_is_read_back_as_it_was(text: str) -> None:
    found = ElementTree.fromstring(xml.document("Root", xml.element("Key", text)))
    assert (found.findtext(f"{{{xml.NAMESPACE}}}Key") or "") == text
    assert (xml.parse(xml.document("Root", xml.element("Key", text)), "Root").findtext("Key") or "") == text


@given(texts)
def test_any_text_at_all_is_written_without_markup_or_control_characters(text: str) -> None:
    escaped = xml.escape(text)
    assert not set(escaped) & set('<>"\x00\x01\x0b\x1f\r\ufffe\uffff')
    assert escaped.encode().decode() == escaped


def test_what_xml_cannot_hold_becomes_a_numeric_reference() -> None:
    assert xml.escape("a\x01b\x1fc\rd\ne") == "a&#x1;b&#x1f;c&#xd;d\ne"


@given(texts)
def test_a_url_encoded_key_is_plain_ascii_and_decodes_to_the_key(text: str) -> None:
    encoded = xml.url_encode_key(text)
    assert encoded.isascii()
    assert encoded.isprintable()
    assert xml.escape(encoded) == encoded
    assert unquote(encoded) == text


def test_a_url_encoded_key_keeps_slashes_and_writes_spaces_as_percent_twenty() -> None:
    assert xml.url_encode_key("a b/c+d%&ä") == "a%20b/c%2Bd%25%26%C3%A4"


@pytest.mark.parametrize("namespace", ["", f' xmlns="{xml.NAMESPACE}"', ' xmlns="other"'])
def test_a_body_is_read_with_any_namespace_or_none(namespace: str) -> None:
    data = f"<?xml version='1.0'?><Delete{namespace}><Object><Key>a&amp;b&#x20;</Key></Object></Delete>"
    found = xml.parse(data.encode(), "Delete")
    assert [child.findtext("Key") for child in found.findall("Object")] == ["a&b "]


LAUGHS = b'<!DOCTYPE l [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">]><Delete>&b;</Delete>'


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b" ",
        b"<",
        b"<Delete>",
        b"<Delete></Other>",
        b"<Delete/><Delete/>",
        b"<Delete>&nbsp;</Delete>",
        b"<Delete>\x00</Delete>",
        b"<Delete>\xff</Delete>",
        b"<?xml version='1.0' encoding='no-such'?><Delete/>",
        b"<?xml version='1.0' encoding='utf-7'?><Delete/>",
        b"<?xml version='1.0' encoding='shift_jis'?><Delete/>",
        b"<!DOCTYPE Delete><Delete/>",
        LAUGHS,
        LAUGHS.decode().encode("utf-16"),
        b'<!DOCTYPE d [<!ENTITY x SYSTEM "file:///etc/passwd">]><Delete>&x;</Delete>',
        b'<!DOCTYPE d SYSTEM "http://127.0.0.1:1/x.dtd"><Delete/>',
        b'<!DOCTYPE d [<!ENTITY % p SYSTEM "http://127.0.0.1:1/x"> %p;]><Delete/>',
        b"<Other/>",
        b"<Delete>" * 5000,
        b"<Delete>" + b"<a>" * 100_000 + b"</a>" * 100_000 + b"</Delete>",
        b"<Delete>" + b"<a>" * xml.DEPTH_MAX + b"</a>" * xml.DEPTH_MAX + b"</Delete>",
        b"{}",
    ],
)
def test_hostile_and_malformed_bodies_are_refused(data: bytes) -> None:
    assert refused(data) == "MalformedXML"


def test_a_body_of_too_many_elements_is_refused() -> None:
    assert refused(b"<Delete>" + b"<a/>" * xml.ELEMENTS_MAX + b"</Delete>") == "MalformedXML"


def test_a_body_that_is_too_large_is_not_parsed() -> None:
    assert refused(b"<Delete/>" + b" " * 100, bytes_max=100) == "MaxMessageLengthExceeded"


def test_a_body_as_deep_as_may_be_is_read() -> None:
    depth = xml.DEPTH_MAX - 1
    assert xml.parse(b"<Delete>" + b"<a>" * depth + b"</a>" * depth + b"</Delete>", "Delete") is not None


@settings(max_examples=200)
@given(st.binary(max_size=80), st.integers(0, 60))
def test_any_bytes_are_parsed_or_refused(noise: bytes, at: int) -> None:
    good = b"<Delete><Object><Key>a</Key></Object></Delete>"
    found = outcome(good[:at] + noise + good[at:])
    assert (found.code == "MalformedXML") if isinstance(found, S3Error) else (found.tag == "Delete")


def outcome(data: bytes) -> xml.Element | S3Error:
    try:
        return xml.parse(data, "Delete")
    except S3Error as error:
        return error


CATEGORIES = [
    (categories.NotFound("n"), "NoSuchKey", 404),
    (categories.AlreadyExists("n"), "BucketAlreadyExists", 409),
    (categories.Conflict("n"), "OperationAborted", 409),
    (categories.ViewChanged("n"), "OperationAborted", 409),
    (categories.LayersFull("n"), "SlowDown", 503),
    (categories.WriterUnknown("n"), "ServiceUnavailable", 503),
    (categories.GenerationStale("n"), "ServiceUnavailable", 503),
    (categories.Invalid("n"), "InvalidArgument", 400),
    (categories.Denied("n"), "AccessDenied", 403),
    (categories.Unavailable("n"), "ServiceUnavailable", 503),
    (categories.OutcomeUnknown("n"), "ServiceUnavailable", 503),
    (categories.Corrupt("n"), "InternalError", 500),
    (ValueError("n"), "InternalError", 500),
]


@pytest.mark.parametrize(("error", "code", "status"), CATEGORIES)
def test_each_category_has_its_code(error: Exception, code: str, status: int) -> None:
    found = from_error(error)
    assert (found.code, found.status) == (code, status)
    assert ("retry-after" in found.headers) == (status == 503)


def test_every_category_has_a_code_that_is_not_internal_error_but_corrupt() -> None:
    def below(root: type[categories.Error]) -> set[type[categories.Error]]:
        return {root}.union(*map(below, root.__subclasses__()))

    for category in below(categories.Error) - below(categories.Corrupt) - below(S3Error) - {categories.Error}:
        if category.__module__ == categories.__name__:
            assert from_error(category("x")).code != "InternalError"


def test_the_caller_says_what_is_missing_there_already_or_lost() -> None:
    assert from_error(categories.NotFound(""), missing="NoSuchBucket").code == "NoSuchBucket"
    assert from_error(categories.AlreadyExists(""), existing="BucketAlreadyOwnedByYou").status == 409
    assert from_error(categories.ViewChanged(""), conflict="PreconditionFailed").status == 412


@pytest.mark.parametrize(
    "error", [categories.Corrupt("secret.sst"), KeyError("secret"), categories.Unavailable("secret:6379")]
)
def test_what_is_wrong_inside_is_not_told(error: Exception) -> None:
    assert b"secret" not in render(from_error(error), "id", "/b/k")


def test_an_error_of_s3_stays_as_it_is() -> None:
    error = S3Error("BadDigest")
    assert from_error(error) is error


def test_an_error_is_rendered_with_its_extra_elements_and_escaped() -> None:
    error = S3Error("AccessDenied", "no <b> & \x01", extra={"HeadersNotSigned": "x-amz-<"})
    assert render(error, "ID1", "/b/<k>").decode() == (
        '<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>AccessDenied</Code>'
        "<Message>no &lt;b&gt; &amp; &#x1;</Message>"
        "<Resource>/b/&lt;k&gt;</Resource>"
        "<HeadersNotSigned>x-amz-&lt;</HeadersNotSigned><RequestId>ID1</RequestId></Error>"
    )


@pytest.mark.parametrize("code", CODES)
def test_every_code_can_be_raised_and_rendered(code: str) -> None:
    found = ElementTree.fromstring(render(S3Error(code), "id", "/"))
    assert found.findtext("Code") == code
    assert found.findtext("Message") == errors.CODES[code][1]
    assert 300 <= S3Error(code).status < 600
