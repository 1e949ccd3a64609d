"""A repository behind a server, as its readers see it: the verbs of `lsmfs.reader.Reader`, one request for each.

`branches`, `tags`, `commits` and `tables` have what commands ask of them. Reads of a branch see every write that was
acknowledged before. Up to `BATCH_MAX` paths are read at one version.
"""

from collections.abc import AsyncIterator, Iterable
from typing import Self

import pyarrow as pa
from msgspec import Struct

from lsmfs.client import wire
from lsmfs.client.arrow import read_tables
from lsmfs.client.transport import RETRY_SECONDS_MAX, Transport, path_of
from lsmfs.lsm import records
from lsmfs.lsm.listing import PAGE_MAX, Page
from lsmfs.model import Entry, check_branch_name, key_of
from lsmfs.objectstore.store import Span
from lsmfs.policy import RepositoryRecord
from lsmfs.reader import part_of
from lsmfs.tree.branching import Deleted
from lsmfs.tree.commits import Commit
from lsmfs.tree.diff import Difference
from lsmfs.tree.revision import parse_revision
from lsmfs.tree.summary import Summary
from refstore.errors import Conflict, Invalid, NotFound, Unavailable
from refstore.records import Branch, CommitId, RunId, Stash


class RemoteBranches:
    def __init__(self, transport: Transport, repository: str) -> None:
        self._transport = transport
        self._at = wire.BASE + path_of(repository)

    async def read(self, name: str) -> Branch:
        """The branch as of now; `NotFound`."""
        return await self._transport.read(f"{self._at}/branches{path_of(_given(name, 'branch'))}", Branch)

    async def all(self, prefix: str = "", after: str = "", hidden: bool = False) -> AsyncIterator[Branch]:
        has_more = True
        while has_more:
            query = {"prefix": prefix, "after": after, "hidden": hidden}
            page = await self._transport.read(f"{self._at}/branches", wire.BranchPage, query)
            for branch in page.branches:
                yield branch
                after = branch.name
            has_more = page.has_more and bool(page.branches)


class _Pagination(Struct, frozen=True):
    has_more: bool
    next_offset: str


class _Tag(Struct, frozen=True):
    id: str
    commit_id: str


class _TagPage(Struct, frozen=True):
    pagination: _Pagination
    results: list[_Tag]


class RemoteTags:
    def __init__(self, transport: Transport, repository: str) -> None:
        self._transport = transport
        self._at = "/repositories" + path_of(repository) + "/tags"

    async def find(self, name: str) -> CommitId | None:
        try:
            check_branch_name(name, "tag")
            return CommitId((await self._transport.read(self._at + path_of(name), _Tag)).commit_id)
        except (NotFound, Invalid):
            return None

    async def all(self, prefix: str = "", after: str = "") -> AsyncIterator[tuple[str, CommitId]]:
        """In ascending order of the name."""
        has_more = True
        while has_more:
            query = {"prefix": prefix, "after": after, "amount": wire.PAGE_MAX}
            page = await self._transport.read(self._at, _TagPage, query)
            for tag in page.results:
                yield tag.id, CommitId(tag.commit_id)
            has_more, after = page.pagination.has_more, page.pagination.next_offset


class RemoteCommits:
    def __init__(self, transport: Transport, repository: str) -> None:
        self._transport = transport
        self._at = wire.BASE + path_of(repository) + "/commits"

    async def load(self, identity: str) -> Commit:
        return (await self.find(identity)).commit

    async def find(self, ref: str) -> wire.Made:
        """The commit that a revision names, and its id."""
        parse_revision(ref)
        return await self._transport.read(self._at + path_of(ref), wire.Made)


class RemoteTables:
    def __init__(self, transport: Transport, repository: str) -> None:
        self._transport = transport
        self._at = wire.BASE + path_of(repository) + "/runs"

    async def load_run(self, name: RunId) -> wire.RunFacts:
        return await self._transport.read(self._at + path_of(_given(name, "run")), wire.RunFacts)


