"""What is Redis's own: one command for a change, scripts that are gone, connections that break, damage by hand."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing

import pytest
from redis.asyncio import Redis

from refstore.drivers.redis import CONNECTIONS_MAX, RedisRefStore
from refstore.errors import Corrupt, Denied, OutcomeUnknown, Unavailable, WriterUnknown
from refstore.records import BranchChange
from refstore.refs import WRITERS_MAX, replay
from tests.aio import aio
from tests.conformance.refstore_backends import fresh_name
from tests.conformance.refstore_histories import advance, append, create, delete, replace, retire, seal
from tests.refstore.cutting_proxy import CuttingProxy
from tests.servers.process import ServerProcess, free_port
from tests.servers.redis import call, redis_server, shared_redis, shared_redis_cluster

pytestmark = pytest.mark.xdist_group("redis")


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    """Not the shared one, which may be somebody's own: here connections are killed and keys are damaged."""
    with redis_server() as server:
        yield server


def opened(port: int, user: str = "", scheme: str = "redis") -> aclosing[RedisRefStore]:
    return aclosing(RedisRefStore(f"{scheme}://{user}127.0.0.1:{port}"))


async def commands(port: int, store: RedisRefStore, repository: str, change: BranchChange) -> list[str]:
    """The names of the commands that this change sends, as the server sees them; not those of its script."""
    async with Redis(port=port, decode_responses=True) as second, second.monitor() as monitor:
        await store.change(repository, "main", change)
        call(port, f"ECHO {repository}")
        seen: list[str] = []
        async for each in monitor.listen():
            if each["command"] == f"ECHO {repository}":
                break
            if each["client_type"] != "lua":
                seen.append(each["command"].partition(" ")[0])
        return seen


class TestCommands:
    @aio
    async def test_each_of_the_four_frequent_changes_is_one_command(self, server: ServerProcess) -> None:
        changes: list[BranchChange] = [append(1), append(2), replace(("w-1",), None, "r"), seal()]
        changes.append(advance("c0", "c1", (5,)))
        repository = fresh_name()
        async with opened(server.port) as store:
            for change in [create(), *changes, delete(), create()]:  # the first time round their scripts are sent
                await store.change(repository, "main", change)
            for change in changes:
                assert await commands(server.port, store, repository, change) == ["EVALSHA"], change

    @aio
    async def test_a_repeated_append_is_one_command_too(self, server: ServerProcess) -> None:
        repository = fresh_name()
        async with opened(server.port) as store:
            for change in (create(), append(1)):
                await store.change(repository, "main", change)
            assert await commands(server.port, store, repository, append(1)) == ["EVALSHA"]

    @aio
    async def test_a_script_that_the_server_forgot_is_sent_again(self, server: ServerProcess) -> None:
        repository = fresh_name()
        async with opened(server.port) as store:
            for change in (create(), append(1)):
                await store.change(repository, "main", change)
            call(server.port, "SCRIPT FLUSH")
            assert await commands(server.port, store, repository, append(2)) == ["EVALSHA", "EVAL"]
            assert await commands(server.port, store, repository, append(3)) == ["EVALSHA"]

    @aio
    async def test_a_restarted_server_goes_on_where_it_was(self) -> None:
        repository = fresh_name()
        with redis_server("--appendonly", "yes", "--appendfsync", "always") as server:
            async with opened(server.port) as store:
                await store.change(repository, "main", create())
                before = await store.change(repository, "main", append(1))
                server.kill()
                with pytest.raises(Unavailable):
                    await store.read(repository, "main")
                with server:
                    assert await store.read(repository, "main") == before
                    after = await store.change(repository, "main", append(2))
                    assert after.l1 == ("w-1", "w-2")
                    assert replay(await store.events(repository)) == {"main": after}


