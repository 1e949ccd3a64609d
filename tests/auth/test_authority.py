"""Who asks and whether they may: setup, identification, freshness, the audit log and last use."""

import asyncio
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from lsmfs.auth import Action, Authority, Identity, Resource
from lsmfs.auth.authority import USE_SECONDS
from lsmfs.auth.cache import Fresh
from lsmfs.auth.keys import Pair
from lsmfs.policy import FRESH_SECONDS
from refstore.drivers.memory import MemoryRefStore
from refstore.drivers.sqlite import SqliteRefStore
from refstore.errors import AlreadyExists, Denied, Invalid, NotFound, Unavailable
from tests.aio import aio
from tests.auth.support import SERVER_KEY, FailingStore, HandClock, set_up

BOB = Pair("BOBSKEY", "bobs-secret-bobs-secret")
REPO = Resource("repo")


async def with_bob(store: MemoryRefStore, clock: HandClock) -> tuple[Authority, Identity]:
    authority = await set_up(store, clock)
    await authority.directory.create_user("bob")
    await authority.directory.create_key("bob", BOB)
    await authority.directory.add_to_group("bob", "Developers")
    return authority, await authority.identify(*BOB)


class TestSetup:
    @aio
    async def test_it_works_once_and_its_administrator_may_do_everything(self, tmp_path: Path) -> None:
        store = SqliteRefStore(str(tmp_path / "refs.db"))
        authority = Authority(store, SERVER_KEY)
        assert not await authority.is_set_up()
        key, secret = await authority.setup("root")
        assert await authority.is_set_up()
        with pytest.raises(AlreadyExists):
            await authority.setup("mallory")
        identity = await Authority(store, SERVER_KEY).identify(key.access_key_id, secret)
        assert identity == key.identity
        for action in Action:
            await authority.check(identity, action, Resource("repo", "main", "a", "user/root"))
        await authority.aclose()
        await store.aclose()

    @aio
    async def test_of_many_at_once_one_wins_and_the_others_leave_nothing(self) -> None:
        store = MemoryRefStore()
        outcomes = await asyncio.gather(
            *(Authority(store, SERVER_KEY, HandClock()).setup(f"root{number}") for number in range(5)),
            return_exceptions=True,
        )
        won = [outcome for outcome in outcomes if isinstance(outcome, tuple)]
        assert len(won) == 1
        assert sum(isinstance(outcome, AlreadyExists) for outcome in outcomes) == 4
        directory = Authority(store, SERVER_KEY, HandClock()).directory
        assert [user.name for user in (await directory.users()).items] == [won[0][0].user]

    @aio
    async def test_a_given_key_is_taken_and_a_bad_one_or_name_leaves_it_to_be_set_up(self) -> None:
        authority = Authority(MemoryRefStore(), SERVER_KEY, HandClock())
        for user, pair in (("root", Pair("a/b", "x" * 20)), ("ro/ot", BOB)):
            with pytest.raises(Invalid):
                await authority.setup(user, pair)
        assert not await authority.is_set_up()
        key, secret = await authority.setup("root", BOB)
        assert (key.access_key_id, secret) == BOB


class TestIdentification:
    @aio
    async def test_unknown_wrong_and_disabled_are_refused_in_the_same_words(self) -> None:
        authority, identity = await with_bob(MemoryRefStore(), HandClock())
        assert identity.user == "bob"
        refused = [
            ("NOBODY", BOB.secret),
            (BOB.access_key_id, "wrong"),
            (BOB.access_key_id, ""),
            ("", ""),
            ("é\ud800", "é\ud800"),
            ("x" * 5000, "x"),
        ]
        messages = set()
        for pair in refused:
            with pytest.raises(Denied) as caught:
                await authority.identify(*pair)
            messages.add(str(caught.value))
        await authority.directory.set_user_disabled("bob", True)
        with pytest.raises(Denied) as caught:
            await authority.identify(*BOB)
        assert messages == {str(caught.value)}

    @aio
    async def test_a_token_ends_with_time_and_with_its_key_and_with_its_user(self) -> None:
        clock = HandClock()
        authority, identity = await with_bob(MemoryRefStore(), clock)
        directory = authority.directory
        token = authority.issue_token(identity, 3600)
        assert await authority.identify_token(token) == identity
        await directory.set_key_disabled(BOB.access_key_id, True)
        with pytest.raises(Denied):
            await authority.identify_token(token)
        await directory.set_key_disabled(BOB.access_key_id, False)
        assert await authority.identify_token(token) == identity
        without_key = authority.issue_token(identity._replace(access_key_id=""), 3600)
        await directory.delete_user("bob")
        await directory.create_user("bob")
        await directory.create_key("bob", BOB)
        for old in (token, without_key):
            with pytest.raises(Denied):
                await authority.identify_token(old)
        new = authority.issue_token(await authority.identify(*BOB), 3600)
        clock.seconds += 3600
        with pytest.raises(Denied):
            await authority.identify_token(new)

    @aio
    async def test_a_csrf_token_goes_with_its_session(self) -> None:
        authority, identity = await with_bob(MemoryRefStore(), HandClock())
        session = authority.issue_token(identity)
        authority.check_csrf(session, authority.csrf_token(session))
        with pytest.raises(Denied):
            authority.check_csrf(session, authority.csrf_token("another"))


