"""A process that ends in the middle of any verb of the directory leaves a state that is consistent, and the verb, done
again, ends."""

from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest

from lsmfs.auth import Authority, Directory
from lsmfs.auth.keys import Pair
from lsmfs.auth.permissions import create_repo, read_repo
from lsmfs.auth.tables import PRUNE_AFTER_SECONDS
from refstore.drivers.memory import MemoryRefStore
from refstore.errors import AlreadyExists, NotFound, Unavailable
from tests.aio import aio
from tests.auth.support import SERVER_KEY, FailingStore, HandClock, assert_consistent, dump, set_up

BOBS_KEY = Pair("BOBSKEY", "bobs-secret-bobs-secret")

VERBS: dict[str, Callable[[Directory], Awaitable[object]]] = {
    "create_user": lambda d: d.create_user("new"),
    "disable_user": lambda d: d.set_user_disabled("bob", True),
    "delete_user": lambda d: d.delete_user("bob"),
    "delete_administrator": lambda d: d.delete_user("root"),
    "create_group": lambda d: d.create_group("new"),
    "delete_group": lambda d: d.delete_group("team"),
    "add_to_group": lambda d: d.add_to_group("bob", "Developers"),
    "remove_from_group": lambda d: d.remove_from_group("bob", "team"),
    "create_role": lambda d: d.create_role("new", [create_repo()]),
    "update_role": lambda d: d.update_role("reader", [create_repo()]),
    "delete_role": lambda d: d.delete_role("reader"),
    "attach_role_to_user": lambda d: d.attach_role_to_user("Analyst", "bob"),
    "detach_role_from_user": lambda d: d.detach_role_from_user("reader", "bob"),
    "attach_role_to_group": lambda d: d.attach_role_to_group("Analyst", "team"),
    "detach_role_from_group": lambda d: d.detach_role_from_group("reader", "team"),
    "create_key": lambda d: d.create_key("bob", Pair("ANOTHER", "another-secret")),
    "disable_key": lambda d: d.set_key_disabled("BOBSKEY", True),
    "delete_key": lambda d: d.delete_key("BOBSKEY"),
    "rotate_key": lambda d: d.rotate_key("BOBSKEY"),
}
SECONDS_BETWEEN = PRUNE_AFTER_SECONDS + 1


async def furnished() -> MemoryRefStore:
    store = MemoryRefStore()
    directory = (await set_up(store)).directory
    await directory.create_user("bob")
    await directory.create_user("second")
    await directory.create_key("second")
    await directory.add_to_group("second", "Admins")
    await directory.create_group("team")
    await directory.create_role("reader", [read_repo("*")])
    await directory.add_to_group("bob", "team")
    await directory.attach_role_to_user("reader", "bob")
    await directory.attach_role_to_group("reader", "team")
    await directory.create_key("bob", BOBS_KEY)
    return store


@pytest.mark.parametrize("done", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("name", VERBS)
@aio
async def test_a_verb_that_is_interrupted_anywhere_leaves_a_consistent_state_and_can_be_repeated(
    name: str, done: bool
) -> None:
    verb = VERBS[name]
    whole = FailingStore(await furnished())
    await verb(Authority(whole, SERVER_KEY, HandClock()).directory)
    assert whole.changes > 0
    for fail_at in range(whole.changes):
        store = await furnished()
        with pytest.raises(Unavailable):
            await verb(Authority(FailingStore(store, fail_at, done), SERVER_KEY, HandClock()).directory)
        await assert_consistent(store)
        later = HandClock()
        later.seconds += SECONDS_BETWEEN
        with suppress(AlreadyExists, NotFound):  # it was done
            await verb(Authority(store, SERVER_KEY, later).directory)
        await assert_consistent(store)
        if name != "rotate_key":  # which makes one more key each time it is begun
            assert await _meaning(store) == await _meaning(whole)


async def _meaning(store: MemoryRefStore | FailingStore) -> dict[str, object]:
    """What the lists say; not ids, times and leftovers."""
    directory = Authority(store, SERVER_KEY, HandClock()).directory
    found: dict[str, object] = {}
    for user in (await directory.users()).items:
        groups = [group.name for group in (await directory.groups_of_user(user.name)).items]
        roles = [role.name for role in (await directory.roles_of_user(user.name, effective=True)).items]
        keys = [key.disabled for key in (await directory.keys_of_user(user.name)).items]
        found[user.name] = (user.disabled, groups, roles, keys)
    for group in (await directory.groups()).items:
        members = [user.name for user in (await directory.members(group.name)).items]
        found[f"group {group.name}"] = (members, [r.name for r in (await directory.roles_of_group(group.name)).items])
    found["roles"] = [(role.name, role.permissions) for role in (await directory.roles()).items]
    return found


@pytest.mark.parametrize("done", [False, True], ids=["before", "after"])
@aio
async def test_a_setup_that_is_interrupted_is_finished_by_the_next_reader_or_was_never_begun(done: bool) -> None:
    whole = FailingStore(MemoryRefStore())
    pair = Pair("ROOTKEY", "roots-secret-roots-secret")
    await Authority(whole, SERVER_KEY, HandClock()).setup("root", pair)
    assert whole.changes > 10
    for fail_at in range(whole.changes):
        store = MemoryRefStore()
        with pytest.raises(Unavailable):
            await Authority(FailingStore(store, fail_at, done), SERVER_KEY, HandClock()).setup("root", pair)
        authority = Authority(store, SERVER_KEY, HandClock())
        if fail_at == 0 and not done:
            assert not await authority.is_set_up()
            await authority.setup("root", pair)
        else:
            with pytest.raises(AlreadyExists):
                await authority.setup("mallory")
        assert [user.name for user in (await authority.directory.users()).items] == ["root"]
        assert (await authority.identify(*pair)).user == "root"
        await assert_consistent(store)


@aio
async def test_what_an_interrupted_link_leaves_in_the_index_is_not_listed_and_is_pruned_when_it_is_old() -> None:
    store = await furnished()
    clock = HandClock()
    with pytest.raises(Unavailable):
        await Authority(FailingStore(store, 1), SERVER_KEY, clock).directory.add_to_group("bob", "Developers")
    left = [key for key in await dump(store) if key.startswith(b"group-users/Developers/bob")]
    assert len(left) == 1
    directory = Authority(store, SERVER_KEY, clock).directory
    assert (await directory.members("Developers")).items == []
    assert left[0] in await dump(store)  # it may be about to get its edge
    clock.seconds += SECONDS_BETWEEN
    assert (await directory.members("Developers")).items == []
    assert left[0] not in await dump(store)


@aio
async def test_a_user_whose_deletion_was_interrupted_may_do_nothing() -> None:
    for fail_at in range(1, 6):
        store = await furnished()
        with pytest.raises(Unavailable):
            await Authority(FailingStore(store, fail_at), SERVER_KEY, HandClock()).directory.delete_user("bob")
        with pytest.raises(NotFound):
            await Authority(store, SERVER_KEY, HandClock()).key("BOBSKEY")
