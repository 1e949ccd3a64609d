"""Decoded tables on local disk, memory-mapped and shared by every process of this machine.

A file here is an uncompressed Arrow file that opens in microseconds without copying. It is only a cache: deleting it
loses nothing. The folder belongs to one boot of the machine, so that a file which a power cut left half written is
never read again, and nothing needs an fsync.

Bounded: when the files exceed `bytes_max`, whoever adds one removes the least recently opened ones down to 90 %. An
opened file that is removed stays readable to those who have it open.
"""

import contextlib
import os
import re
import secrets
import shutil
from pathlib import Path

import msgspec
import pyarrow as pa

from lsmfs.lsm import records
from lsmfs.lsm.table import OpenTable

SWEEP_EVERY_BYTES = 1 / 16  # a folder is listed once for each such share of bytes_max added by this process
_BOOT = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|boot")


class DiskCache:
    def __init__(self, root: Path, bytes_max: int) -> None:
        self.root = root / _boot_id()
        self.bytes_max = bytes_max
        self._added_bytes = 0
        self.root.mkdir(parents=True, exist_ok=True)
        for item in root.iterdir():
            if item != self.root and _BOOT.fullmatch(item.name):  # whatever else is here is not ours to remove
                shutil.rmtree(item, ignore_errors=True)

    def open(self, name: str) -> OpenTable | None:
        """The table, or None if it is not here or cannot be read."""
        path = self.root / name
        if path.parent != self.root:
            return None
        try:
            source = pa.memory_map(str(path))
            reader = pa.ipc.open_file(source)
            if not reader.schema.equals(records.SCHEMA):
                return None
            rows = reader.read_all()
            facts = msgspec.json.decode(reader.schema.metadata[b"facts"], type=dict[str, str])
            bloom = reader.schema.metadata[b"bloom"]
            os.utime(path)
            return OpenTable(rows.replace_schema_metadata(None), facts, bloom)
        except (OSError, pa.ArrowException, KeyError, TypeError, UnicodeDecodeError, msgspec.DecodeError):
            return None

    def add(self, name: str, table: OpenTable, bloom: bytes) -> None:
        """Keep the table. A full disk is no error: the cache just does not grow."""
        # Not by the process id: containers that share a folder have equal ones.
        temporary = self.root / f".{name}.{secrets.token_hex(8)}"
        metadata = {"facts": msgspec.json.encode(dict(table.facts)), "bloom": bloom}
        rows = table.rows.replace_schema_metadata(metadata)
        try:
            with pa.OSFile(str(temporary), "wb") as sink, pa.ipc.new_file(sink, rows.schema) as writer:
                writer.write_table(rows)
            self._added_bytes += temporary.stat().st_size
            temporary.rename(self.root / name)
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink()
        if self._added_bytes > self.bytes_max * SWEEP_EVERY_BYTES:
            self._added_bytes = 0
            self.sweep()

    def size_bytes(self) -> int:
        return sum(size for _, size, _ in self._files())

    def sweep(self) -> None:
        """Remove the least recently opened files if there are too many bytes."""
        files = sorted(self._files())
        excess = sum(size for _, size, _ in files) - self.bytes_max
        if excess <= 0:
            return
        excess += self.bytes_max // 10
        for _, size, path in files:
            if excess <= 0:
                break
            with contextlib.suppress(OSError):
                os.unlink(path)
            excess -= size

    def _files(self) -> list[tuple[int, int, str]]:
        found = []
        try:
            items = list(os.scandir(self.root))
        except OSError:
            return []  # the folder was removed, as it may be
        for item in items:
            with contextlib.suppress(OSError):  # another process may sweep at the same time
                status = item.stat()
                found.append((status.st_mtime_ns, status.st_size, item.path))
        return found


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "boot"
