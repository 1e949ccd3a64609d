"""Uploads: the body as it is, chunked and of unknown length, or as the part `content` of multipart/form-data.

A body is streamed into the store and never held; its entry is put when all of it is there, so a broken upload leaves
nothing that anybody sees.
"""

from collections.abc import AsyncIterator

import msgspec
from msgspec import Struct
from python_multipart.exceptions import MultipartParseError
from python_multipart.multipart import MultipartParser, parse_options_header

from lsmfs.api import wire
from lsmfs.api.objects import address_base, stats_of
from lsmfs.api.operations import Call, Operation, Raw
from lsmfs.api.params import check_content_type, user_metadata
from lsmfs.api.writes import check_writable, condition_of, put
from lsmfs.auth import Action
from lsmfs.model import Entry, check_entry
from refstore.errors import Invalid

PART = b"content"
HEADER_BYTES_MAX = 16 * 1024  # of a part: a name, a file name and a content type
PARTS_MAX = 16  # of a form: one has the object


class UploadQuery(Struct, frozen=True, rename={"storage_class": "storageClass"}):
    path: str
    storage_class: str = ""
    force: bool = False


async def upload_object(call: Call) -> wire.ObjectStats:
    path, expected = call.query.path, condition_of(call)
    await check_writable(call, path)
    form = Form.of(call.header(b"content-type"))
    body = call.stream() if form is None else form.content(call.stream())
    metadata = user_metadata(call.raw_headers)
    if form is None:
        check_content_type(call.header(b"content-type"))
    check_entry(Entry("", 0, metadata=metadata))  # before the body is taken in, however long it is
    entry = await call.lake.save_body(call.path["repository"], body, None, metadata)
    given = call.header(b"content-type") if form is None else form.content_type
    entry = msgspec.structs.replace(entry, content_type=check_content_type(given))
    check_entry(entry)
    await put(call, path, entry, expected)
    return stats_of(path, entry, address_base(call, await call.repository()))


class Form:
    """A multipart/form-data body, of which one part is wanted."""

    def __init__(self, boundary: bytes) -> None:
        self.content_type = ""
        self._name = self._value = b""
        self._headers: dict[bytes, bytes] = {}
        self._pieces: list[bytes] = []
        self._is_wanted = self._is_found = self._is_ended = False
        self._parts = 0
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._begin,
                "on_part_data": self._data,
                "on_header_field": self._field,
                "on_header_value": self._text,
                "on_header_end": self._header,
                "on_headers_finished": self._begun,
                "on_end": self._end,
            },
        )

    @staticmethod
    def of(content_type: str) -> "Form | None":
        kind, options = parse_options_header(content_type)
        if kind != b"multipart/form-data":
            return None
        boundary = options.get(b"boundary", b"")
        if not 0 < len(boundary) <= 256:
            raise Invalid("multipart/form-data has a boundary of 1 to 256 characters in its Content-Type")
        return Form(boundary)

    async def content(self, body: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """The bytes of the part `content`; `Invalid` if there is none, or the form has no end."""
        try:
            async for piece in body:
                self._parser.write(piece)
                pieces, self._pieces = self._pieces, []
                for each in pieces:
                    yield each
        except MultipartParseError as error:
            raise Invalid(f"the form cannot be read: {error}") from None
        if not self._is_ended:
            raise Invalid("the form ends before its last boundary")
        if not self._is_found:
            raise Invalid("the form has no part named 'content', which is the object")

    def _begin(self) -> None:
        self._headers, self._is_wanted = {}, False
        self._name = self._value = b""
        self._parts += 1
        if self._parts > PARTS_MAX:
            raise Invalid(f"the form has more than {PARTS_MAX} parts")

    def _field(self, data: bytes, start: int, end: int) -> None:
        self._name = self._bounded(self._name + data[start:end])

    def _text(self, data: bytes, start: int, end: int) -> None:
        self._value = self._bounded(self._value + data[start:end])

    def _bounded(self, text: bytes) -> bytes:
        if len(text) > HEADER_BYTES_MAX or len(self._headers) > PARTS_MAX:
            raise Invalid("the headers of a part are too long")
        return text

    def _header(self) -> None:
        self._headers[self._name.lower()] = self._value
        self._name = self._value = b""

    def _begun(self) -> None:
        _, options = parse_options_header(self._headers.get(b"content-disposition", b""))
        self._is_wanted = options.get(b"name") == PART
        if self._is_wanted and self._is_found:
            raise Invalid("the form has two parts named 'content'")
        if self._is_wanted:
            self._is_found = True
            self.content_type = self._headers.get(b"content-type", b"").decode("latin-1")

    def _data(self, data: bytes, start: int, end: int) -> None:
        if self._is_wanted:
            self._pieces.append(data[start:end])

    def _end(self) -> None:
        self._is_ended = True


OPERATIONS = (
    Operation(
        "uploadObject",
        "POST",
        "/repositories/{repository}/branches/{branch}/objects",
        Action.WRITE_OBJECT,
        upload_object,
        wire.ObjectStats,
        201,
        UploadQuery,
        Raw.OBJECT,
        also=(412,),
    ),
)
