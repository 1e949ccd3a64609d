"""Staging: a client stores an object by itself, where it was told to, and then links it.

The address that it gets carries a proof, made with a secret of the repository, of what it was given for: the branch and
path, and until when. Linking verifies it, so nobody can link the bytes of somebody else's object. An address elsewhere
can be linked only below `allowed_imports`. No state is kept: an address that nobody links is garbage.
"""

import hashlib
import hmac
import re

from msgspec import Struct

from lsmfs import paths
from lsmfs.api import places, wire
from lsmfs.api.answers import ApiError
from lsmfs.api.objects import NO_PRESIGN, address_base, stats_of
from lsmfs.api.operations import Call, Operation
from lsmfs.api.params import check_content_type
from lsmfs.api.writes import check_writable, condition_of, put
from lsmfs.auth import Action
from lsmfs.model import Entry, check_entry
from lsmfs.repository import Repository
from refstore.errors import Conflict, Invalid, NotFound
from refstore.store import ABSENT

KEY = b"staging"
LIFE_SECONDS = 24 * 3600  # for a large object over a slow line
SECOND_US = 1_000_000
_UNIQUE = re.compile(r"(?P<id>[0-9a-v]{20})z(?P<expires>[0-9a-f]{8,12})z(?P<proof>[0-9a-f]{64})")


class BackingQuery(Struct, frozen=True):
    path: str
    presign: bool = False


class PathQuery(Struct, frozen=True):
    path: str


async def get_physical_address(call: Call) -> wire.StagingLocation:
    if call.query.presign:
        raise Invalid(NO_PRESIGN)
    await check_writable(call, call.query.path)
    return await _location(call, await call.repository())


async def _location(call: Call, repository: Repository) -> wire.StagingLocation:
    floor = (await repository.branches.read(call.path["branch"])).floor
    expires = call.lake.clock.now_us() // SECOND_US + LIFE_SECONDS
    begin = f"{call.lake.clock.new_id()}z{expires:x}"
    proof = await _proof(repository, call, floor, begin)
    name = paths.data_path(repository.name, paths.whole_name(floor, f"{begin}z{proof}"))
    return wire.StagingLocation(address_base(call, repository) + name)


async def link_physical_address(call: Call) -> wire.ObjectStats:
    given = call.body
    return await _link(call, given.staging.physical_address or "", given, given.user_metadata)


async def stage_object(call: Call) -> wire.ObjectStats:
    return await _link(call, call.body.physical_address, call.body, call.body.metadata)


async def _link(
    call: Call, address: str, given: "wire.StagingMetadata | wire.ObjectStage", metadata: wire.Metadata | None
) -> wire.ObjectStats:
    path, expected = call.query.path, condition_of(call)
    await check_writable(call, path)
    repository = await call.repository()
    base = address_base(call, repository)
    own = f"{base}{repository.name}/data/"
    if address.startswith(own):
        address = address.removeprefix(base)
        await _check_own(call, repository, address.rpartition("/")[2])
        await _check_stored(repository, address, given.size_bytes)
    else:
        address = places.permitted(address, call.services.options.allowed_imports, "api.allowed_imports")
    now = call.lake.clock.now_us()
    entry = Entry(
        address,
        given.size_bytes,
        given.checksum.strip('"'),
        now if given.mtime is None else given.mtime * SECOND_US,
        content_type=check_content_type(given.content_type),
        metadata=metadata or None,
    )
    check_entry(entry)
    await put(call, path, entry, expected)
    return stats_of(path, entry, base)


async def _check_own(call: Call, repository: Repository, name: str) -> None:
    """`Invalid` unless the name was given for this branch and path; 409 with another one if it is too old."""
    head, _, unique = name.partition("-")
    match = _UNIQUE.fullmatch(unique)
    if match is None or not re.fullmatch(r"d[0-9a-f]{1,16}", head):
        raise Invalid("the address was not given by this repository for linking: ask for one")
    floor, begin = int(head[1:], 16), unique.rpartition("z")[0]
    if not hmac.compare_digest(match["proof"], await _proof(repository, call, floor, begin)):
        raise Invalid("the address was not given for this branch and path: ask for one")
    now = call.lake.clock.now_us() // SECOND_US
    if int(match["expires"], 16) < now or floor < (await repository.branches.read(call.path["branch"])).floor:
        location = await _location(call, repository)
        raise ApiError(409, "the address has expired: store the object at another one", body=location)


async def _check_stored(repository: Repository, address: str, size_bytes: int) -> None:
    try:
        info = await repository.store.head(address)
    except NotFound:
        raise Invalid("there is no object at the address: store it, then link it") from None
    if info.size_bytes != size_bytes:
        raise Invalid(f"the stored object has {info.size_bytes} bytes, not {size_bytes}")


async def _proof(repository: Repository, call: Call, floor: int, begin: str) -> str:
    words = "\0".join((repository.name, call.path["branch"], call.query.path, f"{floor:x}", begin))
    return hmac.new(await _secret(repository), words.encode(), hashlib.sha256).hexdigest()


async def _secret(repository: Repository) -> bytes:
    partition = f"{repository.name}/secrets"
    found = await repository.refs.get(partition, KEY)
    if found is not None:
        return found
    fresh = (repository.clock.new_id() + repository.clock.new_id()).encode()
    try:
        await repository.refs.set_if(partition, KEY, fresh, ABSENT)
    except Conflict:
        return await _secret(repository)
    return fresh


AT = "/repositories/{repository}/branches/{branch}"
OPERATIONS = (
    Operation(
        "getPhysicalAddress",
        "GET",
        f"{AT}/staging/backing",
        Action.WRITE_OBJECT,
        get_physical_address,
        wire.StagingLocation,
        query=BackingQuery,
    ),
    Operation(
        "linkPhysicalAddress",
        "PUT",
        f"{AT}/staging/backing",
        Action.WRITE_OBJECT,
        link_physical_address,
        wire.ObjectStats,
        query=PathQuery,
        body=wire.StagingMetadata,
        also=(412,),
    ),
    Operation(
        "stageObject",
        "PUT",
        f"{AT}/objects",
        Action.WRITE_OBJECT,
        stage_object,
        wire.ObjectStats,
        201,
        PathQuery,
        wire.ObjectStage,
        also=(412,),
    ),
)
