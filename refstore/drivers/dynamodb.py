"""A ref store in one DynamoDB table: durable and highly available without a server of one's own.

    p "k/<partition>"           k the key          v the value
    p "b/<repository>"          k the branch name  the branch (`dynamodb_items`), with its newest events
    p "j/<repository>/<branch>" k chain, first and last position    events that had to make room

The table has a string partition key `p` and a binary sort key `k`; all reads are strongly consistent. An append is one
UpdateItem; all other changes, and an append that needs more (a full writers' table, full pending events), swap the
item under the condition that nothing happened to it. The client makes every request once: only the caller knows if a
change may be repeated.
"""

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec
from aiobotocore.config import AioConfig
from aiobotocore.session import get_session
from botocore import exceptions as boto

from refstore.drivers.dynamodb_items import NEVER_SEEN, Attributes, append_update, from_item, same_state, to_item
from refstore.drivers.kept import Kept, KeptRefs, Span
from refstore.drivers.keys import PAGE_ITEMS_MAX, check_key, check_value
from refstore.errors import Conflict, Corrupt, Denied, Error, Invalid, OutcomeUnknown, Unavailable
from refstore.records import Append, Branch, BranchChange, Event, encode
from refstore.refs import apply, change_by_swap
from refstore.store import ABSENT, Absent, Item

CONNECTIONS_MAX = 64
CONNECT_SECONDS_MAX = 5.0
ANSWER_SECONDS_MAX = 10.0  # DynamoDB answers in a few ms; its own limit for a request is 5 s

_decode_events = msgspec.json.Decoder(list[Event]).decode


class Credentials(NamedTuple):
    access_key_id: str
    secret_access_key: str
    session_token: str | None = None

    def __repr__(self) -> str:
        return f"Credentials({self.access_key_id!r})"  # the rest is secret


