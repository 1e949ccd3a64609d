"""A branch as a Redis hash, and the Lua scripts that change it. Each script is one atomic step.

    incarnation, version, view, base, fence, floor
    l1        the table ids, oldest first, each with a space after it     tables   how many they are
    l2        the run id; no such field if there is none
    seals     the seal ids, oldest first, each with a space after it      s:<id>   its l1, then a newline and its l2
    aside     JSON
    w:<id>    a writer's last seq, a space, and the version of its last append

Ids hold no white space, so "l1 begins with these ids" is a comparison of strings, and nothing depends on how Lua
would tell an empty list from an empty map. Lua's numbers are doubles: exact up to 2^53 versions.

The scripts for append, replace, seal and advance test what `refs.apply` tests, and answer with whether they did it
and the record as it was. The caller runs `apply` on that record: for the record after it, or for the error.
"""

import hashlib
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from refstore.errors import Corrupt, Invalid
from refstore.records import (
    Advance,
    Append,
    Branch,
    BranchChange,
    CommitId,
    Mark,
    Replace,
    RunId,
    Seal,
    SealId,
    SealLayers,
    TableId,
    WriterId,
    decode_aside,
    encode,
)
from refstore.refs import L1_TABLES_MAX, SEALS_MAX, WRITERS_MAX

Argument = bytes | str | int


class Script(NamedTuple):
    text: str
    sha: str


