"""Every verb of a repository, in process and over a server: the same answers, and the same errors."""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from lsmfs.client.installation import RemoteInstallation
from lsmfs.client.local import LocalInstallation, LocalRepository
from lsmfs.client.repository import RemoteRepository
from lsmfs.installation import Configuration, create_installation
from lsmfs.lsm import records
from lsmfs.lsm.listing import Page
from lsmfs.model import Entry
from lsmfs.objectstore.store import Span
from lsmfs.tree.merge import MergeConflict
from refstore.errors import Conflict, Error, Invalid
from refstore.store import ABSENT
from tests.client.served import Served

Here = LocalRepository | RemoteRepository


async def body(*pieces: bytes) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


async def gathered(pieces: AsyncIterator[bytes]) -> bytes:
    return b"".join([piece async for piece in pieces])


async def told(work: Awaitable[object]) -> object:
    """What it answers; or the class of its error and its words."""
    try:
        return await work
    except MergeConflict as error:
        return error.count, [plain(clash) for clash in error.clashes]
    except Error as error:
        words = re.sub("[0-9a-f]{12,64}", "<commit>", re.sub(r"lake/data/[^']+", "<data>", str(error)))
        return type(error).__name__, words


def plain(value: Any) -> Any:
    """Without what differs from run to run: times, ids, and where bytes are."""
    if isinstance(value, Entry):
        etag = value.etag if len(value.extents) == 1 else "<etag>"  # it depends on where the extents are
        return value.size_bytes, etag, value.content_type, value.metadata, len(value.extents)
    if isinstance(value, Page):
        return plain(value.items), value.after
    if isinstance(value, msgspec.Struct):
        hidden = {"created_us", "deleted_us", "incarnation", "metarange", "l1", "l2", "sealed", "writers", "version"}
        hidden |= {"view", "fence", "aside", "id", "layers", "parents", "base_commit", "base", "clock", "metadata"}
        hidden |= {"committer"}  # the user whose key it is: a test of its own
        return {name: plain(each) for name, each in msgspec.structs.asdict(value).items() if name not in hidden}
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, str) and re.fullmatch("[0-9a-f]{64}", value):
        return "<commit>"
    return value


async def walk(lake: LocalInstallation | RemoteInstallation) -> list[object]:
    """Every verb, and what each answers."""
    found: list[object] = []

    async def see(work: Awaitable[object]) -> None:
        found.append(plain(await told(work)))

    await lake.create("lake")
    await see(told(lake.repository("none")))
    found.append([plain(record) async for record in lake.records()])
    async with await lake.repository("lake") as repo:
        await _objects(repo, see)
        await _writes(repo, see)
        await _versions(repo, see)
        await _staged(repo, see)
        await _rules(repo, see)
    found.append(await lake.delete("lake") > 10)
    found.append([name async for name in lake.names()])
    return found


async def _objects(repo: Here, see: Any) -> None:
    given = {"Ünit": "µm", "Case": "Kept"}
    await see(repo.put_object("main", "a/ö b+c%.txt", body(b"one", b"two"), "text/plain; x=ä", given))
    await see(repo.put_object("main", "empty", body()))
    await see(repo.put_object("main", "empty", body(b"x"), expected=ABSENT))
    await see(repo.put_object("main", "empty", body(b"x"), expected="wrong"))
    entry = await repo.get("main", "a/ö b+c%.txt")
    await see(gathered(repo.read_object("main", "a/ö b+c%.txt", entry)))
    await see(gathered(repo.read_object("main", "a/ö b+c%.txt", entry, Span(2, 4))))
    await see(gathered(repo.read_object("main", "a/ö b+c%.txt", entry, Span(2, 40))))
    await see(repo.append_object("main", "a/ö b+c%.txt", body(b"three")))
    await see(repo.get("main", "a/ö b+c%.txt"))
    await see(repo.get("main", "none"))
    await see(repo.get("none", "none"))
    await see(repo.get("main", ""))


