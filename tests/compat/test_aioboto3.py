"""aioboto3: the same calls as boto3's, on aiohttp."""

import asyncio
import io
from typing import Any

import aioboto3  # type: ignore[import-untyped]
import pytest
from boto3.s3.transfer import TransferConfig
from botocore.config import Config

from tests.aio import aio
from tests.compat.support import LARGE, PART_BYTES
from tests.server.live import ADMIN, REGION, Live

pytestmark = [
    pytest.mark.xdist_group("compat"),
    pytest.mark.filterwarnings("ignore:Sending a large body directly:ResourceWarning"),  # aiobotocore's own doing
]


def client_of(server: Live) -> Any:
    session = aioboto3.Session(ADMIN.access_key_id, ADMIN.secret, region_name=REGION)
    config = Config(retries={"max_attempts": 1}, s3={"addressing_style": "path"})
    return session.client("s3", endpoint_url=server.url, config=config)


@aio
async def test_a_round_trip(server: Live, repository: str) -> None:
    transfer = TransferConfig(multipart_threshold=PART_BYTES, multipart_chunksize=PART_BYTES)
    async with client_of(server) as s3:

        async def read(key: str, **more: str) -> bytes:
            answer = await s3.get_object(Bucket=repository, Key=key, **more)
            async with answer["Body"] as stream:
                body: bytes = await stream.read()
                return body

        puts = (s3.put_object(Bucket=repository, Key=f"dev/many/{n:02d}", Body=b"%d" % n) for n in range(20))
        await asyncio.gather(*puts)  # at once: they share flushes
        assert await asyncio.gather(*(read(f"dev/many/{n:02d}") for n in range(20))) == [b"%d" % n for n in range(20)]
        assert await read("dev/many/19", Range="bytes=1-") == b"9"

        await s3.upload_fileobj(io.BytesIO(LARGE), repository, "dev/large", Config=transfer)
        assert await read("dev/large") == LARGE
        assert (
            await read("dev/large", Range=f"bytes={PART_BYTES - 5}-{PART_BYTES + 4}")
            == (LARGE[PART_BYTES - 5 : PART_BYTES + 5])
        )
        await s3.copy_object(Bucket=repository, Key="dev/copy", CopySource=f"{repository}/dev/large")
        assert await read("dev/copy") == LARGE

        keys: list[str] = []
        async for page in s3.get_paginator("list_objects_v2").paginate(
            Bucket=repository, Prefix="dev/", PaginationConfig={"PageSize": 7}
        ):
            keys += [each["Key"] for each in page["Contents"]]
        assert keys == ["dev/copy", "dev/large", *(f"dev/many/{n:02d}" for n in range(20))]
        gone = [{"Key": f"dev/many/{n:02d}"} for n in range(20)]
        assert len((await s3.delete_objects(Bucket=repository, Delete={"Objects": gone}))["Deleted"]) == 20
        await s3.delete_object(Bucket=repository, Key="dev/copy")

        server.commit(repository, "dev")
        server.merge(repository, "dev")
        listed = await s3.list_objects_v2(Bucket=repository, Prefix="main/")
        assert [each["Key"] for each in listed["Contents"]] == ["main/large"]
        assert await read("main/large") == LARGE
