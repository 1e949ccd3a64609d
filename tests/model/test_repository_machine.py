"""The whole public API against plain dicts: whatever is done in whatever order, every client reads what was written.

The model is one dict of what the branch shows, and one of what each commit holds. After every step some client lists
the branch; rules read in every other way. Layers are tiny, so that a few keys make many ranges, units and runs.
"""

import asyncio
import shutil
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, multiple, precondition, rule

from compactor.executor import compact
from compactor.planner import Plan
from lsmfs.lsm.build import Shape
from lsmfs.lsm.cache import DiskCache
from lsmfs.lsm.writer import Writer
from lsmfs.model import Entry
from lsmfs.objectstore.memory import MemoryStore
from lsmfs.repository import Repository
from lsmfs.settings import Settings, WriterSettings
from refstore.drivers.memory import MemoryRefStore
from refstore.errors import Conflict, NoChanges, NotFound
from refstore.records import CommitId
from refstore.refs import SEALS_MAX
from refstore.store import ABSENT
from tests.lsm.stacks import CHANGES, KEYS, Content
from tests.lsm.support import after as applied
from tests.lsm.support import entry, rows_of, run_content, scanned
from tests.lsm.test_listing import AFTERS, DELIMITERS, PREFIXES, listed

T = TypeVar("T")

SETTINGS = Settings(
    WriterSettings(unit_rows_max=8, flush_bytes=300, flushes_max=3), Shape(rows_mean=4, weight_max=2000)
)
ENTRIES = st.integers(0, 9).map(entry)
CLIENTS = st.integers(0, 2)
OPERATIONS = st.lists(
    st.tuples(KEYS, st.none() | ENTRIES, st.sampled_from(["always", "absent", "current", "wrong"])),
    min_size=1,
    max_size=8,
)