async def _writes(repo: Here, see: Any) -> None:
    entry = Entry("s3://raw/1", 7, "e1", 1_000_000_000_000_001, metadata={"k": "v"})
    async with repo.writer("main") as writer:
        await asyncio.gather(*(writer.put(f"many/{number:04}", entry) for number in range(1100)))
        await see(writer.put("many/0000", entry, ABSENT))
        await see(writer.put("many/0000", msgspec.structs.replace(entry, etag="e2"), "e1"))
        await see(writer.delete("many/0001"))
        await see(writer.delete("many/0002", "wrong"))
        await see(writer.append("grown", b"abc"))
        rows = records.from_entries([(b"staged/1", entry), (b"many/0003", None)])
        await see(writer.stage(rows))
        await see(writer.stage(pa.table({"key": ["x"], "wrong": ["y"]})))
    await see(repo.get_many("main", ["many/0000", "many/0001", "many/0003", "staged/1", "grown"]))
    await see(repo.list("main", delimiter="/"))
    page = await repo.list("main", "many/", after="many/0500", limit=3)
    await see(told(asyncio.sleep(0, [page.items, page.after])))
    assert (await repo.get("main", "many/0002")) == entry  # to the microsecond
    tables = [rows async for rows in repo.scan("main", "many/", "many/0500")]
    await see(asyncio.sleep(0, pa.concat_tables(tables).to_pylist()))
    assert tables[0].schema.names == records.SCHEMA.names
    await see(writer.put("late", entry))
    await see(repo.writer("none").__aenter__())


async def _versions(repo: Here, see: Any) -> None:
    await see(repo.commit("main", "first", metadata={"a": "b"}))
    await see(repo.commit("main", "again"))
    await see(repo.create_branch("dev", "main"))
    await see(repo.create_branch("dev", "main"))
    await see(repo.create_branch("side", "none"))
    for branch, text in (("dev", b"theirs"), ("main", b"ours")):
        await repo.put_object(branch, "both", body(text))
        await see(repo.commit(branch, f"on {branch}"))
    await see(repo.merge("dev", "main"))
    await see(repo.preview_merge("dev", "main"))
    await see(repo.preview_merge("dev", "main", {"bo": "source-wins"}))
    hint = await repo.merge_hint("dev", "main", "source-wins")
    await see(repo.merge("dev", "main", "merged", strategy="source-wins", hint=hint))
    await see(repo.merge("dev", "main"))
    await see(repo.merge("dev", "main", strategy="nobody-wins"))
    await see(repo.revert("main", "main"))
    await see(repo.revert("main", "main", 1))
    await see(repo.cherry_pick("main", "dev"))
    await see(repo.create_tag("v1", "main~1"))
    await see(repo.create_tag("v1", "main~1"))
    await see(repo.create_tag("v1", "main"))
    await see(asyncio.sleep(0, [tag async for tag in repo.tags.all()]))
    await see(repo.delete_tag("v1"))
    await see(repo.delete_tag("v1"))
    await see(repo.resolve("main~100"))
    await see(repo.resolve("no^such"))
    log = [commit async for _, commit in repo.log("main", 3, first_parent=False)]
    await see(asyncio.sleep(0, log))
    await see(asyncio.sleep(0, [commit async for _, commit in repo.log("main", path="both")]))
    identity, commit = await anext(repo.log("main", 1))
    assert commit.id == identity  # nothing was rounded on the way
    await see(asyncio.sleep(0, [each async for each in repo.diff("main~2", "main")]))
    await see(repo.diff_summary("dev", "main", delimiter="/"))


