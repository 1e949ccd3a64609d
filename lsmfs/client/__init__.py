"""lsmfs over a server: the verbs of an installation and its repositories, spoken to a URL.

    async with connect("http://127.0.0.1:8000", access_key_id, secret) as lake:
        async with await lake.repository("lake") as repo:
            await repo.put_object("main", "a.txt", pieces)
            await repo.commit("main", "first load")

Modules: `transport` (one HTTP connection pool: credentials, retries), `failures` (answers to errors), `wire` (what both
ends say), `installation`, `repository` with `reader` and `writer`, `local` (the same in process), `verbs` (what both
have), `profile` (where the server is, and who asks).
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lsmfs.client.installation import RemoteInstallation


def connect(
    endpoint: str, access_key_id: str, secret_access_key: str, *, trust_environment: bool = False
) -> "RemoteInstallation":
    """The installation behind a server's URL, with or without /api/v1. Nothing is sent before the first verb.
    `trust_environment`: proxies and certificates as the usual variables say."""
    # When it is asked for: what works in process, and the server, need not wait for an HTTP client to load.
    from lsmfs.client.installation import RemoteInstallation
    from lsmfs.client.transport import Transport

    return RemoteInstallation(Transport(endpoint, access_key_id, secret_access_key, trust_environment))


__all__ = ["connect"]
