"""From the server's configuration to an opened installation: the stores' URLs, and the credentials for them.

Credentials never stand in an address, so they go as the variables that the clouds' clients know, in a mapping made
from the process's own: what the configuration says outranks what the environment says.

    blockstore.s3.credentials           first, as they are
    blockstore.s3.profile, or           a section of the credentials file [~/.aws/credentials, section default]
    blockstore.s3.credentials_file
    nothing of these                    the environment, or what the machine has (an instance's role)

The installation's own file, lsmfs.json in the data folder, is obeyed where the configuration names no stores, and
written at the first start, so that commands on the same folder find the same stores. If both name stores they must be
the same ones: `Invalid`, before anything is written into the wrong place.
"""

import configparser
import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote, urlencode, urlsplit, urlunsplit

from lsmfs.installation import (
    BUCKET_REFS,
    FILE,
    Configuration,
    Installation,
    create_installation,
    read_configuration,
    without_password,
)
from lsmfs.server.config import S3, Db, Redis, ServerConfig, Wrong
from refstore.errors import AlreadyExists, Invalid, NotFound

CREDENTIALS_FILE = "~/.aws/credentials"
PROFILE = "default"
BUCKET_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}")  # of old ones; new ones have at most 63, in lower case
FILE_KEY, PROFILE_KEY = "blockstore.s3.credentials_file", "blockstore.s3.profile"


def folder_of(config: ServerConfig) -> Path:
    """The data folder."""
    return _absolute(config.data)


def configuration_of(config: ServerConfig) -> Configuration:
    """The stores that the configuration names; `Wrong` if an address in it is not one."""
    return Configuration(
        store=_store_url(config),
        refs=_refs_url(config.metadata.db),
        cache_bytes_max=config.cache_bytes_max,
    )


def environment_of(config: ServerConfig, environment: Mapping[str, str]) -> dict[str, str]:
    """The environment with the configuration's credentials."""
    blocks, found = config.blockstore, dict(environment)
    if blocks.type == "s3":
        found.setdefault("AWS_REGION", blocks.s3.region)
        if credentials := _s3_credentials(blocks.s3):
            for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
                found.pop(name, None)  # a token of other keys would make these invalid
            found.update(credentials)
    elif blocks.type == "gs" and blocks.gs.credentials_file:
        found.pop("GOOGLE_OAUTH_ACCESS_TOKEN", None)
        found["GOOGLE_APPLICATION_CREDENTIALS"] = str(_absolute(blocks.gs.credentials_file))
    elif blocks.type == "azure" and blocks.azure.account_key:
        found["AZURE_STORAGE_ACCOUNT_KEY"] = blocks.azure.account_key.reveal()
    elif blocks.type == "azure" and blocks.azure.sas_token:
        found.pop("AZURE_STORAGE_ACCOUNT_KEY", None)
        found["AZURE_STORAGE_SAS_TOKEN"] = blocks.azure.sas_token.reveal()
    return found


def check(config: ServerConfig, environment: Mapping[str, str]) -> None:
    """Whether the stores could be opened, without asking them; `Wrong` if not."""
    url, mapping = configuration_of(config).store, environment_of(config, environment)
    if config.blockstore.type != "local":
        from lsmfs.objectstore.bucket_url import open_bucket  # here: obstore takes 50 ms to import

        try:
            open_bucket(url, mapping)
        except Invalid as error:
            raise Wrong(f"blockstore.{config.blockstore.type}", str(error)) from None


def prepare(config: ServerConfig, names_stores: bool) -> Configuration:
    """The configuration to open the installation with; at the first start lsmfs.json is written. Call it once, before
    there are workers. `names_stores`: whether somebody said where data is."""
    folder, said = folder_of(config), configuration_of(config)
    try:
        stored = read_configuration(folder)
    except NotFound:
        if urlsplit(said.refs).password:  # it stays where its owner put it
            return said
        try:
            create_installation(folder, said)
        except AlreadyExists:  # another server on this folder was first: is it of one mind with us?
            stored = read_configuration(folder)
        else:
            return said
    if not names_stores:
        return stored
    theirs, ours = _identity(stored, folder), _identity(said, folder)
    for what in ("store", "refs"):
        if theirs[what] != ours[what]:
            raise Invalid(
                f"{folder / FILE} says {what} {theirs[what]}, the configuration says {ours[what]}: choose another "
                f"data folder, or correct one of the two"
            )
    return said


def open_configured(config: ServerConfig, configuration: Configuration, environment: Mapping[str, str]) -> Installation:
    """The installation, opened; `configuration` is what `prepare` gave."""
    return Installation(folder_of(config), configuration, environment_of(config, environment))


def _identity(configuration: Configuration, folder: Path) -> dict[str, str]:
    """Two configurations with the same one keep their data in the same place."""
    filled = {
        name: url.replace("{folder}", quote(str(folder)))
        for name, url in (("store", configuration.store), ("refs", configuration.refs))
    }
    return {name: without_password(url) for name, url in filled.items()}


