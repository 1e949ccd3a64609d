"""A request as it comes: what is a name, what is a parameter, and what is neither."""

from urllib.parse import unquote_to_bytes

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lsmfs.gateway.errors import S3Error
from lsmfs.gateway.request import Request


def test_a_request_is_made_from_an_asgi_scope() -> None:
    scope = {
        "type": "http",
        "method": "PUT",
        "path": "/bucket/a/b c",
        "raw_path": b"/bucket/a%2Fb%20c",
        "query_string": b"acl&prefix=x%2By+z&x-id=",
        "headers": [(b"host", b" h:1 "), (b"x-amz-meta-a", b"\xc3\xa4"), (b"x-amz-meta-b", b"\xe4")],
    }
    request = Request.from_scope(scope)
    assert (request.method, request.path, request.host) == ("PUT", "/bucket/a/b c", "h:1")
    assert request.query == {"acl": "", "prefix": "x+y z", "x-id": ""}
    assert (request.header("x-amz-meta-a"), request.header("x-amz-meta-b"), request.header("no")) == ("ä", "ä", None)


@pytest.mark.parametrize("path", [b"/b/%00", b"/b/%ff", b"/b/%", b"/b/%2", b"/b/%zz", b"/b/\xff", b"/b/%ed%a0%80"])
def test_a_path_that_is_no_name_is_refused(path: bytes) -> None:
    with pytest.raises(S3Error, match="InvalidURI"):
        Request.of("GET", path, b"", [])


def test_a_path_is_decoded_once() -> None:
    assert Request.of("GET", b"/b/%252F+", b"prefix=%252F", []).path == "/b/%2F+"


def test_a_query_of_too_many_parameters_is_refused() -> None:
    with pytest.raises(S3Error, match="InvalidURI"):
        Request.of("GET", b"/b", b"&".join(b"p%d=" % number for number in range(300)), [])


@given(st.binary(max_size=30), st.binary(max_size=30))
@example(b"/%", b"")
@example(b"/%ff", b"")
@example(b"/a", b"a=%zz")
@settings(max_examples=200, deadline=None)
def test_any_path_and_query_is_read_or_refused(path: bytes, query: bytes) -> None:
    found = _read(b"/" + path, query)
    if isinstance(found, S3Error):
        assert found.status == 400
    else:
        assert found.path.encode() == unquote_to_bytes(b"/" + path)


def _read(path: bytes, query: bytes) -> Request | S3Error:
    try:
        return Request.of("GET", path, query, [])
    except S3Error as error:
        return error
