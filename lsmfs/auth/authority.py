"""Who asks, and whether they may: the one place of authorisation, for the S3 gateway, the REST API and the UI.

Everything that is not allowed is denied, and every denial goes to the log `audit` with user, action and resource, and
never with a secret. Keys and rights are at most `FRESH_SECONDS` old in every process; changes made through
`Authority.directory` hold at once in this one. If the store cannot be reached when they must be read again, requests
are refused as `Unavailable`, and not let through.
"""

import asyncio
import hmac

import structlog

from lsmfs.auth import setup, tokens
from lsmfs.auth.cache import Fresh
from lsmfs.auth.directory import Directory, rights_of
from lsmfs.auth.keys import Key, Pair, ServerKey, open_secret
from lsmfs.auth.permissions import Action, Resource, Rights
from lsmfs.auth.records import PARTITION, Identity, KeyRecord, User, decode, may_exist
from lsmfs.clock import Clock, SystemClock
from refstore.errors import Denied, Error, NotFound
from refstore.store import Store

KEYS_KEPT_MAX = 10_000  # some 10 MB: more keys than one process sees in five seconds
USERS_KEPT_MAX = 10_000
USE_SECONDS = 600.0  # a key's last use is written at most once in this time, by each process
SHOWN_CHARACTERS_MAX = 128  # of what a stranger sent, in messages and logs

log = structlog.get_logger("audit", log="audit")


