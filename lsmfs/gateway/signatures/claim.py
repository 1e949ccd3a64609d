"""What a request says of itself: who signed it, when, and over what. Nothing of it is true before `verify`."""

from dataclasses import dataclass
from enum import Enum


class Kind(Enum):
    V4_HEADER = "AWS4 header"
    V4_QUERY = "AWS4 presigned"
    V2_HEADER = "AWS header"
    V2_QUERY = "AWS presigned"


@dataclass(frozen=True, slots=True)
class Claim:
    kind: Kind
    access_key_id: str
    signature: str
    signed_at: int | None  # seconds since 1970; None for SigV2 presigned, which says only when it ends
    expires_at: int | None  # presigned only
    date: str = ""  # V4: the scope's date, YYYYMMDD
    region: str = ""  # V4: the scope's region
    signed_headers: tuple[str, ...] = ()  # V4; SigV2 signs a fixed set

    @property
    def presigned(self) -> bool:
        return self.kind in (Kind.V4_QUERY, Kind.V2_QUERY)