class TestConnections:
    @aio
    async def test_reads_and_changes_go_on_after_idle_connections_were_killed(self, server: ServerProcess) -> None:
        repository = fresh_name()
        async with opened(server.port) as store:
            await store.change(repository, "main", create())
            for seq in (1, 2, 3):
                call(server.port, "CLIENT KILL TYPE normal")
                await store.read(repository, "main")
                await store.change(repository, "main", append(seq))
            assert (await store.read(repository, "main")).l1 == ("w-1", "w-2", "w-3")

    @aio
    async def test_a_read_whose_connection_breaks_is_asked_again_once(self, server: ServerProcess) -> None:
        repository = fresh_name()
        async with CuttingProxy(server.port) as proxy, opened(proxy.port) as store:
            await store.change(repository, "main", create())
            for words in (b"HGETALL", b"XRANGE", b"HGET"):
                for answered in (False, True):
                    proxy.cut(words, answered)
                    assert (await store.read(repository, "main")).version == 1
                    assert len(await store.events(repository)) == 1
                    assert await store.get(repository, b"k") is None
            assert proxy.cuts == 6
            proxy.cut(b"HGETALL", times=2)
            with pytest.raises(Unavailable) as caught:
                await store.read(repository, "main")
            assert not isinstance(caught.value, OutcomeUnknown)

    @pytest.mark.parametrize("answered", [False, True])
    @aio
    async def test_a_change_whose_connection_breaks_is_never_sent_twice(
        self, server: ServerProcess, answered: bool
    ) -> None:
        repository = fresh_name()
        async with CuttingProxy(server.port) as proxy, opened(proxy.port) as store:
            for change in (create(), append(1)):
                await store.change(repository, "main", change)
            proxy.cut(b"EVALSHA", answered, times=2)
            with pytest.raises(OutcomeUnknown, match="read again"):
                await store.change(repository, "main", append(2))
            assert proxy.cuts == 1
            proxy.cut(b"nothing")
            assert (await store.read(repository, "main")).l1 == (("w-1", "w-2") if answered else ("w-1",))
            assert (await store.change(repository, "main", append(2))).l1 == ("w-1", "w-2")
            assert len(await store.events(repository)) == 3

    @pytest.mark.parametrize("verb", ["set", "delete", "set_if", "trim", "swap"])
    @aio
    async def test_every_other_change_that_breaks_is_of_unknown_outcome(self, server: ServerProcess, verb: str) -> None:
        repository = fresh_name()
        async with CuttingProxy(server.port) as proxy, opened(proxy.port) as store:
            await store.change(repository, "main", create())
            events = await store.events(repository)
            proxy.cut(b"XDEL" if verb == "trim" else b"EVAL")
            verbs: dict[str, Callable[[], Awaitable[object]]] = {
                "set": lambda: store.set(repository, b"k", b"v"),
                "delete": lambda: store.delete(repository, b"k"),
                "set_if": lambda: store.set_if(repository, b"k", b"v", b"old"),
                "trim": lambda: store.trim(repository, events),
                "swap": lambda: store.change(repository, "main", delete()),
            }
            with pytest.raises(OutcomeUnknown):
                await verbs[verb]()

    @aio
    async def test_a_change_killed_while_the_server_holds_it_back_is_of_unknown_outcome(
        self, server: ServerProcess
    ) -> None:
        repository = fresh_name()
        async with opened(server.port) as store:
            for change in (create(), append(1)):
                await store.change(repository, "main", change)
            call(server.port, "CLIENT PAUSE 20000 WRITE")
            under_way = asyncio.create_task(store.change(repository, "main", append(2)))
            await asyncio.to_thread(wait_for_a_blocked_script, server.port)
            call(server.port, "CLIENT KILL TYPE normal")
            with pytest.raises(OutcomeUnknown):
                await under_way
            call(server.port, "CLIENT UNPAUSE")
            assert (await store.change(repository, "main", append(2))).l1 == ("w-1", "w-2")

    @pytest.mark.parametrize("scheme", ["redis", "redis+cluster"])
    @aio
    async def test_nobody_listening_is_unavailable_and_nothing_was_sent(self, scheme: str) -> None:
        async with opened(free_port(), scheme=scheme) as store:
            for verb in (store.read("r", "main"), store.change("r", "main", append(1)), store.set("r", b"k", b"v")):
                with pytest.raises(Unavailable, match="connect") as caught:
                    await verb
                assert not isinstance(caught.value, OutcomeUnknown)

    @pytest.mark.parametrize("user", ["", ":wrong-secret@", "nobody:wrong-secret@"])
    @aio
    async def test_wrong_credentials_are_denied_without_showing_them(self, user: str) -> None:
        with redis_server() as locked:
            call(locked.port, "CONFIG SET requirepass right-secret")
            async with opened(locked.port, user) as store:
                for verb in (store.read("r", "main"), store.change("r", "main", append(1)), store.durability()):
                    with pytest.raises(Denied) as caught:
                        await verb
                    assert "secret" not in f"{caught.value} {caught.value!r}"
            async with opened(locked.port, ":right-secret@") as store:
                await store.change("r", "main", create())

    @aio
    async def test_a_user_without_the_right_is_denied(self, server: ServerProcess) -> None:
        call(server.port, "ACL SETUSER reader on >word ~* +@read +@connection")
        async with opened(server.port, "reader:word@") as store:
            assert await store.get(fresh_name(), b"k") is None
            with pytest.raises(Denied):
                await store.set(fresh_name(), b"k", b"v")

    @aio
    async def test_a_replica_refuses_a_change_that_was_not_done(self) -> None:
        with redis_server("--replicaof", f"127.0.0.1 {free_port()}") as replica:
            async with opened(replica.port) as store:
                with pytest.raises(Unavailable, match="read only") as caught:
                    await store.change(fresh_name(), "main", create())
                assert not isinstance(caught.value, OutcomeUnknown)


