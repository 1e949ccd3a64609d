"""What clients ask first: whether the server is there, which version it speaks, what its storage can do."""

import msgspec
from msgspec import Struct

from lsmfs.api.operations import Call, Open, Operation
from lsmfs.auth import Action

VERSION = "1.88.0"  # of the API: what clients of that age expect is there
REGEX = r"^[a-z0-9]+://.*$"


class StorageConfig(Struct, frozen=True, rename={"validity": "blockstore_namespace_ValidityRegex"}):
    blockstore_type: str
    blockstore_namespace_example: str
    validity: str
    default_namespace_prefix: str
    pre_sign_support: bool
    pre_sign_support_ui: bool
    import_support: bool
    import_validity_regex: str
    pre_sign_multipart_upload: bool = False
    blockstore_id: str = ""
    blockstore_description: str = ""


class VersionConfig(Struct, frozen=True):
    version: str
    version_context: str = "lsmfs"
    latest_version: str = VERSION
    upgrade_recommended: bool = False
    upgrade_url: str = ""


class Config(Struct, frozen=True):
    version_config: VersionConfig
    storage_config: StorageConfig
    storage_config_list: list[StorageConfig]


class CollectionConfig(Struct, frozen=True):
    grace_period: int


class Events(Struct, frozen=True):
    events: list[msgspec.Raw] = []


async def health(call: Call) -> None:
    """Answered without looking at any store: it says that the process serves."""


def storage(call: Call) -> StorageConfig:
    options = call.services.options
    return StorageConfig(
        blockstore_type=options.blockstore_type,
        blockstore_namespace_example="local://example",
        validity=REGEX,
        default_namespace_prefix="local://",
        pre_sign_support=False,  # a body may be several blocks, or a piece of one: no URL of the store is the object
        pre_sign_support_ui=False,
        import_support=bool(options.allowed_imports),
        import_validity_regex=REGEX,
    )


async def get_config(call: Call) -> Config:
    return Config(VersionConfig(VERSION), storage(call), [])


async def get_storage(call: Call) -> StorageConfig:
    return storage(call)


async def get_version(call: Call) -> VersionConfig:
    return VersionConfig(VERSION)


async def get_collection(call: Call) -> CollectionConfig:
    return CollectionConfig(0)


async def statistics(call: Call) -> None:
    """Clients send what they were used for; nobody here wants to know."""


OPERATIONS = (
    Operation("healthCheck", "GET", "/healthcheck", Open.TO_ALL, health, status=204),
    # Clients read it before anything else, whatever their rights.
    Operation("getConfig", "GET", "/config", Open.TO_USERS, get_config, Config),
    Operation("getStorageConfig", "GET", "/config/storage", Open.TO_USERS, get_storage, StorageConfig),
    Operation("getLakeFSVersion", "GET", "/config/version", Open.TO_USERS, get_version, VersionConfig),
    Operation(
        "getGarbageCollectionConfig",
        "GET",
        "/config/garbage-collection",
        Action.READ_CONFIG,
        get_collection,
        CollectionConfig,
    ),
    Operation("postStatsEvents", "POST", "/statistics", Open.TO_USERS, statistics, status=204, body=Events),
)
