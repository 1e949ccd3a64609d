"""DeleteObjects: up to 1,000 keys in one request, each with an answer of its own.

Every key is authorised by itself. Keys of one branch go to its writer together, so they share a flush.
"""

import asyncio
from typing import NamedTuple

from lsmfs.auth import Action, Resource
from lsmfs.gateway.addressing import Place, place_of
from lsmfs.gateway.answers import Answer, xml_answer
from lsmfs.gateway.calls import Call, check_branch
from lsmfs.gateway.checksums import Checksums
from lsmfs.gateway.conditions import ANY, Written, etags_of
from lsmfs.gateway.errors import S3Error, from_error
from lsmfs.gateway.markup import element
from lsmfs.gateway.objects import foreseen, refused_write
from lsmfs.gateway.xml import Element, parse
from lsmfs.repository import Repository
from refstore.errors import Error

KEYS_MAX = 1000  # S3's limit


class Wanted(NamedTuple):
    key: str
    etag: str | None


async def delete_objects(call: Call) -> Answer:
    root = await asyncio.to_thread(parse, await call.text(Checksums.from_request(call.request)), "Delete")
    quiet = (root.findtext("Quiet") or "").strip().lower() == "true"
    wanted = [_wanted(each) for each in root.findall("Object")]
    if not 0 < len(wanted) <= KEYS_MAX:
        raise S3Error("MalformedXML", f"A Delete has 1 to {KEYS_MAX} keys, not {len(wanted)}.")
    repository = await call.repository()
    checked: dict[str, asyncio.Task[None]] = {}
    answers = await asyncio.gather(*(_deleted(call, repository, each, checked) for each in wanted))
    shown = [
        f"<Error>{element('Key', each.key)}{element('Code', error.code)}{element('Message', error.message)}</Error>"
        if error is not None
        else f"<Deleted>{element('Key', each.key)}</Deleted>"
        for each, error in zip(wanted, answers, strict=True)
        if error is not None or not quiet
    ]
    return xml_answer("DeleteResult", *shown)


def _wanted(each: Element) -> Wanted:
    key, version = each.findtext("Key"), (each.findtext("VersionId") or "").strip()
    if not key:
        raise S3Error("MalformedXML", "An Object without a Key.")
    if version not in ("", "null"):
        raise S3Error("NotImplemented", "Objects have no versions here: use a branch, a tag or a commit.")
    etag = each.findtext("ETag")
    return Wanted(key, etags_of(etag)[0] if etag else None)


async def _deleted(
    call: Call, repository: Repository, wanted: Wanted, checked: "dict[str, asyncio.Task[None]]"
) -> S3Error | None:
    try:
        place = place_of(repository.name, wanted.key)
        await call.check(Action.DELETE_OBJECT, Resource(repository.name, place.ref, place.path))
        await repository.policy.check("stage", place.ref)
        await _delete(call, repository, place, wanted.etag, checked)
    except Error as error:
        return from_error(error)
    return None


async def _delete(
    call: Call, repository: Repository, place: Place, etag: str | None, checked: "dict[str, asyncio.Task[None]]"
) -> None:
    if place.ref not in checked:  # once for each branch
        checked[place.ref] = asyncio.ensure_future(check_branch(repository, place.ref))
    await checked[place.ref]
    if not place.path:
        return
    condition = Written(etag)
    if etag == ANY:
        condition = await foreseen(repository, place, condition)
    try:
        async with call.lake.writing(repository.name, place.ref) as writer:
            await writer.delete(place.path, condition.expected if isinstance(condition.expected, str) else None)
    except Error as error:
        raise await refused_write(repository, place, error, condition) from error
