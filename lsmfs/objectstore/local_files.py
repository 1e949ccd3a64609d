"""Objects as files, synchronously: durable atomic puts, tags, locks. `local.LocalStore` is its async face.

    root/<name>                  an object; its name is its path, so that any tool can read it
    root/.lsmfs/temporary/<n>    a body being written; left over by a crash, swept a day later, never listed
    root/.lsmfs/locks/<shard>    locked with flock while the object of a name is replaced or removed

A put: 1. write a temporary file and fsync it. 2. `link` it to its name, which fails if the name is taken. 3. Where it
may replace: under the name's lock compare the tag and `rename`. 4. fsync the directory. Creating needs no lock: a
link is atomic by itself, and a name that another holds the lock of exists. New directories are fsynced into their
parents.

A tag is (time, size, inode) of the file. The nanoseconds of that time are 30 bits of the content's hash: kernels stamp
files only every few milliseconds and reuse inodes at once, so two different bodies could else get one tag.

An object store has `a` beside `a/b`; a file system does not. The second of the two is refused as `Invalid`.
"""

import errno
import fcntl
import itertools
import os
import stat
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

import xxhash

from lsmfs.objectstore.checks import RESERVED, check_name, check_within
from lsmfs.objectstore.store import ABSENT, ANYTHING, Body, Precondition, Span, Tag
from refstore.errors import AlreadyExists, Conflict, Denied, Error, Invalid, NotFound, OutcomeUnknown, Unavailable

LOCK_SHARDS = 64  # two names of one shard only wait for each other's rename
LOCK_TRIES_MAX = 5000  # of 2 ms: a holder needs some 50 us, so one that keeps it for 10 s is stopped
LOCK_SECONDS = 0.002
KNOWN_DIRECTORIES_MAX = 10_000  # some 2 MB of paths; beyond it they are learned again
SWEEP_AGE_SECONDS = 86_400  # no put is that long between two writes of its temporary file
NANOSECONDS = 1_000_000_000

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_DENIED = {errno.EACCES, errno.EPERM, errno.EROFS}
_MISSING = (FileNotFoundError, NotADirectoryError, IsADirectoryError)
_numbers = itertools.count(1)


class Opened(NamedTuple):
    """An object opened for reading: its descriptor belongs to the caller."""

    descriptor: int
    size_bytes: int
    tag: Tag
    modified_ns: int


def tag_of(status: os.stat_result) -> Tag:
    return Tag(f"{status.st_mtime_ns:x}-{status.st_size:x}-{status.st_ino:x}")


def read_span(descriptor: int, span: Span) -> bytes:
    """All bytes of the span; the kernel gives at most 2 GB at a time."""
    pieces = []
    at = span.start
    while at < span.stop and (piece := os.pread(descriptor, span.stop - at, at)):
        pieces.append(piece)
        at += len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


class Temporary:
    """A body on its way: written in pieces, then sealed, then published by `Files`."""

    def __init__(self, path: bytes) -> None:
        self.path = path
        self._descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o644)
        self._hash = xxhash.xxh3_64()

    def write(self, piece: Body) -> None:
        self._hash.update(piece)
        rest = memoryview(piece).cast("B")
        while rest:
            rest = rest[os.write(self._descriptor, rest) :]

    def now_ns(self) -> int:
        """When it was last written, by the clock of the file system."""
        return os.fstat(self._descriptor).st_mtime_ns

    def seal(self) -> Tag:
        """Make it durable; the tag it will have under any name."""
        seconds = self.now_ns() // NANOSECONDS
        stamp = seconds * NANOSECONDS + self._hash.intdigest() % NANOSECONDS
        os.utime(self._descriptor, ns=(stamp, stamp))
        os.fsync(self._descriptor)
        return tag_of(os.fstat(self._descriptor))

    def discard(self) -> None:
        os.close(self._descriptor)
        with suppress(FileNotFoundError):
            os.unlink(self.path)


