"""What goes over the wire, as clients expect it: names and required fields are theirs. Times are seconds."""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from lsmfs.api.paging import Listed
from lsmfs.policy import RepositoryRecord
from lsmfs.tree.commits import Commit as StoredCommit

Second = Annotated[int, Meta(ge=-(2**62), le=2**62)]
Metadata = dict[str, str]
PathType = Literal["object", "common_prefix"]


class Error(Struct, frozen=True):
    message: str


class Repository(Struct, frozen=True):
    id: str
    creation_date: int
    default_branch: str
    storage_namespace: str
    read_only: bool


class RepositoryCreation(Struct, frozen=True):
    name: str
    storage_namespace: str = ""
    storage_id: str = ""
    default_branch: str = "main"
    sample_data: bool = False
    read_only: bool = False


class Ref(Struct, frozen=True):
    id: str
    commit_id: str


class BranchCreation(Struct, frozen=True):
    name: str
    source: str
    force: bool = False
    hidden: bool = False


class TagCreation(Struct, frozen=True):
    id: str
    ref: str
    force: bool = False


class Commit(Struct, frozen=True):
    id: str
    parents: list[str]
    committer: str
    message: str
    creation_date: int
    meta_range_id: str
    metadata: Metadata
    generation: int
    version: int = 1


class CommitCreation(Struct, frozen=True):
    message: str
    metadata: Metadata | None = None
    date: Second | None = None
    allow_empty: bool = False
    force: bool = False


class CommitOverrides(Struct, frozen=True):
    message: str = ""
    metadata: Metadata | None = None


class RevertCreation(Struct, frozen=True):
    ref: str
    parent_number: Annotated[int, Meta(ge=0, le=1000)] = 0
    commit_overrides: CommitOverrides | None = None
    force: bool = False
    allow_empty: bool = False


class CherryPickCreation(Struct, frozen=True):
    ref: str
    parent_number: Annotated[int, Meta(ge=0, le=1000)] | None = None
    commit_overrides: CommitOverrides | None = None
    force: bool = False


class ResetCreation(Struct, frozen=True):
    type: Literal["object", "common_prefix", "reset", "staged"]
    path: str | None = None
    force: bool = False


class Merge(Struct, frozen=True):
    message: str = ""
    metadata: Metadata | None = None
    strategy: str = ""
    force: bool = False
    allow_empty: bool = False
    squash_merge: bool = False
    hint: str | None = None
    """Ours: what `merge_hint` gave."""


class MergeResult(Struct, frozen=True):
    reference: str


class MergeBase(Struct, frozen=True):
    source_commit_id: str
    destination_commit_id: str
    base_commit_id: str


class RightStat(Struct, frozen=True):
    checksum: str
    mtime: int
    content_type: str
    metadata: Metadata


class Diff(Struct, frozen=True):
    type: Literal["added", "removed", "changed", "conflict", "prefix_changed"]
    path: str
    path_type: PathType
    size_bytes: int | UnsetType = UNSET
    right: RightStat | UnsetType = UNSET


class ObjectStats(Struct, frozen=True):
    path: str
    path_type: PathType
    physical_address: str
    checksum: str
    mtime: int
    size_bytes: int | UnsetType = UNSET
    content_type: str | UnsetType = UNSET
    metadata: Metadata | UnsetType = UNSET


class ObjectCopy(Struct, frozen=True):
    src_path: str
    src_ref: str | None = None
    force: bool = False
    shallow: bool = False


class PathList(Struct, frozen=True):
    paths: Annotated[list[str], Meta(max_length=1000)]


class ObjectError(Struct, frozen=True):
    status_code: int
    message: str
    path: str


class ObjectErrors(Struct, frozen=True):
    errors: list[ObjectError]


class MetadataUpdate(Struct, frozen=True):
    set: Metadata


class StagingLocation(Struct, frozen=True):
    physical_address: str | None = None
    presigned_url: str | None = None
    presigned_url_expiry: int | None = None


class StagingMetadata(Struct, frozen=True):
    staging: StagingLocation
    checksum: str
    size_bytes: Annotated[int, Meta(ge=0, le=2**62)]
    user_metadata: Metadata | None = None
    content_type: str | None = None
    mtime: Second | None = None
    force: bool = False


class ObjectStage(Struct, frozen=True):
    physical_address: str
    checksum: str
    size_bytes: Annotated[int, Meta(ge=0, le=2**62)]
    mtime: Annotated[int, Meta(ge=-(2**40), le=2**40)] | None = None
    metadata: Metadata | None = None
    content_type: str | None = None
    force: bool = False


def commit_of(identity: str, commit: StoredCommit) -> Commit:
    return Commit(
        identity,
        list(commit.parents),
        commit.committer,
        commit.message,
        commit.created_us // 1_000_000,
        commit.metarange,
        commit.metadata,
        commit.generation,
    )


def repository_of(record: RepositoryRecord) -> Repository:
    """A store that the installation has for all is not named: where it is, is the administrator's business."""
    storage = record.storage.partition("?")[0] or f"local://{record.name}"
    return Repository(record.name, record.created_us // 1_000_000, record.default_branch, storage, record.read_only)


Repositories = Listed[Repository]
Refs = Listed[Ref]
CommitList = Listed[Commit]
Diffs = Listed[Diff]
ObjectList = Listed[ObjectStats]
