"""Users, groups, roles and their lists; and that nobody locks everybody out."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from lsmfs.auth import Action, Authority, Directory, Identity, Permission, Resource
from lsmfs.auth.directory import DEPARTURE_SECONDS
from lsmfs.auth.permissions import PRECONFIGURED_GROUPS, PRECONFIGURED_ROLES, create_repo, read_repo
from lsmfs.auth.records import PARTITION
from lsmfs.auth.tables import EDGES_MAX, MEMBERS, USER_ROLES
from refstore.drivers.memory import MemoryRefStore
from refstore.drivers.sqlite import SqliteRefStore
from refstore.errors import AlreadyExists, Invalid, NotFound
from refstore.store import Store
from tests.aio import aio
from tests.auth.support import SERVER_KEY, HandClock, assert_consistent, dump, set_up

DENY_ALL = [Permission("deny", ("*",))]


@asynccontextmanager
async def opened(kind: str, directory: Path) -> AsyncIterator[Store]:
    store: Store = MemoryRefStore() if kind == "memory" else SqliteRefStore(str(directory / "refs.db"))
    try:
        yield store
    finally:
        await store.aclose()


async def with_user(authority: Authority, name: str, *groups: str) -> Identity:
    await authority.directory.create_user(name)
    info, secret = await authority.directory.create_key(name)
    for group in groups:
        await authority.directory.add_to_group(name, group)
    return await authority.identify(info.access_key_id, secret)


async def names_of_members(directory: Directory, group: str) -> list[str]:
    return [user.name for user in (await directory.members(group)).items]


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
class TestOnEachStore:
    @aio
    async def test_members_and_groups_are_listed_both_ways_and_go_with_either(self, kind: str, tmp_path: Path) -> None:
        async with opened(kind, tmp_path) as store:
            directory = (await set_up(store)).directory
            for name in ("bob", "bob-x", "ann"):
                await directory.create_user(name)
                await directory.add_to_group(name, "Developers")
                await directory.add_to_group(name, "Developers")  # nothing changes
            assert await names_of_members(directory, "Developers") == ["ann", "bob", "bob-x"]
            assert [group.name for group in (await directory.groups_of_user("bob")).items] == ["Developers"]
            await directory.remove_from_group("ann", "Developers")
            await directory.remove_from_group("ann", "Developers")
            await directory.delete_user("bob")
            assert await names_of_members(directory, "Developers") == ["bob-x"]
            assert not [key for key in await dump(store) if b"bob!" in key or b"/bob/" in key]
            await assert_consistent(store)

    @aio
    async def test_lists_are_paged_by_prefix_and_after_in_order_of_names(self, kind: str, tmp_path: Path) -> None:
        async with opened(kind, tmp_path) as store:
            directory = (await set_up(store)).directory
            names = sorted(["a", "a-1", "a.b", "a1", "ab", "b", "a_", "a@x", "a+x"])
            await directory.create_group("team")
            for name in reversed(names):
                await directory.create_user(name)
                await directory.add_to_group(name, "team")
            wanted = [name for name in names if name.startswith("a")]
            for page_of in (directory.users, lambda *a: directory.members("team", *a)):
                found: list[str] = []
                more = True
                while more:
                    page = await page_of("a", found[-1] if found else "", 2)
                    found += [user.name for user in page.items]
                    more = page.more
                assert found == wanted
            for strange in ("\ud800", "x" * 2000, "/", "\x00"):
                assert (await directory.users(strange)).items == []
                assert (await directory.members("team", strange)).items == []
                with pytest.raises(NotFound):
                    await directory.user(strange)
            with pytest.raises(Invalid):
                await directory.users(amount=0)


class TestLives:
    @aio
    async def test_a_user_made_again_under_the_name_has_nothing_of_the_first(self) -> None:
        store = MemoryRefStore()
        authority = await set_up(store)
        first = await with_user(authority, "bob", "Admins")
        before = await dump(store)
        await authority.directory.delete_user("bob")
        for key, value in before.items():  # as if nothing of it had been pruned
            if (b"bob" in key and not key.startswith(b"users/")) or b'"user":"bob"' in value:
                await store.set(PARTITION, key, value)
        await authority.directory.create_user("bob")
        with pytest.raises(NotFound):
            await authority.key(first.access_key_id)
        assert f"keys/{first.access_key_id}".encode() in await dump(store)
        assert (await authority.directory.groups_of_user("bob")).items == []
        assert (await authority.directory.keys_of_user("bob")).items == []
        assert await names_of_members(authority.directory, "Admins") == ["root"]
        assert f"keys/{first.access_key_id}".encode() not in await dump(store)  # the lists have pruned it
        assert not await authority.allows(first, Action.READ_REPOSITORY, Resource("repo"))

    @aio
    async def test_a_group_or_role_made_again_under_the_name_gives_nothing_to_those_who_had_the_first(self) -> None:
        authority = await set_up()
        directory = authority.directory
        bob = await with_user(authority, "bob")
        for _ in range(2):
            await directory.create_group("team")
            await directory.create_role("creator", [create_repo()])
            await directory.attach_role_to_group("creator", "team")
            assert not await authority.allows(bob, Action.CREATE_REPOSITORY, Resource("repo"))
            await directory.add_to_group("bob", "team")
            assert await authority.allows(bob, Action.CREATE_REPOSITORY, Resource("repo"))
            await directory.delete_role("creator")
            assert not await authority.allows(bob, Action.CREATE_REPOSITORY, Resource("repo"))
            await directory.delete_group("team")

    @pytest.mark.parametrize("kind", ["group", "role"])
    @aio
    async def test_edges_that_outlive_a_group_or_role_do_not_hold_for_the_next_and_are_pruned(self, kind: str) -> None:
        store = MemoryRefStore()
        authority = await set_up(store)
        directory = authority.directory
        bob = await with_user(authority, "bob")
        await directory.create_group("team")
        await directory.create_role("team", [create_repo()])
        await directory.attach_role_to_group("team", "team")
        await directory.add_to_group("bob", "team")
        before = await dump(store)
        if kind == "group":
            await directory.delete_group("team")
            await directory.create_group("team")
        else:
            await directory.delete_role("team")
            await directory.create_role("team", [create_repo()])
        for key in before.keys() - (await dump(store)).keys():
            await store.set(PARTITION, key, before[key])
        authority.forget()
        assert not await authority.allows(bob, Action.CREATE_REPOSITORY, Resource("repo"))
        await directory.roles_of_group("team")
        await directory.members("team")
        assert not [key for key in await dump(store) if key.startswith((b"group-roles/team", b"role-groups/team"))]
        await assert_consistent(store)

    @aio
    async def test_who_reads_with_an_old_record_sees_nothing_of_the_next_user_and_prunes_nothing_of_it(self) -> None:
        store = MemoryRefStore()
        directory = (await set_up(store)).directory
        old = await directory.create_user("bob")
        await directory.delete_user("bob")
        await directory.create_user("bob")
        await directory.create_key("bob")
        await directory.add_to_group("bob", "Developers")
        before = await dump(store)
        assert await directory.tables.rights(MEMBERS, old) == []
        assert [key async for key in directory.keyring.of_user(old)] == []
        await directory.tables.sweep(old)
        await directory.keyring.sweep(old)
        assert await dump(store) == before

    @aio
    async def test_many_at_once_add_and_remove_the_same_member_and_both_lists_agree(self) -> None:
        store = MemoryRefStore()
        directory = (await set_up(store)).directory
        await directory.create_user("bob")
        verbs = [directory.add_to_group, directory.remove_from_group] * 10
        await asyncio.gather(*(verb("bob", "Developers") for verb in verbs))
        await assert_consistent(store)
        await directory.remove_from_group("bob", "Developers")
        assert await names_of_members(directory, "Developers") == []


class TestLimits:
    @pytest.mark.parametrize("name", ["", "a/b", "a!b", "-a", "a b", "é", "a" * 128, "a\n", "../x"])
    @aio
    async def test_a_name_that_could_be_taken_for_another_key_is_refused(self, name: str) -> None:
        directory = (await set_up()).directory
        for verb in (directory.create_user, directory.create_group):
            with pytest.raises(Invalid):
                await verb(name)
        with pytest.raises(Invalid):
            await directory.create_role(name, [create_repo()])

    @aio
    async def test_what_exists_is_not_made_twice_and_what_does_not_cannot_be_linked(self) -> None:
        directory = (await set_up()).directory
        with pytest.raises(AlreadyExists):
            await directory.create_user("root")
        with pytest.raises(AlreadyExists):
            await directory.create_group("Admins")
        with pytest.raises(AlreadyExists):
            await directory.create_role("Admin", [create_repo()])
        for verb in (
            directory.add_to_group("nobody", "Admins"),
            directory.add_to_group("root", "nothing"),
            directory.remove_from_group("root", "nothing"),
            directory.attach_role_to_user("nothing", "root"),
            directory.delete_user("nobody"),
            directory.delete_group("nothing"),
            directory.delete_key("NOTHING"),
            directory.create_key("nobody"),
        ):
            with pytest.raises(NotFound):
                await verb

    @aio
    async def test_roles_have_permissions_and_not_too_many_and_users_not_too_many_roles(self) -> None:
        directory = (await set_up()).directory
        for permissions in ([], [create_repo()] * 101, [Permission("allow", ("bad action",))]):
            with pytest.raises(Invalid):
                await directory.create_role("role", permissions)
        await directory.create_user("bob")
        for number in range(EDGES_MAX):
            await directory.create_role(f"r{number}", [create_repo()])
            await directory.tables.link(USER_ROLES, "bob", f"r{number}")
        with pytest.raises(Invalid, match="limit"):
            await directory.attach_role_to_user("Analyst", "bob")


class TestPreconfigured:
    @aio
    async def test_they_are_there_after_setup_and_stay(self) -> None:
        directory = (await set_up()).directory
        assert [role.name for role in (await directory.roles()).items] == sorted(PRECONFIGURED_ROLES)
        assert [group.name for group in (await directory.groups()).items] == sorted(PRECONFIGURED_GROUPS)
        for group, role in PRECONFIGURED_GROUPS.items():
            assert [each.name for each in (await directory.roles_of_group(group)).items] == [role]
            with pytest.raises(Invalid):
                await directory.delete_group(group)
            with pytest.raises(Invalid):
                await directory.detach_role_from_group(role, group)
            with pytest.raises(Invalid):
                await directory.delete_role(role)
            with pytest.raises(Invalid):
                await directory.update_role(role, [create_repo()])

    @aio
    async def test_a_stored_copy_that_says_more_gives_no_more(self) -> None:
        store = MemoryRefStore()
        authority = await set_up(store)
        bob = await with_user(authority, "bob", "Viewers")
        admin = (await dump(store))[b"roles/Admin"]
        await store.set(PARTITION, b"roles/Analyst", admin.replace(b'"Admin"', b'"Analyst"'))
        authority.forget()
        assert await authority.allows(bob, Action.READ_REPOSITORY, Resource("repo"))
        assert not await authority.allows(bob, Action.DELETE_REPOSITORY, Resource("repo"))


class TestLastAdministrator:
    @aio
    async def test_no_verb_removes_the_last_one(self) -> None:
        store = MemoryRefStore()
        authority = await set_up(store)
        directory = authority.directory
        await directory.create_role("nothing", DENY_ALL)
        await directory.create_role("harmless", [read_repo("*")])
        await directory.create_group("silent")
        await directory.attach_role_to_group("nothing", "silent")
        await directory.create_group("team")
        await directory.attach_role_to_group("harmless", "team")
        await directory.add_to_group("root", "team")
        await directory.create_user("keyless")  # an administrator who cannot log in does not count
        await directory.add_to_group("keyless", "Admins")
        key = (await directory.keys_of_user("root")).items[0].access_key_id
        before = await dump(store)
        for verb in (
            directory.delete_user("root"),
            directory.set_user_disabled("root", True),
            directory.remove_from_group("root", "Admins"),
            directory.attach_role_to_user("nothing", "root"),
            directory.attach_role_to_group("nothing", "Admins"),
            directory.attach_role_to_group("nothing", "team"),
            directory.add_to_group("root", "silent"),
            directory.update_role("harmless", DENY_ALL),
            directory.delete_key(key),
            directory.set_key_disabled(key, True),
        ):
            with pytest.raises(Invalid, match="no administrator"):
                await verb
        assert await dump(store) == before

    @aio
    async def test_with_another_one_each_of_them_may_go_and_the_other_may_not(self) -> None:
        authority = await set_up()
        await with_user(authority, "second", "Admins")
        await authority.directory.delete_user("root")
        with pytest.raises(Invalid):
            await authority.directory.remove_from_group("second", "Admins")

    @aio
    async def test_who_has_the_role_directly_counts(self) -> None:
        authority = await set_up()
        await with_user(authority, "second")
        await authority.directory.attach_role_to_user("Admin", "second")
        await authority.directory.delete_user("root")
        with pytest.raises(Invalid):
            await authority.directory.detach_role_from_user("Admin", "second")

    @aio
    async def test_two_that_remove_each_other_at_the_same_moment_do_not_both_succeed(self) -> None:
        store = MemoryRefStore()
        authority = await set_up(store)
        await with_user(authority, "second", "Admins")
        other = Authority(store, SERVER_KEY, HandClock())
        outcomes = await asyncio.gather(
            authority.directory.delete_user("root"), other.directory.delete_user("second"), return_exceptions=True
        )
        assert sorted(type(outcome).__name__ for outcome in outcomes) == ["Invalid", "NoneType"]
        assert len(await other.directory.administrators()) == 1

    @aio
    async def test_one_whose_removal_was_announced_and_never_made_counts_again_after_a_while(self) -> None:
        store, clock = MemoryRefStore(), HandClock()
        authority = await set_up(store, clock)
        second = await with_user(authority, "second", "Admins")
        until = clock.now_us() + DEPARTURE_SECONDS * 1_000_000
        await store.set(PARTITION, b"guard", b'{"departing":{"%s":%d}}' % (second.user_life.encode(), until))
        with pytest.raises(Invalid):
            await authority.directory.delete_user("root")
        clock.seconds += DEPARTURE_SECONDS
        await authority.directory.delete_user("root")