class DynamoRefStore(KeptRefs):
    """`Store` and `Refs` over a table, which is created on first use if `create` says so. Without credentials the
    machine's role is used."""

    def __init__(
        self,
        table: str,
        region: str,
        endpoint: str | None = None,
        credentials: Credentials | None = None,
        create: bool = False,
        new_id: Callable[[], str] = lambda: uuid.uuid4().hex,
    ) -> None:
        super().__init__(new_id)
        self._table = table
        self._create = create
        self._options = {
            "region_name": region,
            "endpoint_url": endpoint,
            "config": AioConfig(
                retries={"total_max_attempts": 1},
                max_pool_connections=CONNECTIONS_MAX,
                connect_timeout=CONNECT_SECONDS_MAX,
                read_timeout=ANSWER_SECONDS_MAX,
            ),
        }
        if credentials is not None:
            names = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")
            self._options |= dict(zip(names, credentials, strict=True))
        self._open = contextlib.AsyncExitStack()
        self._opening = asyncio.Lock()
        self._client: Any = None

    async def get(self, partition: str, key: bytes) -> bytes | None:
        check_key(key)
        item = await self._get(f"k/{partition}", key)
        return None if item is None else item["v"]["B"]

    async def scan(self, partition: str, start: bytes = b"", prefix: bytes = b"") -> AsyncIterator[Item]:
        async for item in self._query(f"k/{partition}", max(start, prefix), prefix):
            yield Item(item["k"]["B"], item["v"]["B"])

    async def set(self, partition: str, key: bytes, value: bytes) -> None:
        check_value(key, value)
        await self._call("put_item", Item=_key(f"k/{partition}", key) | {"v": {"B": value}})

    async def delete(self, partition: str, key: bytes) -> None:
        check_key(key)
        await self._call("delete_item", Key=_key(f"k/{partition}", key))

    async def set_if(self, partition: str, key: bytes, value: bytes, expected: bytes | Absent) -> None:
        check_value(key, value)
        condition = NEVER_SEEN
        if expected is not ABSENT:
            condition = {
                "ConditionExpression": "#v = :v",
                "ExpressionAttributeNames": {"#v": "v"},
                "ExpressionAttributeValues": {":v": {"B": expected}},
            }
        try:
            await self._call("put_item", Item=_key(f"k/{partition}", key) | {"v": {"B": value}}, **condition)
        except _Refused:
            raise Conflict(f"the value of {key!r} is not the expected one: read it again") from None

    async def change(self, repository: str, name: str, change: BranchChange) -> Branch:
        if isinstance(change, Append):
            return await self._append(repository, name, change)
        return await super().change(repository, name, change)

    async def aclose(self) -> None:
        await self._open.aclose()

    async def _append(self, repository: str, name: str, change: Append) -> Branch:
        try:
            answer = await self._call("update_item", Key=_record_key(repository, name), **append_update(name, change))
        except _Refused as refused:
            before = from_item(refused.item).branch if refused.item else None
            if before is not None and apply(before, name, change) is before:
                return before  # it was done already
            return await change_by_swap(self, repository, name, change, self._jitter)  # no room for it, or no branch
        branch = from_item(answer["Attributes"]).branch
        assert branch is not None
        return branch

    async def _load_kept(self, repository: str, name: str) -> tuple[Kept | None, object]:
        item = await self._get(f"b/{repository}", name.encode())
        kept = None if item is None else from_item(item)
        return kept, kept

    async def _store_kept(self, repository: str, kept: Kept, tag: object) -> None:
        condition = same_state(tag) if isinstance(tag, Kept) else NEVER_SEEN
        try:
            await self._call("put_item", Item=_record_key(repository, kept.name) | to_item(kept), **condition)
        except _Refused:
            raise Conflict(f"branch {kept.name!r} changed") from None

    async def _remove_kept(self, repository: str, kept: Kept) -> None:
        try:
            await self._call("delete_item", Key=_record_key(repository, kept.name), **same_state(kept))
        except _Refused:
            raise Conflict(f"branch {kept.name!r} changed") from None

    async def _all_kept(self, repository: str, after: str, prefix: str) -> AsyncIterator[Kept]:
        start = max(after, prefix).encode()
        async for item in self._query(f"b/{repository}", start, prefix.encode()):
            if item["k"]["B"] != after.encode():
                yield from_item(item)

    async def _chunks(self, repository: str, kept: Kept) -> AsyncIterator[Span]:
        prefix = kept.chain.encode() + b"/"
        async for item in self._query(_journal(repository, kept), prefix, prefix, ProjectionExpression="k"):
            first, _, last = item["k"]["B"].removeprefix(prefix).partition(b"-")
            yield Span(int(first, 16), int(last, 16))

    async def _read_chunk(self, repository: str, kept: Kept, span: Span) -> list[Event] | None:
        item = await self._get(_journal(repository, kept), _chunk(kept, span))
        if item is None:
            return None
        try:
            return _decode_events(item["v"]["B"])
        except (KeyError, msgspec.MsgspecError) as error:
            raise Corrupt(f"a piece of the journal of branch {kept.name!r} cannot be read: {error!r}") from error

    async def _write_chunk(self, repository: str, kept: Kept, span: Span) -> None:
        item = _key(_journal(repository, kept), _chunk(kept, span)) | {"v": {"B": encode(kept.pending)}}
        await self._call("put_item", Item=item)

    async def _delete_chunk(self, repository: str, kept: Kept, span: Span) -> None:
        await self._call("delete_item", Key=_key(_journal(repository, kept), _chunk(kept, span)))

    async def _get(self, partition: str, key: bytes) -> Attributes | None:
        answer = await self._call("get_item", Key=_key(partition, key), ConsistentRead=True)
        item: Attributes | None = answer.get("Item")
        return item

    async def _query(self, partition: str, start: bytes, prefix: bytes, **options: object) -> AsyncIterator[Attributes]:
        """The items of a partition from `start` on, in order, page by page, as long as they have the prefix."""
        options |= {"KeyConditionExpression": "p = :p", "ExpressionAttributeValues": {":p": {"S": partition}}}
        if start:  # DynamoDB has no empty keys, so it takes none as a bound
            options["KeyConditionExpression"] = "p = :p AND k >= :k"
            options["ExpressionAttributeValues"] = {":p": {"S": partition}, ":k": {"B": start}}
        while True:
            answer = await self._call("query", ConsistentRead=True, Limit=PAGE_ITEMS_MAX, **options)
            for item in answer["Items"]:
                if not item["k"]["B"].startswith(prefix):
                    return
                yield item
            if "LastEvaluatedKey" not in answer:
                return
            options["ExclusiveStartKey"] = answer["LastEvaluatedKey"]

    async def _call(self, verb: str, **arguments: object) -> Any:
        client = self._client or await self._connect()
        with _translating(self._table, changing=verb not in ("get_item", "query")):
            return await getattr(client, verb)(TableName=self._table, **arguments)

    async def _connect(self) -> Any:
        async with self._opening, contextlib.AsyncExitStack() as opening:
            if self._client is None:
                try:
                    client = await opening.enter_async_context(get_session().create_client("dynamodb", **self._options))
                except (ValueError, boto.BotoCoreError) as error:
                    raise Invalid(f"DynamoDB has no such region or endpoint: {error}; correct the URL") from error
                if self._create:
                    with _translating(self._table, changing=False):
                        await _create_table(client, self._table)
                self._client, self._open = client, opening.pop_all()
        return self._client