class RepositoryMachine(RuleBasedStateMachine):
    prepared: Bundle[tuple[str, Content]] = Bundle("prepared")

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.folder = Path(tempfile.mkdtemp())
        self.store, self.refs = MemoryStore(), MemoryRefStore()
        self.content: dict[bytes, Entry] = {}
        self.committed: dict[CommitId, dict[bytes, Entry]] = {}
        self.run(Repository.create(self.store, self.refs, "repo", settings=SETTINGS, threads=False))
        self.clients = [self.opened(None) for _ in range(3)]
        self.writers = [self.writing(client) for client in self.clients]
        self.head = self.run(self.refs.read("repo", "main")).base_commit
        self.committed[self.head] = {}
        self.turn = 0

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    def opened(self, disk: DiskCache | None) -> Repository:
        return self.run(Repository.open(self.store, self.refs, "repo", settings=SETTINGS, disk=disk, threads=False))

    def writing(self, client: Repository) -> Writer:
        return self.run(client.writer("main").__aenter__())

    def apply(self, changes: Content) -> None:
        merged = applied(self.content, changes)
        self.content = {key: entry for key, entry in sorted(merged.items()) if entry is not None}

    @rule(client=CLIENTS, key=KEYS, value=ENTRIES)
    def put(self, client: int, key: bytes, value: Entry) -> None:
        self.run(self.writers[client].put(key, value))
        self.apply({key: value})

    @rule(client=CLIENTS, key=KEYS)
    def delete(self, client: int, key: bytes) -> None:
        self.run(self.writers[client].delete(key))
        self.apply({key: None})

    @rule(client=CLIENTS, operations=OPERATIONS)
    def operate_at_once(self, client: int, operations: list[tuple[bytes, Entry | None, str]]) -> None:
        """Tasks that begin in this order: conditions see the operations before them."""
        calls: list[Coroutine[Any, Any, None]] = []
        allowed = []
        etags = {key: value.etag for key, value in self.content.items()}
        for key, value, condition in operations:
            current = etags.get(key)
            expected: Any = {"always": None, "absent": ABSENT, "current": current or "none", "wrong": "other"}[
                condition
            ]
            if value is None:
                expected = None if expected is ABSENT else expected
                calls.append(self.writers[client].delete(key, expected))
            else:
                calls.append(self.writers[client].put(key, value, expected))
            holds = expected is None or (current is None if expected is ABSENT else current == expected)
            allowed.append(holds)
            if holds:
                self.apply({key: value})
                etags.pop(key, None)
                if value is not None:
                    etags[key] = value.etag

        async def at_once() -> list[Any]:
            return list(await asyncio.gather(*calls, return_exceptions=True))

        answers = self.run(at_once())
        assert [answer is None for answer in answers] == allowed
        assert all(answer is None or isinstance(answer, Conflict) for answer in answers)

    @rule(client=CLIENTS, changes=CHANGES)
    def stage(self, client: int, changes: Content) -> None:
        self.run(self.writers[client].stage(rows_of(changes)))
        self.apply(changes)

    @rule(target=prepared, client=CLIENTS, changes=CHANGES)
    def prepare(self, client: int, changes: Content) -> Any:
        name = self.run(self.writers[client].prepare(rows_of(changes)))
        return multiple((name, changes))

    @rule(client=CLIENTS, layer=prepared)
    def stage_prepared(self, client: int, layer: tuple[str, Content]) -> None:
        name, changes = layer
        self.run(self.writers[client].stage_prepared(name))
        self.apply(changes)

    @rule(client=CLIENTS, count=st.integers(1, 6))
    def compact_some(self, client: int, count: int) -> None:
        branch = self.run(self.clients[client].branches.read("main"))
        if branch.l1:
            assert self.run(compact(self.clients[client], Plan(branch, branch.l1[:count], branch.l2, "test")))

    @rule(client=CLIENTS, allow_empty=st.booleans())
    def commit(self, client: int, allow_empty: bool) -> None:
        before = self.head
        try:
            done = self.run(self.clients[client].commit("main", "m", allow_empty=allow_empty))
        except NoChanges:
            assert not allow_empty
            assert self.content == self.committed[before]
            return
        assert allow_empty or self.content != self.committed[before]
        assert done.commit.parents == (before,)
        self.head = done.id
        self.committed[done.id] = dict(self.content)

    @precondition(lambda self: self.committed)
    @rule(client=CLIENTS, data=st.data())
    def read_a_commit(self, client: int, data: st.DataObject) -> None:
        identity = data.draw(st.sampled_from(sorted(self.committed)))
        tables = self.clients[client].tables
        commit = self.run(self.clients[client].commits.load(identity))
        run = self.run(tables.load_run(commit.metarange))
        assert self.run(run_content(tables, run)) == self.committed[identity]
        assert run.count == len(self.committed[identity])

    @rule(client=CLIENTS, key=KEYS)
    def get(self, client: int, key: bytes) -> None:
        try:
            assert self.run(self.clients[client].get("main", key)) == self.content[key]
        except NotFound:
            assert key not in self.content

    @rule(client=CLIENTS, some=st.lists(KEYS, max_size=10))
    def get_many(self, client: int, some: list[bytes]) -> None:
        found = self.run(self.clients[client].get_many("main", [*some, *self.content]))
        assert found == self.content

    @rule(client=CLIENTS, prefix=PREFIXES, delimiter=DELIMITERS, after=AFTERS, limit=st.integers(1, 9))
    def list_pages(self, client: int, prefix: bytes, delimiter: bytes, after: bytes, limit: int) -> None:
        expected = list(listed(self.content, prefix, delimiter, after))
        found = []
        place: bytes | None = after
        while place is not None:
            page = self.run(
                self.clients[client].list("main", prefix.decode(), delimiter.decode(), place.decode(), limit)
            )
            found += page.items
            place = page.after
        assert found == expected

    @rule(client=CLIENTS, prefix=PREFIXES, after=AFTERS)
    def scan(self, client: int, prefix: bytes, after: bytes) -> None:
        found = self.run(scanned(self.clients[client].scan("main", prefix.decode(), after.decode())))
        assert found == [(k, v) for k, v in self.content.items() if k.startswith(prefix) and k > after]

    @rule(client=CLIENTS, with_cache=st.booleans())
    def reopen(self, client: int, with_cache: bool) -> None:
        self.run(self.writers[client].aclose())
        self.clients[client] = self.opened(DiskCache(self.folder, 1 << 20) if with_cache else None)
        self.writers[client] = self.writing(self.clients[client])

    @invariant()
    def some_client_lists_the_branch(self) -> None:
        self.turn += 1
        page = self.run(self.clients[self.turn % 3].list("main"))
        assert page.after is None
        assert dict(page.items) == self.content

    @invariant()
    def the_record_stays_small(self) -> None:
        branch = self.run(self.refs.read("repo", "main"))
        assert branch.base_commit == self.head
        assert len(branch.sealed) < SEALS_MAX
        assert len(branch.writers) < 64

    def teardown(self) -> None:
        for writer in self.writers:
            self.run(writer.aclose())
        pending = asyncio.all_tasks(self.loop)
        self.loop.close()
        shutil.rmtree(self.folder)
        assert not pending


TestRepositoryMachine = RepositoryMachine.TestCase
TestRepositoryMachine.settings = settings(
    max_examples=80,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
