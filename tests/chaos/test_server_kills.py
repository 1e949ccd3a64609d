"""The whole server killed with SIGKILL under load, again and again: what it acknowledged is there, and nothing else.

Clients of both kinds, boto3 on the gateway and httpx on the API, put, replace and delete objects that each has to
itself, and one commits. After each kill they go on when the server is back, and first look at what became of the
request that was under way: all of it or nothing, and never something older than what was acknowledged.
"""

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
from botocore.exceptions import BotoCoreError, ClientError

from tests.server.live import WAIT_SECONDS_MAX, Live, running

KEYS_EACH = 12
PART_BYTES = 5 * 1024 * 1024
KILLS = 4
ACKNOWLEDGED_MIN = 40  # between two kills, so that each interrupts something
Body = bytes | None


class Lost(Exception):
    """The server went away, or said that it cannot now: what became of the request is not known."""


class Gateway:
    """Objects by boto3."""

    def __init__(self, server: Live) -> None:
        self._s3 = server.s3()

    def put(self, key: str, body: bytes) -> None:
        if len(body) > PART_BYTES:
            self._put_in_parts(f"main/{key}", body)
        else:
            self._call("put_object", Key=f"main/{key}", Body=body)

    def _put_in_parts(self, key: str, body: bytes) -> None:
        identity = self._call("create_multipart_upload", Key=key)["UploadId"]
        parts = []
        for number, at in enumerate(range(0, len(body), PART_BYTES), 1):
            piece = body[at : at + PART_BYTES]
            made = self._call("upload_part", Key=key, UploadId=identity, PartNumber=number, Body=piece)
            parts.append({"PartNumber": number, "ETag": made["ETag"]})
        self._call("complete_multipart_upload", Key=key, UploadId=identity, MultipartUpload={"Parts": parts})

    def delete(self, key: str) -> None:
        self._call("delete_object", Key=f"main/{key}")

    def get(self, key: str) -> Body:
        try:
            body: bytes = self._call("get_object", Key=f"main/{key}")["Body"].read()
        except BotoCoreError as error:
            raise Lost from error
        except ClientError as error:
            if error.response["Error"]["Code"] != "NoSuchKey":
                raise
            return None
        return body

    def _call(self, name: str, **arguments: Any) -> Any:
        try:
            return getattr(self._s3, name)(Bucket="lake", **arguments)
        except BotoCoreError as error:
            raise Lost from error
        except ClientError as error:
            if error.response["ResponseMetadata"]["HTTPStatusCode"] == 503:
                raise Lost from error
            raise


class Api:
    """Objects by httpx."""

    def __init__(self, server: Live) -> None:
        self._client = server.client()

    def put(self, key: str, body: bytes) -> None:
        self._call("POST", "branches", key, body)

    def delete(self, key: str) -> None:
        self._call("DELETE", "branches", key, b"")

    def get(self, key: str) -> Body:
        answer = self._call("GET", "refs", key, b"")
        return None if answer.status_code == 404 else answer.content

    def _call(self, method: str, kind: str, key: str, body: bytes) -> httpx.Response:
        where = f"/repositories/lake/{kind}/main/objects"
        try:
            answer = self._client.request(method, where, params={"path": key}, content=body)
        except httpx.HTTPError as error:
            raise Lost from error
        if answer.status_code == 503:
            raise Lost
        assert answer.is_success or (answer.status_code == 404 and method == "GET"), f"{method} {key}: {answer.text}"
        return answer