def _key(partition: str, key: bytes) -> Attributes:
    return {"p": {"S": partition}, "k": {"B": key}}


def _record_key(repository: str, name: str) -> Attributes:
    return _key(f"b/{repository}", name.encode())


def _journal(repository: str, kept: Kept) -> str:
    return f"j/{quote(repository, safe='')}/{kept.name}"


def _chunk(kept: Kept, span: Span) -> bytes:
    return f"{kept.chain}/{span.first:016x}-{span.last:016x}".encode()


async def _create_table(client: Any, table: str) -> None:
    # In use: it is there, or another process creates it just now.
    with contextlib.suppress(client.exceptions.ResourceInUseException):
        await client.create_table(
            TableName=table,
            BillingMode="PAY_PER_REQUEST",
            KeySchema=[{"AttributeName": "p", "KeyType": "HASH"}, {"AttributeName": "k", "KeyType": "RANGE"}],
            AttributeDefinitions=[
                {"AttributeName": "p", "AttributeType": "S"},
                {"AttributeName": "k", "AttributeType": "B"},
            ],
        )
    await client.get_waiter("table_exists").wait(TableName=table, WaiterConfig={"Delay": 1, "MaxAttempts": 60})


class _Refused(Exception):
    """The condition did not hold; `item` is what was there, if it was asked for."""

    def __init__(self, item: Attributes | None) -> None:
        super().__init__("the condition did not hold")
        self.item = item


_DENIED = {
    "AccessDeniedException",
    "ExpiredTokenException",
    "IncompleteSignatureException",
    "InvalidSignatureException",
    "MissingAuthenticationTokenException",
    "UnrecognizedClientException",
}
_NOT_SENT = (boto.EndpointConnectionError, boto.ConnectTimeoutError, boto.ProxyConnectionError, boto.SSLError)


@contextlib.contextmanager
def _translating(table: str, changing: bool) -> Iterator[None]:
    """The one edge where botocore's errors become ours."""
    try:
        yield
    except boto.ClientError as error:
        if error.response["Error"]["Code"] == "ConditionalCheckFailedException":
            item: Any = error.response.get("Item")
            raise _Refused(item) from None
        raise _translated(error.response, table, changing) from error
    except (boto.NoCredentialsError, boto.PartialCredentialsError) as error:
        raise Denied(f"no credentials for DynamoDB: {error}") from error
    except boto.ParamValidationError as error:
        raise Invalid(f"DynamoDB cannot take this: {error}") from error
    except (boto.BotoCoreError, boto.HTTPClientError, TimeoutError, OSError) as error:
        if changing and not isinstance(error, _NOT_SENT):
            raise OutcomeUnknown(
                f"DynamoDB did not answer a change: {error}; read again to see if it was done"
            ) from error
        raise Unavailable(f"DynamoDB cannot be reached: {error}") from error


def _translated(response: Mapping[str, Any], table: str, changing: bool) -> Error:
    code, message = response["Error"]["Code"], response["Error"].get("Message", "")
    if code in _DENIED:
        return Denied(f"DynamoDB refuses these credentials: {code}: {message}")
    if code == "ResourceNotFoundException":
        return Invalid(f"table {table!r} does not exist: create it, or add create=true to the ref store's URL")
    if code == "ValidationException":
        return Invalid(f"DynamoDB cannot take this: {message}")
    if changing and response["ResponseMetadata"]["HTTPStatusCode"] >= 500:
        return OutcomeUnknown(f"DynamoDB failed during a change: {code}: {message}; read again to see if it was done")
    return Unavailable(f"DynamoDB refuses: {code}: {message}")


__all__ = ["Credentials", "DynamoRefStore"]
