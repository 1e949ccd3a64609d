"""Which server a user means, and with which key: said by options, the environment, or a file, in this order.

    endpoint   --endpoint, LSMFS_ENDPOINT_URL, LAKECTL_SERVER_ENDPOINT_URL; then ~/.lsmfs.yaml, ~/.lakectl.yaml
    key        LSMFS_ACCESS_KEY_ID and LSMFS_SECRET_ACCESS_KEY, LAKECTL_CREDENTIALS_ACCESS_KEY_ID and
               LAKECTL_CREDENTIALS_SECRET_ACCESS_KEY; then the files; --access-key-id says which of them is meant

    server:
      endpoint_url: https://lake.example.com
    credentials:
      access_key_id: ...
      secret_access_key: ...

A secret is never an option, for every user of a machine sees command lines. A file's key is only sent to the endpoint
that the same file names, or to any if it names none: to say another --endpoint must not give a secret away.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from lsmfs.client.endpoint import parse_endpoint
from refstore.errors import Denied, Invalid

FILES = (".lsmfs.yaml", ".lakectl.yaml")
FILE_BYTES_MAX = 1024 * 1024
ENDPOINTS = ("LSMFS_ENDPOINT_URL", "LAKECTL_SERVER_ENDPOINT_URL")
KEYS = (
    ("LSMFS_ACCESS_KEY_ID", "LSMFS_SECRET_ACCESS_KEY"),
    ("LAKECTL_CREDENTIALS_ACCESS_KEY_ID", "LAKECTL_CREDENTIALS_SECRET_ACCESS_KEY"),
)


class Server(msgspec.Struct, frozen=True):
    endpoint_url: str = ""


class Credentials(msgspec.Struct, frozen=True):
    access_key_id: str = ""
    secret_access_key: str = ""


class Settings(msgspec.Struct, frozen=True):
    """What a file says."""

    server: Server = Server()
    credentials: Credentials = Credentials()


class Profile(NamedTuple):
    endpoint: str
    access_key_id: str
    secret_access_key: str


def endpoint_of(environment: Mapping[str, str]) -> str:
    """The endpoint that the environment names; empty if it names none."""
    return next((environment[name] for name in ENDPOINTS if environment.get(name)), "")


def endpoint_in_files(environment: Mapping[str, str]) -> str:
    """The endpoint that a file in the home folder names; empty if none does."""
    return next((each.server.endpoint_url for each in _files(environment) if each.server.endpoint_url), "")


def profile(endpoint: str, access_key_id: str, environment: Mapping[str, str]) -> Profile:
    """The endpoint, and the key for it; `Denied` if there is none."""
    endpoint = parse_endpoint(endpoint)
    found = [Credentials(environment.get(key, ""), environment.get(secret, "")) for key, secret in KEYS]
    found += [each.credentials for each in _files(environment) if _is_for(each, endpoint)]
    for each in found:
        if each.secret_access_key and (not access_key_id or each.access_key_id in ("", access_key_id)):
            if not (key := access_key_id or each.access_key_id):
                raise Denied("there is a secret without an access key id: set LSMFS_ACCESS_KEY_ID")
            return Profile(endpoint, key, each.secret_access_key)
    whose = f" of {access_key_id!r}" if access_key_id else ""
    raise Denied(
        f"there is no secret{whose} for {endpoint}: set LSMFS_ACCESS_KEY_ID and LSMFS_SECRET_ACCESS_KEY, or write "
        f"~/{FILES[0]} with server.endpoint_url and credentials"
    )


def _is_for(file: Settings, endpoint: str) -> bool:
    return not file.server.endpoint_url or parse_endpoint(file.server.endpoint_url) == endpoint


def _files(environment: Mapping[str, str]) -> list[Settings]:
    home = environment.get("HOME", "")
    return [_read(Path(home) / name) for name in FILES] if home else []


def _read(path: Path) -> Settings:
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except (FileNotFoundError, NotADirectoryError):
        return Settings()
    except OSError as error:
        raise Denied(f"{path}: {error.strerror}: change its rights, or remove it") from None
    if len(data) > FILE_BYTES_MAX:
        raise Invalid(f"{path} has more than {FILE_BYTES_MAX} bytes: it cannot be a file of credentials")
    import yaml  # few commands need it, and it takes its time

    try:
        return msgspec.convert(yaml.safe_load(data) or {}, type=Settings)
    except (yaml.YAMLError, msgspec.ValidationError, UnicodeError, RecursionError) as error:
        # What is wrong, and where: but no line of the file, for one has the secret.
        mark = getattr(error, "problem_mark", None)
        where = f" in line {mark.line + 1}" if mark is not None else ""
        why = getattr(error, "problem", None) or (error if isinstance(error, msgspec.ValidationError) else "")
        raise Invalid(f"{path} cannot be read{where}: {why}: it has server.endpoint_url and credentials") from None
