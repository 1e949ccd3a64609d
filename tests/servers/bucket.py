"""The address of a bucket that tests use, and the clients that are the second route to it."""

from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

import boto3
from azure.storage.blob import BlobServiceClient, ContainerClient
from botocore.config import Config


class BucketAddress(NamedTuple):
    """An address as `open_store` takes it, and the environment with its credentials."""

    url: str
    environment: Mapping[str, str]

    def below(self, prefix: str) -> "BucketAddress":
        """The same bucket with a prefix of one's own."""
        parts = urlsplit(self.url)
        return self._replace(url=parts._replace(path=f"{parts.path.rstrip('/')}/{prefix}").geturl())

    @property
    def bucket(self) -> str:
        return urlsplit(self.url).netloc

    @property
    def prefix(self) -> str:
        path = urlsplit(self.url).path.strip("/")
        return f"{path}/" if path else ""

    def parameter(self, name: str) -> str:
        return parse_qs(urlsplit(self.url).query).get(name, [""])[0]


def s3_client(address: BucketAddress) -> Any:
    """boto3's client for the address; no retries, so that a test sees what happens."""
    return boto3.client(
        "s3",
        endpoint_url=address.parameter("endpoint") or None,
        region_name=address.parameter("region") or "us-east-1",
        aws_access_key_id=address.environment["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=address.environment["AWS_SECRET_ACCESS_KEY"],
        config=Config(retries={"max_attempts": 1}, s3={"addressing_style": "path"}),
    )


def azure_client(address: BucketAddress) -> ContainerClient:
    """Microsoft's own client for the container at the address."""
    account = address.parameter("account") or address.environment["AZURE_STORAGE_ACCOUNT_NAME"]
    endpoint = address.parameter("endpoint") or f"https://{account}.blob.core.windows.net"
    key = address.environment["AZURE_STORAGE_ACCOUNT_KEY"]
    service = BlobServiceClient(endpoint, credential={"account_name": account, "account_key": key})
    return service.get_container_client(address.bucket)
