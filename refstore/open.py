"""From a URL to a ref store driver: the only place that knows the drivers by name.

    mem://                                      this process only, for trying out
    sqlite:///var/lib/lsmfs/refs.db             one machine; an absolute path
    redis://host:6379/0?wait_replicas=1         many machines; also rediss:// (TLS) and redis+cluster://
    dynamodb://table?region=eu-west-1           many machines; also &endpoint=http://... and &create=true

A bucket as its own ref store has no URL here: who has the object store makes `drivers.bucket.BucketRefStore` of it.
Drivers that need a package are imported when they are asked for.
"""

from collections.abc import Mapping
from typing import Protocol
from urllib.parse import SplitResult, parse_qsl, unquote, urlencode, urlsplit

from refstore.errors import Invalid
from refstore.refs import Refs
from refstore.store import Store

# Of redis-py's own, those that change nothing about the answers.
REDIS_PARAMETERS = ("db", "username", "password", "client_name", "health_check_interval", "socket_keepalive")


class RefStore(Store, Refs, Protocol):
    """What every driver is: the five verbs, the branches and their journal."""


def open_refstore(url: str, environment: Mapping[str, str]) -> RefStore:
    """A client of the ref store at this URL. Credentials that are not in it come from `environment`."""
    try:
        parts = urlsplit(url)
    except ValueError:
        raise Invalid(
            "the ref store's URL cannot be taken apart: its host has brackets of which one is missing"
        ) from None
    match parts.scheme:
        case "mem" if not (parts.netloc or parts.path or parts.query):
            from refstore.drivers.memory import MemoryRefStore

            return MemoryRefStore()
        case "sqlite":
            return _sqlite(parts)
        case "redis" | "rediss" | "redis+cluster":
            return _redis(parts)
        case "dynamodb":
            return _dynamodb(parts, environment)
    raise Invalid(
        f"{_shown(parts)!r} names no ref store: use mem://, sqlite:///absolute/path, redis://, rediss://, "
        "redis+cluster:// or dynamodb://"
    )


def _shown(parts: SplitResult) -> str:
    """The URL as an error may show it: without what can be a secret, the user's part and the parameters."""
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}{parts.path}" if parts.scheme else parts.path


def _sqlite(parts: SplitResult) -> RefStore:
    from refstore.drivers.sqlite import SqliteRefStore

    if parts.netloc or parts.query or not parts.path.strip("/"):
        raise Invalid(f"{_shown(parts)!r} names no file: write sqlite:///absolute/path, without parameters")
    return SqliteRefStore("/" + unquote(parts.path).lstrip("/"))


def _redis(parts: SplitResult) -> RefStore:
    try:
        from refstore.drivers.redis import RedisRefStore
    except ImportError as error:
        raise Invalid("Redis needs a package: pip install 'lsmfs[redis]'") from error
    query = dict(parse_qsl(parts.query))
    replicas, timeout = query.pop("wait_replicas", "0"), query.pop("wait_timeout", "1")
    try:
        waits = int(replicas), float(timeout)
    except ValueError:
        raise Invalid(f"wait_replicas={replicas}, wait_timeout={timeout}: write a whole number, and seconds") from None
    if unknown := [name for name in query if name not in REDIS_PARAMETERS and not name.startswith("ssl_")]:
        raise Invalid(
            f"{_shown(parts)!r} has parameters {unknown} that are not known: write wait_replicas, wait_timeout, "
            f"{', '.join(REDIS_PARAMETERS)} or, for rediss://, ssl_..."
        )
    return RedisRefStore(parts._replace(query=urlencode(query)).geturl(), *waits)


def _dynamodb(parts: SplitResult, environment: Mapping[str, str]) -> RefStore:
    try:
        from refstore.drivers.dynamodb import Credentials, DynamoRefStore
    except ImportError as error:
        raise Invalid("DynamoDB needs a package: pip install 'lsmfs[dynamodb]'") from error
    query = dict(parse_qsl(parts.query))
    region = query.pop("region", "") or environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION")
    endpoint = query.pop("endpoint", None)
    create = query.pop("create", "false")
    sound = parts.netloc and "@" not in parts.netloc and not parts.path and not query and create in ("true", "false")
    sound = sound and "@" not in (endpoint or "")  # credentials are not for a URL, and would be shown in errors
    if not sound or not region:
        raise Invalid(f"{_shown(parts)!r}: write dynamodb://table?region=...&endpoint=...&create=true")
    key, secret = environment.get("AWS_ACCESS_KEY_ID"), environment.get("AWS_SECRET_ACCESS_KEY")
    # Without a key the machine's own role is asked, as every AWS client does.
    credentials = Credentials(key, secret, environment.get("AWS_SESSION_TOKEN")) if key and secret else None
    return DynamoRefStore(parts.netloc, region, endpoint, credentials, create == "true")


__all__ = ["RefStore", "open_refstore"]
