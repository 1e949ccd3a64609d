"""The user's own files: a body read in pieces, and output that is whole or not there at all.

Reading blocks a thread of its own and not one of the event loop's: the loop waits for those when it ends, and a
terminal or pipe that says nothing would keep a command alive after Ctrl-C.
"""

import asyncio
import contextlib
import errno
import os
import stat
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future
from typing import BinaryIO

from refstore.errors import Denied, Error, Invalid, NotFound, Unavailable

STANDARD = "-"
STANDARD_INPUT = 0
PIECE_BYTES = 1 << 20

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_DENIED = {errno.EACCES, errno.EPERM, errno.EROFS}


def translated(error: OSError, path: str) -> Error:
    """The one edge where errors of the user's files become ours."""
    if error.errno in _FULL:
        return Unavailable(f"{path}: the disk is full: free some space, then try again")
    if error.errno in _DENIED:
        return Denied(f"{path}: {error.strerror}: change its rights, or choose another file")
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return NotFound(f"{path} does not exist: correct the name")
    return Unavailable(f"{path}: {error.strerror or error}")


@contextlib.contextmanager
def opened(path: str) -> Iterator[tuple[int, int | None]]:
    """A descriptor of the file, or of the standard input for "-", and how many bytes there are, if that is known."""
    if path == STANDARD:
        yield STANDARD_INPUT, None
        return
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise translated(error, path) from None
    try:
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            raise Invalid(f"{path} is a directory: give a file")
        yield descriptor, status.st_size if stat.S_ISREG(status.st_mode) else None
    finally:
        os.close(descriptor)


async def pieces_of(descriptor: int, path: str) -> AsyncIterator[bytes]:
    """Everything that can be read, in pieces of bounded size."""
    while True:
        try:
            piece = await asyncio.wrap_future(_reading(descriptor))
        except OSError as error:
            raise translated(error, path) from None
        if not piece:
            return
        yield piece


def _reading(descriptor: int) -> "Future[bytes]":
    future: Future[bytes] = Future()

    def read() -> None:
        try:
            future.set_result(os.read(descriptor, PIECE_BYTES))
        except BaseException as error:
            future.set_exception(error)

    future.set_running_or_notify_cancel()  # it cannot be called back: a read that was begun ends by itself
    threading.Thread(target=read, name="lsmfs-input", daemon=True).start()
    return future


@contextlib.contextmanager
def output(path: str) -> Iterator[BinaryIO]:
    """Where to write. A file appears under its name when all of it has been written; until then it is what it was.
    A device or a pipe is written as it is, for nothing can take its place."""
    if path == STANDARD:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    target = os.path.realpath(path)  # a symbolic link stays one
    try:
        with _straight(target) if _is_special(target, path) else _whole(target) as file:
            yield file
    except OSError as error:
        raise translated(error, path) from None


def _is_special(target: str, path: str) -> bool:
    if os.path.isdir(target) or path.endswith("/"):
        raise Invalid(f"{path} is a directory: give the name of a file in it")
    return os.path.exists(target) and not os.path.isfile(target)


@contextlib.contextmanager
def _straight(target: str) -> Iterator[BinaryIO]:
    with open(target, "wb", buffering=0) as file:
        yield file


@contextlib.contextmanager
def _whole(target: str) -> Iterator[BinaryIO]:
    folder, name = os.path.split(target)
    if not os.path.isdir(folder):
        raise NotFound(f"{target} cannot be written, there is no folder {folder}: create it")
    temporary = os.path.join(folder, f".{name[:200]}.{os.getpid()}.part")  # 255 bytes is the common limit
    try:
        with open(temporary, "wb") as file:
            with contextlib.suppress(FileNotFoundError):
                os.chmod(temporary, stat.S_IMODE(os.stat(target).st_mode))
            yield file
        os.replace(temporary, target)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
