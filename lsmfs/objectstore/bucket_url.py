"""The address of a bucket: parsed, and opened with obstore.

    s3://bucket/prefix?endpoint=http://127.0.0.1:8333&region=eu-west-1
    gs://bucket/prefix?endpoint=...
    az://container/prefix?account=...&endpoint=...

`endpoint` and `region` default to the cloud's own. Any address may say `ordered=yes` or `ordered=no`: whether the
store lists names in byte order. By default Amazon's S3 (but its directory buckets) and Google's are believed to, and
a foreign endpoint and Azure are not: servers built on directories, and Azure with hierarchical names, list in another
order and then also skip names when a listing is resumed. A wrong `no` costs time, a wrong `yes` is noticed while
listing only sometimes.

Credentials never stand in the address. They are taken from the mapping that the caller gives, under the clouds' usual
names: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_REGION, AWS_ENDPOINT_URL_S3 (or
AWS_ENDPOINT_URL); GOOGLE_APPLICATION_CREDENTIALS, GOOGLE_OAUTH_ACCESS_TOKEN; AZURE_STORAGE_ACCOUNT_NAME,
AZURE_STORAGE_ACCOUNT_KEY, AZURE_STORAGE_SAS_TOKEN. Where the mapping has none, obstore looks for what the machine
itself has (an instance's role, a workload's identity).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Literal
from urllib.parse import parse_qsl, unquote, urlsplit

from obstore.exceptions import BaseError
from obstore.store import AzureStore, GCSStore, S3Store

from lsmfs.objectstore.checks import check_name
from refstore.errors import Invalid

if TYPE_CHECKING:
    from obstore.store import AzureConfig, ClientConfig, GCSConfig, RetryConfig, S3Config

Scheme = Literal["s3", "gs", "az"]

_PARAMETERS: dict[str, frozenset[str]] = {
    "s3": frozenset({"endpoint", "region", "ordered"}),
    "gs": frozenset({"endpoint", "ordered"}),
    "az": frozenset({"endpoint", "account", "ordered"}),
}
# The drivers do not retry: a repeated conditional put whose first answer was lost is refused by its own first attempt.
_RETRY: "RetryConfig" = {"max_retries": 0}
# No answer for a minute is an error. The whole of a request may take longer: a large body on a slow line does.
_ANSWER_SECONDS_MAX = 60
_REQUEST_SECONDS_MAX = 3600


@dataclass(frozen=True, slots=True)
class Bucket:
    """An opened bucket. `prefix` is empty or ends with a slash; `label` is its address without parameters."""

    scheme: Scheme
    store: S3Store | GCSStore | AzureStore
    prefix: str
    ordered: bool
    label: str


@dataclass(frozen=True, slots=True)
class _Address:
    scheme: str
    name: str
    prefix: str
    parameters: Mapping[str, str]


def open_bucket(url: str, environment: Mapping[str, str]) -> Bucket:
    """The bucket at the address, with credentials from the mapping; `Invalid` if the address is not one."""
    address = _parse(url)
    try:
        if address.scheme == "s3":
            return _open_s3(address, environment)
        if address.scheme == "gs":
            return _open_gcs(address, environment)
        return _open_azure(address, environment)
    except (BaseError, ValueError) as error:
        raise Invalid(f"{url!r} cannot be opened: {str(error).splitlines()[0]}") from error


def _parse(url: str) -> _Address:
    parts = urlsplit(url)
    if parts.scheme not in _PARAMETERS or not parts.netloc:
        raise Invalid(f"{url!r} is no bucket address: expected s3://, gs:// or az:// and a bucket's name")
    if parts.username or parts.password or parts.fragment:
        raise Invalid(f"the address of bucket {parts.hostname!r} has credentials or a fragment in it: remove them")
    try:
        pairs = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=True) if parts.query else []
    except ValueError as error:
        raise Invalid(f"{url!r} has parameters that are not name=value") from error
    parameters = dict(pairs)
    if unknown := parameters.keys() - _PARAMETERS[parts.scheme]:
        known = ", ".join(sorted(_PARAMETERS[parts.scheme]))
        raise Invalid(f"{url!r} has unknown parameters {sorted(unknown)}; {parts.scheme}:// knows {known}")
    if parameters.get("ordered", "yes") not in ("yes", "no"):
        raise Invalid(f"{url!r}: ordered is yes or no")
    path = unquote(parts.path).strip("/")
    return _Address(parts.scheme, parts.netloc, check_name(path) + "/" if path else "", parameters)


def _bucket(
    address: _Address, scheme: Scheme, store: S3Store | GCSStore | AzureStore, ordered_by_default: bool
) -> Bucket:
    said = address.parameters.get("ordered")
    ordered = ordered_by_default if said is None else said == "yes"
    return Bucket(scheme, store, address.prefix, ordered, f"{scheme}://{address.name}/{address.prefix}")


def _client(endpoint: str) -> "ClientConfig":
    return {
        "allow_http": endpoint.startswith("http://"),
        "timeout": timedelta(seconds=_REQUEST_SECONDS_MAX),
        "read_timeout": timedelta(seconds=_ANSWER_SECONDS_MAX),
    }


def _open_s3(address: _Address, environment: Mapping[str, str]) -> Bucket:
    region = address.parameters.get("region") or environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION")
    region = region or "us-east-1"
    amazon = f"https://s3.{region}.amazonaws.com"
    given = address.parameters.get("endpoint") or environment.get("AWS_ENDPOINT_URL_S3")
    endpoint = (given or environment.get("AWS_ENDPOINT_URL") or amazon).rstrip("/")
    # Both names of the endpoint, since obstore also reads the process environment, and one outranks the other. Single
    # deletes: not every server has the bulk form, and we delete one by one.
    config: S3Config = {
        "region": region,
        "endpoint": endpoint,
        "aws_endpoint_url_s3": endpoint,
        "disable_bulk_delete": True,
    }
    if key := environment.get("AWS_ACCESS_KEY_ID"):
        config["access_key_id"] = key
        config["secret_access_key"] = environment.get("AWS_SECRET_ACCESS_KEY", "")
        if token := environment.get("AWS_SESSION_TOKEN"):
            config["session_token"] = token
    store = S3Store(address.name, config=config, client_options=_client(endpoint), retry_config=_RETRY)
    return _bucket(address, "s3", store, endpoint == amazon and not address.name.endswith("--x-s3"))


def _open_gcs(address: _Address, environment: Mapping[str, str]) -> Bucket:
    config: GCSConfig = {}
    endpoint = address.parameters.get("endpoint", "").rstrip("/")
    if endpoint:
        config["base_url"] = endpoint
    if token := environment.get("GOOGLE_OAUTH_ACCESS_TOKEN"):
        config["bearer_token"] = token
    elif file := environment.get("GOOGLE_APPLICATION_CREDENTIALS"):
        config["application_credentials"] = file
    store = GCSStore(address.name, config=config, client_options=_client(endpoint), retry_config=_RETRY)
    return _bucket(address, "gs", store, not endpoint)


def _open_azure(address: _Address, environment: Mapping[str, str]) -> Bucket:
    account = address.parameters.get("account") or environment.get("AZURE_STORAGE_ACCOUNT_NAME")
    if not account:
        raise Invalid(f"az://{address.name} needs an account: add ?account=, or set AZURE_STORAGE_ACCOUNT_NAME")
    endpoint = (address.parameters.get("endpoint") or f"https://{account}.blob.core.windows.net").rstrip("/")
    config: AzureConfig = {"account_name": account, "endpoint": endpoint}
    if key := environment.get("AZURE_STORAGE_ACCOUNT_KEY"):
        config["account_key"] = key
    elif token := environment.get("AZURE_STORAGE_SAS_TOKEN"):
        config["sas_key"] = token
    store = AzureStore(address.name, config=config, client_options=_client(endpoint), retry_config=_RETRY)
    return _bucket(address, "az", store, False)
