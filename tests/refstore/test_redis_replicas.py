"""What Redis promises with `wait_replicas`, on a real primary and its replica, and what `durability()` says of it."""

import os
import signal
from collections.abc import Iterator
from contextlib import aclosing, contextmanager

import pytest

from refstore.drivers.redis import RedisRefStore
from refstore.errors import Invalid, NotFound, OutcomeUnknown
from refstore.records import BranchChange
from refstore.refs import replay
from tests.aio import aio
from tests.conformance.refstore_backends import fresh_name
from tests.conformance.refstore_histories import (
    advance,
    append,
    create,
    move,
    raise_floor,
    replace,
    reset,
    retire,
    seal,
)
from tests.servers.process import ServerProcess
from tests.servers.redis import call, redis_pair, redis_server, shared_redis_cluster, wait_for_replica

pytestmark = pytest.mark.xdist_group("redis")

SHORT = 0.05  # seconds: long enough for WAIT to be sent, and what it waits for never comes
LONG = 60.0  # seconds: what it waits for surely comes


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[ServerProcess, ServerProcess]]:
    with redis_pair() as pair:
        yield pair


def opened(server: ServerProcess, replicas: int = 0, seconds: float = LONG) -> aclosing[RedisRefStore]:
    return aclosing(RedisRefStore(f"redis://127.0.0.1:{server.port}", replicas, seconds))


