"""A ref store in Redis or Valkey 7+: the fast one, for many machines.

    {lsmfs:<partition>}:v   hash: key -> value       {lsmfs:<partition>}:k   sorted set: the keys, for scans
    {lsmfs:<repository>}:b:<name>  hash: the branch  {lsmfs:<repository>}:n  sorted set: the branch names
    {lsmfs:<repository>}:j  stream: the journal      {lsmfs:<repository>}:w  what WAIT waits for

All keys of a partition share one hash tag, so each Lua script (`redis_scripts`) finds them on one node of a cluster.

Redis acknowledges before its replicas have a write: promoting one may lose acknowledged changes. `wait_replicas` makes
each change wait until that many have it; if fewer answer in time the change is done here but `OutcomeUnknown`.
`durability()` says what the server is set to. The client never retries a change: only the caller knows if it may.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec
import redis.exceptions
from redis.asyncio import BlockingConnectionPool, Redis, RedisCluster
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from refstore.drivers.keys import PAGE_ITEMS_MAX, check_key, check_value, event_id, event_ids, prefix_stop
from refstore.drivers.redis_scripts import (
    BARRIER,
    DELETE,
    SET,
    SET_IF,
    SWAP,
    Argument,
    Script,
    change_arguments,
    from_fields,
    script_of,
    to_fields,
)
from refstore.errors import Conflict, Corrupt, Denied, Invalid, NotFound, OutcomeUnknown, Unavailable
from refstore.records import Branch, BranchChange, Event, decode_change, encode
from refstore.refs import apply, change_by_swap
from refstore.store import ABSENT, Absent, Item

CONNECTIONS_MAX = 64  # one event loop cannot keep more busy: Redis answers in about 50 us
CONNECT_SECONDS_MAX = 5.0
ANSWER_SECONDS_MAX = 10.0  # a script takes well below 1 ms; past this the server or the network is gone
WAIT_SECONDS_MAX = 600.0  # for replicas: who waits longer has lost patience, and a connection of the pool with it

_AT_ONCE: contextlib.AbstractAsyncContextManager[None] = contextlib.nullcontext()


class Durability(NamedTuple):
    """What the server says about keeping what it acknowledged; None where it does not say (managed services)."""

    appendonly: str | None
    appendfsync: str | None
    maxmemory_policy: str | None
    replicas: int
    warnings: tuple[str, ...]


class RedisRefStore:
    """`Store` and `Refs` over one Redis, or a cluster (`redis+cluster://`)."""

    def __init__(self, url: str, wait_replicas: int = 0, wait_timeout: float = 1.0) -> None:
        self._client = _client(url, ANSWER_SECONDS_MAX + wait_timeout)
        if wait_replicas and isinstance(self._client, RedisCluster):
            raise Invalid("wait_replicas is not for redis+cluster://: set min-replicas-to-write on its nodes")
        if wait_replicas < 0 or not 0.001 <= wait_timeout <= WAIT_SECONDS_MAX:  # 0 ms would mean for ever
            raise Invalid(
                f"wait_replicas={wait_replicas}, wait_timeout={wait_timeout}: write a whole number of replicas, and a "
                f"timeout from 0.001 to {WAIT_SECONDS_MAX:.0f} seconds"
            )
        # A cluster's client refuses where a pool would let wait; what waits here has been sent by nobody.
        self._turns = asyncio.Semaphore(CONNECTIONS_MAX) if isinstance(self._client, RedisCluster) else _AT_ONCE
        self._wait_replicas = wait_replicas
        self._wait_milliseconds = int(wait_timeout * 1000)

    async def get(self, partition: str, key: bytes) -> bytes | None:
        check_key(key)
        value: bytes | None = await self._ask("HGET", _key(partition, "v"), key)
        return value

    async def scan(self, partition: str, start: bytes = b"", prefix: bytes = b"") -> AsyncIterator[Item]:
        first = b"[" + max(start, prefix)
        async for keys in self._pages(_key(partition, "k"), first, prefix):
            values = await self._ask("HMGET", _key(partition, "v"), *keys)
            for key, value in zip(keys, values, strict=True):
                if value is not None:  # deleted since its key was listed
                    yield Item(key, value)

    async def set(self, partition: str, key: bytes, value: bytes) -> None:
        check_value(key, value)
        await self._run(SET, _item_keys(partition), [key, value])

    async def delete(self, partition: str, key: bytes) -> None:
        check_key(key)
        await self._run(DELETE, _item_keys(partition), [key])

    async def set_if(self, partition: str, key: bytes, value: bytes, expected: bytes | Absent) -> None:
        check_value(key, value)
        arguments: list[Argument] = [key, value] if expected is ABSENT else [key, value, expected]
        if not await self._run(SET_IF, _item_keys(partition), arguments):
            raise Conflict(f"the value of {key!r} is not the expected one: read it again")

    async def read(self, repository: str, name: str) -> Branch:
        branch, _ = await self.load(repository, name)
        if branch is None:
            raise NotFound(f"branch {name!r} does not exist")
        return branch

    async def branches(self, repository: str, after: str = "", prefix: str = "") -> AsyncIterator[Branch]:
        first = b"(" + after.encode() if after >= prefix else b"[" + prefix.encode()
        async for names in self._pages(_key(repository, "n"), first, prefix.encode()):
            for name in names:
                branch, _ = await self.load(repository, name.decode())
                if branch is not None:
                    yield branch

    async def change(self, repository: str, name: str, change: BranchChange) -> Branch:
        found = script_of(change)
        if found is None:
            return await self._change_by_swap(repository, name, change)
        script, own = found
        arguments = [*change_arguments(name, change, bool(self._wait_replicas)), *own]
        done, flat = await self._run(script, _branch_keys(repository, name)[:3], arguments)
        before = from_fields(name, dict(zip(flat[::2], flat[1::2], strict=True)))
        after = apply(before, name, change)
        if not done and after is not before:  # refused what the pure function allows: let that decide
            return await self._change_by_swap(repository, name, change)
        assert after is not None  # only a delete leaves nothing, and it has no script
        return after

    async def _change_by_swap(self, repository: str, name: str, change: BranchChange) -> Branch:
        branch = await change_by_swap(self, repository, name, change)
        if self._wait_replicas:  # what was done already, perhaps by an append, may not be on the replicas yet
            await self._run(BARRIER, [_key(repository, "w")], [])
        return branch

    async def load(self, repository: str, name: str) -> tuple[Branch | None, object]:
        """For `change_by_swap`: the tag of a record is its life and version."""
        fields = await self._ask("HGETALL", _key(repository, "b", name))
        branch = from_fields(name, fields)
        return branch, (branch.incarnation, branch.version) if branch else ("", "")

    async def swap(self, repository: str, name: str, tag: object, new: Branch | None, event: Event) -> None:
        assert isinstance(tag, tuple)
        fields = to_fields(new) if new is not None else []
        arguments = [name, event.version, encode(event.change), *tag, *fields]
        if not await self._run(SWAP, _branch_keys(repository, name), arguments):
            raise Conflict(f"branch {name!r} changed")

    async def events(self, repository: str, limit: int = 1000) -> list[Event]:
        return [event for _, event in await self._journal(repository, "-", limit)]

    async def trim(self, repository: str, events: list[Event]) -> None:
        gone = event_ids(events)
        start = "-"
        while gone:
            page = await self._journal(repository, start, PAGE_ITEMS_MAX)
            ids = [number for number, event in page if event_id(event) in gone]
            if ids:
                with _translating(changing=True):
                    await self._execute("XDEL", _key(repository, "j"), *ids)
            if len(page) < PAGE_ITEMS_MAX:
                return
            gone -= event_ids(event for _, event in page)
            start = "(" + page[-1][0].decode()

    async def durability(self) -> Durability:
        """What this server promises; the warnings say what to set."""
        with _translating():
            try:
                found: dict[Any, Any] = await self._client.config_get("appendonly", "appendfsync", "maxmemory-policy")
            except redis.exceptions.ResponseError:  # managed services forbid CONFIG
                found = {}
            replication = await self._client.info("replication")
        settings = {_text(name): _text(value) for name, value in found.items()}
        report = Durability(
            settings.get("appendonly"),
            settings.get("appendfsync"),
            settings.get("maxmemory-policy"),
            int(replication.get("connected_slaves", 0)),
            (),
        )
        return report._replace(warnings=tuple(_warnings(report)))

    async def aclose(self) -> None:
        await self._client.aclose()

    async def _pages(self, index: str, first: bytes, prefix: bytes) -> AsyncIterator[list[bytes]]:
        stop = prefix_stop(prefix)
        last = b"+" if stop is None else b"(" + stop
        while True:
            page = await self._ask("ZRANGEBYLEX", index, first, last, "LIMIT", 0, PAGE_ITEMS_MAX)
            if page:
                yield page
            if len(page) < PAGE_ITEMS_MAX:
                return
            first = b"(" + page[-1]

    async def _journal(self, repository: str, start: str, limit: int) -> list[tuple[bytes, Event]]:
        entries = await self._ask("XRANGE", _key(repository, "j"), start, "+", "COUNT", limit)
        return [(number, _event(repository, number, fields)) for number, fields in entries]

    async def _ask(self, *command: Argument) -> Any:
        """Read. A pooled connection may have died since it was used last, so one that fails is asked again, once."""
        with _translating():
            try:
                return await self._execute(*command)
            except (redis.exceptions.ConnectionError, redis.exceptions.TimeoutError):
                return await self._execute(*command)

    async def _run(self, script: Script, keys: list[str], arguments: list[Argument]) -> Any:
        """Run a script by its hash, or by its text if the server does not have it (then it ran nothing)."""
        with _translating(changing=True):
            try:
                return await self._call("EVALSHA", script.sha, len(keys), *keys, *arguments)
            except redis.exceptions.NoScriptError:
                return await self._call("EVAL", script.text, len(keys), *keys, *arguments)

    async def _call(self, *command: Argument) -> Any:
        if not self._wait_replicas:
            return await self._execute(*command)
        assert isinstance(self._client, Redis)
        async with self._client.pipeline(transaction=False) as pipeline:  # WAIT counts for its own connection only
            pipeline.execute_command(*command)
            pipeline.execute_command("WAIT", self._wait_replicas, self._wait_milliseconds)
            answer, replicas = await pipeline.execute(raise_on_error=False)
        for each in (answer, replicas):
            if isinstance(each, Exception):
                raise each
        if replicas < self._wait_replicas:
            raise OutcomeUnknown(
                f"only {replicas} of {self._wait_replicas} replicas have the change after {self._wait_milliseconds} ms:"
                " it is done on the primary and may be lost with it; read again, or repeat it"
            )
        return answer

    async def _execute(self, *command: Argument) -> Any:
        async with self._turns:
            return await self._client.execute_command(*command)


def _client(url: str, answer_seconds_max: float) -> "Redis | RedisCluster":
    try:
        return _parsed_client(url, answer_seconds_max)
    except (TypeError, ValueError, redis.exceptions.RedisClusterException):
        # Not the library's words: they may quote a piece of the password.
        raise Invalid(
            "this is not a Redis URL: write redis://user:password@host:6379/0 (a cluster has no /0), with signs like "
            "/ and @ in a password written as %2F and %40"
        ) from None


def _parsed_client(url: str, answer_seconds_max: float) -> "Redis | RedisCluster":
    once = Retry(NoBackoff(), 0)
    limits = {"socket_timeout": answer_seconds_max, "socket_connect_timeout": CONNECT_SECONDS_MAX}
    if url.startswith("redis+cluster://"):
        plain = url.replace("redis+cluster://", "redis://", 1)
        # One more than we use at once is for the client's own looks at who has which slot.
        return RedisCluster.from_url(plain, retry=once, max_connections=CONNECTIONS_MAX + 1, **limits)
    pool = BlockingConnectionPool.from_url(
        url, retry=once, max_connections=CONNECTIONS_MAX, timeout=CONNECT_SECONDS_MAX, **limits
    )
    pool.connection_class(**pool.connection_kwargs)  # connects to nothing yet, but refuses parameters it does not know
    return Redis.from_pool(pool)


def _key(partition: str, kind: str, name: str = "") -> str:
    """Quoting keeps braces out of the hash tag, so that it ends where the partition ends."""
    key = f"{{lsmfs:{quote(partition, safe='')}}}:{kind}"
    return f"{key}:{name}" if name else key


def _item_keys(partition: str) -> list[str]:
    return [_key(partition, "v"), _key(partition, "k")]


def _branch_keys(repository: str, name: str) -> list[str]:
    return [_key(repository, "b", name), _key(repository, "j"), _key(repository, "w"), _key(repository, "n")]


def _event(repository: str, number: bytes, fields: dict[bytes, bytes]) -> Event:
    try:
        return Event(fields[b"b"].decode(), int(fields[b"v"]), decode_change(fields[b"c"]))
    except (KeyError, ValueError, msgspec.MsgspecError) as error:
        raise Corrupt(f"entry {number.decode()} of the journal of {repository!r} is not an event: {error!r}") from error


def _warnings(report: Durability) -> Iterator[str]:
    if report.appendonly == "no":
        yield "appendonly is no: a restart loses every change since the last snapshot; set appendonly yes"
    elif report.appendfsync not in (None, "always"):
        yield f"appendfsync is {report.appendfsync}: a crash may lose about a second of changes; set it to always"
    if report.maxmemory_policy not in (None, "noeviction"):
        yield f"maxmemory-policy is {report.maxmemory_policy}: branches may be evicted; set it to noeviction"
    if report.replicas == 0:
        yield "no replica is connected: losing this server loses what is not in its append-only file"


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value


# A key of another type, and an error of a script itself, which finds a field missing or not a number.
_DAMAGE = ("WRONGTYPE ", "user_script:")


@contextlib.contextmanager
def _translating(changing: bool = False) -> Iterator[None]:
    """The one edge where Redis's errors become ours."""
    try:
        yield
    except (redis.exceptions.AuthenticationError, redis.exceptions.NoPermissionError) as error:
        raise Denied(f"Redis refuses these credentials: {error}") from error
    except (redis.exceptions.BusyLoadingError, redis.exceptions.MaxConnectionsError) as error:
        raise Unavailable(f"Redis is busy: {error}") from error
    except (redis.exceptions.ConnectionError, redis.exceptions.TimeoutError) as error:
        if changing and not _unsent(error):
            raise OutcomeUnknown(f"Redis did not answer a change: {error}; read again to see if it was done") from error
        raise Unavailable(f"Redis cannot be reached: {error}") from error
    except redis.exceptions.ResponseError as error:
        if str(error).startswith(_DAMAGE):
            raise Corrupt(f"a Redis key is not what was written: {error}; stop all writers and recover it") from error
        raise Unavailable(f"Redis refuses: {error}") from error
    except (redis.exceptions.RedisError, redis.exceptions.RedisClusterException) as error:
        raise Unavailable(f"Redis refuses: {error}") from error


def _unsent(error: Exception) -> bool:
    """Whether it failed before anything was sent: redis-py has no type for that, only these words."""
    return " connecting to " in str(error) or "No connection available" in str(error)


__all__ = ["Durability", "RedisRefStore"]
