"""Errors as S3 clients read them: one table of codes, and one from our categories to codes.

    S3Error(code, message=None, *, extra=None, headers=None)   .code .status .message .extra .headers
    from_error(error, *, missing="NoSuchKey", existing="BucketAlreadyExists", conflict="OperationAborted") -> S3Error
    render(error, request_id, resource) -> bytes               the XML body

A status is never written at the place of raising: it follows from the code. What we did not foresee, and what is
wrong with our own data, becomes InternalError and says nothing of its cause: that goes to the log.
"""

from collections.abc import Mapping

from lsmfs.gateway.markup import DECLARATION, element
from refstore import errors

RETRY_AFTER_SECONDS = 1  # clients back off by themselves; this only keeps the simple ones from hammering

# code: (status, what is said when the place of raising has nothing better)
CODES: dict[str, tuple[int, str]] = {
    "AccessDenied": (403, "Access Denied"),
    "AuthorizationHeaderMalformed": (400, "The authorization header that you provided is not valid."),
    "AuthorizationQueryParametersError": (400, "The query parameters of the presigned URL are not valid."),
    "BadDigest": (400, "The Content-MD5 or checksum value that you specified did not match what the server received."),
    "BadRequest": (400, "Bad Request"),
    "BucketAlreadyExists": (409, "The requested bucket name is not available. Select a different name and try again."),
    "BucketAlreadyOwnedByYou": (409, "The bucket that you tried to create already exists, and you own it."),
    "BucketNotEmpty": (409, "The bucket that you tried to delete is not empty."),
    "ConditionalRequestConflict": (409, "A conflicting operation occurred during the request. Try again."),
    "EntityTooLarge": (400, "Your proposed upload exceeds the maximum allowed object size."),
    "EntityTooSmall": (400, "Your proposed upload is smaller than the minimum allowed object size."),
    "IllegalLocationConstraintException": (400, "The location constraint is not possible here."),
    "IncompleteBody": (400, "You did not provide the number of bytes specified by the Content-Length HTTP header."),
    "InternalError": (500, "We encountered an internal error. Please try again."),
    "InvalidAccessKeyId": (403, "The AWS access key ID that you provided does not exist in our records."),
    "InvalidArgument": (400, "Invalid Argument"),
    "InvalidBucketName": (400, "The specified bucket is not valid."),
    "InvalidBucketState": (409, "The request is not possible with the current state of the bucket."),
    "InvalidDigest": (400, "The Content-MD5 you specified was invalid."),
    "InvalidObjectState": (403, "The operation is not valid for the object's state."),
    "InvalidPart": (400, "One or more of the specified parts could not be found, or its ETag did not match."),
    "InvalidPartNumber": (416, "The requested part number is not satisfiable."),
    "InvalidPartOrder": (400, "The list of parts was not in ascending order of part number."),
    "InvalidRange": (416, "The requested range is not satisfiable."),
    "InvalidRequest": (400, "Invalid Request"),
    "InvalidToken": (400, "The provided token is malformed or otherwise not valid."),
    "InvalidURI": (400, "The specified URI couldn't be parsed."),
    "KeyTooLongError": (400, "Your key is too long."),
    "MalformedTrailerError": (400, "The trailing headers of the body are malformed."),
    "MalformedXML": (400, "The XML you provided was not well-formed or did not validate against our schema."),
    "MaxMessageLengthExceeded": (400, "Your request was too large."),
    "MetadataTooLarge": (400, "Your metadata headers exceed the maximum allowed metadata size."),
    "MethodNotAllowed": (405, "The specified method is not allowed against this resource."),
    "MissingContentLength": (411, "You must provide the Content-Length HTTP header."),
    "MissingSecurityHeader": (400, "Your request was missing a required header."),
    "NoSuchBucket": (404, "The specified bucket does not exist."),
    "NoSuchBucketPolicy": (404, "The bucket policy does not exist."),
    "NoSuchCORSConfiguration": (404, "The CORS configuration does not exist."),
    "NoSuchKey": (404, "The specified key does not exist."),
    "NoSuchLifecycleConfiguration": (404, "The lifecycle configuration does not exist."),
    "NoSuchTagSet": (404, "The TagSet does not exist."),
    "NoSuchUpload": (404, "The specified multipart upload does not exist. It may have been aborted or completed."),
    "NoSuchVersion": (404, "The specified version does not exist."),
    "NotImplemented": (501, "A header or query you provided implies functionality that is not implemented."),
    "NotModified": (304, "Not Modified"),
    "OperationAborted": (409, "A conflicting conditional operation is in progress against this resource. Try again."),
    "PreconditionFailed": (412, "At least one of the preconditions that you specified did not hold."),
    "RequestTimeTooSkewed": (403, "The difference between the request time and the server's time is too large."),
    "RequestTimeout": (400, "Your socket connection to the server was not read from or written to in time."),
    "ServerSideEncryptionConfigurationNotFoundError": (404, "The encryption configuration was not found."),
    "ServiceUnavailable": (503, "Service is unable to handle the request now. Try again."),
    "SignatureDoesNotMatch": (403, "The request signature that the server calculated does not match yours."),
    "SlowDown": (503, "Please reduce your request rate."),
    "XAmzContentSHA256Mismatch": (400, "The provided 'x-amz-content-sha256' header does not match what was computed."),
}