class Files:
    """The objects below one root. Safe for many threads and many processes."""

    def __init__(self, root: str) -> None:
        self.root = os.fsencode(os.path.abspath(root))
        self._temporary = os.path.join(self.root, RESERVED.encode(), b"temporary")
        self._locks = os.path.join(self.root, RESERVED.encode(), b"locks")
        self._known: set[bytes] = set()
        self._swept = False

    def open(self, name: str) -> Opened:
        with translated(name, self.root):
            try:
                descriptor = os.open(self.path(name), os.O_RDONLY | os.O_CLOEXEC)
            except _MISSING:
                raise NotFound(f"no object {name!r} below {os.fsdecode(self.root)}") from None
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                os.close(descriptor)
                raise NotFound(f"no object {name!r} below {os.fsdecode(self.root)}: it is a directory")
            return Opened(descriptor, status.st_size, tag_of(status), status.st_mtime_ns)

    def get(self, name: str, span: Span | None) -> tuple[bytes, Tag]:
        opened = self.open(name)
        try:
            wanted = check_within(name, span or Span(0, opened.size_bytes), opened.size_bytes)
            with translated(name, self.root):
                return read_span(opened.descriptor, wanted), opened.tag
        finally:
            os.close(opened.descriptor)

    def put(self, name: str, body: Body, expected: Precondition) -> Tag:
        temporary = self.begin(name)
        try:
            with translated(name, self.root):
                temporary.write(body)
            return self.finish(name, temporary, expected)
        finally:
            temporary.discard()

    def begin(self, name: str) -> Temporary:
        """A temporary file for a body of this name; `discard` it in any case."""
        self.prepare(name)
        return self.begin_unnamed()

    def prepare(self, name: str) -> None:
        """The folder that the name is in."""
        target = self.path(name)
        with translated(name, self.root):
            self._ensure(os.path.dirname(target))

    def begin_unnamed(self) -> Temporary:
        with translated("a body", self.root):
            self._ensure(self._temporary)
            temporary = self._new_temporary()
            if not self._swept:
                self._swept = True
                self._sweep(temporary.now_ns())
            return temporary

    def finish(self, name: str, temporary: Temporary, expected: Precondition) -> Tag:
        """Publish the body under the name, durably, if the condition holds."""
        target = self.path(name)
        with translated(name, self.root):
            tag = temporary.seal()
            self._publish(name, temporary.path, target, expected)
        try:
            sync_directory(os.path.dirname(target))
        except OSError as error:
            raise OutcomeUnknown(f"{name!r} was stored, but may not outlive a crash: {error}") from error
        return tag

    def delete(self, name: str) -> None:
        target = self.path(name)
        with translated(name, self.root), suppress(*_MISSING):
            os.lstat(target)  # before the lock, whose directory need not exist
            with self._locked(name):
                os.unlink(target)
            sync_directory(os.path.dirname(target))

    def path(self, name: str) -> bytes:
        return self.root + b"/" + check_name(name).encode()

    def _publish(self, name: str, source: bytes, target: bytes, expected: Precondition) -> None:
        if expected is ABSENT:
            self._link(name, source, target)
        elif expected is ANYTHING:
            try:
                self._link(name, source, target)  # most names are new, and need no lock
            except AlreadyExists:
                with self._locked(name):
                    os.replace(source, target)
        else:
            with self._locked(name):
                self._expect(name, target, expected)
                os.replace(source, target)

    def _link(self, name: str, source: bytes, target: bytes) -> None:
        for attempt in (1, 2):
            try:
                return os.link(source, target)
            except FileNotFoundError:  # somebody removed the empty directory that we knew
                if attempt == 2:
                    raise
                self._known.clear()
                self._ensure(os.path.dirname(target))
            except FileExistsError:
                if attempt == 2 or not os.path.isdir(target):
                    raise AlreadyExists(f"object {name!r} exists") from None
                self._remove_empty(name, target)
        return None

    def _expect(self, name: str, target: bytes, expected: Precondition) -> None:
        try:
            found = tag_of(os.stat(target))
        except _MISSING:
            raise Conflict(f"object {name!r} is gone, expected tag {expected}") from None
        if found != expected:
            raise Conflict(f"object {name!r} has tag {found}, expected {expected}")

    def _remove_empty(self, name: str, target: bytes) -> None:
        """Deletes leave directories behind; a name that is now wanted for an object may be one of them."""
        for directory, _, _ in os.walk(target, topdown=False):
            try:
                os.rmdir(directory)
            except OSError as error:
                raise Invalid(f"{name!r} cannot be an object: there are objects below it") from error

    def _ensure(self, directory: bytes) -> None:
        """Make the directory and its parents, each durable in its own parent."""
        if directory in self._known:
            return
        if not directory.startswith(self.root + b"/") and os.path.isdir(directory):
            return  # the root and what is above it: made by whoever owns the machine
        parent = os.path.dirname(directory)
        self._ensure(parent)
        try:
            os.mkdir(directory)
        except FileExistsError:
            if not os.path.isdir(directory):
                raise Invalid(f"{os.fsdecode(directory)!r} is an object: no name can be below it") from None
        sync_directory(parent)  # also if another made it: it may not have got so far
        if len(self._known) >= KNOWN_DIRECTORIES_MAX:
            self._known.clear()
        self._known.add(directory)

    def _new_temporary(self) -> Temporary:
        while True:
            with suppress(FileExistsError):  # another machine or container may have our process id
                return Temporary(self._temporary + b"/%d-%d" % (os.getpid(), next(_numbers)))

    def _sweep(self, now_ns: int) -> None:
        for entry in os.scandir(self._temporary):
            with suppress(OSError):  # finished, or swept by another process; if not, it is only room that is lost
                if now_ns - entry.stat().st_mtime_ns > SWEEP_AGE_SECONDS * NANOSECONDS:
                    os.unlink(entry.path)

    @contextmanager
    def _locked(self, name: str) -> Iterator[None]:
        self._ensure(self._locks)
        shard = self._locks + b"/%d" % (zlib.crc32(name.encode()) % LOCK_SHARDS)
        descriptor = os.open(shard, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
        try:
            _lock(descriptor, name)
            yield
        finally:
            os.close(descriptor)  # which unlocks


def _lock(descriptor: int, name: str) -> None:
    for _ in range(LOCK_TRIES_MAX):
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(LOCK_SECONDS)
    raise Unavailable(f"the lock for {name!r} is held by a process that does not go on")


def sync_directory(directory: bytes) -> None:
    """Make what was created, renamed or removed in the directory durable."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def translated(name: str, root: bytes) -> Iterator[None]:
    """The edge at which the operating system's errors become ours."""
    try:
        yield
    except OSError as error:
        raise _translate(error, f"{os.fsdecode(root)}/{name}") from error


def _translate(error: OSError, path: str) -> Error:
    if error.errno in _FULL:
        return Unavailable(f"no room to write {path}: {error.strerror}")
    if error.errno in _DENIED:
        return Denied(f"no right to {path}: {error.strerror}")
    if error.errno in (errno.ENOTDIR, errno.EISDIR):
        return Invalid(f"{path} cannot be an object: a part of its path is another object, or it is a directory")
    if error.errno == errno.ENAMETOOLONG:
        return Invalid(f"{path} is too long for this file system")
    return Unavailable(f"{path}: {error.strerror}")