class TestFreshness:
    @aio
    async def test_changes_hold_at_once_here_and_elsewhere_after_five_seconds(self) -> None:
        store, clock = MemoryRefStore(), HandClock()
        here, bob = await with_bob(store, clock)
        elsewhere = Authority(store, SERVER_KEY, clock)
        for authority in (here, elsewhere):
            assert await authority.allows(bob, Action.READ_REPOSITORY, REPO)
            await authority.key(BOB.access_key_id)
            with pytest.raises(NotFound):
                await authority.key("LATER")
        await here.directory.remove_from_group("bob", "Developers")
        await here.directory.delete_key(BOB.access_key_id)
        await here.directory.create_key("bob", Pair("LATER", "a-later-secret"))
        assert not await here.allows(bob, Action.READ_REPOSITORY, REPO)
        await here.key("LATER")
        assert await elsewhere.allows(bob, Action.READ_REPOSITORY, REPO)  # it cannot know yet
        clock.seconds += FRESH_SECONDS + 0.001
        assert not await elsewhere.allows(bob, Action.READ_REPOSITORY, REPO)
        with pytest.raises(NotFound):
            await elsewhere.key(BOB.access_key_id)
        await elsewhere.key("LATER")

    @aio
    async def test_a_user_that_is_disabled_or_deleted_is_denied_at_once(self) -> None:
        authority, bob = await with_bob(MemoryRefStore(), HandClock())
        await authority.check(bob, Action.READ_REPOSITORY, REPO)
        await authority.directory.set_user_disabled("bob", True)
        with pytest.raises(Denied, match="is disabled"):
            await authority.check(bob, Action.READ_REPOSITORY, REPO)
        await authority.directory.delete_user("bob")
        with pytest.raises(Denied, match="was deleted"):
            await authority.check(bob, Action.READ_REPOSITORY, REPO)
        await authority.aclose()

    @aio
    async def test_without_the_store_nobody_is_let_through_once_it_is_old(self) -> None:
        store, clock = MemoryRefStore(), HandClock()
        _, bob = await with_bob(store, clock)
        failing = FailingStore(store)
        authority = Authority(failing, SERVER_KEY, clock)
        assert await authority.allows(bob, Action.READ_REPOSITORY, REPO)
        failing.fail_at, failing.changes = 0, 1
        clock.seconds += FRESH_SECONDS + 0.001
        for call in (
            authority.check(bob, Action.READ_REPOSITORY, REPO),
            authority.allows(bob, Action.READ_REPOSITORY, REPO),
            authority.identify(*BOB),
        ):
            with pytest.raises(Unavailable):
                await call
        failing.fail_at = -1
        assert await authority.allows(bob, Action.READ_REPOSITORY, REPO)

    @aio
    async def test_what_is_checked_again_and_again_is_read_once(self) -> None:
        loads: list[str] = []

        async def load(name: str) -> str:
            loads.append(name)
            await asyncio.sleep(0)
            if name.startswith("no"):
                raise NotFound(name)
            return name.upper()

        cache = Fresh(load, HandClock(), entries_max=3)
        assert await asyncio.gather(*(cache.get("a") for _ in range(10))) == ["A"] * 10
        assert loads == ["a"]
        for number in range(100):  # a flood of wrong names
            with pytest.raises(NotFound, match=f"no{number}"):
                await cache.get(f"no{number}")
        with pytest.raises(NotFound):
            await cache.get("no99")
        assert await cache.get("a") == "A"
        assert len(loads) == 101
        for name in "bcd":
            await cache.get(name)
        await cache.get("a")
        assert loads[-1] == "a"  # it was driven out: the cache is bounded

    @aio
    async def test_a_load_that_began_before_a_change_is_not_kept(self) -> None:
        stored, gate = ["old"], asyncio.Event()

        async def load(_: str) -> str:
            value = stored[0]
            await gate.wait()
            return value

        cache = Fresh(load, HandClock(), entries_max=3)
        early = asyncio.create_task(cache.get("a"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        stored[0] = "new"
        cache.forget()
        gate.set()
        assert await early == "old"
        assert await cache.get("a") == "new"

    @aio
    async def test_a_waiter_that_is_cancelled_does_not_take_the_value_from_the_others(self) -> None:
        gate = asyncio.Event()

        async def load(_: str) -> str:
            await gate.wait()
            return "value"

        cache = Fresh(load, HandClock(), entries_max=3)
        first, second = (asyncio.create_task(cache.get("a")) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        gate.set()
        assert await second == "value"
        assert first.cancelled()


class TestAudit:
    @aio
    async def test_every_denial_is_logged_with_who_what_and_where_and_no_allowance_is(self) -> None:
        authority, bob = await with_bob(MemoryRefStore(), HandClock())
        resource = Resource("repo", "main", "a/b")
        with capture_logs() as logs:
            await authority.check(bob, Action.WRITE_OBJECT, resource)
            assert not await authority.allows(bob, Action.DELETE_REPOSITORY, REPO)
            assert logs == []
            with pytest.raises(Denied, match="user 'bob' may not do fs:DeleteRepository on repository 'repo'"):
                await authority.check(bob, Action.DELETE_REPOSITORY, REPO)
            await authority.directory.remove_from_group("bob", "Developers")
            with pytest.raises(Denied):
                await authority.check(bob, Action.WRITE_OBJECT, resource)
            with pytest.raises(Denied):
                await authority.check(Identity("ghost", "x"), Action.READ_OBJECT, resource)
        seen = [(line["log"], line["user"], line["action"], line["repository"], line.get("path")) for line in logs]
        assert seen == [
            ("audit", "bob", "fs:DeleteRepository", "repo", None),
            ("audit", "bob", "fs:WriteObject", "repo", "a/b"),
            ("audit", "ghost", "fs:ReadObject", "repo", "a/b"),
        ]
        await authority.aclose()

    @aio
    async def test_no_secret_and_no_token_is_logged(self) -> None:
        authority, bob = await with_bob(MemoryRefStore(), HandClock())
        token = authority.issue_token(bob)
        with capture_logs() as logs:
            for pair in ((BOB.access_key_id, "a-wrong-secret"), ("NOBODY", BOB.secret)):
                with pytest.raises(Denied):
                    await authority.identify(*pair)
            with pytest.raises(Denied):
                await authority.identify_token(token[:-3])
            with pytest.raises(Denied):
                await authority.check(bob, Action.CREATE_USER, Resource(entity="user/x"))
        assert len(logs) == 4
        for text in (BOB.secret, "a-wrong-secret", token[:-3], token.split(".")[2][:-3]):
            assert text not in repr(logs)


class TestLastUse:
    @aio
    async def test_it_is_written_beside_the_request_and_once_in_ten_minutes(self) -> None:
        store, clock = MemoryRefStore(), HandClock()
        _, bob = await with_bob(store, clock)
        counting = FailingStore(store)
        authority = Authority(counting, SERVER_KEY, clock)
        assert (await authority.directory.key_info(BOB.access_key_id)).used_us is None
        first = clock.now_us()
        for _ in range(100):
            await authority.check(bob, Action.READ_REPOSITORY, REPO)
        await authority.aclose()
        assert counting.changes == 1
        clock.seconds += USE_SECONDS - 1
        await authority.check(bob, Action.READ_REPOSITORY, REPO)
        await authority.aclose()
        assert (await authority.directory.keys_of_user("bob")).items[0].used_us == first
        clock.seconds += 1
        await authority.check(bob, Action.READ_REPOSITORY, REPO)
        await authority.aclose()
        assert counting.changes == 2
        assert (await authority.directory.key_info(BOB.access_key_id)).used_us == clock.now_us()

    @aio
    async def test_a_store_that_fails_does_not_fail_the_request(self) -> None:
        store, clock = MemoryRefStore(), HandClock()
        _, bob = await with_bob(store, clock)
        authority = Authority(FailingStore(store, 0), SERVER_KEY, clock)
        with capture_logs() as logs:
            await authority.check(bob, Action.READ_REPOSITORY, REPO)
            await authority.aclose()
        assert [line["event"] for line in logs] == ["last use not written"]