# Narrow before wide: the first that fits is taken. None: by the context that the caller names.
_CATEGORIES: tuple[tuple[type[errors.Error], str | None], ...] = (
    (errors.LayersFull, "SlowDown"),
    (errors.WriterUnknown, "ServiceUnavailable"),  # ours to open a new one: to the client only "try again"
    (errors.GenerationStale, "ServiceUnavailable"),
    (errors.NotFound, None),
    (errors.AlreadyExists, None),
    (errors.Conflict, None),
    (errors.Invalid, "InvalidArgument"),
    (errors.Denied, "AccessDenied"),
    (errors.Unavailable, "ServiceUnavailable"),
    (errors.Corrupt, "InternalError"),
)


class S3Error(errors.Error):
    """An answer with a code. `extra` are further elements of its XML, `headers` further headers of the answer."""

    def __init__(
        self,
        code: str,
        message: str | None = None,
        *,
        extra: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.code = code
        self.status, usual = CODES[code]
        self.message = message or usual
        self.extra: dict[str, str] = dict(extra or {})
        self.headers: dict[str, str] = dict(headers or {})
        if self.status == 503:
            self.headers.setdefault("retry-after", str(RETRY_AFTER_SECONDS))
        super().__init__(f"{code}: {self.message}")


def from_error(
    error: BaseException,
    *,
    missing: str = "NoSuchKey",
    existing: str = "BucketAlreadyExists",
    conflict: str = "OperationAborted",
) -> S3Error:
    """The answer for any exception; the caller says what NotFound, AlreadyExists and Conflict mean here."""
    if isinstance(error, S3Error):
        return error
    code = _code_of(error, missing, existing, conflict)
    told = CODES[code][0] < 500
    return S3Error(code, str(error) if told else None)


def _code_of(error: BaseException, missing: str, existing: str, conflict: str) -> str:
    by_context: dict[type[errors.Error], str] = {
        errors.NotFound: missing,
        errors.AlreadyExists: existing,
        errors.Conflict: conflict,
    }
    for category, code in _CATEGORIES:
        if isinstance(error, category):
            return code or by_context[category]
    return "InternalError"


def render(error: S3Error, request_id: str, resource: str) -> bytes:
    """The body of the answer; the caller leaves it out for HEAD and for 304."""
    extra = "".join(element(name, value) for name, value in error.extra.items())
    return (
        f"{DECLARATION}<Error>{element('Code', error.code)}{element('Message', error.message)}"
        f"{element('Resource', resource)}{extra}{element('RequestId', request_id)}</Error>"
    ).encode()
