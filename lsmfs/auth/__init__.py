"""Users, groups, roles, keys and tokens on the ref store's KV, and the one place that decides who may do what.

`Authority` is what servers use: it finds keys, identifies callers and checks actions. `Authority.directory` changes
users, groups, roles and keys. There is no HTTP here. Flow of a request:

1. Gateway: `key = await authority.key(access_key_id)`, verify the signature with `key.secret`, take `key.identity`.
   API: `await authority.identify(access_key_id, secret)` for Basic and login, `identify_token(token)` for the rest.
2. `await authority.check(identity, Action.READ_OBJECT, Resource("repo", "main", "a/b"))`: None, or `Denied`, audited.
3. Lists: `await authority.allows(identity, Action.READ_REPOSITORY, Resource(name))`: no audit.
"""

from lsmfs.auth.authority import Authority
from lsmfs.auth.directory import Directory
from lsmfs.auth.keys import Key, new_pair
from lsmfs.auth.permissions import Action, Permission, Resource, decide
from lsmfs.auth.records import Group, Identity, KeyInfo, Role, User
from lsmfs.auth.tables import Page

__all__ = [
    "Action",
    "Authority",
    "Directory",
    "Group",
    "Identity",
    "Key",
    "KeyInfo",
    "Page",
    "Permission",
    "Resource",
    "Role",
    "User",
    "decide",
    "new_pair",
]
