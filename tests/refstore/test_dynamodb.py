"""What is DynamoDB's own: one request for an append, small items, tables that are not there, answers that are lost."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest
from aiobotocore.session import get_session

from refstore.drivers.dynamodb import Credentials, DynamoRefStore
from refstore.drivers.kept import PENDING_EVENTS_MAX
from refstore.errors import Corrupt, Invalid, OutcomeUnknown, Unavailable
from refstore.records import BranchChange
from refstore.refs import WRITERS_MAX, replay
from tests.aio import aio
from tests.conformance.refstore_backends import fresh_name
from tests.conformance.refstore_histories import append, create, delete, raise_floor, replace, retire, seal
from tests.refstore.cutting_proxy import CuttingProxy
from tests.servers.dynamodb import shared_dynamodb
from tests.servers.process import free_port

pytestmark = pytest.mark.xdist_group("dynamodb")

TABLE, REGION, KEYS = "lsmfs-test", "eu-west-1", Credentials("test", "test-secret")
ITEM_BYTES_MAX = 100_000  # a quarter of what DynamoDB takes


def opened(
    table: str = TABLE, endpoint: str | None = None, create: bool = True, region: str = REGION
) -> aclosing[DynamoRefStore]:
    return aclosing(DynamoRefStore(table, region, endpoint or shared_dynamodb(), KEYS, create))


@asynccontextmanager
async def second_route() -> AsyncIterator[Any]:
    """A plain client, beside the one under test."""
    names = ("aws_access_key_id", "aws_secret_access_key")
    options = dict(zip(names, KEYS, strict=False)) | {"region_name": REGION, "endpoint_url": shared_dynamodb()}
    async with get_session().create_client("dynamodb", **options) as client:
        yield client


async def watch(store: DynamoRefStore) -> list[str]:
    """The names of the requests that this client sends from now on."""
    seen: list[str] = []
    client = await store._connect()
    client.meta.events.register("before-call.dynamodb", lambda model, **_: seen.append(model.name))
    return seen


class TestRequests:
    @aio
    async def test_an_append_is_one_update(self) -> None:
        repository = fresh_name()
        async with opened() as store:
            await store.change(repository, "main", create())
            seen = await watch(store)
            for change in (append(1), append(2), append(3, view=3), append(1, "other"), append(3), append(4)):
                await store.change(repository, "main", change)
                assert seen == ["UpdateItem"], change
                seen.clear()
            await store.read(repository, "main")
            assert seen == ["GetItem"]

    @aio
    async def test_events_that_need_room_are_moved_to_an_item_of_their_own(self) -> None:
        repository = fresh_name()
        async with opened() as store:
            await store.change(repository, "main", create())
            seen = await watch(store)
            for seq in range(1, PENDING_EVENTS_MAX):
                await store.change(repository, "main", append(seq))
            assert seen == ["UpdateItem"] * (PENDING_EVENTS_MAX - 1)
            seen.clear()
            branch = await store.change(repository, "main", append(PENDING_EVENTS_MAX))
            assert seen == ["UpdateItem", "GetItem", "PutItem", "PutItem"]
            kept, _ = await store._load_kept(repository, "main")
            assert kept is not None
            assert len(kept.pending) == 1
            events = await store.events(repository)
            assert [event.version for event in events] == list(range(1, PENDING_EVENTS_MAX + 2))
            assert replay(events) == {"main": branch}

    @aio
    async def test_a_writer_more_than_are_remembered_costs_a_swap(self) -> None:
        repository = fresh_name()
        async with opened() as store:
            await store.change(repository, "main", create())
            for number in range(WRITERS_MAX):
                await store.change(repository, "main", append(1, f"w{number}"))
            seen = await watch(store)
            branch = await store.change(repository, "main", append(1, "newcomer", opened_at=9))
            assert seen[:2] == ["UpdateItem", "GetItem"]
            assert len(branch.writers) == WRITERS_MAX

    @aio
    async def test_items_stay_small(self) -> None:
        repository, sizes = fresh_name(), []
        async with opened() as store, second_route() as second:
            branch = await store.change(repository, "main", create())
            for seq in range(1, 301):
                await store.change(repository, "main", append(seq, table=f"{'t' * 56}{seq:04d}"))
                if seq % 50 == 0:
                    key = {"p": {"S": f"b/{repository}"}, "k": {"B": b"main"}}
                    answer = await second.get_item(TableName=TABLE, Key=key, ConsistentRead=True)
                    sizes.append(len(json.dumps(answer["Item"], default=repr)))
                    branch = await store.read(repository, "main")
                    branch = await store.change(repository, "main", replace(branch.l1, branch.l2, f"r{seq}"))
            assert len(sizes) == 6
            assert max(sizes) < ITEM_BYTES_MAX
            assert replay(await store.events(repository)) == {"main": branch}


class TestTables:
    @aio
    async def test_a_table_that_is_not_there_is_invalid_and_says_what_to_do(self) -> None:
        async with opened(table=fresh_name(), create=False) as store:
            for verb in (store.read("r", "main"), store.change("r", "main", append(1)), store.set("r", b"k", b"v")):
                with pytest.raises(Invalid, match="create=true"):
                    await verb

    @aio
    async def test_a_table_of_another_region_is_not_there(self) -> None:
        async with opened() as store:
            await store.set(fresh_name(), b"k", b"v")
        async with opened(region="us-east-2", create=False) as store:
            with pytest.raises(Invalid, match=f"table '{TABLE}' does not exist"):
                await store.get("p", b"k")

    @aio
    async def test_a_table_with_other_keys_is_invalid(self) -> None:
        table = fresh_name()
        async with second_route() as client:
            await client.create_table(
                TableName=table,
                BillingMode="PAY_PER_REQUEST",
                KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
                AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
            )
            async with opened(table) as store:
                with pytest.raises(Invalid, match="DynamoDB cannot take this"):
                    await store.set("p", b"k", b"v")
            await client.delete_table(TableName=table)

    @aio
    async def test_clients_that_create_a_table_at_once_all_get_it(self) -> None:
        table = fresh_name()
        async with opened(table) as one, opened(table) as two, opened(table) as three:
            await asyncio.gather(*(store.set("p", b"%d" % at, b"") for at, store in enumerate((one, two, three))))
            assert [item.key async for item in one.scan("p")] == [b"0", b"1", b"2"]
        async with second_route() as client:
            await client.delete_table(TableName=table)

    @pytest.mark.parametrize("create", [False, True])
    @aio
    async def test_an_endpoint_where_nobody_listens_is_unavailable_and_nothing_was_sent(self, create: bool) -> None:
        async with opened(endpoint=f"http://127.0.0.1:{free_port()}", create=create) as store:
            for verb in (store.read("r", "main"), store.change("r", "main", append(1)), store.set("r", b"k", b"v")):
                with pytest.raises(Unavailable, match="cannot be reached") as caught:
                    await verb
                assert not isinstance(caught.value, OutcomeUnknown)

    @pytest.mark.parametrize(("endpoint", "region"), [("no-url", REGION), (None, "not a region!")])
    @aio
    async def test_no_endpoint_or_region_at_all_is_invalid(self, endpoint: str | None, region: str) -> None:
        async with opened(endpoint=endpoint, region=region) as store:
            with pytest.raises(Invalid, match="correct the URL"):
                await store.get("p", b"k")


class TestLostAnswers:
    @pytest.mark.parametrize(
        ("change", "version"), [(seal(), 3), (retire(2), 3), (raise_floor(4), 3), (delete(), None)]
    )
    @aio
    async def test_a_swap_whose_answer_is_lost_is_found_done(self, change: BranchChange, version: int | None) -> None:
        repository = fresh_name()
        async with through_proxy() as (proxy, store):
            await store.change(repository, "main", create())
            await store.change(repository, "main", append(1))
            proxy.cut(b".PutItem", answered=True)
            branch = await store.change(repository, "main", change)
            assert proxy.cuts == 1
            events = await store.events(repository)
            assert [event.version for event in events] == [1, 2, 3]
            assert replay(events) == ({} if version is None else {"main": branch})

    @aio
    async def test_a_swap_that_did_not_arrive_is_of_unknown_outcome_and_not_repeated(self) -> None:
        repository = fresh_name()
        async with through_proxy() as (proxy, store):
            before = await store.change(repository, "main", create())
            proxy.cut(b".PutItem", times=2)
            with pytest.raises(OutcomeUnknown, match="read again"):
                await store.change(repository, "main", raise_floor(4))
            assert proxy.cuts == 1
            assert await store.read(repository, "main") == before

    @aio
    async def test_a_swap_of_which_nothing_can_be_learnt_is_of_unknown_outcome(self) -> None:
        repository = fresh_name()

        class Deaf(DynamoRefStore):
            async def _call(self, verb: str, **arguments: object) -> Any:
                answer = await super()._call(verb, **arguments)
                if verb == "put_item":
                    proxy.cut(b".GetItem")
                    raise OutcomeUnknown("planned: the answer is lost, and so is the next look")
                return answer

        async with through_proxy() as (proxy, store), aclosing(Deaf(TABLE, REGION, endpoint_of(proxy), KEYS)) as deaf:
            await store.change(repository, "main", create())
            with pytest.raises(OutcomeUnknown, match="planned"):
                await deaf.change(repository, "main", raise_floor(4))
            assert (await store.read(repository, "main")).floor == 4

    @pytest.mark.parametrize("answered", [False, True])
    @aio
    async def test_an_append_whose_answer_is_lost_is_repeated_without_doubling(self, answered: bool) -> None:
        repository = fresh_name()
        async with through_proxy() as (proxy, store):
            await store.change(repository, "main", create())
            proxy.cut(b".UpdateItem", answered)
            with pytest.raises(OutcomeUnknown, match="read again"):
                await store.change(repository, "main", append(1))
            assert proxy.cuts == 1
            branch = await store.change(repository, "main", append(1))
            assert (branch.l1, branch.version) == (("w-1",), 2)
            assert len(await store.events(repository)) == 2


def endpoint_of(proxy: CuttingProxy) -> str:
    return f"http://127.0.0.1:{proxy.port}"


@asynccontextmanager
async def through_proxy() -> AsyncIterator[tuple[CuttingProxy, DynamoRefStore]]:
    port = urlsplit(shared_dynamodb()).port
    assert port is not None
    async with CuttingProxy(port) as proxy, opened(endpoint=endpoint_of(proxy)) as store:
        await store._connect()  # the table is there before anything is cut
        yield proxy, store


class TestDamage:
    @pytest.mark.parametrize(
        ("attribute", "value"),
        [
            ("version", None),
            ("version", {"S": "many"}),
            ("l1", {"S": "text"}),
            ("sealed", {"S": "[1]"}),
            ("pending", {"L": [{"S": "{}"}]}),
        ],
    )
    @aio
    async def test_a_branch_damaged_by_hand_is_corrupt_to_readers_and_writers(
        self, attribute: str, value: object
    ) -> None:
        repository = fresh_name()
        async with opened() as store, second_route() as second:
            await store.change(repository, "main", create())
            key = {"p": {"S": f"b/{repository}"}, "k": {"B": b"main"}}
            item = (await second.get_item(TableName=TABLE, Key=key))["Item"]
            del item[attribute]
            await second.put_item(TableName=TABLE, Item=item if value is None else item | {attribute: value})
            for verb in (
                store.read(repository, "main"),
                store.change(repository, "main", append(2)),
                store.change(repository, "main", seal()),
                store.events(repository),
            ):
                with pytest.raises(Corrupt, match="main"):
                    await verb

    @aio
    async def test_a_piece_of_the_journal_that_is_gone_or_damaged_is_corrupt(self) -> None:
        repository = fresh_name()
        async with opened() as store, second_route() as second:
            await store.change(repository, "main", create())
            for seq in range(1, PENDING_EVENTS_MAX + 1):
                await store.change(repository, "main", append(seq))
            (item,) = (
                await second.query(
                    TableName=TABLE,
                    KeyConditionExpression="p = :p",
                    ExpressionAttributeValues={":p": {"S": f"j/{repository}/main"}},
                )
            )["Items"]
            await second.put_item(TableName=TABLE, Item=item | {"v": {"B": b"[1]"}})
            with pytest.raises(Corrupt, match="journal"):
                await store.events(repository)
            await second.delete_item(TableName=TABLE, Key={"p": item["p"], "k": item["k"]})
            with pytest.raises(Corrupt, match="lacks event 1 "):
                await store.events(repository)