class Authority:
    def __init__(
        self, store: Store, server_key: bytes, clock: Clock | None = None, previous: tuple[bytes, ...] = ()
    ) -> None:
        """`server_key` seals secrets and signs tokens; `previous` ones still open and verify."""
        self._store = store
        self._clock = clock if clock is not None else SystemClock()
        self._server_keys = tuple(ServerKey(key) for key in (server_key, *previous))
        self.directory = Directory(store, self._server_keys, self._clock, self.forget)
        self._keys = Fresh(self.directory.keyring.usable, self._clock, KEYS_KEPT_MAX)
        self._rights = Fresh(self._load_rights, self._clock, USERS_KEPT_MAX)
        self._used: dict[str, float] = {}
        self._writing: set[asyncio.Task[None]] = set()

    async def is_set_up(self) -> bool:
        return await setup.is_set_up(self.directory)

    async def setup(self, user: str, key: Pair | None = None) -> tuple[Key, str]:
        """The first administrator, with the given key or a new one; `AlreadyExists` ever after."""
        try:
            made = await setup.set_up(self.directory, user, key)
        finally:
            self.forget()
        return made, made.secret

    async def check_server_key(self) -> None:
        """`Corrupt` if a stored secret does not open with this server key: call it at start."""
        async for item in self._store.scan(PARTITION, prefix=b"keys/"):
            open_secret(self._server_keys, decode(item.value, KeyRecord, item.key))

    async def rotate_server_key(self, old: bytes, new: bytes) -> int:
        """Seal every secret under the new key; how many. First start all servers with `new` and `previous=(old,)`."""
        await self.is_set_up()  # a setup that was interrupted has a sealed secret too
        try:
            return await self.directory.keyring.rotate_server_key(ServerKey(old), ServerKey(new))
        finally:
            self.forget()

    # Who asks

    async def key(self, access_key_id: str) -> Key:
        """The key with its secret, to verify a signature. `NotFound` if it or its user is unknown or disabled."""
        if not may_exist(access_key_id):  # not kept: it could be of any length
            raise NotFound("an access key id has 3 to 128 of A-Z a-z 0-9 _ . -")
        return await self._keys.get(access_key_id)

    async def identify(self, access_key_id: str, secret: str) -> Identity:
        """Who has this key. `Denied` in the same words whether the id is unknown, disabled, or the secret wrong."""
        try:
            key = await self.key(access_key_id)
        except NotFound:
            key = None
        expected = key.secret if key is not None else "no key"
        equal = hmac.compare_digest(expected.encode(), secret.encode(errors="replace"))
        if key is None or not equal:
            log.warning("identification refused", access_key_id=access_key_id[:SHOWN_CHARACTERS_MAX])
            raise Denied("the access key id or the secret is wrong")
        return key.identity

    def issue_token(self, identity: Identity, ttl_seconds: int = tokens.TTL_SECONDS) -> str:
        """A JWT for `identify_token`, good for `ttl_seconds` or until its key or user is disabled or deleted."""
        return tokens.issue(self._server_keys[0].signing, identity, ttl_seconds, self._clock.now_us())

    async def identify_token(self, token: str) -> Identity:
        """Whom a token of ours names, if it is valid and they still may log in; `Denied`."""
        try:
            identity = self._verified(token)
            if identity.access_key_id and (await self.key(identity.access_key_id)).identity != identity:
                raise Denied("the token's key is another one now: log in again")
            await self._rights.get(identity[:2])
        except (Denied, NotFound) as error:
            log.warning("token refused", reason=str(error))
            raise Denied("the token is not valid, or has expired: log in again") from None
        return identity

    def _verified(self, token: str) -> Identity:
        for key in self._server_keys[:-1]:
            try:
                return tokens.verify(key.signing, token, self._clock.now_us())
            except Denied:
                continue
        return tokens.verify(self._server_keys[-1].signing, token, self._clock.now_us())

    def csrf_token(self, session: str) -> str:
        """A token that a page must repeat with requests that the session cookie authenticates."""
        return tokens.csrf_token(self._server_keys[0].csrf, session)

    def check_csrf(self, session: str, token: str) -> None:
        """`Denied` if the token was not made for this session."""
        tokens.check_csrf(self._server_keys[0].csrf, session, token)

    # Whether they may

    async def check(self, identity: Identity, action: Action, resource: Resource) -> None:
        """`Denied`, and a line in the audit log, if they may not."""
        try:
            if (await self._rights.get(identity[:2])).allow(action, resource):
                if identity.access_key_id:
                    self._note_use(identity.access_key_id)
                return
            reason = "no role allows it"
        except Denied as error:
            reason = str(error)
        log.warning(
            "denied",
            user=identity.user,
            access_key_id=identity.access_key_id,
            action=action.value,
            reason=reason,
            **{name: value for name, value in resource._asdict().items() if value is not None},
        )
        raise Denied(f"user {identity.user!r} may not do {action.value} on {resource}: {reason}")

    async def allows(self, identity: Identity, action: Action, resource: Resource) -> bool:
        """The same as a question, for filtering lists: nothing is logged."""
        try:
            return (await self._rights.get(identity[:2])).allow(action, resource)
        except Denied:
            return False

    def forget(self) -> None:
        """Read everything again at its next use."""
        self._keys.forget()
        self._rights.forget()

    async def aclose(self) -> None:
        """Wait for the last uses that are being written. The store stays open."""
        await asyncio.gather(*self._writing)

    async def _load_rights(self, who: tuple[str, str]) -> Rights:
        name, life = who
        user = await self.directory.tables.find(User, name)
        if user is None or user.life != life:
            raise Denied(f"user {name!r} was deleted")
        if user.disabled:
            raise Denied(f"user {name!r} is disabled")
        return rights_of(user, await self.directory.effective_roles(user))

    def _note_use(self, access_key_id: str) -> None:
        now = self._clock.monotonic()
        if now < self._used.get(access_key_id, now):
            return
        self._used.pop(access_key_id, None)
        if len(self._used) >= KEYS_KEPT_MAX:
            del self._used[next(iter(self._used))]
        self._used[access_key_id] = now + USE_SECONDS
        task = asyncio.create_task(self._write_use(access_key_id))
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)

    async def _write_use(self, access_key_id: str) -> None:
        try:
            await self.directory.keyring.used(access_key_id, self._clock.now_us())
        except Error as error:
            log.info("last use not written", access_key_id=access_key_id, error=str(error))
