"""One request on its way through the gateway: who sent it, what it is about, and its body.

    call.place                            the object, ref or prefix that it is about
    await call.repository()               opened; S3Error NoSuchBucket
    call.body(checksums)                  the decoded, verified body: ends normally only if all of it was right
    await call.text(bytes_max)            a small body, whole
    await call.check(action, resource)    may they? `Denied`

The body is not asked for before somebody iterates over it: until then the client waits for "100 Continue".
"""

from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass

from lsmfs.asgi import Receive
from lsmfs.auth import Action, Authority, Identity, Resource
from lsmfs.gateway.addressing import Place, check_bucket
from lsmfs.gateway.checksums import Checksums
from lsmfs.gateway.chunked import decode_body
from lsmfs.gateway.errors import S3Error
from lsmfs.gateway.request import Request
from lsmfs.gateway.signatures import Verified
from lsmfs.gateway.xml import PARSED_BYTES_MAX
from lsmfs.model import Entry
from lsmfs.repository import Repository
from lsmfs.server.lake import Lake
from lsmfs.tree.revision import is_commit_id, parse_revision
from refstore.errors import Error, Invalid, NotFound


class ClientGone(Exception):
    """Nobody is there to be answered."""


@dataclass(slots=True)
class Call:
    lake: Lake
    authority: Authority
    region: str
    request: Request
    receive: Receive
    request_id: str
    bucket: str
    place: Place
    identity: Identity
    verified: Verified
    later: Callable[[Coroutine[object, object, None]], None]  # what nobody needs to wait for

    async def check(self, action: Action, resource: Resource) -> None:
        await self.authority.check(self.identity, action, resource)

    async def allows(self, action: Action, resource: Resource) -> bool:
        return await self.authority.allows(self.identity, action, resource)

    async def repository(self, bucket: str | None = None) -> Repository:
        """The repository that the bucket is; S3Error NoSuchBucket."""
        name = check_bucket(self.bucket if bucket is None else bucket)
        try:
            return await self.lake.repository(name)
        except NotFound:
            raise S3Error("NoSuchBucket", f"There is no repository {name!r}.", extra={"BucketName": name}) from None

    async def writable(self) -> Repository:
        """The same, if its branch may be written to as far as is known without asking the ref store."""
        repository = await self.repository()
        await repository.policy.check("stage", self.place.ref)
        return repository

    def check_length(self) -> None:
        """Whoever sends a body says how long it is, or sends it in HTTP's chunks."""
        if self.verified.payload.length is None and not self.request.values(b"transfer-encoding"):
            raise S3Error("MissingContentLength")

    def body(self, checksums: Checksums | None) -> AsyncIterator[bytes]:
        return decode_body(_received(self.receive), self.verified, checksums)

    async def text(self, checksums: Checksums | None = None, bytes_max: int = PARSED_BYTES_MAX) -> bytes:
        pieces, size = [], 0
        async for piece in self.body(checksums):
            size += len(piece)
            if size > bytes_max:
                raise S3Error("MaxMessageLengthExceeded", f"The body may have {bytes_max} bytes at most.")
            pieces.append(piece)
        return b"".join(pieces)


async def _received(receive: Receive) -> AsyncIterator[bytes]:
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        body = message.get("body", b"")
        if body:
            yield body
        if not message.get("more_body", False):
            return


async def entry_at(repository: Repository, place: Place) -> Entry:
    """What is there; S3Error NoSuchKey, also for a ref that is none and one that cannot be."""
    try:
        return await repository.get(place.ref, place.path)
    except NotFound:
        raise S3Error("NoSuchKey", extra={"Key": place.key}) from None
    except Invalid:
        if is_revision(place.ref):
            raise
        raise S3Error("NoSuchKey", f"{place.ref!r} is no branch, tag or commit.", extra={"Key": place.key}) from None


async def unwritable(repository: Repository, ref: str, error: Error) -> Error:
    """Why a branch could not be written to: a better answer than that it is not there."""
    if not isinstance(error, (NotFound, Invalid)) or isinstance(error, S3Error):
        return error
    try:
        await repository.branches.read(ref)
        return error  # it is there, so the reason is another one
    except Error:
        pass
    try:
        await repository.resolve(ref)
    except (NotFound, Invalid):
        message = f"There is no branch {ref!r} in repository {repository.name!r}: create it, then write to it."
        return S3Error("NoSuchKey", message)
    what = "a commit" if is_commit_id(ref) else "a tag or a commit"
    return S3Error("MethodNotAllowed", f"{ref!r} is {what}, which never changes: write to a branch.")


async def check_branch(repository: Repository, ref: str) -> None:
    """S3Error if there is no such branch to write to: asked before a large body is read."""
    try:
        await repository.branches.read(ref)
    except (NotFound, Invalid) as error:
        raise await unwritable(repository, ref, error) from None


def is_revision(ref: str) -> bool:
    try:
        parse_revision(ref)
    except Invalid:
        return False
    return True
