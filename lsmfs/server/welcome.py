"""What a person who starts the server is told: its address, once the first administrator's keys, what to try."""

from collections.abc import Mapping
from typing import Any

from lsmfs.auth import Authority
from lsmfs.auth.keys import Pair
from lsmfs.server.lake import Lake
from lsmfs.server.worker import Worker
from refstore.errors import AlreadyExists, Invalid

ADMINISTRATOR = "admin"
QUICKSTART = "quickstart"
ACCESS_KEY, SECRET_KEY = "LSMFS_ACCESS_KEY_ID", "LSMFS_SECRET_ACCESS_KEY"


async def welcome(lake: Lake, authority: Authority, worker: Worker) -> dict[str, Any]:
    """Make the first administrator if there is none, and the sample repository if it is wanted; the announcement."""
    pair, url = _given(worker.environment), worker.urls[0] if worker.urls else ""
    document: dict[str, Any] = {}
    lines: list[str] = []
    try:
        key, secret = await authority.setup(ADMINISTRATOR, pair)
    except AlreadyExists:
        names = ("YOUR_ACCESS_KEY_ID", "YOUR_SECRET_ACCESS_KEY")
    else:
        shown = "as the environment says" if pair else secret
        document = {"access_key_id": key.access_key_id} | ({} if pair else {"secret_access_key": secret})
        lines += [
            "first administrator, whose secret is shown only now:" if pair is None else "first administrator:",
            f"  access key id      {key.access_key_id}",
            f"  secret access key  {shown}",
        ]
        names = (key.access_key_id, f"${SECRET_KEY}" if pair else secret)
    if worker.is_quickstart:
        await _quickstart(lake)
        document["repository"] = QUICKSTART
    lines += ["try:", *(f"  {line}" for line in _commands(url, *names, worker.is_quickstart))]
    return {"text": "\n".join(lines), "document": document}


def _given(environment: Mapping[str, str]) -> Pair | None:
    access_key, secret = environment.get(ACCESS_KEY), environment.get(SECRET_KEY)
    if bool(access_key) != bool(secret):
        raise Invalid(f"{ACCESS_KEY} and {SECRET_KEY} belong together: set both, or none")
    return Pair(access_key, secret) if access_key and secret else None


async def _quickstart(lake: Lake) -> None:
    from lsmfs.api.samples import create_sample

    await create_sample(lake, QUICKSTART)


def _commands(url: str, access_key: str, secret: str, is_quickstart: bool) -> list[str]:
    repository = QUICKSTART if is_quickstart else "lake"
    asked = f"curl -u $AWS_ACCESS_KEY_ID:$AWS_SECRET_ACCESS_KEY {url}/api/v1/repositories"
    made = f' -H content-type:application/json -d \'{{"name": "{repository}", "storage_namespace": "local://{repository}"}}\''
    return [
        f"export AWS_ACCESS_KEY_ID={access_key} AWS_SECRET_ACCESS_KEY={secret} AWS_ENDPOINT_URL={url}",
        asked if is_quickstart else asked + made,  # the sample is there already
        f"aws s3 cp README.md s3://{repository}/main/README.md && aws s3 ls s3://{repository}/main/",
    ]
