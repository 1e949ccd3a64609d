"""A branch as a DynamoDB item, and an append as one update of it.

    p "b/<repository>"   k the branch name's bytes
    chain, position, trimmed, write, pending    as in `kept.Kept`; pending is a list of events as JSON
    incarnation, version, view, base, fence, floor, l1 (a list), l2 (if any), sealed and aside (JSON)
    seqs, marks         two maps by writer: its last seq, and the version of its last append

All but the first line is missing where the branch was deleted. There are two maps of numbers and not one of pairs
because an update can set `marks.writer` to `version + 1`, but cannot compute inside a pair; for the same reason an
event that such an update adds has version 0, and gets it back from its place: one less than that of the next event.
"""

from typing import Any

import msgspec

from refstore.drivers.kept import PENDING_EVENTS_MAX, Kept
from refstore.errors import Corrupt
from refstore.records import (
    Append,
    Branch,
    CommitId,
    Event,
    Mark,
    RunId,
    Seal,
    TableId,
    WriterId,
    decode_aside,
    decode_event,
    encode,
)
from refstore.refs import L1_TABLES_MAX, WRITERS_MAX

Attributes = dict[str, Any]  # DynamoDB's own form: {"name": {"S": "text"}}

_decode_seals = msgspec.json.Decoder(tuple[Seal, ...]).decode


def to_item(kept: Kept) -> Attributes:
    """The attributes beside the key."""
    item: Attributes = {
        "chain": {"S": kept.chain},
        "position": _number(kept.position),
        "trimmed": _number(kept.trimmed),
        "write": {"S": kept.write},
        "pending": {"L": [{"S": encode(event).decode()} for event in kept.pending]},
    }
    return item if kept.branch is None else item | _branch_attributes(kept.branch)


def _branch_attributes(branch: Branch) -> Attributes:
    attributes: Attributes = {
        "incarnation": {"S": branch.incarnation},
        "version": _number(branch.version),
        "view": _number(branch.view),
        "base": {"S": branch.base_commit},
        "fence": _number(branch.fence),
        "floor": _number(branch.floor),
        "l1": {"L": [{"S": table} for table in branch.l1]},
        "sealed": {"S": encode(branch.sealed).decode()},
        "aside": {"S": encode(branch.aside).decode()},
        "seqs": {"M": {writer: _number(mark.seq) for writer, mark in branch.writers.items()}},
        "marks": {"M": {writer: _number(mark.version) for writer, mark in branch.writers.items()}},
    }
    return attributes if branch.l2 is None else attributes | {"l2": {"S": branch.l2}}


def from_item(item: Attributes) -> Kept:
    try:
        return _kept(item)
    except (KeyError, TypeError, ValueError, msgspec.MsgspecError) as error:
        raise Corrupt(f"the DynamoDB item of branch {item['k']['B']!r} is not a branch record: {error!r}") from error


def _kept(item: Attributes) -> Kept:
    name = item["k"]["B"].decode()
    branch = _branch(name, item) if "incarnation" in item else None
    events = [decode_event(entry["S"]) for entry in item["pending"]["L"]]
    return Kept(
        name,
        branch,
        item["chain"]["S"],
        int(item["position"]["N"]),
        int(item["trimmed"]["N"]),
        _with_versions(events, branch),
        item["write"]["S"],
    )


def _branch(name: str, item: Attributes) -> Branch:
    marks = item["marks"]["M"]
    return Branch(
        name=name,
        incarnation=item["incarnation"]["S"],
        version=int(item["version"]["N"]),
        view=int(item["view"]["N"]),
        base_commit=CommitId(item["base"]["S"]),
        l1=tuple(TableId(table["S"]) for table in item["l1"]["L"]),
        l2=RunId(item["l2"]["S"]) if "l2" in item else None,
        sealed=_decode_seals(item["sealed"]["S"]),
        writers={
            WriterId(writer): Mark(int(seq["N"]), int(marks[writer]["N"])) for writer, seq in item["seqs"]["M"].items()
        },
        fence=int(item["fence"]["N"]),
        floor=int(item["floor"]["N"]),
        aside=decode_aside(item["aside"]["S"]),
    )


def _with_versions(events: list[Event], branch: Branch | None) -> tuple[Event, ...]:
    """An append is never a life's last event but on a living branch: a delete comes after it, with its own version."""
    version = branch.version + 1 if branch else 0
    numbered = []
    for event in reversed(events):
        version = event.version or version - 1
        numbered.append(msgspec.structs.replace(event, version=version))
    return tuple(reversed(numbered))


def _number(value: int) -> Attributes:
    return {"N": str(value)}


def same_state(kept: Kept) -> Attributes:
    """The condition that nothing has happened to the item since this was read."""
    return {
        "ConditionExpression": "#chain = :chain AND #position = :position AND #trimmed = :trimmed",
        "ExpressionAttributeNames": {"#chain": "chain", "#position": "position", "#trimmed": "trimmed"},
        "ExpressionAttributeValues": {
            ":chain": {"S": kept.chain},
            ":position": _number(kept.position),
            ":trimmed": _number(kept.trimmed),
        },
    }


NEVER_SEEN: Attributes = {
    "ConditionExpression": "attribute_not_exists(#k)",
    "ExpressionAttributeNames": {"#k": "k"},
}


def append_update(name: str, change: Append) -> Attributes:
    """The append as one UpdateItem: the conditions of `refs.apply`, and room for it in `pending` and `seqs`.

    Without room, or if it was done already, it is refused like any other: the caller then asks `apply`.
    """
    conditions = ["#incarnation = :incarnation", "#floor <= :generation", "size(#l1) < :tables_max"]
    conditions.append("size(#pending) < :pending_max")
    values: Attributes = {
        ":incarnation": {"S": change.incarnation},
        ":generation": _number(change.generation),
        ":tables_max": _number(L1_TABLES_MAX),
        ":pending_max": _number(PENDING_EVENTS_MAX),
        ":table": {"L": [{"S": change.table}]},
        ":event": {"L": [{"S": encode(Event(name, 0, change)).decode()}]},
        ":seq": _number(change.seq),
        ":one": _number(1),
    }
    used = ["incarnation", "floor", "l1", "pending", "seqs", "marks", "version", "view", "position"]
    if change.seq == 1:
        conditions += ["attribute_not_exists(#seqs.#writer)", "#fence <= :opened_at", "size(#seqs) < :writers_max"]
        values |= {":opened_at": _number(change.opened_at), ":writers_max": _number(WRITERS_MAX)}
        used.append("fence")
    else:
        conditions.append("#seqs.#writer = :last")
        values[":last"] = _number(change.seq - 1)
    if change.expected_view is not None:
        conditions.append("#view = :view")
        values[":view"] = _number(change.expected_view)
    return {
        "ConditionExpression": " AND ".join(conditions),
        "UpdateExpression": (
            "SET #l1 = list_append(#l1, :table), #pending = list_append(#pending, :event), #seqs.#writer = :seq, "
            "#marks.#writer = #version + :one, #version = #version + :one, #view = #version + :one, "
            "#position = #position + :one"
        ),
        "ExpressionAttributeNames": {"#writer": change.writer} | {f"#{each}": each for each in used},
        "ExpressionAttributeValues": values,
        "ReturnValues": "ALL_NEW",
        "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
    }


__all__ = ["NEVER_SEEN", "Attributes", "append_update", "from_item", "same_state", "to_item"]
