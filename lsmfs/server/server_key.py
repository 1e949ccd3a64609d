"""The key that seals the users' secrets: given by the configuration, or made in the data folder at the first start.

Who has the ref store and not this key has no secret. Who loses it must give every user new keys: keep a copy.
"""

import os
import secrets
from pathlib import Path

from lsmfs.server.config import Auth
from refstore.errors import Denied, Invalid, Unavailable

FILE = "server.key"
KEY_BYTES_MIN = 32


def load_server_key(auth: Auth, folder: Path) -> bytes:
    """The key; `Invalid` if it is too short to be one, `Denied` if others may read its file."""
    if auth.server_key is not None:
        return _checked(auth.server_key.reveal().encode(), "auth.server_key")
    path = Path(auth.server_key_file).expanduser() if auth.server_key_file else folder / FILE
    if not auth.server_key_file:
        _make(path)
    try:
        if path.stat().st_mode & 0o077 and not auth.server_key_file:
            raise Denied(f"others may read {path}: `chmod 600 {path}`, and think about new keys for all users")
        return _checked(path.read_bytes().strip(), str(path))
    except OSError as error:
        raise Unavailable(f"the server key cannot be read: {path}: {error.strerror}") from error


def _checked(key: bytes, where: str) -> bytes:
    if len(key) < KEY_BYTES_MIN:
        raise Invalid(f"{where}: {len(key)} bytes are no server key: use {KEY_BYTES_MIN} or more random ones")
    return key


def _make(path: Path) -> None:
    """Several may start at once: the first one's key is everybody's."""
    if path.exists():
        return
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.write(descriptor, secrets.token_hex(KEY_BYTES_MIN).encode() + b"\n")
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        try:
            os.link(temporary, path)
        except FileExistsError:
            pass
        finally:
            temporary.unlink()
    except OSError as error:
        raise Unavailable(f"no server key can be made: {path}: {error.strerror}") from error
