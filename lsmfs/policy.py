"""What a repository's record allows: read-only or not, and which branches are protected.

The record is read again when it is older than `FRESH_SECONDS`, so a change of it holds everywhere after that time. This
guards against mistakes and not against attackers: who may write to the stores may do anything.
"""

import fnmatch
from collections.abc import Callable
from typing import Literal

import msgspec

from lsmfs.clock import Clock
from refstore.errors import Conflict, Corrupt, Denied, Invalid, NotFound
from refstore.store import Store

REPOSITORIES = "repositories"  # the partition that lists them
FRESH_SECONDS = 5.0
CHANGE_TRIES_MAX = 20

Blocked = Literal["stage", "commit"]
BLOCKED: tuple[Blocked, ...] = ("stage", "commit")


class Rule(msgspec.Struct, frozen=True):
    """Branches whose names match the pattern (`release-*`) may not be staged to, or committed to and deleted; they may
    be merged into."""

    pattern: str
    blocks: tuple[Blocked, ...] = BLOCKED


class RepositoryRecord(msgspec.Struct, frozen=True):
    name: str
    default_branch: str
    created_us: int
    read_only: bool = False
    deleting: bool = False
    metadata: dict[str, str] = {}
    rules: tuple[Rule, ...] = ()
    storage: str = ""  # the URL of its own store; none: the installation's


async def read_record(store: Store, name: str) -> tuple[RepositoryRecord, bytes]:
    """The record, and its bytes as they are stored; `NotFound`."""
    data = await store.get(REPOSITORIES, name.encode())
    if data is None:
        raise NotFound(f"repository {name!r} does not exist: create it with `lsmfs init`")
    return decode_record(name, data), data


def decode_record(name: str, data: bytes) -> RepositoryRecord:
    try:
        return msgspec.json.decode(data, type=RepositoryRecord)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Corrupt(f"the record of repository {name!r} cannot be read: {error}") from None


class Policy:
    """The record of one repository, and what it forbids."""

    def __init__(self, store: Store, record: RepositoryRecord, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self.record = record
        self._read_at = clock.monotonic()

    async def check(self, action: Literal["change", "stage", "commit"], branch: str = "") -> None:
        """`Denied` if the repository is read-only or the branch is protected against it."""
        if self._clock.monotonic() - self._read_at > FRESH_SECONDS:
            await self.refresh()
        if self.record.read_only:
            name = self.record.name
            raise Denied(f"repository {name!r} is read-only: `lsmfs repo set {name} --writable` ends that")
        for rule in self.record.rules:
            if action in rule.blocks and fnmatch.fnmatchcase(branch, rule.pattern):
                what = "writes" if action == "stage" else "commits"
                raise Denied(
                    f"branch {branch!r} is protected against {what} by the rule {rule.pattern!r}: merge into it"
                )

    async def refresh(self) -> RepositoryRecord:
        self.record, _ = await read_record(self._store, self.record.name)
        self._read_at = self._clock.monotonic()
        if self.record.deleting:
            raise NotFound(f"repository {self.record.name!r} is being deleted")
        return self.record

    async def change(self, change: Callable[[RepositoryRecord], RepositoryRecord]) -> RepositoryRecord:
        """The record, changed as the function says, whoever else changes it at the same time."""
        for _ in range(CHANGE_TRIES_MAX):
            record, data = await read_record(self._store, self.record.name)
            wanted = change(record)
            if wanted != record:
                try:
                    key = record.name.encode()
                    await self._store.set_if(REPOSITORIES, key, msgspec.json.encode(wanted), data)
                except Conflict:
                    continue
            self.record = wanted
            return wanted
        raise Conflict(f"repository {self.record.name!r}: {CHANGE_TRIES_MAX} others changed it first: try again")


def with_rule(record: RepositoryRecord, rule: Rule) -> RepositoryRecord:
    """With this rule for its pattern; without any if it blocks nothing."""
    if not rule.pattern or not set(rule.blocks) <= set(BLOCKED):
        raise Invalid(f"a rule has a pattern of branch names, and blocks some of {', '.join(BLOCKED)}")
    others = [each for each in record.rules if each.pattern != rule.pattern]
    rules = sorted([*others, rule] if rule.blocks else others, key=lambda each: each.pattern)
    return msgspec.structs.replace(record, rules=tuple(rules))
