"""Which requests are S3's: those signed the AWS way, and those to a host under the S3 domain. One port serves all."""

import re

from lsmfs.asgi import Scope

_SIGNED_HEADER = (b"AWS4-HMAC-SHA256", b"AWS ")
_SIGNED_QUERY = re.compile(rb"(?:^|&)(?:X-Amz-(?:Algorithm|Signature|Credential)|AWSAccessKeyId)=", re.IGNORECASE)


class Routing:
    def __init__(self, domain_names: tuple[str, ...]) -> None:
        self._domains = tuple(name.lower().encode() for name in domain_names)

    def is_s3(self, scope: Scope) -> bool:
        for name, value in scope["headers"]:
            if name == b"authorization" and value.startswith(_SIGNED_HEADER):
                return True
            if name == b"host" and self._is_domain(value):
                return True
        query = scope["query_string"]
        return bool(query) and _SIGNED_QUERY.search(query) is not None

    def _is_domain(self, host: bytes) -> bool:
        name = host.rpartition(b":")[0].lower() if b":" in host else host.lower()
        return any(name == domain or name.endswith(b"." + domain) for domain in self._domains)
