"""Secrets at rest: who has the database and not the server key has no secret, and cannot make one."""

import msgspec
import pytest

from lsmfs.auth import Authority, Key
from lsmfs.auth.keys import Pair, ServerKey, new_pair
from lsmfs.auth.records import PARTITION, KeyRecord
from refstore.drivers.memory import MemoryRefStore
from refstore.errors import AlreadyExists, Corrupt, Invalid, NotFound
from tests.aio import aio
from tests.auth.support import SERVER_KEY, HandClock, dump, set_up

NEW_KEY = b"n" * 32


async def two_users() -> tuple[MemoryRefStore, Authority, dict[str, Pair]]:
    store = MemoryRefStore()
    authority = await set_up(store)
    pairs = {}
    for name in ("ann", "bob"):
        await authority.directory.create_user(name)
        info, secret = await authority.directory.create_key(name)
        pairs[name] = Pair(info.access_key_id, secret)
    return store, authority, pairs


async def record_of(store: MemoryRefStore, pair: Pair) -> KeyRecord:
    return msgspec.json.decode((await dump(store))[f"keys/{pair.access_key_id}".encode()], type=KeyRecord)


async def put(store: MemoryRefStore, access_key_id: str, record: KeyRecord) -> None:
    await store.set(PARTITION, f"keys/{access_key_id}".encode(), msgspec.json.encode(record))


class TestAtRest:
    @aio
    async def test_a_leaked_database_has_no_secret_in_any_value(self) -> None:
        store = MemoryRefStore()
        root = Pair("ROOTKEY", "a-secret-of-the-installation")
        authority = Authority(store, SERVER_KEY, HandClock())
        await authority.setup("root", root)
        await authority.directory.create_user("bob")
        _, secret = await authority.directory.create_key("bob")
        rotated, other = await authority.directory.rotate_key(
            (await authority.directory.create_key("bob"))[0].access_key_id
        )
        assert rotated.user == "bob"
        stored = b"\n".join(key + value for key, value in (await dump(store)).items())
        assert b"ROOTKEY" in stored
        for text in (root.secret, secret, other):
            for form in (text.encode(), text.encode().hex().encode(), msgspec.json.encode(text.encode()).strip(b'"=')):
                assert form not in stored
        assert SERVER_KEY not in stored

    @aio
    async def test_an_interrupted_setup_keeps_no_plain_secret_and_a_finished_one_none_at_all(self) -> None:
        store = MemoryRefStore()
        await set_up(store)
        assert b'"key":null' in (await dump(store))[b"setup"]

    @aio
    async def test_each_changed_byte_of_a_sealed_secret_is_noticed(self) -> None:
        store, authority, pairs = await two_users()
        record = await record_of(store, pairs["bob"])
        for at in range(len(record.sealed)):
            changed = record.sealed[:at] + bytes([record.sealed[at] ^ 1]) + record.sealed[at + 1 :]
            await put(store, record.access_key_id, msgspec.structs.replace(record, sealed=changed))
            authority.forget()
            with pytest.raises(Corrupt, match="was changed"):
                await authority.key(record.access_key_id)
        for sealed in (b"", record.sealed[:12], record.sealed[:-1]):
            await put(store, record.access_key_id, msgspec.structs.replace(record, sealed=sealed))
            authority.forget()
            with pytest.raises(Corrupt):
                await authority.key(record.access_key_id)

    @aio
    async def test_a_secret_moved_to_another_id_or_user_does_not_open(self) -> None:
        store, authority, pairs = await two_users()
        ann, bob = await record_of(store, pairs["ann"]), await record_of(store, pairs["bob"])
        moves = (
            msgspec.structs.replace(ann, sealed=bob.sealed),
            msgspec.structs.replace(bob, access_key_id=ann.access_key_id),
            msgspec.structs.replace(bob, user=ann.user, user_life=ann.user_life),
        )
        for moved in moves:
            await put(store, moved.access_key_id, moved)
            authority.forget()
            with pytest.raises(Corrupt):
                await authority.key(moved.access_key_id)

    @aio
    async def test_a_record_stored_under_another_id_is_not_that_key(self) -> None:
        store, authority, pairs = await two_users()
        await put(store, "PLANTED", await record_of(store, pairs["ann"]))
        with pytest.raises(Corrupt, match="is that of"):
            await authority.key("PLANTED")

    def test_texts_of_keys_do_not_show_secrets(self) -> None:
        pair = new_pair()
        key = Key(pair.access_key_id, pair.secret, ("bob", "life", pair.access_key_id))  # type: ignore[arg-type]
        for shown in (repr(pair), str(pair), repr(key), str(key), repr(ServerKey(SERVER_KEY))):
            assert pair.secret not in shown
            assert repr(SERVER_KEY) not in shown


