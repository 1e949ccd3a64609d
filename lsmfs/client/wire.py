"""What the lsmfs client and the server say to each other: our own records, exactly, as JSON. Both ends use these.

lakeFS's shapes (`lsmfs.api.wire`) round times to seconds and know neither extents nor layers; these lose nothing. They
are below `/api/v1/lsmfs`. A stream has a JSON value on each line. An error has its class in the header `ERROR_HEADER`,
where the status alone would leave it open.
"""

from typing import Annotated

from msgspec import Meta, Struct

from lsmfs.model import Entry, Extent
from lsmfs.policy import Blocked, RepositoryRecord
from lsmfs.tree.branching import Deleted
from lsmfs.tree.commits import Commit
from lsmfs.tree.summary import Summary
from refstore.records import Branch, Stash

BASE = "/lsmfs/repositories"
ERROR_HEADER = "x-lsmfs-error"
OBJECT_HEADER = "x-lsmfs-object"
LINES = "application/x-ndjson"
PAGE_MAX = 1000
BATCH_MAX = 1000  # paths or writes in one request: JSON of some 300 KB
RULES_MAX = 1000  # of one merge

Amount = Annotated[int, Meta(ge=1, le=PAGE_MAX)]
Count = Annotated[int, Meta(ge=0, le=2**62)]


class RecordPage(Struct, frozen=True):
    records: list[RepositoryRecord]
    has_more: bool


class Metadata(Struct, frozen=True):
    metadata: dict[str, str]


class Protection(Struct, frozen=True):
    pattern: Annotated[str, Meta(min_length=1, max_length=255)]
    blocks: tuple[Blocked, ...]


class Removed(Struct, frozen=True):
    objects: int


class BranchPage(Struct, frozen=True):
    branches: list[Branch]
    has_more: bool


class DeletedBranches(Struct, frozen=True):
    branches: list[Deleted]


class RunFacts(Struct, frozen=True):
    """What a run is, without its ranges."""

    ranges: int
    count: int
    tombstones: int
    size_bytes: int

    def __len__(self) -> int:
        return self.ranges


class Made(Struct, frozen=True):
    """A commit, and its id; `raced` if it is another committer's."""

    id: str
    commit: Commit
    raced: bool = False


class Paths(Struct, frozen=True):
    ref: str
    paths: Annotated[list[str], Meta(max_length=BATCH_MAX)]


class Found(Struct, frozen=True):
    entries: list[tuple[str, Entry]]


class Page(Struct, frozen=True):
    """Entries and common prefixes (None) of a listing."""

    items: list[tuple[str, Entry | None]]
    after: str | None


class DifferenceLine(Struct, frozen=True, array_like=True):
    type: str
    path: str
    before: Entry | None
    after: Entry | None


class Counts(Struct, frozen=True):
    """Of a summary: added, removed, changed, bytes before and after, by prefix."""

    parts: dict[str, Summary]


class Commitment(Struct, frozen=True):
    message: str
    metadata: dict[str, str] = {}
    allow_empty: bool = False


class Merging(Struct, frozen=True):
    source: str
    message: str = ""
    metadata: dict[str, str] = {}
    rules: Annotated[dict[str, str], Meta(max_length=RULES_MAX)] = {}
    """Who wins below each prefix; "" is for all others."""
    squash: bool = False
    fast_forward: bool = False
    hint: str | None = None


class Hint(Struct, frozen=True):
    hint: str


class Step(Struct, frozen=True):
    """A commit to revert or to pick."""

    ref: str
    parent: Annotated[int, Meta(ge=1, le=1000)] | None = None
    message: str = ""


class ClashLine(Struct, frozen=True, array_like=True):
    path: str
    base: Entry | None
    source: Entry | None
    destination: Entry | None


class Clashes(Struct, frozen=True):
    """The body of a merge's conflict."""

    message: str
    count: int
    clashes: list[ClashLine]


class Stashing(Struct, frozen=True):
    message: str = ""


class StashTaking(Struct, frozen=True):
    number: Count | None = None
    drop: bool = False


class StashDone(Struct, frozen=True):
    stash: Stash


class Write(Struct, frozen=True):
    """A put of an entry; an append of extents; a delete, if there is neither."""

    path: str
    entry: Entry | None = None
    extents: list[Extent] | None = None
    absent: bool = False
    expected: str | None = None


class Writes(Struct, frozen=True):
    writes: Annotated[list[Write], Meta(min_length=1, max_length=BATCH_MAX)]


class Failure(Struct, frozen=True):
    error: str
    message: str


class Written(Struct, frozen=True):
    """For each write its failure, or None."""

    failures: list[Failure | None]


class ObjectFacts(Struct, frozen=True):
    """In a header of an upload: header values are ASCII, and names of headers have no case; JSON keeps both."""

    content_type: str | None = None
    metadata: dict[str, str] | None = None
