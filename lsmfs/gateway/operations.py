"""The table of operations: which function answers which method and sub-resource, and what it needs permission for.

    operation_of(method, place, query) -> Operation       S3Error NotImplemented, MethodNotAllowed

A sub-resource that S3 has and this table has not is NotImplemented, and never taken as the plain verb: DELETE of
`?tagging` must not delete the object. Parameters that S3 has not (`x-id`) change nothing.
"""

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from lsmfs.auth import Action, Resource
from lsmfs.gateway import buckets, copies, deletes, listing, multipart, objects, upload_lists
from lsmfs.gateway.addressing import Place
from lsmfs.gateway.answers import Answer
from lsmfs.gateway.calls import Call
from lsmfs.gateway.errors import S3Error
from lsmfs.gateway.request import Request

_S3_HAS = """
    abac accelerate acl analytics annotation append attributes cors delete encryption intelligent-tiering inventory
    legal-hold lifecycle list-type location logging metadataConfiguration metadataInventoryTable metadataJournalTable
    metadataTable metrics notification object-lock ownershipControls partNumber policy policyStatus publicAccessBlock
    renameObject replication requestPayment resourcePolicy restore retention select select-type session tagging torrent
    uploadId uploads versionId versioning versions website"""
SUBRESOURCES = frozenset(_S3_HAS.split())
# Headers that ask for what there is not here, and would be wrong to leave undone without a word.
_REFUSED_HEADERS = (
    b"x-amz-server-side-encryption",  # also -customer-key and -aws-kms-key-id
    b"x-amz-copy-source-server-side-encryption-customer-",
    b"x-amz-object-lock-",
    b"x-amz-tagging",  # also -directive
    b"x-amz-website-redirect-location",
    b"x-amz-write-offset-bytes",
    b"x-amz-rename-source",
)
# AES256 is what the store beneath does by itself, or not: S3's own default, which says nothing about keys.
_HARMLESS = {
    b"x-amz-server-side-encryption": "AES256",
    b"x-amz-server-side-encryption-bucket-key-enabled": "FALSE",
    b"x-amz-tagging-directive": "COPY",
    b"x-amz-tagging": "",
}

Handler = Callable[[Call], Awaitable[Answer]]
Needs = Callable[[Place, Request], tuple[Action, Resource] | None]


class Operation(NamedTuple):
    name: str
    handler: Handler
    needs: Needs
    is_slow: bool = False  # it may take long: then its answer begins before its end is known


def _object(action: Action) -> Needs:
    return lambda place, _: (action, Resource(place.repository, place.ref, place.path))


def _repository(action: Action) -> Needs:
    return lambda place, _: (action, Resource(place.repository))


def _listed(place: Place, request: Request) -> tuple[Action, Resource]:
    prefix = listing.prefix_place(place.repository, request.query.get("prefix", ""))
    if not prefix.slashed:
        return Action.LIST_BRANCHES, Resource(place.repository)
    return Action.LIST_OBJECTS, Resource(place.repository, prefix.ref, prefix.path)


def _installation(place: Place, _: Request) -> tuple[Action, Resource]:
    return Action.LIST_REPOSITORIES, Resource()


def _each_by_itself(place: Place, _: Request) -> None:
    """What it shows or changes is authorised one by one, by the operation."""


_SEES, _READS = _repository(Action.READ_REPOSITORY), _object(Action.READ_OBJECT)
_WRITES, _DELETES = _object(Action.WRITE_OBJECT), _object(Action.DELETE_OBJECT)

_SERVICE = {("GET", ""): Operation("ListBuckets", buckets.list_buckets, _installation)}
_BUCKET = {
    ("HEAD", ""): Operation("HeadBucket", buckets.head_bucket, _SEES),
    ("PUT", ""): Operation("CreateBucket", buckets.create_bucket, _SEES),
    ("DELETE", ""): Operation("DeleteBucket", buckets.delete_bucket, _SEES),
    ("GET", ""): Operation("ListObjects", listing.list_objects, _listed),
    ("GET", "list-type"): Operation("ListObjectsV2", listing.list_objects_v2, _listed),
    ("GET", "location"): Operation("GetBucketLocation", buckets.get_bucket_location, _SEES),
    ("GET", "uploads"): Operation("ListMultipartUploads", upload_lists.list_multipart_uploads, _each_by_itself),
    ("POST", "delete"): Operation("DeleteObjects", deletes.delete_objects, _each_by_itself),
}
_COPY = Operation("CopyObject", copies.copy_object, _WRITES, is_slow=True)
_PART_COPY = Operation("UploadPartCopy", copies.upload_part_copy, _WRITES, is_slow=True)
_OBJECT = {
    ("GET", ""): Operation("GetObject", objects.get_object, _READS),
    ("GET", "partNumber"): Operation("GetObject", objects.get_object, _READS),
    ("HEAD", ""): Operation("HeadObject", objects.get_object, _READS),
    ("HEAD", "partNumber"): Operation("HeadObject", objects.get_object, _READS),
    ("GET", "attributes"): Operation("GetObjectAttributes", objects.get_object_attributes, _READS),
    ("GET", "uploadId"): Operation("ListParts", upload_lists.list_parts, _WRITES),
    ("PUT", ""): Operation("PutObject", objects.put_object, _WRITES),
    ("PUT", "partNumber uploadId"): Operation("UploadPart", multipart.upload_part, _WRITES),
    ("DELETE", ""): Operation("DeleteObject", objects.delete_object, _DELETES),
    ("DELETE", "uploadId"): Operation("AbortMultipartUpload", multipart.abort_multipart_upload, _WRITES),
    ("POST", "uploads"): Operation("CreateMultipartUpload", multipart.create_multipart_upload, _WRITES),
    ("POST", "uploadId"): Operation(
        "CompleteMultipartUpload", multipart.complete_multipart_upload, _WRITES, is_slow=True
    ),
}
_COPIES = {"PutObject": _COPY, "UploadPart": _PART_COPY}
OPERATIONS = (*_SERVICE.values(), *_BUCKET.values(), *_OBJECT.values(), *_COPIES.values())


def operation_of(request: Request, bucket: str, key: str) -> Operation:
    table = _OBJECT if key else _BUCKET if bucket else _SERVICE
    named = _subresources(request) if request.query else ""
    operation = table.get((request.method, named))
    if operation is None:
        if named:
            raise S3Error("NotImplemented", f"{request.method} of ?{named.replace(' ', '&')} is not implemented here.")
        if request.method == "POST":
            raise S3Error("NotImplemented", "POST of forms is not implemented here: use PUT.")
        raise S3Error("MethodNotAllowed", extra={"Method": request.method[:16]})
    _check_headers(request)
    if request.values(b"x-amz-copy-source"):
        operation = _COPIES.get(operation.name, operation)
    return operation


def _subresources(request: Request) -> str:
    named = request.query.keys() & SUBRESOURCES
    if "versionId" in named:
        if request.query["versionId"] not in ("null", ""):
            raise S3Error("NoSuchVersion", "Objects have no versions here: use a branch, a tag or a commit as the ref.")
        named = named - {"versionId"}
    return " ".join(sorted(named))


def _check_headers(request: Request) -> None:
    for name in request.header_names:
        if name.startswith(b"x-amz-") and name.startswith(_REFUSED_HEADERS):
            value = (request.header(name.decode("latin-1")) or "").upper()
            if _HARMLESS.get(name) != value:
                raise S3Error(
                    "NotImplemented", f"The header {name.decode('latin-1')} asks for what is not implemented."
                )
