"""Checks of an installation: does it keep what lsmfs promises? Each finding says what is unsafe and what to do.

    ok     as it should be
    warn   it works, and something may be lost or slow in the case that the words name
    fail   it does not work, or data is not safe

A check that cannot be made is a `fail` with the store's own error, and the others are still made. Nothing is left
behind: probes have names that no repository can have, and are removed.
"""

import os
import platform
import shutil
import sqlite3
import sys
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal, NamedTuple
from urllib.parse import unquote, urlsplit

from lsmfs.cli import show
from lsmfs.installation import BUCKET_REFS, Installation, without_password
from lsmfs.objectstore.conditions import honours_conditions
from refstore.errors import Conflict, Error
from refstore.store import ABSENT

PROBES = "_doctor"  # no repository's name: those have no "_"
SKEW_SECONDS_MAX = 5.0
FREE_BYTES_MIN = 1 << 30  # room for some hundred tables on their way, and for the cache to be of use
SYNCHRONOUS_FULL = 2
NETWORK_TYPES = ("nfs", "cifs", "smb", "9p", "afs", "ceph", "gluster", "lustre", "fuse.sshfs", "fuse.s3", "fuse.rclone")
MOUNTS = Path("/proc/self/mounts")

Level = Literal["ok", "warn", "fail"]


class Finding(NamedTuple):
    level: Level
    what: str
    words: str


Check = Callable[[Installation], AsyncIterator[Finding]]


async def examine(installation: Installation) -> AsyncIterator[Finding]:
    """Every finding, as it is made."""
    checks: dict[str, Check] = {
        "object store": _object_store,
        "conditions": _conditions,
        "ref store": _ref_store,
        "durability": _durability,
        "cache": _cache,
        "versions": _versions,
    }
    for what, check in checks.items():
        try:
            async for finding in check(installation):
                yield finding
        except Error as error:
            yield Finding("fail", what, f"{' '.join(str(error).split())}")


async def _object_store(installation: Installation) -> AsyncIterator[Finding]:
    """A round trip of every verb, and the store's clock by the way."""
    store, name = installation.store, f"{PROBES}/{installation.clock.new_id()}"
    body = os.urandom(1000)
    before = datetime.now(UTC)
    try:
        await store.put(name, body)
        info = await store.head(name)
        after = datetime.now(UTC)
        same = await store.get(name) == body
        listed = [each.name async for each in store.list(f"{PROBES}/") if each.name == name]
    finally:
        await store.delete(name)
    gone = name not in [each.name async for each in store.list(f"{PROBES}/")]
    url = installation.store_url
    if same and listed and gone:
        yield Finding("ok", "object store", f"{url} puts, gets, lists and deletes")
    else:
        wrong = "another body came back" if not same else "a new object is not listed" if gone else "a delete left it"
        yield Finding("fail", "object store", f"{url}: {wrong}: it keeps no promise that lsmfs needs, use another")
    yield _clock(info.modified, before, after)
    if path := _local_path(url, "file"):
        for finding in _file_system("object store", path):
            yield finding


def _clock(modified: datetime, before: datetime, after: datetime) -> Finding:
    """Stores tell whole seconds, so a second early is none."""
    early, late = (before - modified).total_seconds() - 1, (modified - after).total_seconds()
    skew = max(early, late, 0.0)
    if skew > SKEW_SECONDS_MAX:
        words = f"this machine and the object store differ by {skew:.0f} s: set the clock (NTP); times shown are wrong"
        return Finding("warn", "clock", words)
    return Finding("ok", "clock", f"within {SKEW_SECONDS_MAX:.0f} s of the object store's")


async def _conditions(installation: Installation) -> AsyncIterator[Finding]:
    report = await honours_conditions(installation.store, f"{PROBES}/", installation.clock)
    if report:
        yield Finding("ok", "conditions", "of racing conditional puts exactly one wins")
        return
    wrong = "; ".join(report.problems)
    if installation.refs_url == BUCKET_REFS:
        words = (
            f"the store ignores conditions ({wrong}), and it holds the refs: acknowledged writes get lost; stop, and"
        )
        yield Finding("fail", "conditions", f"{words} move to another store, or to redis://, dynamodb:// or sqlite://")
    else:
        words = f"the store ignores conditions ({wrong}): harmless as long as the refs are elsewhere"
        yield Finding("warn", "conditions", f"{words}; do not use --refs bucket")


