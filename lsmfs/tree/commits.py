"""Commit objects: immutable, in the bucket, named by the hash of what they say.

The hash is of logical content: the metarange counts by its content, not by where its file is.
"""

import hashlib
import re

import msgspec

from lsmfs import paths
from lsmfs.objectstore.content import put_content
from lsmfs.objectstore.store import ObjectStore
from lsmfs.tree.clocks import Clock, ClockIndex, before
from refstore.errors import Corrupt, Invalid
from refstore.records import CommitId, RunId

CANDIDATES_MAX = 8
_BEGINNING = re.compile(r"[0-9a-f]{4,64}")  # fewer characters are more often a typing error
COMMITS_KEPT = 4096  # a commit is about 500 bytes


class Commit(msgspec.Struct, frozen=True):
    parents: tuple[CommitId, ...]
    metarange: RunId
    message: str
    committer: str
    created_us: int
    generation: int
    metadata: dict[str, str] = {}
    clock: Clock = ()

    @property
    def id(self) -> CommitId:
        content = msgspec.json.encode(
            {
                "parents": self.parents,
                "metarange": paths.parse_run(self.metarange)[1],
                "message": self.message,
                "committer": self.committer,
                "created_us": self.created_us,
                "generation": self.generation,
                "metadata": self.metadata,
                "clock": self.clock,
            },
            order="sorted",
        )
        return CommitId(hashlib.sha256(content).hexdigest())


def check_words(message: str, committer: str, metadata: dict[str, str]) -> None:
    """`Invalid` if a commit with these words could not be read back."""
    commit = Commit((), RunId(""), message, committer, 0, 0, metadata)
    try:
        if msgspec.json.decode(msgspec.json.encode(commit), type=Commit) != commit:
            raise Invalid("a commit's metadata maps text to text")
    except (msgspec.MsgspecError, UnicodeEncodeError) as error:
        raise Invalid(f"a commit's message, committer and metadata are text: {error}") from None


def _decoded(identity: CommitId, data: bytes) -> Commit:
    try:
        commit = msgspec.json.decode(data, type=Commit)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Corrupt(f"commit {identity} cannot be read: {error}") from None
    if commit.id != identity:
        raise Corrupt(f"commit {identity} does not have the content that its name says")
    return commit


class Commits:
    """The commits of one repository."""

    def __init__(self, store: ObjectStore, repository: str, index: ClockIndex) -> None:
        self._store = store
        self._repository = repository
        self._index = index
        self._kept: dict[CommitId, Commit] = {}

    async def save(self, commit: Commit) -> CommitId:
        identity = commit.id
        await put_content(self._store, paths.commit_path(self._repository, identity), msgspec.json.encode(commit))
        await self._index.add(identity, commit)
        self._keep(identity, commit)
        return identity

    async def load(self, identity: CommitId) -> Commit:
        found = self._kept.get(identity)
        if found is not None:
            return found
        commit = _decoded(identity, await self._store.get(paths.commit_path(self._repository, identity)))
        self._keep(identity, commit)
        return commit

    async def load_line(self, identity: CommitId, limit: int) -> Commit:
        """The commit; and, in one round trip, those before it by first parents, up to `limit`, are known then too."""
        commit = await self.load(identity)
        if commit.parents and commit.parents[0] not in self._kept:
            found = await self._index.until(before(commit.clock), min(limit, COMMITS_KEPT // 4))
            for each, data in found.items():
                self._keep(each, _decoded(each, data))
        return commit

    async def beginning_with(self, text: str) -> list[CommitId]:
        """Some of the commits whose id begins with the text: enough to see whether it is one."""
        if not _BEGINNING.fullmatch(text):
            return []
        start = paths.commit_path(self._repository, CommitId(text)).removesuffix(".json")
        found: list[CommitId] = []
        async for info in self._store.list(start):
            found.append(paths.parse_commit_path(self._repository, info.name))
            if len(found) == CANDIDATES_MAX:
                break
        return found

    def _keep(self, identity: CommitId, commit: Commit) -> None:
        if len(self._kept) >= COMMITS_KEPT:
            self._kept.clear()
        self._kept[identity] = commit
