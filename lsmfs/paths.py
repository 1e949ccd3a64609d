"""The names of everything stored for a repository, built and parsed back in this one place.

    <repository>/tables/<table id>.parquet     t<generation>-<unique>-<size>-<digest>   a Table in l1
                                               u<generation>-<unique>-<size>-<digest>   a Run in l1: a large unit
    <repository>/ranges/<range file>.parquet   g<generation>-<content hash>-<size>-<digest>
    <repository>/runs/<run id>.parquet         r<generation>-<content hash>
    <repository>/commits/<commit id>.json
    <repository>/data/<data file>              b<generation>-<sha-256>-<size>            a block, named by its content
                                               p<generation>-<unique>-<size>            a pack of small bodies
                                               d<generation>-<unique>                    appended bytes, a body not cut

`generation` is the garbage collection floor that the maker saw. `digest` is the XXH3-128 of the file's bytes and
`size` their number, so a reference alone says what must be found behind it. A content hash is of logical content.
"""

import re
from typing import NamedTuple

from refstore.errors import Corrupt
from refstore.records import CommitId, RunId

_FILE = re.compile(r"([tgu])([0-9a-f]+)-([0-9a-v]+)-([0-9a-f]+)-([0-9a-f]{32})")
_RUN = re.compile(r"r([0-9a-f]+)-([0-9a-f]{64})")


class TableFile(NamedTuple):
    """What the name of a layer or Range says: `unique` is a new id in l1, the content hash for a Range."""

    kind: str
    generation: int
    unique: str
    size_bytes: int
    digest: str

    def __str__(self) -> str:
        return f"{self.kind}{self.generation:x}-{self.unique}-{self.size_bytes:x}-{self.digest}"


def parse_table(name: str) -> TableFile:
    match = _FILE.fullmatch(name)
    if not match:
        raise Corrupt(f"{name!r} is no table name")
    kind, generation, unique, size, digest = match.groups()
    return TableFile(kind, int(generation, 16), unique, int(size, 16), digest)


def is_run(name: str) -> bool:
    """Whether a layer is a Run (l2, or a large unit in l1) and not one Table."""
    return name.startswith(("r", "u"))


def run_id(generation: int, content_hash: str) -> RunId:
    return RunId(f"r{generation:x}-{content_hash}")


def parse_run(name: str) -> tuple[int, str]:
    """The generation and the content hash."""
    match = _RUN.fullmatch(name)
    if not match:
        raise Corrupt(f"{name!r} is no run id")
    return int(match[1], 16), match[2]


def generation_of(name: str) -> int:
    """The garbage collection floor that the maker of a layer saw."""
    return parse_run(name)[0] if name.startswith("r") else parse_table(name).generation


def layer_path(repository: str, name: str) -> str:
    """Where a Table, Range or Run is stored."""
    generation_of(name)  # `Corrupt` if it is no name of ours: it must not lead anywhere else
    folder = {"t": "tables", "u": "tables", "g": "ranges", "r": "runs"}[name[:1]]
    return f"{repository}/{folder}/{name}.parquet"


def commit_path(repository: str, commit: CommitId) -> str:
    return f"{repository}/commits/{commit}.json"


def parse_commit_path(repository: str, path: str) -> CommitId:
    return CommitId(path.removeprefix(f"{repository}/commits/").removesuffix(".json"))


EMPTY = "empty"  # the data file of an object without bytes; it is never stored
_BLOCK = re.compile(r"b([0-9a-f]+)-([0-9a-f]{64})-([0-9a-f]+)")
_PACK = re.compile(r"p([0-9a-f]+)-([0-9a-zA-Z]+)-([0-9a-f]+)")
_WHOLE = re.compile(r"d([0-9a-f]+)-([0-9a-zA-Z]+)")


class Block(NamedTuple):
    """What the name of a block says."""

    generation: int
    digest: str
    size_bytes: int


def block_name(generation: int, digest: str, size_bytes: int) -> str:
    return f"b{generation:x}-{digest}-{size_bytes:x}"


def pack_name(generation: int, unique: str, size_bytes: int) -> str:
    return f"p{generation:x}-{unique}-{size_bytes:x}"


def whole_name(generation: int, unique: str) -> str:
    return f"d{generation:x}-{unique}"


def data_path(repository: str, name: str) -> str:
    """Where the bytes of objects are."""
    return f"{repository}/data/{name}"


def parse_block(address: str) -> Block | None:
    """What an address says of its bytes, if they are a block."""
    match = _BLOCK.fullmatch(address.rpartition("/data/")[2])
    return Block(int(match[1], 16), match[2], int(match[3], 16)) if match else None


def data_size(address: str) -> int | None:
    """The size of the object that these bytes are in, if its name tells."""
    name = address.rpartition("/data/")[2]
    match = _PACK.fullmatch(name) or _BLOCK.fullmatch(name)
    return int(match[3], 16) if match else None


def data_generation(address: str) -> int:
    """The garbage collection floor that the maker of these bytes saw."""
    name = address.rpartition("/data/")[2]
    match = _BLOCK.fullmatch(name) or _PACK.fullmatch(name) or _WHOLE.fullmatch(name)
    if match is None:
        raise Corrupt(f"{address!r} is no address of ours")
    return int(match[1], 16)