class RemoteReader:
    def __init__(self, transport: Transport, record: RepositoryRecord) -> None:
        self.name = record.name
        self.record = record
        self.clock = transport.clock
        self.transport = transport
        self.at = wire.BASE + path_of(record.name)
        self.branches = RemoteBranches(transport, record.name)
        self.tags = RemoteTags(transport, record.name)
        self.commits = RemoteCommits(transport, record.name)
        self.tables = RemoteTables(transport, record.name)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """The connections belong to the installation."""

    async def get(self, ref: str, path: str | bytes) -> Entry:
        """The entry at the path, on a branch or at any revision; `NotFound`."""
        key = key_of(path)
        found = await self.get_many(ref, [key])
        if key not in found:
            raise NotFound(f"{key.decode()!r} does not exist on {ref!r}")
        return found[key]

    async def get_many(self, ref: str, paths: Iterable[str | bytes]) -> dict[bytes, Entry]:
        """The entries of those paths that exist."""
        names = [key_of(path).decode() for path in paths]
        found: dict[bytes, Entry] = {}
        for start in range(0, len(names), wire.BATCH_MAX):
            body = wire.Paths(ref, names[start : start + wire.BATCH_MAX])
            part = await self.transport.read(f"{self.at}/entries", wire.Found, body=body)
            found |= {name.encode(): entry for name, entry in part.entries}
        return found

    async def list(
        self, ref: str, prefix: str = "", delimiter: str = "", after: str = "", limit: int = PAGE_MAX
    ) -> Page:
        """A page of entries and common prefixes in byte order of the path."""
        amount = max(1, min(limit, wire.PAGE_MAX))
        query = {"ref": ref, "prefix": prefix, "delimiter": delimiter, "after": after, "limit": amount}
        page = await self.transport.read(f"{self.at}/list", wire.Page, query)
        items = [(name.encode(), entry) for name, entry in page.items]
        return Page(items, None if page.after is None else page.after.encode())

    async def scan(self, ref: str, prefix: str = "", after: str = "") -> AsyncIterator[pa.Table]:
        """Every live record as Arrow tables in key order. If the answer breaks off, it goes on from the last key."""
        parse_revision(ref)
        path = f"/repositories{path_of(self.name)}/refs{path_of(ref)}/entries"
        deadline, attempt = self.clock.monotonic() + RETRY_SECONDS_MAX, 0
        while True:
            try:
                query = {"prefix": prefix, "after": after}
                async with self.transport.stream("GET", path, query, repeatable=True) as response:
                    async for rows in read_tables(self.transport.pieces(response)):
                        kinds = pa.repeat(pa.scalar(records.PUT, pa.uint8()), len(rows))
                        yield rows.add_column(1, records.SCHEMA.field("kind"), kinds)
                        after = rows["key"][-1].as_py()
                        deadline, attempt = self.clock.monotonic() + RETRY_SECONDS_MAX, 0
                return
            except Unavailable:
                if self.clock.monotonic() > deadline:
                    raise
                await self.transport.wait(attempt)
                attempt += 1

    async def read_object(self, ref: str, path: str, entry: Entry, span: Span | None = None) -> AsyncIterator[bytes]:
        """The object's bytes, or those of the span, while it is the one that the entry describes; else `Conflict`. If
        the answer breaks off, it goes on where that was."""
        start, stop = span or Span(0, entry.size_bytes)
        if not 0 <= start <= stop <= entry.size_bytes:
            raise Invalid(f"{entry.address!r} has {entry.size_bytes} bytes, not {start} to {stop}")
        deadline, attempt = self.clock.monotonic() + RETRY_SECONDS_MAX, 0
        while start < stop:
            try:
                async for piece in self._bytes(ref, path, entry, start, stop):
                    yield piece
                    start += len(piece)
                    deadline, attempt = self.clock.monotonic() + RETRY_SECONDS_MAX, 0
            except Unavailable:
                if self.clock.monotonic() > deadline:
                    raise
                await self.transport.wait(attempt)
                attempt += 1

    async def _bytes(self, ref: str, path: str, entry: Entry, start: int, stop: int) -> AsyncIterator[bytes]:
        url = f"/repositories{path_of(self.name)}/refs{path_of(ref)}/objects"
        headers = {} if (start, stop) == (0, entry.size_bytes) else {"range": f"bytes={start}-{stop - 1}"}
        async with self.transport.stream("GET", url, {"path": path}, headers=headers, repeatable=True) as response:
            there = response.headers.get("etag", "").strip('"')
            if there and there != entry.etag:
                raise Conflict(f"{path!r} on {ref!r} was changed while it was read: read it again")
            left = stop - start
            async for piece in self.transport.pieces(response):
                yield piece[:left]
                left -= min(left, len(piece))
            if left:
                raise Unavailable(f"{path!r}: the server sent {left} bytes too few: try again")

    async def resolve(self, ref: str) -> CommitId:
        """The commit that a revision names: of a branch its newest one, without what is staged."""
        return CommitId((await self.commits.find(ref)).id)

    async def log(
        self,
        ref: str,
        limit: int = 100,
        since_us: int | None = None,
        stop_at: str | None = None,
        first_parent: bool = True,
        path: str | None = None,
        prefix: str | None = None,
    ) -> AsyncIterator[tuple[CommitId, Commit]]:
        """Commits from the newest, as `Reader.log` says."""
        part_of(path, prefix)
        query = {
            "ref": ref,
            "limit": max(0, limit),
            "since_us": since_us,
            "stop_at": stop_at,
            "first_parent": first_parent,
            "path": path,
            "prefix": prefix,
        }
        async for made in self.transport.lines(f"{self.at}/log", wire.Made, query):
            yield CommitId(made.id), made.commit

    def list_branches(self, prefix: str = "", after: str = "", hidden: bool = False) -> AsyncIterator[Branch]:
        """Branches in ascending order of their names; hidden ones only if asked for."""
        return self.branches.all(prefix, after, hidden)

    async def deleted_branches(self) -> AsyncIterator[Deleted]:
        """The branches that can be restored."""
        for each in (await self.transport.read(f"{self.at}/deleted_branches", wire.DeletedBranches)).branches:
            yield each

    async def stashes(self, branch: str) -> tuple[Stash, ...]:
        """The stashes of a branch, the latest last."""
        return (await self.branches.read(check_branch_name(branch))).aside.stashes

    def diff(self, left: str, right: str, prefix: str = "", three_dot: bool = False) -> AsyncIterator[Difference]:
        """What differs between two revisions, in order of the path, as `Reader.diff` says."""
        return self._differences({"left": left, "right": right, "prefix": prefix, "three_dot": three_dot})

    def diff_uncommitted(self, branch: str, prefix: str = "") -> AsyncIterator[Difference]:
        """What is staged on a branch and differs from its newest commit."""
        return self._differences({"left": branch, "prefix": prefix})

    async def _differences(self, query: dict[str, object]) -> AsyncIterator[Difference]:
        async for line in self.transport.lines(f"{self.at}/diff", wire.DifferenceLine, query):
            yield Difference(line.type, line.path.encode(), line.before, line.after)

    async def diff_summary(
        self, left: str, right: str, prefix: str = "", delimiter: str = "", three_dot: bool = False
    ) -> dict[str, Summary]:
        """The same as counts and bytes, for each directory below the prefix if there is a delimiter."""
        query = {"left": left, "right": right, "prefix": prefix, "delimiter": delimiter, "three_dot": three_dot}
        return (await self.transport.read(f"{self.at}/summary", wire.Counts, query)).parts

    async def uncommitted_summary(self, branch: str, prefix: str = "", delimiter: str = "") -> dict[str, Summary]:
        query = {"left": branch, "prefix": prefix, "delimiter": delimiter}
        return (await self.transport.read(f"{self.at}/summary", wire.Counts, query)).parts


def _given(name: str, what: str) -> str:
    if not name:
        raise Invalid(f"the {what}'s name is empty")
    return name
