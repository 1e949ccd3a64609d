"""Operations that clients know and this server has not: they say so, with 501, to those who may ask."""

from typing import NoReturn

from lsmfs.api.answers import ApiError
from lsmfs.api.operations import Call, Operation
from lsmfs.auth import Action

AT = "/repositories/{repository}"
PARTS = f"{AT}/branches/{{branch}}/staging/pmpu"
WORDS = "is not implemented by this server"


async def unbuilt(call: Call) -> NoReturn:
    raise ApiError(501, f"this {WORDS}")


def _row(name: str, method: str, path: str, action: Action) -> Operation:
    return Operation(name, method, path, action, unbuilt, status=501)


OPERATIONS = (
    _row("setGCRules", "PUT", f"{AT}/settings/gc_rules", Action.WRITE_RETENTION),
    _row("deleteGCRules", "DELETE", f"{AT}/settings/gc_rules", Action.WRITE_RETENTION),
    _row("internalSetGarbageCollectionRules", "POST", f"{AT}/gc/rules", Action.WRITE_RETENTION),
    _row("internalDeleteGarbageCollectionRules", "DELETE", f"{AT}/gc/rules", Action.WRITE_RETENTION),
    _row("dumpRefs", "PUT", f"{AT}/refs/dump", Action.LIST_COMMITS),
    _row("restoreRefs", "PUT", f"{AT}/refs/restore", Action.UPDATE_REPOSITORY),
    _row("dumpSubmit", "POST", f"{AT}/dump", Action.LIST_COMMITS),
    _row("dumpStatus", "GET", f"{AT}/dump", Action.LIST_COMMITS),
    _row("restoreSubmit", "POST", f"{AT}/restore", Action.UPDATE_REPOSITORY),
    _row("restoreStatus", "GET", f"{AT}/restore", Action.UPDATE_REPOSITORY),
    _row("createPresignMultipartUpload", "POST", PARTS, Action.READ_BRANCH),
    _row("completePresignMultipartUpload", "PUT", f"{PARTS}/{{uploadId}}", Action.READ_BRANCH),
    _row("abortPresignMultipartUpload", "DELETE", f"{PARTS}/{{uploadId}}", Action.READ_BRANCH),
)