@contextmanager
def frozen(server: ServerProcess) -> Iterator[None]:
    """The server is there, its connections stand, and it does nothing."""
    os.kill(server.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(server.pid, signal.SIGCONT)


class TestWaiting:
    @aio
    async def test_what_was_acknowledged_is_on_the_replica(self, pair: tuple[ServerProcess, ServerProcess]) -> None:
        primary, replica = pair
        repository = fresh_name()
        async with opened(primary, replicas=1) as store, opened(replica) as second:
            changes: list[BranchChange] = [create(), *(append(seq) for seq in range(1, 51)), seal(), raise_floor(1)]
            for change in changes:
                branch = await store.change(repository, "main", change)
                assert await second.read(repository, "main") == branch
            assert replay(await second.events(repository)) == {"main": branch}
            await store.set(repository, b"k", b"v")
            assert await second.get(repository, b"k") == b"v"
            await store.delete(repository, b"k")
            assert await second.get(repository, b"k") is None

    @aio
    async def test_a_change_that_too_few_replicas_have_is_of_unknown_outcome(
        self, pair: tuple[ServerProcess, ServerProcess]
    ) -> None:
        primary, replica = pair
        repository = fresh_name()
        async with opened(primary, 1) as sure, opened(primary, 1, SHORT) as store, opened(primary, 2, SHORT) as strict:
            await sure.change(repository, "main", create())
            with frozen(replica), pytest.raises(OutcomeUnknown, match="only 0 of 1 replicas"):
                await store.change(repository, "main", append(1))
            with pytest.raises(OutcomeUnknown, match="only 1 of 2 replicas"):
                await strict.change(repository, "main", append(2))
            assert (await sure.read(repository, "main")).l1 == ("w-1", "w-2")

    @aio
    async def test_a_replica_that_left_does_not_count(self) -> None:
        repository = fresh_name()
        with redis_pair() as (primary, replica):
            async with opened(primary, 1, SHORT) as store, opened(primary, 1) as sure:
                await sure.change(repository, "main", create())
                call(replica.port, "REPLICAOF NO ONE")
                with pytest.raises(OutcomeUnknown, match="only 0 of 1 replicas"):
                    await store.change(repository, "main", append(1))
                call(replica.port, f"REPLICAOF 127.0.0.1 {primary.port}")
                wait_for_replica(primary.port)
                assert (await sure.change(repository, "main", append(1))).l1 == ("w-1",)

    REPEATS: tuple[tuple[str, list[BranchChange], BranchChange, BranchChange], ...] = (
        ("append", [create()], append(1), append(1)),
        ("retire_of_an_append", [create()], append(1), retire(1)),
        ("create", [], create(), create()),
        ("move", [create()], move("c0", "c1", 1), move("c0", "c1", 1)),
        ("reset", [create(), append(1)], reset("x"), reset("x")),
        ("floor", [create()], raise_floor(3), raise_floor(3)),
        ("advance", [create(), append(1), seal()], advance("c0", "c1", (3,)), advance("c0", "c1", (3,))),
        ("seal", [create(), append(1), replace(("w-1",), None, "r")], seal(), seal()),
    )

    @pytest.mark.parametrize(
        ("before", "change", "repeat"), [each[1:] for each in REPEATS], ids=[r[0] for r in REPEATS]
    )
    @aio
    async def test_a_change_done_already_is_answered_only_when_the_replica_has_it(
        self,
        pair: tuple[ServerProcess, ServerProcess],
        before: list[BranchChange],
        change: BranchChange,
        repeat: BranchChange,
    ) -> None:
        """The repeat writes nothing to the record, and comes by another connection, for which nothing is to wait."""
        primary, replica = pair
        repository = fresh_name()
        async with opened(primary, 1) as sure, opened(primary, 1, SHORT) as store, opened(primary, 1, SHORT) as other:
            for each in before:
                await sure.change(repository, "main", each)
            with frozen(replica):
                for client, each in ((store, change), (other, repeat)):
                    with pytest.raises(OutcomeUnknown, match="only 0 of 1 replicas"):
                        await client.change(repository, "main", each)
            branch = await sure.change(repository, "main", repeat)
            async with opened(replica) as second:
                assert await second.read(repository, "main") == branch
            assert len(await sure.events(repository)) == len(before) + 1

    @aio
    async def test_a_delete_done_already_is_answered_only_when_the_replica_has_it(
        self, pair: tuple[ServerProcess, ServerProcess]
    ) -> None:
        primary, replica = pair
        partition = fresh_name()
        async with opened(primary, 1) as sure, opened(primary, 1, SHORT) as store, opened(primary, 1, SHORT) as other:
            await sure.set(partition, b"k", b"v")
            with frozen(replica):
                for client in (store, other):
                    with pytest.raises(OutcomeUnknown, match="only 0 of 1 replicas"):
                        await client.delete(partition, b"k")
            await sure.delete(partition, b"k")
            async with opened(replica) as second:
                assert await second.get(partition, b"k") is None

    @aio
    async def test_a_refused_change_is_refused_whether_or_not_a_replica_answers(
        self, pair: tuple[ServerProcess, ServerProcess]
    ) -> None:
        primary, replica = pair
        async with opened(primary, 1, SHORT) as store:
            with frozen(replica), pytest.raises(NotFound):
                await store.change(fresh_name(), "main", raise_floor(1))

    @aio
    async def test_a_script_that_the_server_forgot_is_sent_again_and_waited_for(
        self, pair: tuple[ServerProcess, ServerProcess]
    ) -> None:
        primary, replica = pair
        repository = fresh_name()
        async with opened(primary, 1) as store, opened(replica) as second:
            await store.change(repository, "main", create())
            call(primary.port, "SCRIPT FLUSH")
            branch = await store.change(repository, "main", append(1))
            assert await second.read(repository, "main") == branch


class TestSettings:
    def test_waiting_on_a_cluster_is_invalid_and_says_what_to_set(self) -> None:
        with pytest.raises(Invalid, match="min-replicas-to-write"):
            RedisRefStore(shared_redis_cluster(), wait_replicas=1)

    @pytest.mark.parametrize(("replicas", "seconds"), [(-1, 1.0), (1, 0.0), (1, 0.0009), (1, -1.0), (1, float("nan"))])
    def test_a_wait_that_could_last_for_ever_or_make_no_sense_is_invalid(self, replicas: int, seconds: float) -> None:
        with pytest.raises(Invalid, match="wait_timeout"):
            RedisRefStore("redis://127.0.0.1:6379", replicas, seconds)

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ([], ["appendonly is no", "no replica"]),
            (["--appendonly", "yes"], ["appendfsync is everysec", "no replica"]),
            (["--appendonly", "yes", "--appendfsync", "no"], ["appendfsync is no", "no replica"]),
            (["--appendonly", "yes", "--appendfsync", "always"], ["no replica"]),
            (["--maxmemory-policy", "allkeys-lru"], ["appendonly is no", "maxmemory-policy is allkeys", "no replica"]),
            (["--rename-command", "CONFIG", ""], ["no replica"]),
        ],
    )
    @aio
    async def test_each_setting_that_loses_changes_is_warned_of(self, options: list[str], words: list[str]) -> None:
        with redis_server(*options) as server:
            async with opened(server) as store:
                warnings = (await store.durability()).warnings
        assert len(warnings) == len(words)
        for warning, word in zip(warnings, words, strict=True):
            assert word in warning

    @aio
    async def test_safe_settings_and_a_replica_have_no_warning(self) -> None:
        with redis_pair() as (primary, _):
            call(primary.port, "CONFIG SET appendfsync always appendonly yes")
            async with opened(primary) as store:
                assert await store.durability() == ("yes", "always", "noeviction", 1, ())
            primary.kill()  # asked politely it would first end the rewriting of its file that the setting began

    @aio
    async def test_a_cluster_is_asked_too(self) -> None:
        async with aclosing(RedisRefStore(shared_redis_cluster())) as store:
            assert [warning.split()[0] for warning in (await store.durability()).warnings] == ["appendonly", "no"]
