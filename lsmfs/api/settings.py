"""A repository's settings: which branches are protected. Garbage collection rules and actions are not there yet."""

import hashlib
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from lsmfs.api.answers import Answer, ApiError, encode
from lsmfs.api.operations import Call, Operation
from lsmfs.api.paging import PAGE_DEFAULT, Amount, Listed, no_page
from lsmfs.api.params import etag_of
from lsmfs.auth import Action
from lsmfs.policy import BLOCKED, RepositoryRecord, Rule
from refstore.errors import Invalid, NotFound

RULES_MAX = 1000  # every write looks at all of them


class BranchRule(Struct, frozen=True):
    pattern: Annotated[str, Meta(min_length=1, max_length=255)]


class BranchRuleName(Struct, frozen=True):
    pattern: str


class RunsQuery(Struct, frozen=True):
    after: str = ""
    amount: Amount = PAGE_DEFAULT
    branch: str = ""
    commit: str = ""


class PageOnly(Struct, frozen=True):
    after: str = ""
    amount: Amount = PAGE_DEFAULT


class ActionRun(Struct, frozen=True):
    run_id: str
    branch: str
    start_time: str
    event_type: str
    status: str
    commit_id: str


async def get_protection(call: Call) -> Answer:
    record = await (await call.repository()).policy.refresh()
    answer = Answer(200, encode([BranchRule(rule.pattern) for rule in record.rules]))
    answer.headers.append((b"etag", f'"{_tag(record)}"'.encode()))
    return answer


async def set_protection(call: Call) -> None:
    """All rules at once; with If-Match, only if they are those that the caller has seen."""
    patterns = dict.fromkeys(rule.pattern for rule in call.body)
    match = call.header(b"if-match")
    if len(patterns) > RULES_MAX:
        raise Invalid(f"a repository has up to {RULES_MAX} rules")

    def changed(record: RepositoryRecord) -> RepositoryRecord:
        if match and etag_of(match) != _tag(record):
            raise ApiError(412, "precondition failed: the rules are others now: read them again")
        known = {rule.pattern: rule for rule in record.rules}
        rules = tuple(known.get(pattern, Rule(pattern, BLOCKED)) for pattern in sorted(patterns))
        return msgspec.structs.replace(record, rules=rules)

    await (await call.repository()).policy.change(changed)


def _tag(record: RepositoryRecord) -> str:
    return hashlib.sha256(encode(record.rules)).hexdigest()[:32]


async def add_rule(call: Call) -> None:
    await (await call.repository()).protect(call.body.pattern)


async def delete_rule(call: Call) -> None:
    repository = await call.repository()
    record = await repository.policy.refresh()
    if all(rule.pattern != call.body.pattern for rule in record.rules):
        raise NotFound(f"there is no rule {call.body.pattern!r}")
    await repository.protect(call.body.pattern, ())


async def may(call: Call) -> None:
    """The check before this was the answer."""
    await call.repository()


async def get_rules(call: Call) -> None:
    await call.repository()
    raise NotFound("the repository has no garbage collection rules")


async def list_runs(call: Call) -> Listed[ActionRun]:
    await call.repository()
    return no_page(ActionRun)


async def no_run(call: Call) -> None:
    await call.repository()
    raise NotFound(f"there is no run {call.path['run_id']!r}: actions are not there yet")


AT = "/repositories/{repository}"
OPERATIONS = (
    *(
        Operation(name, "GET", f"{AT}/{path}", Action.READ_PROTECTION, get_protection, list[BranchRule])
        for name, path in (
            ("getBranchProtectionRules", "settings/branch_protection"),
            ("internalGetBranchProtectionRules", "branch_protection"),
        )
    ),
    Operation(
        "setBranchProtectionRules",
        "PUT",
        f"{AT}/settings/branch_protection",
        Action.WRITE_PROTECTION,
        set_protection,
        status=204,
        body=list[BranchRule],
        also=(412,),
    ),
    Operation(
        "internalCreateBranchProtectionRule",
        "POST",
        f"{AT}/branch_protection",
        Action.WRITE_PROTECTION,
        add_rule,
        status=204,
        body=BranchRule,
    ),
    Operation(
        "internalDeleteBranchProtectionRule",
        "DELETE",
        f"{AT}/branch_protection",
        Action.WRITE_PROTECTION,
        delete_rule,
        status=204,
        body=BranchRuleName,
    ),
    Operation(
        "createBranchProtectionRulePreflight",
        "GET",
        f"{AT}/branch_protection/set_allowed",
        Action.WRITE_PROTECTION,
        may,
        status=204,
    ),
    Operation("getGCRules", "GET", f"{AT}/settings/gc_rules", Action.READ_RETENTION, get_rules, status=204),
    Operation(
        "internalGetGarbageCollectionRules", "GET", f"{AT}/gc/rules", Action.READ_RETENTION, get_rules, status=204
    ),
    Operation(
        "listRepositoryRuns",
        "GET",
        f"{AT}/actions/runs",
        Action.READ_RUNS,
        list_runs,
        Listed[ActionRun],
        query=RunsQuery,
    ),
    Operation("getRun", "GET", f"{AT}/actions/runs/{{run_id}}", Action.READ_RUNS, no_run, status=204),
    Operation(
        "listRunHooks",
        "GET",
        f"{AT}/actions/runs/{{run_id}}/hooks",
        Action.READ_RUNS,
        no_run,
        status=204,
        query=PageOnly,
    ),
)
