"""Changes as the lsmfs client asks for them: with all that `Repository`'s verbs take, answered with our own records.

Who commits is who the key belongs to. A merge's conflict tells its clashes. Writes come in batches, each with its own
condition, and each fails or succeeds for itself; an upload is the body, and what is said of it in a header.
"""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

import msgspec
import pyarrow as pa
from msgspec import Struct

from lsmfs.api.answers import ApiError
from lsmfs.api.bulk import _check_addresses
from lsmfs.api.exact import shown
from lsmfs.api.operations import Call, Operation, Raw
from lsmfs.api.repositories import METADATA_BYTES_MAX
from lsmfs.api.writes import check_writable, written
from lsmfs.auth import Action, Resource
from lsmfs.client import wire
from lsmfs.lsm.writer import Writer
from lsmfs.model import Entry, check_entry
from lsmfs.policy import RepositoryRecord
from lsmfs.tree.merge import MergeConflict
from refstore.errors import BranchReplaced, Error, Invalid
from refstore.store import ABSENT

T = TypeVar("T")


class UploadQuery(Struct, frozen=True):
    path: str
    absent: bool = False
    expected: str | None = None


async def delete_repository(call: Call) -> wire.Removed:
    name = call.path["repository"]
    count = await call.lake.installation.delete(name)
    await call.lake.forget(name)
    return wire.Removed(count)


async def set_metadata(call: Call) -> RepositoryRecord:
    metadata = call.body.metadata
    if sum(len(key) + len(value) for key, value in metadata.items()) > METADATA_BYTES_MAX:
        raise Invalid(f"a repository has up to {METADATA_BYTES_MAX} characters of metadata: leave some out")
    repository = await call.repository()
    await repository.set_metadata(metadata)
    return shown(repository.record)


async def protect(call: Call) -> RepositoryRecord:
    repository = await call.repository()
    await repository.protect(call.body.pattern, call.body.blocks)
    return shown(repository.record)


async def commit(call: Call) -> wire.Made:
    given, repository = call.body, await call.repository()
    done = await repository.commit(
        call.path["branch"], given.message, call.identity.user, given.metadata, given.allow_empty
    )
    return wire.Made(*done)


async def merge(call: Call) -> wire.Made:
    given, repository = call.body, await call.repository()
    await call.check(Action.READ_BRANCH, Resource(repository.name, given.source))
    return wire.Made(
        *await _telling(
            repository.merge(
                given.source,
                call.path["branch"],
                given.message,
                call.identity.user,
                given.metadata,
                given.rules,
                given.squash,
                given.fast_forward,
                given.hint,
            )
        )
    )


async def preview(call: Call) -> wire.Counts:
    given, repository = call.body, await call.repository()
    await call.check(Action.READ_BRANCH, Resource(repository.name, given.source))
    return wire.Counts(await _telling(repository.preview_merge(given.source, call.path["branch"], given.rules)))


async def hint(call: Call) -> wire.Hint:
    given, repository = call.body, await call.repository()
    await call.check(Action.READ_BRANCH, Resource(repository.name, given.source))
    return wire.Hint(await _telling(repository.merge_hint(given.source, call.path["branch"], given.rules)))


async def revert(call: Call) -> wire.Made:
    given, repository = call.body, await call.repository()
    work = repository.revert(call.path["branch"], given.ref, given.parent, given.message, call.identity.user)
    return wire.Made(*await _telling(work))


async def cherry_pick(call: Call) -> wire.Made:
    given, repository = call.body, await call.repository()
    await call.check(Action.READ_BRANCH, Resource(repository.name, given.ref))
    work = repository.cherry_pick(call.path["branch"], given.ref, given.parent, given.message, call.identity.user)
    return wire.Made(*await _telling(work))


async def _telling(work: Awaitable[T]) -> T:
    try:
        return await work
    except MergeConflict as error:
        clashes = [wire.ClashLine(clash.key.decode(), *clash[1:]) for clash in error.clashes]
        body = wire.Clashes(str(error), error.count, clashes)
        raise ApiError(409, str(error), {wire.ERROR_HEADER: MergeConflict.__name__}, body) from None


async def push_stash(call: Call) -> wire.StashDone:
    return wire.StashDone(await (await call.repository()).stash(call.path["branch"], call.body.message))


async def take_stash(call: Call) -> wire.StashDone:
    repository, branch, number = await call.repository(), call.path["branch"], call.body.number
    if not call.body.drop:
        return wire.StashDone(await repository.pop_stash(branch, number))
    if number is None:
        raise Invalid("say which stash is dropped: number")
    return wire.StashDone(await repository.drop_stash(branch, number))


