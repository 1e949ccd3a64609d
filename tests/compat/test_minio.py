"""minio-py, which signs for the region that it asks for, and streams parts of its own."""

import io

import pytest
from minio import Minio
from minio.commonconfig import CopySource
from minio.deleteobjects import DeleteObject

from tests.compat.support import LARGE, PART_BYTES
from tests.server.live import ADMIN, Live

pytestmark = pytest.mark.xdist_group("compat")


def test_a_round_trip(server: Live, repository: str) -> None:
    client = Minio(server.url.partition("//")[2], access_key=ADMIN.access_key_id, secret_key=ADMIN.secret, secure=False)

    def read(key: str, offset: int = 0, length: int = 0) -> bytes:
        answer = client.get_object(repository, key, offset=offset, length=length)
        try:
            return answer.read()
        finally:
            answer.close()
            answer.release_conn()

    assert client.bucket_exists(repository)
    assert not client.bucket_exists("no-such-lake")
    client.put_object(repository, "dev/a/small", io.BytesIO(b"0123456789"), 10, metadata={"who": "me"})
    client.put_object(repository, "dev/a/large", io.BytesIO(LARGE), -1, part_size=PART_BYTES)  # of unknown length
    assert read("dev/a/small", 2, 3) == b"234"
    assert read("dev/a/large") == LARGE
    found = client.stat_object(repository, "dev/a/small")
    assert (found.size, (found.metadata or {})["x-amz-meta-who"]) == (10, "me")
    client.copy_object(repository, "dev/b/copy", CopySource(repository, "dev/a/large"))
    assert read("dev/b/copy", PART_BYTES - 2, 4) == LARGE[PART_BYTES - 2 : PART_BYTES + 2]
    names = [each.object_name for each in client.list_objects(repository, prefix="dev/", recursive=True)]
    assert names == ["dev/a/large", "dev/a/small", "dev/b/copy"]
    assert list(client.remove_objects(repository, [DeleteObject("dev/b/copy")])) == []
    client.remove_object(repository, "dev/a/none")
    server.commit(repository, "dev")
    server.merge(repository, "dev")
    names = [each.object_name for each in client.list_objects(repository, prefix="main/", recursive=True)]
    assert names == ["main/a/large", "main/a/small"]
    assert read("main/a/large") == LARGE
