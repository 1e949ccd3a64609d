"""Numbers and tokens in queries of lists.

A continuation token is where a page ended, in a form that invites nobody to make one up. It grants nothing: whoever
forges one begins at another place of a listing that they may read.
"""

import base64
import binascii

from lsmfs.gateway.errors import S3Error

_MARK = b"\x01"  # of the token's form
TOKEN_CHARACTERS_MAX = 4096  # a key of 1,024 bytes has 1,400
_NUMBER_DIGITS_MAX = 10


def token_of(after: str) -> str:
    return base64.urlsafe_b64encode(_MARK + after.encode()).decode()


def read_token(token: str) -> str:
    """Where the page before ended; S3Error InvalidArgument for what `token_of` did not make."""
    try:
        if len(token) > TOKEN_CHARACTERS_MAX:
            raise ValueError("too long")
        data = base64.b64decode(token.encode("ascii"), altchars=b"-_", validate=True)
        if data[:1] == _MARK and len(data) > 1:
            return data[1:].decode()
    except (ValueError, binascii.Error):
        pass
    raise S3Error("InvalidArgument", "The continuation token provided is incorrect")


def number_of(text: str | None, name: str, most: int, least: int = 0) -> int:
    """A number of a query, at most `most`: what is more means that; none or an empty one too."""
    if not text:
        return most
    if not (text.isascii() and text.isdigit() and len(text) <= _NUMBER_DIGITS_MAX) or int(text) < least:
        extra = {"ArgumentName": name, "ArgumentValue": text[:80]}
        raise S3Error("InvalidArgument", f"Argument {name} must be an integer of {least} or more", extra=extra)
    return min(int(text), most)
