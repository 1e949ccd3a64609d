"""A repository behind a server: the verbs of `lsmfs.repository.Repository`, one request for each.

What differs from a repository in process: who commits is the user whose key it is, so `committer` stays empty; bodies
go through the server (`put_object`, `append_object`, `read_object`); entries may only refer to what the server allows.
"""

from collections.abc import AsyncIterator, Iterable
from typing import TYPE_CHECKING, cast

import msgspec

from lsmfs.client import wire
from lsmfs.client.reader import RemoteReader
from lsmfs.client.transport import path_of
from lsmfs.client.writer import RemoteWriter
from lsmfs.model import Entry, check_branch_name, check_entry, key_of
from lsmfs.policy import BLOCKED, Blocked
from lsmfs.reader import part_of
from lsmfs.transaction import Transaction
from lsmfs.tree.commits import Commit
from lsmfs.tree.committer import Committed
from lsmfs.tree.merge import Strategy
from lsmfs.tree.summary import Summary
from refstore.errors import AlreadyExists, Invalid
from refstore.records import Branch, CommitId, Stash
from refstore.store import ABSENT, Absent

if TYPE_CHECKING:
    from lsmfs.repository import Repository

Rules = str | dict[str, str] | None


class RemoteRepository(RemoteReader):
    def writer(self, branch: str, actor: str = "") -> RemoteWriter:
        """A write client for the branch: `async with repo.writer("main") as w`."""
        return RemoteWriter(self.transport, self.name, branch)

    async def put_object(
        self,
        branch: str,
        path: str,
        body: AsyncIterator[bytes],
        content_type: str | None = None,
        metadata: dict[str, str] | None = None,
        expected: str | Absent | None = None,
    ) -> Entry:
        """Store a body as an object, visible when all of it is there; the body is sent as it comes. `Conflict` if the
        condition does not hold."""
        key_of(path)
        check_entry(Entry("", 0, content_type=content_type, metadata=metadata))
        facts = msgspec.json.encode(wire.ObjectFacts(content_type, metadata or None)).decode()
        headers = {wire.OBJECT_HEADER: _ascii(facts), "content-type": "application/octet-stream"}
        etag = expected if isinstance(expected, str) else None
        query = {"path": path, "absent": expected is ABSENT, "expected": etag}
        url = f"{self._on(branch)}/objects"
        return await self.transport.change("POST", url, Entry, query, content=body, headers=headers)

    async def append_object(self, branch: str, path: str, body: AsyncIterator[bytes]) -> int:
        """Add a body to the end of an object, where there is none it begins; how many bytes."""
        key_of(path)
        count = 0

        async def counted() -> AsyncIterator[bytes]:
            nonlocal count
            async for piece in body:
                count += len(piece)
                yield piece

        url = f"/repositories{path_of(self.name)}/branches{path_of(check_branch_name(branch))}/objects/append"
        await self.transport.change("POST", url, msgspec.Raw, {"path": path}, content=counted())
        return count

    async def commit(
        self,
        branch: str,
        message: str,
        committer: str = "",
        metadata: dict[str, str] | None = None,
        allow_empty: bool = False,
    ) -> Committed:
        """Everything acknowledged on the branch before this call becomes a commit; `NoChanges` if there is nothing."""
        _check_committer(committer)
        body = wire.Commitment(message, metadata or {}, allow_empty)
        made = await self.transport.change("POST", f"{self._on(branch)}/commit", wire.Made, body=body)
        return Committed(CommitId(made.id), made.commit, made.raced)

    async def protect(self, pattern: str, blocks: Iterable[Blocked] = BLOCKED) -> None:
        """Let nobody stage to or commit to branches of such names; merges stay allowed. Nothing to block ends it."""
        body = wire.Protection(pattern, tuple(dict.fromkeys(blocks)))
        self.record = await self.transport.change("PUT", f"{self.at}/rules", type(self.record), body=body)

    async def set_read_only(self, read_only: bool) -> None:
        """Within seconds every client refuses changes, or allows them again."""
        path = f"/repositories{path_of(self.name)}/settings/read_only"
        await self.transport.change("PUT", path, type(None), body={"read_only": read_only})
        self.record = msgspec.structs.replace(self.record, read_only=read_only)

    async def set_metadata(self, metadata: dict[str, str]) -> None:
        body = wire.Metadata(metadata)
        self.record = await self.transport.change("PUT", f"{self.at}/metadata", type(self.record), body=body)

    async def create_branch(self, name: str, ref: str, hidden: bool = False) -> Branch:
        """A new branch at the commit that the revision names. `AlreadyExists`."""
        body = {"name": check_branch_name(name), "source": ref, "hidden": hidden}
        url = f"/repositories{path_of(self.name)}/branches"
        try:
            await self.transport.change("POST", url, type(None), body=body)
        except AlreadyExists as error:
            raise AlreadyExists(str(error).removeprefix("branch already exists: ")) from None
        return await self.branches.read(name)

    async def create_tag(self, name: str, ref: str) -> CommitId:
        """Name a commit for good; to do it again changes nothing. `AlreadyExists` also for a branch of that name."""
        check_branch_name(name, "tag")
        commit = await self.resolve(ref)
        url = f"/repositories{path_of(self.name)}/tags"
        try:
            await self.transport.change("POST", url, msgspec.Raw, body={"id": name, "ref": commit})
        except AlreadyExists:
            if await self.tags.find(name) != commit:
                raise
        return commit

    async def delete_tag(self, name: str) -> None:
        """`NotFound`."""
        url = f"/repositories{path_of(self.name)}/tags{path_of(check_branch_name(name, 'tag'))}"
        await self.transport.change("DELETE", url, type(None))

    async def delete_branch(self, name: str) -> None:
        """End the branch, with what is staged on it; `NotFound`, `Denied` for the default branch."""
        await self.transport.change("DELETE", self._branch(name), type(None))

    async def restore_branch(self, name: str) -> Branch:
        """A deleted branch as it was, what was staged on it included; `NotFound`, `AlreadyExists`."""
        await self.transport.change("POST", f"{self._branch(name)}/restore", msgspec.Raw)
        return await self.branches.read(name)

    async def reset(self, branch: str, prefix: str | None = None, path: str | None = None) -> None:
        """Drop what is staged on a branch: all of it, or what is below a prefix, or one path."""
        part_of(path, prefix)
        body = {"type": "reset"}
        if path is not None:
            body = {"type": "object", "path": path}
        elif prefix is not None:
            body = {"type": "common_prefix", "path": prefix}
        await self.transport.change("PUT", self._branch(branch), type(None), body=body)

    async def hard_reset(self, branch: str, ref: str, force: bool = False) -> Branch:
        """Take a branch to another commit; `DirtyBranch` if something is staged, unless it may be lost (`force`)."""
        query = {"ref": ref, "force": force}
        await self.transport.change("PUT", f"{self._branch(branch)}/hard_reset", type(None), query)
        return await self.branches.read(branch)

    async def stash(self, branch: str, message: str = "") -> Stash:
        """Put aside what is staged; no data moves. `NoChanges`."""
        body = wire.Stashing(message)
        return (await self.transport.change("POST", f"{self._on(branch)}/stash", wire.StashDone, body=body)).stash

    async def pop_stash(self, branch: str, number: int | None = None) -> Stash:
        """Bring the latest stash back, or that one, above what the branch has now; `DirtyBranch`, `NotFound`."""
        return await self._take_stash(branch, wire.StashTaking(number))

    async def drop_stash(self, branch: str, number: int) -> Stash:
        """Forget a stash, and what is in it."""
        return await self._take_stash(branch, wire.StashTaking(number, drop=True))

    async def _take_stash(self, branch: str, body: wire.StashTaking) -> Stash:
        url = f"{self._on(branch)}/stash/take"
        return (await self.transport.change("POST", url, wire.StashDone, body=body)).stash

    def transaction(
        self,
        branch: str,
        message: str = "",
        committer: str = "",
        metadata: dict[str, str] | None = None,
        strategy: Rules = None,
        squash: bool = False,
    ) -> Transaction:
        """Writes that become visible on the branch together: `async with repo.transaction("main") as tx`."""
        _check_committer(committer)
        here = cast("Repository", self)  # a transaction is made of verbs that both have
        return Transaction(here, check_branch_name(branch), message, "", metadata or {}, strategy, squash)

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
    ) -> tuple[CommitId, Commit]:
        """Merge what a revision has into a branch, as `Repository.merge` says."""
        _check_committer(committer)
        body = wire.Merging(source, message, metadata or {}, _rules(strategy), squash, fast_forward, hint)
        return await self._made(branch, "merge", body)

    async def preview_merge(self, source: str, branch: str, strategy: Rules = None) -> dict[str, Summary]:
        """What a merge would change, as counts and bytes. `MergeConflict`, `NoChanges`."""
        body = wire.Merging(source, rules=_rules(strategy))
        return (await self.transport.read(f"{self._on(branch)}/preview", wire.Counts, body=body)).parts

    async def merge_hint(self, source: str, branch: str, strategy: Rules = None) -> str:
        """Do the work of a merge ahead; the merge itself, given this text, re-uses it."""
        body = wire.Merging(source, rules=_rules(strategy))
        return (await self.transport.change("POST", f"{self._on(branch)}/hint", wire.Hint, body=body)).hint

    async def revert(
        self, branch: str, ref: str, parent: int | None = None, message: str = "", committer: str = ""
    ) -> tuple[CommitId, Commit]:
        """Undo on a branch what a commit did; of a merge say against which parent. `MergeConflict`, `NoChanges`."""
        _check_committer(committer)
        return await self._made(branch, "revert", wire.Step(ref, parent, message))

    async def cherry_pick(
        self, branch: str, ref: str, parent: int | None = None, message: str = "", committer: str = ""
    ) -> tuple[CommitId, Commit]:
        """Do on a branch what a commit did; of a merge say against which parent. `MergeConflict`, `NoChanges`."""
        _check_committer(committer)
        return await self._made(branch, "pick", wire.Step(ref, parent, message))

    async def _made(self, branch: str, verb: str, body: object) -> tuple[CommitId, Commit]:
        made = await self.transport.change("POST", f"{self._on(branch)}/{verb}", wire.Made, body=body)
        return CommitId(made.id), made.commit

    def _on(self, branch: str) -> str:
        return f"{self.at}/branches{path_of(check_branch_name(branch))}"

    def _branch(self, branch: str) -> str:
        return f"/repositories{path_of(self.name)}/branches{path_of(check_branch_name(branch))}"


def _check_committer(committer: str) -> None:
    if committer:
        raise Invalid("a server writes down the user whose key it is: leave the committer out")


def _rules(strategy: Rules) -> dict[str, str]:
    rules = {"": strategy} if isinstance(strategy, str) else strategy or {}
    Strategy(rules)
    return rules


def _ascii(text: str) -> str:
    """JSON whose characters may stand in a header."""
    return "".join(each if each < "\x7f" else _escaped(each) for each in text)


def _escaped(character: str) -> str:
    units = character.encode("utf-16-be")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))