def _store_url(config: ServerConfig) -> str:
    blocks = config.blockstore
    if blocks.type == "local":
        return f"file://{quote(str(_absolute(blocks.local.path)))}" if blocks.local.path else Configuration().store
    if blocks.type == "s3":
        return _s3_url(blocks.s3)
    kind, url = ("gs", blocks.gs.url) if blocks.type == "gs" else ("az", blocks.azure.url)
    if not url or not url.startswith(f"{kind}://"):
        raise Wrong(f"blockstore.{blocks.type}.url", f"is no address: write {kind}://bucket/prefix")
    return url


def _s3_url(s3: S3) -> str:
    parameters = {"region": s3.region}
    if s3.endpoint:
        _check_plain(s3.endpoint, "blockstore.s3.endpoint", ("http", "https"))
        parameters["endpoint"] = s3.endpoint
    if s3.ordered is not None:
        parameters["ordered"] = "yes" if s3.ordered else "no"
    if not BUCKET_NAME.fullmatch(s3.bucket or ""):
        raise Wrong("blockstore.s3.bucket", f"{s3.bucket!r} is no bucket's name: a path goes into blockstore.s3.prefix")
    path = quote(s3.prefix.strip("/"))
    return f"s3://{s3.bucket}{'/' + path if path else ''}?{urlencode(parameters)}"


def _refs_url(db: Db) -> str:
    if db.type == "sqlite":
        return f"sqlite://{quote(str(_absolute(db.sqlite.path)))}" if db.sqlite.path else Configuration().refs
    if db.type == "bucket":
        return BUCKET_REFS
    if db.type == "redis":
        return _redis_url(db.redis)
    table = db.dynamodb
    parameters = {"region": table.region or "", "create": "true" if table.create_table else "false"}
    if table.endpoint:
        _check_plain(table.endpoint, "metadata.db.dynamodb.endpoint", ("http", "https"))
        parameters["endpoint"] = table.endpoint
    return f"dynamodb://{quote(table.table or '', safe='')}?{urlencode(parameters)}"


def _redis_url(redis: Redis) -> str:
    url = redis.url or ""
    _check_plain(url, "metadata.db.redis.url", ("redis", "rediss", "redis+cluster"))
    if not redis.password:
        return url
    parts = urlsplit(url)
    user = f"{quote(redis.username or '', safe='')}:{quote(redis.password.reveal(), safe='')}"
    return urlunsplit(parts._replace(netloc=f"{user}@{parts.netloc}"))


def _check_plain(url: str, key: str, schemes: tuple[str, ...]) -> None:
    """An address may be shown, so it may not hold a secret."""
    try:
        parts = urlsplit(url)
    except ValueError:
        raise Wrong(key, "is no address: its host has brackets of which one is missing") from None
    if parts.scheme not in schemes or not parts.netloc:
        raise Wrong(key, f"is no address: write {schemes[0]}://HOST:PORT")
    if "@" in parts.netloc or "password" in parts.query:
        instead = f"write {key.rpartition('.')[0]}.password" if "redis" in key else "give credentials by their own keys"
        raise Wrong(key, f"has credentials in it: remove them, and {instead}")


def _s3_credentials(s3: S3) -> dict[str, str]:
    given = s3.credentials
    if given.access_key_id and given.access_secret_key:
        found = {
            "AWS_ACCESS_KEY_ID": given.access_key_id,
            "AWS_SECRET_ACCESS_KEY": given.access_secret_key.reveal(),
        }
        return found | ({"AWS_SESSION_TOKEN": given.session_token.reveal()} if given.session_token else {})
    if s3.profile or s3.credentials_file:
        return _profile(_absolute(s3.credentials_file or CREDENTIALS_FILE), s3.profile or PROFILE)
    return {}


def _profile(path: Path, profile: str) -> dict[str, str]:
    parser = configparser.ConfigParser(interpolation=None, default_section="")
    try:
        parser.read_string(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise Wrong(FILE_KEY, f"{path} does not exist: correct it") from None
    except PermissionError:
        raise Wrong(FILE_KEY, f"{path} may not be read: change its rights") from None
    except (OSError, UnicodeError, configparser.Error) as error:
        # Without the error's own words: they quote lines of the file.
        raise Wrong(FILE_KEY, f"{path} is no credentials file ({type(error).__name__}): correct it") from None
    if not parser.has_section(profile):
        raise Wrong(PROFILE_KEY, f"{path} has no profile {profile!r}: correct it")
    section = parser[profile]
    if not section.get("aws_access_key_id") or not section.get("aws_secret_access_key"):
        words = f"profile {profile!r} in {path} has no aws_access_key_id and aws_secret_access_key: add them"
        raise Wrong(PROFILE_KEY, words)
    names = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")
    return {name.upper(): section[name] for name in names if section.get(name)}


def _absolute(path: str) -> Path:
    return Path(path).expanduser().absolute()