class TestServerKey:
    @aio
    async def test_a_wrong_server_key_is_told_as_such(self) -> None:
        store, _, pairs = await two_users()
        wrong = Authority(store, NEW_KEY, HandClock())
        for call in (wrong.check_server_key(), wrong.key(pairs["bob"].access_key_id), wrong.identify(*pairs["bob"])):
            with pytest.raises(Corrupt, match="start it with the right server key"):
                await call

    @aio
    async def test_it_is_replaced_while_servers_run_with_both(self) -> None:
        store, old, pairs = await two_users()
        both = Authority(store, NEW_KEY, HandClock(), previous=(SERVER_KEY,))
        token = old.issue_token(await old.identify(*pairs["bob"]))
        assert (await both.identify(*pairs["bob"])).user == "bob"
        assert (await both.identify_token(token)).user == "bob"
        assert await both.rotate_server_key(SERVER_KEY, NEW_KEY) == 3
        assert await both.rotate_server_key(SERVER_KEY, NEW_KEY) == 0
        only = Authority(store, NEW_KEY, HandClock())
        await only.check_server_key()
        assert (await only.identify(*pairs["bob"])).user == "bob"
        with pytest.raises(Corrupt):
            await Authority(store, SERVER_KEY, HandClock()).check_server_key()

    @aio
    async def test_rotation_from_a_key_that_is_not_the_old_one_changes_nothing(self) -> None:
        store, authority, _ = await two_users()
        before = await dump(store)
        with pytest.raises(Corrupt):
            await authority.rotate_server_key(b"x" * 32, NEW_KEY)
        assert await dump(store) == before

    def test_a_short_one_is_refused(self) -> None:
        with pytest.raises(Invalid, match="31 bytes"):
            Authority(MemoryRefStore(), b"x" * 31)


class TestKeys:
    def test_new_pairs_have_the_usual_lengths_and_differ(self) -> None:
        pairs = {new_pair() for _ in range(100)}
        assert len({pair.access_key_id for pair in pairs}) == len({pair.secret for pair in pairs}) == 100
        assert {(len(pair.access_key_id), len(pair.secret)) for pair in pairs} == {(20, 40)}

    @pytest.mark.parametrize(
        "pair", [Pair("a/b", "x" * 20), Pair("a!b", "x" * 20), Pair("", "x" * 20), Pair("abc", "short")]
    )
    @aio
    async def test_an_imported_key_that_cannot_be_one_is_refused_without_its_secret(self, pair: Pair) -> None:
        authority = await set_up()
        with pytest.raises(Invalid) as caught:
            await authority.directory.create_key("root", pair)
        assert pair.secret not in str(caught.value)

    @aio
    async def test_an_imported_id_is_used_once_and_again_when_its_user_is_gone(self) -> None:
        _, authority, _ = await two_users()
        pair = Pair("IMPORTED", "imported-secret")
        await authority.directory.create_key("ann", pair)
        with pytest.raises(AlreadyExists):
            await authority.directory.create_key("bob", pair)
        await authority.directory.delete_user("ann")
        await authority.directory.create_key("bob", pair)
        assert (await authority.identify(*pair)).user == "bob"

    @aio
    async def test_disabling_enabling_rotating_and_deleting_hold_at_once(self) -> None:
        _, authority, pairs = await two_users()
        access_key_id = pairs["bob"].access_key_id
        assert (await authority.key(access_key_id)).secret == pairs["bob"].secret
        assert (await authority.directory.set_key_disabled(access_key_id, True)).disabled
        with pytest.raises(NotFound, match="disabled"):
            await authority.key(access_key_id)
        await authority.directory.set_key_disabled(access_key_id, False)
        assert (await authority.key(access_key_id)).user == "bob"
        new, secret = await authority.directory.rotate_key(access_key_id)
        with pytest.raises(NotFound):
            await authority.key(access_key_id)
        assert (await authority.key(new.access_key_id)).secret == secret
        await authority.directory.delete_key(new.access_key_id)
        with pytest.raises(NotFound):
            await authority.key(new.access_key_id)
        assert (await authority.directory.keys_of_user("bob")).items == []