def _script(text: str) -> Script:
    return Script(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


# KEYS: record, journal, barrier. ARGV: barrier or not, branch name, change, incarnation, then those of the change.
# The barrier is a write for WAIT to wait for: a repeated append writes nothing, but may only be answered when the
# first one, perhaps of another connection, has reached the replicas; what is written later reaches them later.
# For the same reason a change that goes by swap is followed by one: it may find that there is nothing to swap.
_BEGIN = """
local record, journal, barrier = KEYS[1], KEYS[2], KEYS[3]
local flat, b = redis.call('HGETALL', record), {}
for i = 1, #flat, 2 do b[flat[i]] = flat[i + 1] end
local version
local function refuse()
  if ARGV[1] == '1' then redis.call('SET', barrier, '1') end
  return {0, flat}
end
local function finish()
  redis.call('HSET', record, 'version', version)
  redis.call('XADD', journal, '*', 'b', ARGV[2], 'v', version, 'c', ARGV[3])
  return {1, flat}
end
if b.incarnation ~= ARGV[4] then return refuse() end
version = string.format('%d', b.version + 1)
"""

APPEND = _script(
    _BEGIN
    + f"""
local writer, seq, opened_at, id, generation, view = 'w:' .. ARGV[5], ARGV[6], ARGV[7], ARGV[8], ARGV[9], ARGV[10]
local mark = b[writer]
if mark then
  if string.match(mark, '^%d+') + 1 ~= tonumber(seq) then return refuse() end
elseif seq ~= '1' or tonumber(opened_at) < tonumber(b.fence) then
  return refuse()
end
if tonumber(generation) < tonumber(b.floor) then return refuse() end
if tonumber(b.tables) >= {L1_TABLES_MAX} then return refuse() end
if view ~= '' and view ~= b.view then return refuse() end
if not mark then
  local count, oldest, least = 1, nil, nil
  for field, value in pairs(b) do
    if string.sub(field, 1, 2) == 'w:' then
      count = count + 1
      local at = tonumber(string.match(value, '%d+$'))
      if not least or at < least then oldest, least = field, at end
    end
  end
  if count > {WRITERS_MAX} then
    redis.call('HDEL', record, oldest)
    if least > tonumber(b.fence) then redis.call('HSET', record, 'fence', string.format('%d', least)) end
  end
end
redis.call('HSET', record, 'view', version, 'l1', b.l1 .. id .. ' ', 'tables', string.format('%d', b.tables + 1),
  writer, seq .. ' ' .. version)
return finish()
"""
)

REPLACE = _script(
    _BEGIN
    + """
local taken, count, old, new, generation = ARGV[5], ARGV[6], ARGV[7], ARGV[8], ARGV[9]
if count == '0' then return refuse() end
if (b.l2 and '=' .. b.l2 or '') ~= old then return refuse() end
if string.sub(b.l1, 1, #taken) ~= taken then return refuse() end
if tonumber(generation) < tonumber(b.floor) then return refuse() end
redis.call('HSET', record, 'l1', string.sub(b.l1, #taken + 1), 'tables', string.format('%d', b.tables - count),
  'l2', new)
return finish()
"""
)

SEAL = _script(
    _BEGIN
    + f"""
if b.l1 == '' and not b.l2 then return refuse() end
local _, count = string.gsub(b.seals, ' ', '')
if count >= {SEALS_MAX} then return refuse() end
redis.call('HSET', record, 's:' .. version, b.l1 .. (b.l2 and '\\n' .. b.l2 or ''),
  'seals', b.seals .. version .. ' ', 'l1', '', 'tables', '0')
redis.call('HDEL', record, 'l2')
return finish()
"""
)

ADVANCE = _script(
    _BEGIN
    + """
local old, new, taken, generation = ARGV[5], ARGV[6], ARGV[7], ARGV[8]
if b.base ~= old then return refuse() end
if string.sub(b.seals, 1, #taken) ~= taken then return refuse() end
if tonumber(generation) < tonumber(b.floor) then return refuse() end
redis.call('HSET', record, 'base', new, 'seals', string.sub(b.seals, #taken + 1))
for id in string.gmatch(taken, '%d+') do redis.call('HDEL', record, 's:' .. id) end
return finish()
"""
)

# KEYS: record, journal, barrier, names. ARGV: branch name, event version, change, old incarnation, old version, and
# the new record's fields and values; without these it is deleted.
SWAP = _script("""
local actual = redis.call('HMGET', KEYS[1], 'incarnation', 'version')
if (actual[1] or '') ~= ARGV[4] or (actual[2] or '') ~= ARGV[5] then return 0 end
redis.call('DEL', KEYS[1])
if #ARGV > 5 then
  redis.call('HSET', KEYS[1], unpack(ARGV, 6))
  redis.call('ZADD', KEYS[4], 0, ARGV[1])
else
  redis.call('ZREM', KEYS[4], ARGV[1])
end
redis.call('XADD', KEYS[2], '*', 'b', ARGV[1], 'v', ARGV[2], 'c', ARGV[3])
return 1
""")

# KEYS: barrier.
BARRIER = _script("""
redis.call('SET', KEYS[1], '1')
return 1
""")

# KEYS: values, index. ARGV: key, value, expected value (if any).
SET = _script("""
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
redis.call('ZADD', KEYS[2], 0, ARGV[1])
return 1
""")
SET_IF = _script("""
if redis.call('HGET', KEYS[1], ARGV[1]) ~= (ARGV[3] or false) then return 0 end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
redis.call('ZADD', KEYS[2], 0, ARGV[1])
return 1
""")
DELETE = _script("""
redis.call('HDEL', KEYS[1], ARGV[1])
redis.call('ZREM', KEYS[2], ARGV[1])
return 1
""")


def script_of(change: BranchChange) -> tuple[Script, list[Argument]] | None:
    """The script of this change with its own arguments; None if it has none and goes by swap."""
    match change:
        case Append():
            view = "" if change.expected_view is None else change.expected_view
            table = _listed((change.table,))[:-1]
            return APPEND, [change.writer, change.seq, change.opened_at, table, change.generation, view]
        case Replace():
            old = "" if change.old is None else f"={change.old}"
            return REPLACE, [_listed(change.tables), len(change.tables), old, change.new, change.generation]
        case SealLayers():
            return SEAL, []
        case Advance():
            return ADVANCE, [change.old, change.new, _listed(change.seals), change.generation]
        case _:
            return None


def to_fields(branch: Branch) -> list[Argument]:
    """The hash of a record: fields and values by turns."""
    fields: dict[str, Argument] = {
        "incarnation": branch.incarnation,
        "version": branch.version,
        "view": branch.view,
        "base": branch.base_commit,
        "fence": branch.fence,
        "floor": branch.floor,
        "l1": _listed(branch.l1),
        "tables": len(branch.l1),
        "seals": _listed([seal.id for seal in branch.sealed]),
        "aside": encode(branch.aside),
    }
    if branch.l2 is not None:
        fields["l2"] = branch.l2
    for seal in branch.sealed:
        fields[f"s:{seal.id}"] = _listed(seal.l1) + ("" if seal.l2 is None else f"\n{seal.l2}")
    for writer, mark in branch.writers.items():
        fields[f"w:{writer}"] = f"{mark.seq} {mark.version}"
    return [argument for field in fields.items() for argument in field]


def from_fields(name: str, fields: Mapping[bytes, bytes]) -> Branch | None:
    """The record of a hash; None if it is empty, which is how Redis says absent."""
    if not fields:
        return None
    try:
        text = {field.decode(): value.decode() for field, value in fields.items()}
        return Branch(
            name=name,
            incarnation=text["incarnation"],
            version=int(text["version"]),
            view=int(text["view"]),
            base_commit=CommitId(text["base"]),
            l1=_tables(text["l1"]),
            l2=RunId(text["l2"]) if "l2" in text else None,
            sealed=tuple(_seal(number, text[f"s:{number}"]) for number in text["seals"].split()),
            writers={WriterId(field[2:]): _mark(value) for field, value in text.items() if field.startswith("w:")},
            fence=int(text["fence"]),
            floor=int(text["floor"]),
            aside=decode_aside(text["aside"]),
        )
    except (KeyError, ValueError, msgspec.DecodeError) as error:
        raise Corrupt(f"the Redis hash of branch {name!r} is not a branch record: {error!r}") from error


def _listed(ids: tuple[TableId, ...] | tuple[SealId, ...] | list[SealId]) -> str:
    for each in ids:
        if isinstance(each, str) and each.split() != [each]:
            raise Invalid(f"an id holds no white space and is not empty: {each!r}")
    return "".join(f"{each} " for each in ids)


def _tables(text: str) -> tuple[TableId, ...]:
    return tuple(TableId(table) for table in text.split())


def _seal(number: str, text: str) -> Seal:
    l1, newline, l2 = text.partition("\n")
    return Seal(SealId(int(number)), _tables(l1), RunId(l2) if newline else None)


def _mark(text: str) -> Mark:
    seq, version = text.split()
    return Mark(int(seq), int(version))


def change_arguments(name: str, change: BranchChange, waits: bool) -> list[Argument]:
    """What every change's script begins with."""
    return ["1" if waits else "0", name, encode(change), change.incarnation]


__all__ = [
    "BARRIER",
    "DELETE",
    "SET",
    "SET_IF",
    "SWAP",
    "Argument",
    "Script",
    "change_arguments",
    "from_fields",
    "script_of",
    "to_fields",
]
