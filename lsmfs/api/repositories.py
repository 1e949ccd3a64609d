"""Repositories: list, create, get, delete, and their metadata.

Where a repository is stored is the administrator's to allow: a user says "local://..." or nothing for the
installation's own store, or a URL below one of `allowed_namespaces`.
"""

from collections.abc import AsyncIterator, Callable

import msgspec
from msgspec import Struct

from lsmfs.api import places, samples, wire
from lsmfs.api.operations import Call, Operation
from lsmfs.api.paging import PageQuery, taken
from lsmfs.auth import Action, Resource
from lsmfs.model import check_branch_name, check_repository_name
from lsmfs.policy import RepositoryRecord
from refstore.errors import Invalid

OWN_NAMESPACE = "local://"
METADATA_BYTES_MAX = 64 * 1024  # the record is read again every few seconds


class RepositoriesQuery(PageQuery, frozen=True):
    search: str = ""


class CreationQuery(Struct, frozen=True):
    bare: bool = False


class DeletionQuery(Struct, frozen=True):
    force: bool = False


class MetadataSet(Struct, frozen=True):
    metadata: wire.Metadata


class MetadataKeys(Struct, frozen=True):
    keys: list[str]


async def list_repositories(call: Call) -> wire.Repositories:
    query = call.query

    async def readable() -> AsyncIterator[RepositoryRecord]:
        async for record in call.lake.installation.records():
            wanted = record.name.startswith(query.prefix) and query.search in record.name and record.name > query.after
            if wanted and not record.deleting and await call.allows(Action.READ_REPOSITORY, Resource(record.name)):
                yield record

    return await taken(readable(), query.amount, lambda record: record.name, wire.repository_of)


async def create_repository(call: Call) -> wire.Repository:
    given = call.body
    if call.query.bare:
        raise Invalid("a repository without a first commit is not possible: leave out bare")
    check_repository_name(given.name)
    check_branch_name(given.default_branch)
    storage = storage_of(call, given.storage_namespace)
    repository = await call.lake.installation.create(given.name, given.default_branch, storage=storage)
    try:
        if given.sample_data:
            await samples.fill(call.lake, given.name, given.default_branch, call.identity.user)
        if given.read_only:
            await repository.set_read_only(True)
        return wire.repository_of(repository.record)
    finally:
        await repository.aclose()


def storage_of(call: Call, namespace: str) -> str:
    """The URL at which a new repository is stored; empty for the installation's own store."""
    if not namespace or namespace.startswith(OWN_NAMESPACE):
        return ""
    return places.permitted(namespace, call.services.options.allowed_namespaces, "api.allowed_namespaces")


async def get_repository(call: Call) -> wire.Repository:
    return wire.repository_of((await call.repository()).record)


async def delete_repository(call: Call) -> None:
    name = call.path["repository"]
    await call.repository()  # `NotFound`
    await call.lake.installation.delete(name)
    await call.lake.forget(name)


async def get_metadata(call: Call) -> wire.Metadata:
    repository = await call.repository()
    return (await repository.policy.refresh()).metadata


async def set_metadata(call: Call) -> None:
    await _change(call, lambda metadata: {**metadata, **call.body.metadata})


async def delete_metadata(call: Call) -> None:
    keys = set(call.body.keys)
    await _change(call, lambda metadata: {key: value for key, value in metadata.items() if key not in keys})


async def _change(call: Call, change: Callable[[wire.Metadata], wire.Metadata]) -> None:
    def changed(record: RepositoryRecord) -> RepositoryRecord:
        metadata = change(record.metadata)
        if sum(len(key) + len(value) for key, value in metadata.items()) > METADATA_BYTES_MAX:
            raise Invalid(f"a repository has up to {METADATA_BYTES_MAX} characters of metadata: leave some out")
        return msgspec.structs.replace(record, metadata=metadata)

    await (await call.repository()).policy.change(changed)


def _named(call: Call) -> Resource:
    return Resource(call.body.name)


AT = "/repositories/{repository}"
OPERATIONS = (
    Operation(
        "listRepositories",
        "GET",
        "/repositories",
        Action.LIST_REPOSITORIES,
        list_repositories,
        wire.Repositories,
        query=RepositoriesQuery,
    ),
    Operation(
        "createRepository",
        "POST",
        "/repositories",
        Action.CREATE_REPOSITORY,
        create_repository,
        wire.Repository,
        201,
        CreationQuery,
        wire.RepositoryCreation,
        resource=_named,
    ),
    Operation("getRepository", "GET", AT, Action.READ_REPOSITORY, get_repository, wire.Repository),
    Operation(
        "deleteRepository", "DELETE", AT, Action.DELETE_REPOSITORY, delete_repository, status=204, query=DeletionQuery
    ),
    Operation("getRepositoryMetadata", "GET", f"{AT}/metadata", Action.READ_REPOSITORY, get_metadata, wire.Metadata),
    Operation(
        "setRepositoryMetadata",
        "POST",
        f"{AT}/metadata",
        Action.UPDATE_REPOSITORY,
        set_metadata,
        status=201,
        body=MetadataSet,
    ),
    Operation(
        "deleteRepositoryMetadata",
        "DELETE",
        f"{AT}/metadata",
        Action.UPDATE_REPOSITORY,
        delete_metadata,
        status=204,
        body=MetadataKeys,
    ),
)