async def write(call: Call) -> wire.Written:
    """Conditions and refusals are for each write alone; what is not allowed is refused before anything is written."""
    given: list[wire.Write] = call.body.writes
    for each in given:
        action = Action.DELETE_OBJECT if each.entry is None and each.extents is None else Action.WRITE_OBJECT
        await call.check(action, Resource(call.path["repository"], call.path["branch"], each.path))
    await _check_addresses(call, pa.array(sorted({name for each in given for name in _addresses(each)}), pa.string()))

    async def all_of(writer: Writer) -> list[BaseException | None]:
        found = await asyncio.gather(*(_written(writer, each) for each in given), return_exceptions=True)
        for error in found:
            if isinstance(error, BranchReplaced) or (error is not None and not isinstance(error, Error)):
                raise error
        return found

    return wire.Written([_failure(error) for error in await written(call, all_of)])


def _addresses(each: wire.Write) -> list[str]:
    extents = [*(each.extents or ()), *(() if each.entry is None else each.entry.extents)]
    return [extent.address for extent in extents]


async def _written(writer: Writer, each: wire.Write) -> None:
    if each.extents is not None:
        await writer.append_extents(each.path, each.extents)
    elif each.entry is not None:
        await writer.put(each.path, each.entry, ABSENT if each.absent else each.expected)
    else:
        await writer.delete(each.path, each.expected)


def _failure(error: BaseException | None) -> wire.Failure | None:
    return None if error is None else wire.Failure(type(error).__name__, str(error))


async def upload(call: Call) -> Entry:
    """The object is there with its last byte; what is said of it is checked before the first one is taken in."""
    query, facts = call.query, _facts(call)
    check_entry(Entry("", 0, content_type=facts.content_type, metadata=facts.metadata))
    await check_writable(call, query.path)
    entry = await call.lake.save_body(
        call.path["repository"], call.stream(), facts.content_type, facts.metadata or None
    )
    expected = ABSENT if query.absent else query.expected
    await written(call, lambda writer: writer.put(query.path, entry, expected))
    return entry


def _facts(call: Call) -> wire.ObjectFacts:
    try:
        return msgspec.json.decode(call.headers.get(wire.OBJECT_HEADER.encode(), b"{}"), type=wire.ObjectFacts)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise Invalid(f"the header {wire.OBJECT_HEADER} is wrong: {error}") from None


def _seen(call: Call) -> Resource:
    return Resource(call.path["repository"], call.path["branch"])


AT = wire.BASE + "/{repository}"
BRANCH = AT + "/branches/{branch}"
OPERATIONS = (
    Operation("exactDelete", "DELETE", AT, Action.DELETE_REPOSITORY, delete_repository, wire.Removed),
    Operation(
        "exactSetMetadata",
        "PUT",
        f"{AT}/metadata",
        Action.UPDATE_REPOSITORY,
        set_metadata,
        RepositoryRecord,
        body=wire.Metadata,
    ),
    Operation(
        "exactProtect", "PUT", f"{AT}/rules", Action.WRITE_PROTECTION, protect, RepositoryRecord, body=wire.Protection
    ),
    Operation(
        "exactMakeCommit", "POST", f"{BRANCH}/commit", Action.COMMIT, commit, wire.Made, 201, body=wire.Commitment
    ),
    Operation("exactMerge", "POST", f"{BRANCH}/merge", Action.MERGE, merge, wire.Made, 201, body=wire.Merging),
    Operation("exactPreview", "POST", f"{BRANCH}/preview", Action.READ_BRANCH, preview, wire.Counts, body=wire.Merging),
    Operation("exactHint", "POST", f"{BRANCH}/hint", Action.MERGE, hint, wire.Hint, 201, body=wire.Merging),
    Operation("exactRevert", "POST", f"{BRANCH}/revert", Action.REVERT, revert, wire.Made, 201, body=wire.Step),
    Operation("exactPick", "POST", f"{BRANCH}/pick", Action.REVERT, cherry_pick, wire.Made, 201, body=wire.Step),
    Operation(
        "exactPushStash", "POST", f"{BRANCH}/stash", Action.REVERT, push_stash, wire.StashDone, 201, body=wire.Stashing
    ),
    Operation(
        "exactTakeStash",
        "POST",
        f"{BRANCH}/stash/take",
        Action.REVERT,
        take_stash,
        wire.StashDone,
        body=wire.StashTaking,
    ),
    # Paths and addresses are checked by the handler: what is asked before is whether the branch may be seen.
    Operation(
        "exactWrite",
        "POST",
        f"{BRANCH}/write",
        Action.READ_BRANCH,
        write,
        wire.Written,
        body=wire.Writes,
        resource=_seen,
    ),
    Operation(
        "exactUpload", "POST", f"{BRANCH}/objects", Action.WRITE_OBJECT, upload, Entry, 201, UploadQuery, Raw.OBJECT
    ),
)
