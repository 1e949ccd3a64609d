"""Writing to a branch through the writer that all requests share."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from lsmfs.api.answers import ApiError
from lsmfs.api.operations import Call
from lsmfs.api.params import etag_of
from lsmfs.lsm.writer import Writer
from lsmfs.model import Entry, check_branch_name, key_of
from refstore.errors import BranchReplaced, Conflict, Invalid
from refstore.store import ABSENT, Absent

T = TypeVar("T")


async def written(call: Call, do: Callable[[Writer], Awaitable[T]]) -> T:
    """Do it with the branch's writer; once more if that one knew an earlier life of the branch."""
    repository, branch = call.path["repository"], check_branch_name(call.path["branch"])
    try:
        async with call.lake.writing(repository, branch) as writer:
            return await do(writer)
    except BranchReplaced:
        async with call.lake.writing(repository, branch) as writer:
            return await do(writer)


async def check_writable(call: Call, path: str) -> None:
    """What would fail anyway fails before a body is taken in: a bad key, no such branch, a protected one."""
    key_of(path)
    repository = await call.repository()
    await repository.policy.check("stage", check_branch_name(call.path["branch"]))
    await repository.branches.read(call.path["branch"])


async def put(call: Call, path: str, entry: Entry, expected: str | Absent | None = None) -> None:
    """412 if the condition does not hold."""
    try:
        await written(call, lambda writer: writer.put(path, entry, expected))
    except Conflict as error:
        if expected is None or type(error) is not Conflict:
            raise
        raise ApiError(412, f"precondition failed: {error}") from None


def condition_of(call: Call) -> str | Absent | None:
    """What must be there for a write: nothing (If-None-Match: *), or that etag (If-Match)."""
    none_match, match = call.header(b"if-none-match"), call.header(b"if-match")
    if none_match and match:
        raise Invalid("give If-None-Match or If-Match, not both")
    if none_match:
        if none_match.strip() != "*":
            raise Invalid("a write may have If-None-Match: * and no etags")
        return ABSENT
    return etag_of(match) if match else None
