"""Tables and Runs by name: fetched once, verified, kept in memory and in the local cache; written with their checksum.

load   memory -> local cache -> object store (verify, decode, keep)    for reads of single rows and pages
read   local cache or object store, kept nowhere                        for bulk work that passes through once
save_* encode, name by content, put                                     bulk work in threads, never on the loop
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from lsmfs import paths
from lsmfs.lsm import records, table
from lsmfs.lsm.cache import DiskCache
from lsmfs.lsm.run import RANGE_SCHEMA, Run
from lsmfs.lsm.table import OpenTable
from lsmfs.objectstore.content import put_content
from lsmfs.objectstore.store import ABSENT, ObjectStore
from refstore.errors import AlreadyExists, Corrupt, NotFound
from refstore.records import RunId, TableId

OPEN_TABLES_MAX = 400  # each holds a mapped file; the usual limit of open files is 1024
OPEN_RUNS_MAX = 64

T = TypeVar("T")


class Tables:
    """The tables of one repository."""

    def __init__(
        self,
        store: ObjectStore,
        repository: str,
        disk: DiskCache | None = None,
        executor: Executor | None = None,
        threads: bool = True,
    ) -> None:
        self.store = store
        self.repository = repository
        self._disk = disk
        self._executor = executor
        self._threads = threads
        self._open: OrderedDict[str, OpenTable] = OrderedDict()
        self._runs: OrderedDict[str, Run] = OrderedDict()
        self._loading: dict[str, asyncio.Task[Any]] = {}
        self.opened = 0  # searches that had to look at rows: the bench's "tables opened"

    async def compute(self, function: Callable[..., T], *arguments: Any) -> T:
        """Run a pure function off the loop. The simulation computes in place, so that a seed replays."""
        if not self._threads:
            return function(*arguments)
        return await asyncio.get_running_loop().run_in_executor(self._executor, function, *arguments)

    def peek(self, name: str) -> OpenTable | None:
        """The table if it is in memory: the fast path of a warm read."""
        return self._open.get(name)

    async def load(self, name: str) -> OpenTable:
        """The table, opened. Concurrent callers share one fetch."""
        found = self._open.get(name)
        if found is not None:
            self._open.move_to_end(name)
            return found
        opened: OpenTable = await self._once(name, self._load)
        return opened

    async def read(self, name: str) -> pa.Table:
        """The rows, for work that passes once."""
        found = self._open.get(name)
        if found is None and self._disk is not None:
            found = self._disk.open(name)
        if found is not None:
            return found.rows
        rows, _, _ = await self._fetch(name)
        return rows

    async def load_run(self, name: RunId) -> Run:
        found = self._runs.get(name)
        if found is not None:
            self._runs.move_to_end(name)
            return found
        run: Run = await self._once(name, self._load_run)
        return run

    async def save_table(self, rows: pa.Table, generation: int, unique: str, facts: Mapping[str, str]) -> TableId:
        """Upload an l1 table; it is not visible until its id is appended."""
        data, digest = await self.compute(_encode_table, rows, "table", facts)
        name = str(paths.TableFile("t", generation, unique, len(data), digest))
        await self.store.put(paths.layer_path(self.repository, name), data)
        return TableId(name)

    async def save_range(
        self, rows: pa.Table, generation: int, known: Mapping[bytes, dict[str, Any]] | None = None
    ) -> dict[str, Any]:
        """Upload a range, unless its content is known to be stored, by its id; its row of a Run."""
        content = await self.compute(records.content_hash, rows)
        if known and content in known:
            return known[content]
        row, data = await self.compute(_encode_range, rows, generation, content)
        await put_content(self.store, paths.layer_path(self.repository, row["file"]), data)
        return row

    async def save_run(self, run: Run, generation: int) -> RunId:
        """Write the run down as a Table of Ranges. One of that name which is there already and whole stays: commits may
        refer to it, and where its ranges are is no part of its name. Ours may be elsewhere, and soon collected."""
        name = paths.run_id(generation, run.content_hash())
        data = await self.compute(table.encode, run.table, "run", {}, None)
        path = paths.layer_path(self.repository, name)
        try:
            await self.store.put(path, data, ABSENT)
        except AlreadyExists:
            try:
                await self._load_run(name)
                return name
            except (Corrupt, NotFound):
                await self.store.put(path, data)
        self._keep(self._runs, name, run, OPEN_RUNS_MAX)
        return name

    async def save_unit(self, run: Run, generation: int, unique: str, facts: Mapping[str, str]) -> TableId:
        """Write the run down as a layer of l1: under a name of its own, because its facts are its own too."""
        data, digest = await self.compute(_encode_table, run.table, "unit", facts, None)
        name = str(paths.TableFile("u", generation, unique, len(data), digest))
        await self.store.put(paths.layer_path(self.repository, name), data)
        self._keep(self._runs, name, run, OPEN_RUNS_MAX)
        return TableId(name)

    async def _once(self, name: str, load: Callable[[str], Any]) -> Any:
        task = self._loading.get(name)
        if task is None:
            task = asyncio.ensure_future(load(name))
            self._loading[name] = task
            task.add_done_callback(lambda done: self._loaded(name, done))
        return await asyncio.shield(task)

    def _loaded(self, name: str, done: "asyncio.Task[Any]") -> None:
        self._loading.pop(name, None)
        if not done.cancelled():
            done.exception()  # every waiter has it; without one it would be logged as never retrieved

    async def _load(self, name: str) -> OpenTable:
        opened = self._disk.open(name) if self._disk is not None else None
        if opened is None:
            rows, facts, bloom = await self._fetch(name)
            opened = OpenTable(rows, facts, bloom)
            if self._disk is not None:
                await self.compute(self._disk.add, name, opened, bloom)
                opened = self._disk.open(name) or opened
        self._keep(self._open, name, opened, OPEN_TABLES_MAX)
        return opened

    async def _load_run(self, name: str) -> Run:
        data = await self.store.get(paths.layer_path(self.repository, name))
        run = await self.compute(_verify_run, name, data)
        self._keep(self._runs, name, run, OPEN_RUNS_MAX)
        return run

    async def _fetch(self, name: str) -> tuple[pa.Table, dict[str, str], bytes]:
        data = await self.store.get(paths.layer_path(self.repository, name))
        return await self.compute(_verify_and_decode, name, data)

    @staticmethod
    def _keep(cache: "OrderedDict[str, T]", name: str, value: T, count_max: int) -> None:
        cache[name] = value
        while len(cache) > count_max:
            cache.popitem(last=False)


def _verify_and_decode(
    name: str, data: bytes, schema: pa.Schema = records.SCHEMA
) -> tuple[pa.Table, dict[str, str], bytes]:
    expected = paths.parse_table(name).digest
    if table.digest_of(data) != expected:
        raise Corrupt(f"table {name} fails its checksum: {len(data)} bytes with digest {table.digest_of(data)}")
    return table.decode(data, name, schema)


def _verify_run(name: str, data: bytes) -> Run:
    """A unit's name has the digest of its bytes, a run's the hash of its content."""
    if name.startswith("u"):
        run = Run(_verify_and_decode(name, data, RANGE_SCHEMA)[0])
    else:
        run = Run(table.decode(data, name, RANGE_SCHEMA)[0])
        if run.content_hash() != paths.parse_run(name)[1]:
            raise Corrupt(f"run {name} does not have the content that its name says")
    _check_ranges(name, run)
    return run


def _check_ranges(name: str, run: Run) -> None:
    """Ranges do not overlap, and each file is the one of its id: columns that a run's own hash does not cover."""
    before = b""
    for row, low, high in zip(run.table.to_pylist(), run.min_keys, run.max_keys, strict=True):
        file = paths.parse_table(row["file"])
        if (file.kind, file.unique, file.size_bytes) != ("g", row["id"].hex(), row["size_bytes"]):
            raise Corrupt(f"run {name}: file {row['file']} is not that of range {row['id'].hex()}")
        if not before < low <= high or not 0 <= row["tombstones"] <= row["count"] or not row["count"]:
            raise Corrupt(f"run {name}: the range up to {high!r} overlaps another, or its counts cannot be")
        before = high


def _encode_table(
    rows: pa.Table, kind: str, facts: Mapping[str, str], bloom_column: str | None = "key"
) -> tuple[bytes, str]:
    data = table.encode(rows, kind, facts, bloom_column)
    return data, table.digest_of(data)


def _encode_range(rows: pa.Table, generation: int, content: bytes) -> tuple[dict[str, Any], bytes]:
    data, digest = _encode_table(rows, "range", {})
    file = paths.TableFile("g", generation, content.hex(), len(data), digest)
    keys = rows["key"]
    row = {
        "max_key": keys[-1].as_py(),
        "min_key": keys[0].as_py(),
        "count": len(rows),
        "tombstones": pc.sum(pc.equal(rows["kind"], records.TOMBSTONE)).as_py(),
        "id": content,
        "size_bytes": len(data),
        "file": str(file),
    }
    return row, data
