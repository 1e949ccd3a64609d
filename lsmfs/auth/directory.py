"""Users, groups, roles (named policies) and keys: the verbs that change and list them.

It does not ask who calls: the caller has checked the `Action` with `Authority.check`, as for everything else. What it
does itself, whoever calls:

- Preconfigured roles and groups stay as they are: they are not deleted, and the roles not changed.
- An administrator stays: a user with the role Admin (as a member of Admins, or directly), who is not disabled, has a
  key that is not, and is allowed to give roles. Each change is first tried on a `TrialStore`; if it would end the
  last such user's power it is `Invalid`. Two changes that each spare the administrator whom the other removes are
  ordered by the record `guard`: who is leaving is written there before the change, and does not count for others.

Verbs can be repeated after any failure; see `tables` for what one that was interrupted leaves behind. Changes hold in
this process at once, in others within `FRESH_SECONDS`.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import TypeVar, cast

import msgspec

from lsmfs.auth.keyring import Keyring
from lsmfs.auth.keys import Pair, ServerKey
from lsmfs.auth.permissions import (
    PRECONFIGURED_GROUPS,
    PRECONFIGURED_ROLES,
    Action,
    Permission,
    Resource,
    Rights,
    check_permission,
)
from lsmfs.auth.records import GUARD, PARTITION, Group, Guard, KeyInfo, Role, User, check_name, decode
from lsmfs.auth.tables import CHANGE_TRIES_MAX, GROUP_ROLES, MEMBERS, USER_ROLES, Page, Relation, Tables, page_of
from lsmfs.auth.trial import TrialStore
from lsmfs.clock import Clock
from refstore.errors import Conflict, Invalid
from refstore.store import ABSENT, Store

DEPARTURE_SECONDS = 60  # a change is made within it, or has failed
PERMISSIONS_MAX = 100  # of one role: 100 of them in 100 roles compile in milliseconds
TEXT_CHARACTERS_MAX = 512

T = TypeVar("T")


class Directory:
    def __init__(
        self, store: Store, server_keys: tuple[ServerKey, ...], clock: Clock, changed: Callable[[], None] = lambda: None
    ) -> None:
        """`server_keys`: the first seals, all open; `changed` is called after each change."""
        self._store = store
        self._clock = clock
        self._server_keys = server_keys
        self._changed = changed
        self.tables = Tables(store, clock)
        self.keyring = Keyring(self.tables, server_keys)

    # Users

    async def create_user(self, name: str, email: str = "") -> User:
        user = User(check_name("user", name), self._clock.new_id(), self._clock.now_us(), email=_text(email))
        return await self._do(self.tables.create(name, user))

    async def user(self, name: str) -> User:
        return await self.tables.read(User, name)

    async def users(self, prefix: str = "", after: str = "", amount: int = 100) -> Page[User]:
        return await self.tables.page(User, prefix, after, amount)

    async def set_user_disabled(self, name: str, disabled: bool) -> User:
        """A disabled user keeps everything and may do nothing."""
        return await self._guarded(
            lambda d: d.tables.change(User, name, lambda user: msgspec.structs.replace(user, disabled=disabled))
        )

    async def delete_user(self, name: str) -> None:
        """With its keys and memberships; `NotFound`."""

        async def verb(directory: Directory) -> None:
            # Disabled first: from here on it may do nothing, whenever the rest is done.
            user = await directory.tables.change(User, name, lambda u: msgspec.structs.replace(u, disabled=True))
            await directory.keyring.sweep(user)
            await directory.tables.sweep(user)
            await directory.tables.delete(User, name)
            await directory.keyring.sweep(user)  # a key that was made meanwhile

        await self._guarded(verb)

    # Groups

    async def create_group(self, name: str, description: str = "") -> Group:
        group = Group(check_name("group", name), self._clock.new_id(), self._clock.now_us(), _text(description))
        return await self._do(self.tables.create(name, group))

    async def group(self, name: str) -> Group:
        return await self.tables.read(Group, name)

    async def groups(self, prefix: str = "", after: str = "", amount: int = 100) -> Page[Group]:
        return await self.tables.page(Group, prefix, after, amount)

    async def delete_group(self, name: str) -> None:
        if name in PRECONFIGURED_GROUPS:
            raise Invalid(f"group {name!r} is preconfigured and cannot be deleted: remove its members instead")

        async def verb(directory: Directory) -> None:
            group = await directory.tables.read(Group, name)
            await directory.tables.sweep(group)
            await directory.tables.delete(Group, name)

        await self._guarded(verb)

    async def add_to_group(self, user: str, group: str) -> None:
        await self._guarded(lambda d: d.tables.link(MEMBERS, user, group))

    async def remove_from_group(self, user: str, group: str) -> None:
        await self._unlink(MEMBERS, user, group)

    async def members(self, group: str, prefix: str = "", after: str = "", amount: int = 100) -> Page[User]:
        found = self.tables.lefts(MEMBERS, await self.group(group), prefix, after)
        return await page_of(cast(AsyncIterator[User], found), amount)

    async def groups_of_user(self, user: str, prefix: str = "", after: str = "", amount: int = 100) -> Page[Group]:
        found = await self.tables.rights(MEMBERS, await self.user(user))
        return await page_of(_among(cast(list[Group], found), prefix, after), amount)

    # Roles

    async def create_role(self, name: str, permissions: Iterable[Permission]) -> Role:
        now = self._clock.now_us()
        role = Role(check_name("policy", name), self._clock.new_id(), now, _checked(permissions))
        return await self._do(self.tables.create(name, role))

    async def update_role(self, name: str, permissions: Iterable[Permission]) -> Role:
        _own_role(name)
        checked = _checked(permissions)
        return await self._guarded(
            lambda d: d.tables.change(Role, name, lambda role: msgspec.structs.replace(role, permissions=checked))
        )

    async def role(self, name: str) -> Role:
        return as_of_now(await self.tables.read(Role, name))

    async def roles(self, prefix: str = "", after: str = "", amount: int = 100) -> Page[Role]:
        page = await self.tables.page(Role, prefix, after, amount)
        return Page([as_of_now(role) for role in page.items], page.more)

    async def delete_role(self, name: str) -> None:
        _own_role(name)

        async def verb(directory: Directory) -> None:
            role = await directory.tables.read(Role, name)
            await directory.tables.sweep(role)
            await directory.tables.delete(Role, name)

        await self._guarded(verb)

    async def attach_role_to_user(self, role: str, user: str) -> None:
        await self._guarded(lambda d: d.tables.link(USER_ROLES, user, role))

    async def detach_role_from_user(self, role: str, user: str) -> None:
        await self._unlink(USER_ROLES, user, role)

    async def attach_role_to_group(self, role: str, group: str) -> None:
        await self._guarded(lambda d: d.tables.link(GROUP_ROLES, group, role))

    async def detach_role_from_group(self, role: str, group: str) -> None:
        await self._unlink(GROUP_ROLES, group, role)

    async def roles_of_group(self, group: str, prefix: str = "", after: str = "", amount: int = 100) -> Page[Role]:
        found = cast(list[Role], await self.tables.rights(GROUP_ROLES, await self.group(group)))
        return await page_of(_among(map(as_of_now, found), prefix, after), amount)

    async def roles_of_user(
        self, user: str, prefix: str = "", after: str = "", amount: int = 100, *, effective: bool = False
    ) -> Page[Role]:
        """Those attached to the user; with `effective`, also those of its groups."""
        record = await self.user(user)
        found = await (self.effective_roles(record) if effective else self._direct_roles(record))
        return await page_of(_among(found, prefix, after), amount)

    async def effective_roles(self, user: User) -> list[Role]:
        """All roles that give the user rights, in order of names."""
        found = {role.name: role for role in await self._direct_roles(user)}
        for group in await self.tables.rights(MEMBERS, user):
            for role in await self.tables.rights(GROUP_ROLES, cast(Group, group)):
                found[role.name] = as_of_now(cast(Role, role))
        return [found[name] for name in sorted(found)]

    async def _direct_roles(self, user: User) -> list[Role]:
        return [as_of_now(cast(Role, role)) for role in await self.tables.rights(USER_ROLES, user)]

    # Keys

    async def create_key(self, user: str, pair: Pair | None = None, description: str = "") -> tuple[KeyInfo, str]:
        """A new key, or the given one, and its secret, which is never shown again."""
        return await self._do(self.keyring.create(await self.user(user), pair, _text(description)))

    async def key_info(self, access_key_id: str) -> KeyInfo:
        return await self.keyring.info(access_key_id)

    async def keys_of_user(self, user: str, prefix: str = "", after: str = "", amount: int = 100) -> Page[KeyInfo]:
        return await page_of(self.keyring.of_user(await self.user(user), prefix, after), amount)

    async def set_key_disabled(self, access_key_id: str, disabled: bool) -> KeyInfo:
        return await self._guarded(lambda d: d.keyring.set_disabled(access_key_id, disabled))

    async def delete_key(self, access_key_id: str) -> None:
        await self._guarded(lambda d: d.keyring.delete(access_key_id))

    async def rotate_key(self, access_key_id: str) -> tuple[KeyInfo, str]:
        """Another key for the same user in place of this one. The new one is made first: no moment is without a key."""
        old = await self.key_info(access_key_id)
        new = await self.create_key(old.user, description=old.description)
        await self.delete_key(access_key_id)
        return new

    # Changes, and the last administrator

    async def _do(self, verb: Awaitable[T]) -> T:
        try:
            return await verb
        finally:
            self._changed()  # also if it failed: its first writes may hold

    async def _unlink(self, relation: Relation, left: str, right: str) -> None:
        async def verb(directory: Directory) -> None:
            await directory.tables.read(relation.left, left)
            await directory.tables.read(relation.right, right)
            await directory.tables.unlink(relation, left, right)

        if relation is GROUP_ROLES and PRECONFIGURED_GROUPS.get(left) == right:
            raise Invalid(f"group {left!r} has role {right!r} for good: remove members from the group instead")
        await self._guarded(verb)

    async def _guarded(self, verb: "Callable[[Directory], Awaitable[T]]") -> T:
        """The verb done, if an administrator stays."""
        for _ in range(CHANGE_TRIES_MAX):
            data = await self._store.get(PARTITION, GUARD)
            guard = Guard() if data is None else decode(data, Guard, GUARD)
            before = await self.administrators()
            trial = Directory(TrialStore(self._store), self._server_keys, self._clock)
            await verb(trial)
            after = await trial.administrators()
            if before <= after:
                return await self._do(verb(self))
            now = self._clock.now_us()
            departing = {life: until for life, until in guard.departing.items() if until > now}
            if not after - departing.keys():
                raise Invalid("that would leave no administrator with a usable key: make another one first")
            departing |= dict.fromkeys(before - after, now + DEPARTURE_SECONDS * 1_000_000)
            try:
                wanted = msgspec.json.encode(Guard(departing))
                await self._store.set_if(PARTITION, GUARD, wanted, ABSENT if data is None else data)
            except Conflict:
                continue
            return await self._do(verb(self))
        raise Conflict(f"{CHANGE_TRIES_MAX} others removed administrators at the same time: try again")

    async def administrators(self) -> set[str]:
        """The lives of all users who administer."""
        found = set()
        for relation, name in ((MEMBERS, "Admins"), (USER_ROLES, "Admin")):
            record = await self.tables.find(relation.right, name)
            if record is None:
                continue
            async for user in self.tables.lefts(relation, record):
                if user.life not in found and await self._administers(cast(User, user)):
                    found.add(user.life)
        return found

    async def _administers(self, user: User) -> bool:
        if user.disabled or not any([not key.disabled async for key in self.keyring.of_user(user)]):
            return False
        rights = rights_of(user, await self.effective_roles(user))
        return rights.allow(Action.ATTACH_ROLE, Resource(entity=f"user/{user.name}"))


def rights_of(user: User, roles: Iterable[Role]) -> Rights:
    return Rights((permission for role in roles for permission in role.permissions), user.name)


def as_of_now(role: Role) -> Role:
    """A preconfigured role means what this release says, not what was stored by an older one."""
    permissions = PRECONFIGURED_ROLES.get(role.name, role.permissions)
    return msgspec.structs.replace(role, permissions=permissions)


async def _among(found: "Iterable[N]", prefix: str, after: str) -> "AsyncIterator[N]":
    for record in found:
        if record.name.startswith(prefix) and record.name > after:
            yield record


N = TypeVar("N", Group, Role)


def _own_role(name: str) -> None:
    if name in PRECONFIGURED_ROLES:
        raise Invalid(f"policy {name!r} is preconfigured and stays as it is: create one with another name")


def _checked(permissions: Iterable[Permission]) -> tuple[Permission, ...]:
    checked = tuple(check_permission(permission) for permission in permissions)
    if not 0 < len(checked) <= PERMISSIONS_MAX:
        raise Invalid(f"a policy has 1 to {PERMISSIONS_MAX} statements, not {len(checked)}")
    return checked


def _text(text: str) -> str:
    if len(text) > TEXT_CHARACTERS_MAX:
        raise Invalid(f"a description or address has at most {TEXT_CHARACTERS_MAX} characters, not {len(text)}")
    return text
