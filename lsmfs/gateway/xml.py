"""XML bodies: out by `markup`, whose functions are named here too, and in by a parser that trusts nobody.

    escape(text), element(name, text), document(root, *children), url_encode_key(key)     see markup
    parse(data, root, bytes_max=PARSED_BYTES_MAX) -> Element     S3Error MalformedXML, MaxMessageLengthExceeded

No DTD, so no entities but XML's own five; size, depth and number of elements are bounded. Namespaces are dropped,
since some clients send none: `found.findtext("Key")` just works. Parsing costs some microseconds per element: call it
in a thread for bodies that may have thousands.
"""

from xml.etree.ElementTree import Element, ParseError, TreeBuilder

from defusedxml.common import DefusedXmlException
from defusedxml.ElementTree import DefusedXMLParser

from lsmfs.gateway.errors import S3Error
from lsmfs.gateway.markup import DECLARATION, NAMESPACE, document, element, escape, url_encode_key

__all__ = ["DECLARATION", "NAMESPACE", "Element", "document", "element", "escape", "parse", "url_encode_key"]

PARSED_BYTES_MAX = (
    4 << 20
)  # 1,000 keys of 1,024 bytes with each third byte escaped, or 10,000 parts with checksums, fit
DEPTH_MAX = 16  # S3's deepest request body has six levels
ELEMENTS_MAX = 100_000  # 10,000 parts, each with number, ETag and all five checksums


class _Bounded(TreeBuilder):
    """Builds elements without namespaces, and stops at what no S3 request has."""

    def __init__(self) -> None:
        super().__init__()
        self._depth = self._elements = 0

    def start(self, tag: str, attrs: dict[str, str]) -> Element:
        self._depth += 1
        self._elements += 1
        if self._depth > DEPTH_MAX or self._elements > ELEMENTS_MAX:
            raise S3Error("MalformedXML", f"Nested deeper than {DEPTH_MAX} or more than {ELEMENTS_MAX} elements.")
        return super().start(_local(tag), attrs)

    def end(self, tag: str) -> Element:
        self._depth -= 1
        return super().end(_local(tag))


def _local(tag: str) -> str:
    return tag.rpartition("}")[2]


def parse(data: bytes, root: str, bytes_max: int = PARSED_BYTES_MAX) -> Element:
    """The root element of the body, which must be called `root`."""
    if len(data) > bytes_max:
        raise S3Error("MaxMessageLengthExceeded", f"The body has {len(data)} bytes: at most {bytes_max} are read.")
    parser = DefusedXMLParser(target=_Bounded(), forbid_dtd=True, forbid_entities=True, forbid_external=True)
    try:
        parser.feed(data)
        found: Element = parser.close()
    except (ParseError, DefusedXmlException, ValueError, LookupError) as problem:
        # LookupError: an encoding that nobody knows; ValueError: one that Python refuses (multi-byte)
        raise S3Error("MalformedXML") from problem
    if found.tag != root:
        raise S3Error("MalformedXML", f"The root element must be {root}.")
    return found
