"""Multipart uploads, on every block store: create, upload, complete and abort.

A part's body is stored like any other; completing writes one entry that has all their extents, by the branch's writer,
with the condition of the request if it has one. So a complete of 10,000 parts moves no bytes.
"""

import asyncio
import hmac

from lsmfs.gateway.answers import Answer, xml_answer
from lsmfs.gateway.assembling import assembled, chosen, named_parts, with_digest
from lsmfs.gateway.calls import Call, check_branch
from lsmfs.gateway.checksums import ALGORITHMS, Checksums
from lsmfs.gateway.checksums import HEADER as CHECKSUM_HEADER
from lsmfs.gateway.conditions import write_condition
from lsmfs.gateway.errors import S3Error
from lsmfs.gateway.markup import element
from lsmfs.gateway.objects import foreseen, part_number, put_entry, quoted
from lsmfs.gateway.properties import content_type_of, metadata_of
from lsmfs.gateway.upload_lists import upload_elements, uploads_of
from lsmfs.gateway.uploads import Completed, Part, Upload

_FULL_BY_DEFAULT = "CRC64NVME"
_IMPOSSIBLE = {("FULL_OBJECT", "SHA1"), ("FULL_OBJECT", "SHA256"), ("COMPOSITE", _FULL_BY_DEFAULT)}


async def create_multipart_upload(call: Call) -> Answer:
    request, place = call.request, call.place
    metadata, content_type = metadata_of(request), content_type_of(request)
    algorithm, is_composite = _algorithm(call)
    repository = await call.writable()
    await check_branch(repository, place.ref)
    if not place.path:
        raise S3Error("InvalidRequest", f"{place.key!r} is a branch: give a path inside it to put an object.")
    uploads = uploads_of(call, repository)
    upload = Upload(
        uploads.new_id(),
        place.ref,
        place.path,
        call.identity.user,
        call.lake.clock.now_us(),
        content_type,
        metadata,
        algorithm,
        is_composite,
    )
    await uploads.begin(upload)
    headers = []
    if algorithm:
        kind = b"COMPOSITE" if is_composite else b"FULL_OBJECT"
        headers = [(b"x-amz-checksum-algorithm", algorithm.encode()), (b"x-amz-checksum-type", kind)]
    return xml_answer("InitiateMultipartUploadResult", *upload_elements(call, upload.id), headers=headers)


def _algorithm(call: Call) -> tuple[str, bool]:
    """The checksum that parts will have, and whether the object's is of theirs."""
    algorithm = (call.request.header("x-amz-checksum-algorithm") or "").upper()
    kind = (call.request.header("x-amz-checksum-type") or "").upper()
    if algorithm and algorithm not in ALGORITHMS:
        raise S3Error("InvalidRequest", f"Checksum algorithm provided is unsupported: {algorithm[:32]}.")
    if kind not in ("", "COMPOSITE", "FULL_OBJECT"):
        raise S3Error("InvalidRequest", "Value for x-amz-checksum-type header is invalid.")
    if (kind, algorithm) in _IMPOSSIBLE:
        raise S3Error("InvalidRequest", f"The {kind} checksum type cannot be used with the {algorithm} algorithm.")
    return algorithm, algorithm not in ("", _FULL_BY_DEFAULT) if not kind else kind == "COMPOSITE"


async def upload_part(call: Call) -> Answer:
    number = part_number(call.request.query["partNumber"])
    call.check_length()
    checksums = Checksums.from_request(call.request)
    repository = await call.writable()
    uploads = uploads_of(call, repository)
    upload = await uploads.open(call.request.query["uploadId"], call.place)
    saved = await call.lake.save_body(repository.name, call.body(checksums))
    algorithm, value = (checksums.algorithm or "", *checksums.values.values())[:2] if checksums.values else ("", "")
    part = Part(
        number,
        saved.etag,
        saved.size_bytes,
        saved.mtime_us,
        with_digest(saved.extents, saved.etag),
        algorithm,
        value,
    )
    await uploads.put_part(upload, part)
    headers = [(name.encode(), value.encode()) for name, value in checksums.values.items()]
    return Answer(200, [(b"etag", quoted(part.etag)), *headers])


async def complete_multipart_upload(call: Call) -> Answer:
    body = await call.text(Checksums.from_request(call.request, md5_only=True))
    named = await asyncio.to_thread(named_parts, body)
    condition = write_condition(call.request)
    repository = await call.writable()
    uploads = uploads_of(call, repository)
    upload = await uploads.find(call.request.query["uploadId"], call.place)
    if upload.completed is not None:
        return _completed(call, upload.completed)
    condition = await foreseen(repository, call.place, condition)
    parts = chosen(named, {part.number: part async for part in uploads.parts(upload.id)})
    entry, checksums = assembled(upload, parts, call.lake.clock.now_us())
    _check_said(call, entry.size_bytes, checksums)
    await put_entry(call, repository, call.place, entry, condition)
    completed = Completed(entry.etag, entry.mtime_us, checksums)
    await uploads.complete(upload, completed)
    call.later(uploads.remove_parts(upload.id))
    return _completed(call, completed)


def _check_said(call: Call, size_bytes: int, checksums: dict[str, str]) -> None:
    """What the client says of the whole object."""
    size = call.request.header("x-amz-mp-object-size")
    if size is not None and size != str(size_bytes):
        raise S3Error("InvalidRequest", f"x-amz-mp-object-size is {size[:20]}, but the parts have {size_bytes} bytes.")
    for name, value in checksums.items():
        said = call.request.header(CHECKSUM_HEADER + name) if name != "type" else None
        if said is not None and not hmac.compare_digest(
            said.partition("-")[0].encode(), value.partition("-")[0].encode()
        ):
            raise S3Error("BadDigest", f"The {name} you specified did not match the calculated checksum.")


def _completed(call: Call, completed: Completed) -> Answer:
    host = call.request.host or "localhost"
    checksums = dict(completed.checksums)
    kind = checksums.pop("type", "FULL_OBJECT")
    shown = [element(f"Checksum{name.upper()}", value) for name, value in checksums.items()]
    return xml_answer(
        "CompleteMultipartUploadResult",
        element("Location", f"http://{host}{call.request.raw_path.decode('latin-1')}"),
        element("Bucket", call.bucket),
        element("Key", call.place.key),
        element("ETag", f'"{completed.etag}"'),
        *([*shown, element("ChecksumType", kind)] if shown else ()),
    )


async def abort_multipart_upload(call: Call) -> Answer:
    repository = await call.repository()
    uploads = uploads_of(call, repository)
    await uploads.abort(await uploads.open(call.request.query["uploadId"], call.place))
    return Answer(204)
