"""The S3 gateway: what S3 clients send, answered from repositories. Plain ASGI, no framework on the hot path.

The pieces below the operations, and how a request passes through them:

1. `request.Request.from_scope(scope)`            the request as it was sent, decoded once
2. `signatures.find_credentials(request)`         who claims to have sent it: a `Claim`, or None if anonymous
3. the caller looks up the secret of `claim.access_key_id` (unknown: `S3Error("InvalidAccessKeyId")`)
4. `signatures.verify(claim, request, secret, now, bucket=...)`   it is true: a `Verified`; the body is unread
5. `checksums.Checksums.from_request(request)`    what the body must hash to
6. `chunked.decode_body(pieces, verified, checksums)`   the body; ends normally only if all was right
7. `xml.parse` and `xml.document`                 bodies in XML, in and out
8. `errors.from_error(error)` and `errors.render(error, request_id, resource)`   one table of codes
"""