def wait_for_a_blocked_script(port: int) -> None:
    for _ in range(1000):
        if any(" flags=b " in line and "cmd=evalsha" in line for line in call(port, "CLIENT LIST").splitlines()):
            return
        time.sleep(0.01)
    raise AssertionError("the server never held a script back")


class TestManyAtOnce:
    @pytest.mark.parametrize("url", [shared_redis, shared_redis_cluster])
    @aio
    async def test_more_requests_than_connections_wait_for_their_turn(self, url: Callable[[], str]) -> None:
        partition = fresh_name()
        keys = [b"%d" % number for number in range(CONNECTIONS_MAX * 8)]
        async with aclosing(RedisRefStore(url())) as store:
            await asyncio.gather(*(store.set(partition, key, key) for key in keys))
            assert await asyncio.gather(*(store.get(partition, key) for key in keys)) == keys

    @aio
    async def test_more_writers_than_are_remembered_lose_and_double_nothing(self, server: ServerProcess) -> None:
        repository, count = fresh_name(), WRITERS_MAX + 36
        async with opened(server.port) as store:
            await store.change(repository, "main", create())

            async def write(number: int) -> None:
                """A writer that was pushed out, or came too late, opens again under a new id, as a real one does."""
                for life in range(count):
                    opened_at = (await store.read(repository, "main")).version
                    one = append(1, f"w{number}.{life}", opened_at, table=f"t{number}")
                    try:
                        await store.change(repository, "main", one)
                    except WriterUnknown:
                        continue
                    return
                raise AssertionError(f"writer {number} was refused {count} times")

            await asyncio.gather(*(write(number) for number in range(count)))
            branch = await store.read(repository, "main")
            assert sorted(branch.l1) == sorted(f"t{number}" for number in range(count))
            assert len(branch.writers) == WRITERS_MAX
            assert replay(await store.events(repository)) == {"main": branch}


class TestNamesAndDamage:
    @aio
    async def test_names_like_keys_of_redis_are_names_like_any_other(self, server: ServerProcess) -> None:
        names = ["{a}", "}{", "a:b", ":", "{lsmfs:r}:j", "j", "w", "%7B", "b:main", "main"]
        one, other = fresh_name(), f"{{{fresh_name()}}}:b"
        async with opened(server.port) as store:
            for repository in (one, other):
                for name in names:
                    await store.change(repository, name, create(f"life of {name} in {repository}"))
            for repository in (one, other):
                for name in names:
                    assert (await store.read(repository, name)).incarnation == f"life of {name} in {repository}"
                assert [branch.name async for branch in store.branches(repository)] == sorted(names)
                assert len(await store.events(repository)) == len(names)

    @pytest.mark.parametrize(
        "damage",
        [
            "HDEL {key} version",
            "HSET {key} version many",
            'HSET {key} version "\\xff"',
            "HDEL {key} l1",
            "HSET {key} w:w one",
            "DEL {key}|SET {key} text",
        ],
    )
    @aio
    async def test_a_branch_damaged_by_hand_is_corrupt_to_readers_and_writers(
        self, server: ServerProcess, damage: str
    ) -> None:
        repository = fresh_name()
        async with opened(server.port) as store:
            for change in (create(), append(1)):
                await store.change(repository, "main", change)
            for command in damage.replace("{key}", f"{{lsmfs:{repository}}}:b:main").split("|"):
                assert not call(server.port, command).startswith("-")
            for verb in (
                store.read(repository, "main"),
                store.change(repository, "main", append(2)),
                store.change(repository, "main", retire(2)),
            ):
                with pytest.raises(Corrupt):
                    await verb

    @pytest.mark.parametrize("entry", ["b main v 2 c nonsense", "b main v 2", "b main v two c {}"])
    @aio
    async def test_a_journal_entry_damaged_by_hand_is_corrupt(self, server: ServerProcess, entry: str) -> None:
        repository = fresh_name()
        async with opened(server.port) as store:
            await store.change(repository, "main", create())
            call(server.port, f"XADD {{lsmfs:{repository}}}:j * {entry}")
            with pytest.raises(Corrupt, match="journal"):
                await store.events(repository)
