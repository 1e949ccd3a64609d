"""What a command needs of an installation and of a repository, wherever they are: in process (`local`), or behind a
server (`installation`, `repository`). What each verb promises is told there, and in `lsmfs.repository`."""

from collections.abc import AsyncIterator, Callable, Iterable
from types import TracebackType
from typing import Protocol, Self, TypeVar

import pyarrow as pa

from lsmfs.clock import Clock
from lsmfs.lsm.listing import PAGE_MAX, Page
from lsmfs.model import Entry
from lsmfs.objectstore.store import Span
from lsmfs.policy import Blocked, RepositoryRecord
from lsmfs.settings import Settings
from lsmfs.tree.branching import Deleted
from lsmfs.tree.commits import Commit
from lsmfs.tree.committer import Committed
from lsmfs.tree.diff import Difference
from lsmfs.tree.summary import Summary
from refstore.records import Branch, CommitId, RunId, Stash
from refstore.store import Absent

Rules = str | dict[str, str] | None


class Branches(Protocol):
    async def read(self, name: str) -> Branch: ...


class Tags(Protocol):
    async def find(self, name: str) -> CommitId | None: ...

    def all(self, prefix: str = "", after: str = "") -> AsyncIterator[tuple[str, CommitId]]: ...


class Commits(Protocol):
    async def load(self, identity: CommitId, /) -> Commit: ...


class RunFacts(Protocol):
    def __len__(self) -> int: ...

    @property
    def count(self) -> int: ...

    @property
    def tombstones(self) -> int: ...

    @property
    def size_bytes(self) -> int: ...


class Tables(Protocol):
    async def load_run(self, name: RunId) -> RunFacts: ...


class Writer(Protocol):
    async def __aenter__(self) -> "Writer": ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    async def put(self, key: str | bytes, entry: Entry, expected: str | Absent | None = None) -> None: ...

    async def delete(self, key: str | bytes, expected: str | None = None) -> None: ...

    async def stage(self, table: pa.Table) -> None: ...


class Repository(Protocol):
    name: str

    @property
    def record(self) -> RepositoryRecord: ...

    @property
    def branches(self) -> Branches: ...

    @property
    def tags(self) -> Tags: ...

    @property
    def commits(self) -> Commits: ...

    @property
    def tables(self) -> Tables: ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *_: object) -> None: ...

    async def get(self, ref: str, path: str | bytes) -> Entry: ...

    async def get_many(self, ref: str, paths: Iterable[str | bytes]) -> dict[bytes, Entry]: ...

    async def list(
        self, ref: str, prefix: str = "", delimiter: str = "", after: str = "", limit: int = PAGE_MAX
    ) -> Page: ...

    def scan(self, ref: str, prefix: str = "", after: str = "") -> AsyncIterator[pa.Table]: ...

    def read_object(self, ref: str, path: str, entry: Entry, span: Span | None = None) -> AsyncIterator[bytes]: ...

    async def resolve(self, ref: str) -> CommitId: ...

    def log(
        self,
        ref: str,
        limit: int = 100,
        since_us: int | None = None,
        stop_at: str | None = None,
        first_parent: bool = True,
        path: str | None = None,
        prefix: str | None = None,
    ) -> AsyncIterator[tuple[CommitId, Commit]]: ...

    def list_branches(self, prefix: str = "", after: str = "", hidden: bool = False) -> AsyncIterator[Branch]: ...

    def deleted_branches(self) -> AsyncIterator[Deleted]: ...

    async def stashes(self, branch: str) -> tuple[Stash, ...]: ...

    def diff(self, left: str, right: str, prefix: str = "", three_dot: bool = False) -> AsyncIterator[Difference]: ...

    async def diff_summary(
        self, left: str, right: str, prefix: str = "", delimiter: str = "", three_dot: bool = False
    ) -> dict[str, Summary]: ...

    def diff_uncommitted(self, branch: str, prefix: str = "") -> AsyncIterator[Difference]: ...

    async def uncommitted_summary(self, branch: str, prefix: str = "", delimiter: str = "") -> dict[str, Summary]: ...

    def writer(self, branch: str, actor: str = "") -> Writer: ...

    async def put_object(
        self,
        branch: str,
        path: str,
        body: AsyncIterator[bytes],
        content_type: str | None = None,
        metadata: dict[str, str] | None = None,
        expected: str | Absent | None = None,
    ) -> Entry: ...

    async def append_object(self, branch: str, path: str, body: AsyncIterator[bytes]) -> int: ...

    async def commit(
        self,
        branch: str,
        message: str,
        committer: str = "",
        metadata: dict[str, str] | None = None,
        allow_empty: bool = False,
    ) -> Committed: ...

    async def protect(self, pattern: str, blocks: Iterable[Blocked] = ...) -> None: ...

    async def set_read_only(self, read_only: bool) -> None: ...

    async def set_metadata(self, metadata: dict[str, str]) -> None: ...

    async def create_branch(self, name: str, ref: str, hidden: bool = False) -> Branch: ...

    async def create_tag(self, name: str, ref: str) -> CommitId: ...

    async def delete_tag(self, name: str) -> None: ...

    async def delete_branch(self, name: str) -> None: ...

    async def restore_branch(self, name: str) -> Branch: ...

    async def reset(self, branch: str, prefix: str | None = None, path: str | None = None) -> None: ...

    async def hard_reset(self, branch: str, ref: str, force: bool = False) -> Branch: ...

    async def stash(self, branch: str, message: str = "") -> Stash: ...

    async def pop_stash(self, branch: str, number: int | None = None) -> Stash: ...

    async def drop_stash(self, branch: str, number: int) -> Stash: ...

    async def merge(
        self,
        source: str,
        branch: str,
        message: str = "",
        committer: str = "",
        metadata: dict[str, str] | None = None,
        strategy: Rules = None,
        squash: bool = False,
        fast_forward: bool = False,
        hint: str | None = None,
    ) -> tuple[CommitId, Commit]: ...

    async def preview_merge(self, source: str, branch: str, strategy: Rules = None) -> dict[str, Summary]: ...

    async def merge_hint(self, source: str, branch: str, strategy: Rules = None) -> str: ...

    async def revert(
        self, branch: str, ref: str, parent: int | None = None, message: str = "", committer: str = ""
    ) -> tuple[CommitId, Commit]: ...

    async def cherry_pick(
        self, branch: str, ref: str, parent: int | None = None, message: str = "", committer: str = ""
    ) -> tuple[CommitId, Commit]: ...


R_co = TypeVar("R_co", covariant=True)


class Repositories(Protocol[R_co]):
    """What finds repositories."""

    async def repository(self, name: str, settings: Settings | None = None) -> R_co: ...

    async def record(self, name: str) -> RepositoryRecord: ...

    def names(self) -> AsyncIterator[str]: ...


class Installation(Repositories[Repository], Protocol):
    clock: Clock

    async def create(
        self, name: str, default_branch: str = "main", settings: Settings | None = None, storage: str = ""
    ) -> Repository: ...

    def records(self) -> AsyncIterator[RepositoryRecord]: ...

    async def delete(self, name: str, tell: Callable[[int], None] | None = None) -> int: ...