async def _ref_store(installation: Installation) -> AsyncIterator[Finding]:
    """A round trip of every verb, with a compare-and-swap that must be refused."""
    refs, key = installation.refs, installation.clock.new_id().encode()
    refused = False
    try:
        await refs.set_if(PROBES, key, b"1", ABSENT)
        try:
            await refs.set_if(PROBES, key, b"2", ABSENT)
        except Conflict:
            refused = True
        value = await refs.get(PROBES, key)
    finally:
        await refs.delete(PROBES, key)
    where = without_password(installation.refs_url)
    if refused and value == b"1" and await refs.get(PROBES, key) is None:
        yield Finding("ok", "ref store", f"{where} sets, swaps, gets and deletes")
    else:
        yield Finding(
            "fail", "ref store", f"{where} does not keep what is set: acknowledged writes get lost; replace it"
        )


async def _durability(installation: Installation) -> AsyncIterator[Finding]:
    """What the ref store does when a machine fails."""
    ask: Any = getattr(installation.refs, "durability", None)
    if path := _local_path(installation.refs_url, "sqlite"):
        for finding in (_sqlite(path), *_file_system("ref store", path)):
            yield finding
    elif ask is not None:  # Redis is the one whose settings decide
        warnings = (await ask()).warnings
        for warning in warnings:
            yield Finding("warn", "durability", warning)
        if not warnings:
            yield Finding("ok", "durability", "every change is on disk and on a replica")
    elif installation.refs_url.startswith("mem:"):
        yield Finding("warn", "durability", "refs are in memory and gone with the process: for trying out only")
    else:
        yield Finding("ok", "durability", "the service keeps what it acknowledges")


def _sqlite(path: Path) -> Finding:
    from refstore.drivers.sqlite_file import connect  # as the driver opens it, so that its settings are seen

    connection = connect(str(path))
    try:
        mode = str(connection.execute("PRAGMA journal_mode").fetchone()[0]).lower()
        synchronous = int(connection.execute("PRAGMA synchronous").fetchone()[0])
    finally:
        connection.close()
    if mode == "wal" and synchronous >= SYNCHRONOUS_FULL:
        return Finding("ok", "durability", "SQLite flushes every commit to disk (WAL, synchronous FULL)")
    words = f"SQLite has journal_mode {mode} and synchronous {synchronous}: a power cut may lose changes"
    return Finding("fail", "durability", f"{words}; let lsmfs make the file anew, on a local disk")


def _local_path(url: str, scheme: str) -> Path | None:
    parts = urlsplit(url)
    return Path("/" + unquote(parts.path).lstrip("/")) if parts.scheme == scheme else None


def _file_system(what: str, path: Path) -> list[Finding]:
    """Whether the path is on a network file system; nothing where this machine does not say."""
    try:
        mounts = [line.split() for line in MOUNTS.read_text(errors="replace").splitlines()]
    except OSError:
        return []
    kind = file_system_of(os.path.realpath(path), [(mount[1], mount[2]) for mount in mounts if len(mount) > 2])
    if kind.startswith(NETWORK_TYPES):
        words = f"{path} is on a network file system ({kind}), whose locks cannot be relied on"
        return [Finding("fail", f"{what}'s disk", f"{words}: writes may get lost; use a local disk")]
    return [Finding("ok", f"{what}'s disk", f"{path} is on a local file system ({kind})")]


def file_system_of(path: str, mounts: list[tuple[str, str]]) -> str:
    """The type of the file system that holds the path: that of the longest mount point above it, the last one there."""
    found = ("", "unknown")
    for point, kind in mounts:
        place = point.encode().decode("unicode_escape").rstrip("/")  # blanks are written as \040
        if (path == place or path.startswith(place + "/")) and len(place) >= len(found[0]):
            found = (place, kind)
    return found[1]


async def _cache(installation: Installation) -> AsyncIterator[Finding]:
    folder, disk = installation.folder / "cache", installation.disk
    probe = folder / f".doctor-{os.getpid()}"
    try:
        probe.write_bytes(b"probe")
        probe.unlink()
    except OSError as error:
        words = f"{folder} cannot be written ({error.strerror}): every read goes to the object store; change its rights"
        yield Finding("warn", "cache", words)
        return
    free = shutil.disk_usage(folder).free
    size = disk.size_bytes() if disk is not None else 0
    words = f"{show.bytes_text(size)} of {show.bytes_text(installation.configuration.cache_bytes_max)} used"
    if free < FREE_BYTES_MIN:
        yield Finding(
            "warn", "cache", f"{words}, but only {show.bytes_text(free)} are free on its disk: free some space"
        )
    else:
        yield Finding("ok", "cache", f"{words}, {show.bytes_text(free)} free")


async def _versions(installation: Installation) -> AsyncIterator[Finding]:
    packages = {name: _version(name) for name in ("lsmfs", "pyarrow", "obstore")}
    told = " ".join(f"{name} {found}" for name, found in packages.items())
    system = f"python {platform.python_version()} sqlite {sqlite3.sqlite_version} on {sys.platform}"
    yield Finding("ok", "versions", f"{told} {system}")


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