class User(threading.Thread):
    """Puts and deletes; what its keys may be now."""

    def __init__(self, name: str, objects: Gateway | Api, stop: threading.Event) -> None:
        super().__init__()
        self.possible: dict[str, set[Body]] = {f"{name}/{number:02d}": {None} for number in range(KEYS_EACH)}
        self.acknowledged = self.lost = 0
        self.problems: list[str] = []
        self._objects = objects
        self._stop_event = stop
        self._chance = random.Random(name)

    def run(self) -> None:
        try:
            while not self._stop_event.is_set():
                self._act()
        except BaseException as error:
            self.problems.append(repr(error))
            raise

    def _act(self) -> None:
        key, body = self._chance.choice(list(self.possible)), self._body()
        self.possible[key] = self.possible[key] | {body}
        try:
            if body is None:
                self._objects.delete(key)
            else:
                self._objects.put(key, body)
        except Lost:
            self.lost += 1
            self._look(key)
        else:
            self.possible[key] = {body}
            self.acknowledged += 1

    def _body(self) -> Body:
        kind = self._chance.random()
        if kind < 0.15:
            return None
        size = PART_BYTES + 1000 if kind > 0.99 and isinstance(self._objects, Gateway) else self._chance.randrange(9000)
        return self._chance.randbytes(size)

    def _look(self, key: str) -> None:
        """When the server is back: what it shows now it must go on showing."""
        while not self._stop_event.is_set():
            try:
                found = self._objects.get(key)
            except Lost:
                time.sleep(0.25)  # asking takes what the server needs to start
                continue
            self._see(key, found)
            return

    def check(self, objects: Gateway | Api) -> None:
        """All of its keys; from now on they are as they are now."""
        for key in self.possible:
            self._see(key, objects.get(key))

    def _see(self, key: str, found: Body) -> None:
        sizes = [None if each is None else len(each) for each in self.possible[key]]
        if found not in self.possible[key]:
            self.problems.append(f"{key}: {None if found is None else len(found)} bytes, not one of {sizes}")
        self.possible[key] = {found}


class Committer(threading.Thread):
    """Commits what is there, and remembers what was answered."""

    def __init__(self, server: Live, stop: threading.Event) -> None:
        super().__init__()
        self.commits: list[str] = []
        self._client = server.client()
        self._stop_event = stop

    def run(self) -> None:
        while not self._stop_event.wait(0.1):
            try:
                answer = self._client.post("/repositories/lake/branches/main/commits", json={"message": "more"})
            except httpx.HTTPError:
                continue
            if answer.status_code == 201:
                self.commits.append(answer.json()["id"])


def crowd(server: Live, stop: threading.Event) -> list[User]:
    gateways = [User(f"s3-{number}", Gateway(server), stop) for number in range(4)]
    return gateways + [User(f"rest-{number}", Api(server), stop) for number in range(2)]


def kill_under_load(server: Live, kill: Callable[[], None]) -> None:
    server.repository("lake")
    stop, chance = threading.Event(), random.Random()
    users, committer = crowd(server, stop), Committer(server, stop)
    try:
        for thread in (*users, committer):
            thread.start()
        for _ in range(KILLS):
            wait_for(users, sum(each.acknowledged for each in users) + ACKNOWLEDGED_MIN)
            time.sleep(chance.random() * 0.3)
            kill()
        wait_for(users, sum(each.acknowledged for each in users) + ACKNOWLEDGED_MIN)
    finally:
        stop.set()
        for thread in (*users, committer):
            thread.join()
    server.kill()
    server.start()
    judge(server, users, committer)


def wait_for(users: list[User], count: int) -> None:
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while sum(each.acknowledged for each in users) < count:
        assert time.monotonic() < deadline, f"nobody gets on: {[each.problems for each in users]}"
        assert all(not each.problems for each in users), [each.problems for each in users]
        time.sleep(0.01)


def judge(server: Live, users: list[User], committer: Committer) -> None:
    for user in users:
        for objects in (Gateway(server), Api(server)):
            user.check(objects)
    assert [problem for user in users for problem in user.problems] == []
    assert sum(user.lost for user in users) >= KILLS  # each kill interrupted somebody
    s3 = server.s3()
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket="lake", Prefix="main/")
    listed = {each["Key"].removeprefix("main/"): each["Size"] for page in pages for each in page.get("Contents", [])}
    kept = {key: len(body) for user in users for key, (body,) in user.possible.items() if body is not None}
    assert listed == kept
    assert committer.commits
    found = Counter(each["id"] for each in _log(server))
    assert set(committer.commits) <= found.keys()


def _log(server: Live) -> list[dict[str, Any]]:
    answer = server.rest.get("/repositories/lake/refs/main/commits", params={"amount": 1000}).json()
    results: list[dict[str, Any]] = answer["results"]
    return results


def test_nothing_acknowledged_is_lost_when_the_whole_server_is_killed(tmp_path: Path) -> None:
    with running(tmp_path) as server:

        def kill() -> None:
            server.kill()
            server.start()

        kill_under_load(server, kill)


def test_nothing_acknowledged_is_lost_when_workers_are_killed(tmp_path: Path) -> None:
    with running(tmp_path, "--workers", "2") as server:

        def kill() -> None:
            pid = server.process.pid
            for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
                os.kill(int(child), signal.SIGKILL)

        kill_under_load(server, kill)
