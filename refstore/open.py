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


class RefStore(Store, Refs, Protocol):
    """What every driver is: the five verbs, the branches and their journal."""


def open_refstore(url: str, environment: Mapping[str, str]) -> RefStore:
    """A client of the ref store at this URL. Credentials that are not in it come from `environment`."""
    parts = urlsplit(url)
    match parts.scheme:
        case "mem":
            from refstore.drivers.memory import MemoryRefStore

            return MemoryRefStore()
        case "sqlite":
            return _sqlite(parts)
        case "redis" | "rediss" | "redis+cluster":
            return _redis(parts)
        case "dynamodb":
            return _dynamodb(parts, environment)
    raise Invalid(
        f"{url!r} names no ref store: use mem://, sqlite://, redis://, rediss://, redis+cluster:// or dynamodb://"
    )


def _sqlite(parts: SplitResult) -> RefStore:
    from refstore.drivers.sqlite import SqliteRefStore

    if parts.netloc or not parts.path.strip("/"):
        raise Invalid(f"{parts.geturl()!r} names no file: write sqlite:///absolute/path")
    return SqliteRefStore("/" + unquote(parts.path).lstrip("/"))


def _redis(parts: SplitResult) -> RefStore:
    try:
        from refstore.drivers.redis import RedisRefStore
    except ImportError as error:
        raise Invalid("Redis needs a package: pip install 'lsmfs[redis]'") from error
    query = dict(parse_qsl(parts.query))
    replicas = _number(parts, query.pop("wait_replicas", "0"))
    timeout = _number(parts, query.pop("wait_timeout", "1"))
    return RedisRefStore(parts._replace(query=urlencode(query)).geturl(), int(replicas), timeout)


def _number(parts: SplitResult, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise Invalid(f"{text!r} in {parts.query!r} is not a number") from None


def _dynamodb(parts: SplitResult, environment: Mapping[str, str]) -> RefStore:
    try:
        from refstore.drivers.dynamodb import Credentials, DynamoRefStore
    except ImportError as error:
        raise Invalid("DynamoDB needs a package: pip install 'lsmfs[dynamodb]'") from error
    query = dict(parse_qsl(parts.query))
    region = query.pop("region", "") or environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION")
    endpoint = query.pop("endpoint", None)
    create = query.pop("create", "false") == "true"
    if query or not parts.netloc or not region:
        raise Invalid(f"{parts.geturl()!r}: write dynamodb://table?region=...&endpoint=...&create=true")
    key, secret = environment.get("AWS_ACCESS_KEY_ID"), environment.get("AWS_SECRET_ACCESS_KEY")
    # Without a key the machine's own role is asked, as every AWS client does.
    credentials = Credentials(key, secret, environment.get("AWS_SESSION_TOKEN")) if key and secret else None
    return DynamoRefStore(parts.netloc, region, endpoint, credentials, create)


__all__ = ["RefStore", "open_refstore"]