async def _staged(repo: Here, see: Any) -> None:
    await repo.put_object("dev", "new/1", body(b"1"))
    await repo.put_object("dev", "new/2", body(b"22"))
    await see(asyncio.sleep(0, [each async for each in repo.diff_uncommitted("dev", "new/")]))
    await see(repo.uncommitted_summary("dev", delimiter="/"))
    await repo.reset("dev", path="new/1")
    await see(repo.uncommitted_summary("dev"))
    await see(repo.merge("main", "dev"))
    await see(repo.hard_reset("dev", "main"))
    await see(repo.stash("dev", "aside"))
    await see(repo.stash("dev", "aside"))
    await see(repo.stashes("dev"))
    await see(repo.pop_stash("dev"))
    await see(repo.drop_stash("dev", 1))
    await see(repo.delete_branch("dev"))
    await see(asyncio.sleep(0, [each async for each in repo.deleted_branches()]))
    await see(repo.restore_branch("dev"))
    await see(asyncio.sleep(0, [branch.is_dirty async for branch in repo.list_branches("d")]))
    await repo.reset("dev", prefix="new/")
    await see(repo.hard_reset("dev", "main", force=True))
    await see(repo.delete_branch("main"))
    async with repo.transaction("main", "both at once") as change:
        await change.put("tx/1", Entry("s3://raw/1", 1))
        await see(change.get("tx/1"))
    await see(repo.get("main", "tx/1"))
    await see(asyncio.sleep(0, [branch.name async for branch in repo.list_branches(hidden=True)]))


async def _rules(repo: Here, see: Any) -> None:
    await repo.set_metadata({"owner": "ana"})
    await repo.protect("main", ["commit"])
    await see(asyncio.sleep(0, [repo.record.metadata, repo.record.rules]))
    await see(repo.commit("main", "refused"))
    await repo.protect("main", [])
    await repo.set_read_only(True)
    await see(repo.put_object("main", "refused", body(b"x")))
    await repo.set_read_only(False)
    await see(asyncio.sleep(0, repo.record.read_only))


def test_every_verb_answers_the_same_in_process_and_over_a_server(server: Served, tmp_path: Path) -> None:
    async def in_process() -> list[object]:
        create_installation(tmp_path, Configuration())
        installation = LocalInstallation(tmp_path, Configuration(), {})
        async with installation:
            return await walk(installation)

    async def over() -> list[object]:
        async with server.client() as lake:
            return await walk(lake)

    here, there = asyncio.run(in_process()), asyncio.run(over())
    assert len(here) == len(there)
    others = [f"{one}\n  over: {other}" for one, other in zip(here, there, strict=True) if one != other]
    assert not others, "\n".join(others)


def test_a_committer_is_refused_and_not_left_out(server: Served) -> None:
    async def main() -> None:
        async with server.client() as lake, await lake.create("lake") as repo:
            with pytest.raises(Invalid, match="leave the committer out"):
                await repo.commit("main", "x", committer="ben")
            done = await repo.commit("main", "x", allow_empty=True)
            assert done.commit.committer == "admin"

    asyncio.run(main())


def test_of_many_who_put_at_once_where_nothing_is_one_wins(server: Served) -> None:
    async def main() -> list[str]:
        async with server.client() as lake, await lake.create("lake") as repo:
            entries = [Entry("s3://raw/x", number, f"e{number}") for number in range(20)]
            async with repo.writer("main") as one, repo.writer("main") as other:
                puts = [(one, other)[number % 2].put("k", each, ABSENT) for number, each in enumerate(entries)]
                done = await asyncio.gather(*puts, return_exceptions=True)
            there = await repo.get("main", "k")
            winners = [entry.etag for entry, error in zip(entries, done, strict=True) if error is None]
            assert all(isinstance(error, Conflict) for error in done if error is not None)
            return [there.etag, *winners]

    there, winner = asyncio.run(main())
    assert there == winner


def test_an_object_that_changes_while_it_is_read_is_a_conflict(server: Served) -> None:
    async def main() -> None:
        async with server.client() as lake, await lake.create("lake") as repo:
            entry = await repo.put_object("main", "k", body(b"old"))
            await repo.put_object("main", "k", body(b"new"))
            with pytest.raises(Conflict, match="was changed while it was read"):
                await gathered(repo.read_object("main", "k", entry))

    asyncio.run(main())
