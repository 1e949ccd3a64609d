"""ListParts and ListMultipartUploads, page by page.

Uploads under way are few beside objects: each page of them reads all, and shows those that the caller may see in lists.
"""

from collections.abc import AsyncIterator

from lsmfs.auth import Action, Resource
from lsmfs.gateway.answers import Answer, xml_answer, xml_date
from lsmfs.gateway.buckets import owner_of
from lsmfs.gateway.calls import Call
from lsmfs.gateway.listing import asked_of
from lsmfs.gateway.markup import element
from lsmfs.gateway.tokens import number_of
from lsmfs.gateway.uploads import PARTS_MAX, Part, Upload, Uploads
from lsmfs.repository import Repository

PAGE_MAX = 1000  # parts or uploads in one answer, as S3 has it


def uploads_of(call: Call, repository: Repository) -> Uploads:
    return Uploads(repository.refs, repository.name, call.lake.clock)


def upload_elements(call: Call, upload_id: str) -> list[str]:
    return [element("Bucket", call.bucket), element("Key", call.place.key), element("UploadId", upload_id)]


async def list_parts(call: Call) -> Answer:
    query = call.request.query
    limit = number_of(query.get("max-parts"), "max-parts", PAGE_MAX)
    marker = number_of(query.get("part-number-marker") or "0", "part-number-marker", PARTS_MAX)
    repository = await call.repository()
    uploads = uploads_of(call, repository)
    upload = await uploads.open(query["uploadId"], call.place)
    shown: list[Part] = []
    is_truncated = False
    async for part in uploads.parts(upload.id, marker):
        if len(shown) == limit:
            is_truncated = limit > 0
            break
        shown.append(part)
    owner = owner_of(call)
    head = [
        *upload_elements(call, upload.id),
        owner.replace("Owner>", "Initiator>"),
        owner,
        element("StorageClass", "STANDARD"),
        element("PartNumberMarker", marker),
        element("NextPartNumberMarker", shown[-1].number if shown else 0),
        element("MaxParts", limit),
        element("IsTruncated", "true" if is_truncated else "false"),
    ]
    if upload.algorithm:
        head.append(element("ChecksumAlgorithm", upload.algorithm))
        head.append(element("ChecksumType", "COMPOSITE" if upload.is_composite else "FULL_OBJECT"))
    return xml_answer("ListPartsResult", *head, *map(_part_element, shown))


def _part_element(part: Part) -> str:
    checksum = element(f"Checksum{part.algorithm}", part.checksum) if part.checksum else ""
    return (
        f"<Part>{element('PartNumber', part.number)}{element('LastModified', xml_date(part.modified_us))}"
        f"{element('ETag', f'{chr(34)}{part.etag}{chr(34)}')}{element('Size', part.size_bytes)}{checksum}</Part>"
    )


async def list_multipart_uploads(call: Call) -> Answer:
    query, asked = call.request.query, asked_of(call)
    limit = number_of(query.get("max-uploads"), "max-uploads", PAGE_MAX)
    key_marker, id_marker = query.get("key-marker", ""), query.get("upload-id-marker", "")
    repository = await call.repository()
    after = (key_marker, id_marker if key_marker and id_marker else "\U0010ffff")
    items: dict[tuple[str, str], Upload | None] = {}
    for upload in sorted([each async for each in _seen(call, repository, asked.prefix)], key=lambda u: (u.key, u.id)):
        at = upload.key.find(asked.delimiter, len(asked.prefix)) if asked.delimiter else -1
        if at >= 0:
            group = upload.key[: at + len(asked.delimiter)]
            if group > key_marker:
                items[group, ""] = None
        elif (upload.key, upload.id) > after:
            items[upload.key, upload.id] = upload
    page = list(items.items())[:limit]
    is_truncated = 0 < limit < len(items)
    head = [
        element("Bucket", call.bucket),
        asked.echoed("KeyMarker", key_marker),
        element("UploadIdMarker", id_marker),
        asked.echoed("Prefix", asked.prefix),
        element("MaxUploads", limit),
        element("IsTruncated", "true" if is_truncated else "false"),
    ]
    if asked.delimiter:
        head.append(asked.echoed("Delimiter", asked.delimiter))
    if asked.encoding:
        head.append(element("EncodingType", asked.encoding))
    if is_truncated:
        (key, identity), _ = page[-1]
        head += [asked.echoed("NextKeyMarker", key), element("NextUploadIdMarker", identity)]
    shown = [
        _upload_element(upload, asked.encode(upload.key), owner_of(call)) for _, upload in page if upload is not None
    ]
    prefixes = [
        f"<CommonPrefixes>{asked.echoed('Prefix', key)}</CommonPrefixes>" for (key, _), upload in page if upload is None
    ]
    return xml_answer("ListMultipartUploadsResult", *head, *shown, *prefixes)


async def _seen(call: Call, repository: Repository, prefix: str) -> AsyncIterator[Upload]:
    """The uploads that begin with the prefix and whose objects the caller may see in lists."""
    async for upload in uploads_of(call, repository).all():
        resource = Resource(repository.name, upload.ref, upload.path)
        if upload.key.startswith(prefix) and await call.allows(Action.LIST_OBJECTS, resource):
            yield upload


def _upload_element(upload: Upload, key: str, owner: str) -> str:
    return (
        f"<Upload>{element('Key', key)}{element('UploadId', upload.id)}{owner.replace('Owner>', 'Initiator>')}{owner}"
        f"{element('StorageClass', 'STANDARD')}{element('Initiated', xml_date(upload.initiated_us))}</Upload>"
    )
