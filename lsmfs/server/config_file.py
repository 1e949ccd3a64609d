"""Reading the server's configuration: a YAML file, then the environment, then the command line; the later wins.

Every key can be set in the environment: `logging.level` is LSMFS_LOGGING_LEVEL, dots and all in capitals. An empty
variable counts as not set.

Promises: whatever is wrong is `Invalid` with the file, the line and the key, or the name of the variable; a name that
is not known comes with the nearest that is. No message shows a value that may be a secret. The file is never run, only
read: it is walked along the keys there are, so it cannot make objects, and aliases cannot make it large.
"""

import difflib
import math
import re
import ssl
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, NoReturn, Union, get_args, get_origin, get_type_hints

import msgspec
import yaml

from lsmfs.server import config_stores
from lsmfs.server.config import Complaint, Part, Secret, ServerConfig, Texts, Wrong, complaints
from refstore.errors import Denied, Invalid, NotFound

FILE_BYTES_MAX = 1024 * 1024  # a hundred keys need four thousand
VARIABLE_PREFIX = "LSMFS_"
NULL = "tag:yaml.org,2002:null"
WORDS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
# Names of other programs' configurations, and what to write here.
REPLACED = {
    "metadata.badger": "badger is not used here: remove it, and write metadata.db.sqlite.path for a file of refs",
    "metadata.db.badger": "badger is not used here: remove it, and write metadata.db.sqlite.path for a file of refs",
}
BADGER = "badger is not used here: write sqlite (embedded, the same purpose), redis, dynamodb or bucket"

Values = dict[str, Any]
Places = dict[str, str]


class Loaded(NamedTuple):
    """A configuration, and where each key that was given stands: `file:line`, a variable, or an option."""

    config: ServerConfig
    places: Places

    @property
    def names_stores(self) -> bool:
        """Whether it says where data is, be it the default's place."""
        return any(key.startswith(("metadata.", "blockstore.")) for key in self.places)


def load(path: Path | None, environment: Mapping[str, str], options: Mapping[str, object] | None = None) -> Loaded:
    """The effective configuration. `options` are keys from the command line, already of the right type."""
    values: Values = {}
    places: Places = {}
    if path is not None:
        _Reader(str(path), values, places).part(_parsed(path), ServerConfig, "")
    for key, kind in keys(ServerConfig):
        name = variable_of(key)
        if text := environment.get(name):
            values[key] = _converted(text, kind, key, name)
            places[key] = name
    for key, value in (options or {}).items():
        values[key] = value
        places[key] = f"--{key}"
    if "listen" in (options or {}):  # said on the command line, it is the only one
        values = {key: value for key, value in values.items() if not key.endswith(".listen_address")}
    config = _built(ServerConfig, "", values)
    for key, words in _wrong(config, environment):
        raise Invalid(f"{_place_of(key, places, path)}: {key}: {words}")
    return Loaded(config, places)


def variable_of(key: str) -> str:
    """The environment variable of a key."""
    return VARIABLE_PREFIX + key.upper().replace(".", "_")


def keys(kind: type[Part], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every key that has a value, with its type, in order."""
    for name, inner in get_type_hints(kind).items():
        if _is_part(inner):
            yield from keys(inner, f"{prefix}{name}.")
        else:
            yield prefix + name, inner


def shown(config: ServerConfig) -> dict[str, object]:
    """The configuration as it may be printed: a tree, with *** for secrets that are set."""
    return _shown(config)


def as_yaml(config: ServerConfig) -> str:
    """The same as text; what is not set is left out."""
    return yaml.safe_dump(_without_nothing(shown(config)), sort_keys=False, allow_unicode=True)


def _without_nothing(tree: Mapping[str, object]) -> dict[str, object]:
    inner = {name: _without_nothing(value) if isinstance(value, dict) else value for name, value in tree.items()}
    return {name: value for name, value in inner.items() if value not in (None, {})}


def _shown(part: Part) -> dict[str, object]:
    tree: dict[str, object] = {}
    for name in part.__struct_fields__:
        value = getattr(part, name)
        tree[name] = _shown(value) if isinstance(value, Part) else repr(value) if isinstance(value, Secret) else value
    return tree


def _parsed(path: Path) -> yaml.Node | None:
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        raise NotFound(f"{path} does not exist: correct --config") from None
    except PermissionError:
        raise Denied(f"{path} may not be read: change its rights") from None
    except OSError as error:
        raise Invalid(f"{path} cannot be read: {error.strerror}") from None
    if len(data) > FILE_BYTES_MAX:
        raise Invalid(f"{path} has more than {FILE_BYTES_MAX} bytes: that is no configuration")
    try:
        return yaml.compose(data, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        # What yaml quotes from the file can be part of a secret; a single character tells nothing.
        problem = re.sub(r"'[^']{2,}'", "'...'", error.problem or "is no YAML")
        raise Invalid(f"{path}:{line}: {problem}: correct the file, and quote values with special signs") from None
    except (yaml.YAMLError, UnicodeError) as error:
        raise Invalid(f"{path} is no YAML in UTF-8 ({type(error).__name__}): correct the file") from None
    except RecursionError:
        raise Invalid(f"{path} is nested too deep: that is no configuration") from None


class _Reader:
    """Walks the file along the known keys."""

    def __init__(self, file: str, values: Values, places: Places) -> None:
        self._file = file
        self._values = values
        self._places = places

    def part(self, node: yaml.Node | None, kind: type[Part], prefix: str) -> None:
        if node is None or node.tag == NULL:
            return
        if not isinstance(node, yaml.MappingNode):
            name = prefix.rstrip(".") or "the file"
            self._fail(node, name, f"must have keys below it ({', '.join(get_type_hints(kind))})")
        known = get_type_hints(kind)
        for name_node, value in node.value:
            name = name_node.value if isinstance(name_node, yaml.ScalarNode) else "?"
            key = prefix + name
            if key in REPLACED:
                self._fail(name_node, key, REPLACED[key])
            if name not in known:
                self._fail(name_node, prefix + _short(name), f"no such key: {_advice(name, known, prefix)}")
            if key in self._places:
                self._fail(name_node, key, f"stands twice, also at {self._places[key]}: remove one")
            self._places[key] = self._place(name_node)
            if _is_part(known[name]):
                self.part(value, known[name], f"{key}.")
            elif value.tag != NULL:
                self._values[key] = self._value(value, known[name], key)

    def _value(self, node: yaml.Node, kind: Any, key: str) -> object:
        if kind == Texts and isinstance(node, yaml.SequenceNode):
            return tuple(str(self._value(each, str, key)) for each in node.value)
        if not isinstance(node, yaml.ScalarNode):
            self._fail(node, key, f"must be one value: {_wanted(kind)}")
        return _converted(node.value, kind, key, self._place(node))

    def _place(self, node: yaml.Node) -> str:
        return f"{self._file}:{node.start_mark.line + 1}"

    def _fail(self, node: yaml.Node, key: str, words: str) -> NoReturn:
        raise Invalid(f"{self._place(node)}: {key}: {words}")


def _converted(text: str, kind: Any, key: str, place: str) -> object:
    """The text as a value of that type."""
    plain = _plain(kind)
    value: object = None
    if plain is str:
        value = text
    elif plain == Texts:
        value = tuple(part.strip() for part in text.split(",") if part.strip())
    elif plain is Secret:
        value = Secret(text)
    elif get_origin(plain) is Literal:
        value = next((each for each in get_args(plain) if each.lower() == text.lower()), None)
    elif plain is bool:
        value = WORDS.get(text.lower())
    elif plain is int:
        value = int(text) if re.fullmatch(r"-?[0-9][0-9_]{0,20}", text) and not text.endswith("_") else None
    else:
        value = float(text) if re.fullmatch(r"-?[0-9]{1,12}(\.[0-9]{1,9})?", text) else None
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        words = BADGER if (key, text) == ("metadata.db.type", "badger") else f"{_short(text)!r} is not {_wanted(kind)}"
        raise Invalid(f"{place}: {key}: {words}")
    return value


def _built(kind: type[Part], prefix: str, values: Values) -> Any:
    arguments: dict[str, object] = {}
    for name, inner in get_type_hints(kind).items():
        if _is_part(inner):
            arguments[name] = _built(inner, f"{prefix}{name}.", values)
        elif prefix + name in values:
            arguments[name] = values[prefix + name]
    return kind(**arguments)


def _wrong(config: ServerConfig, environment: Mapping[str, str]) -> Iterator[Complaint]:
    yield from complaints(config)
    if config.tls.certificate_file and config.tls.key_file:
        try:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(config.tls.certificate_file, config.tls.key_file, password=lambda: "")  # no prompt
        except OSError as error:
            words = f"{config.tls.certificate_file} and key_file {config.tls.key_file} cannot be used"
            yield "tls.certificate_file", f"{words} ({error.strerror or type(error).__name__}): correct them"
    try:
        config_stores.check(config, environment)
    except Wrong as wrong:
        yield wrong.complaint


def _place_of(key: str, places: Places, path: Path | None) -> str:
    """Where a key stands, or the nearest one above it."""
    while key:
        if key in places:
            return places[key]
        inside = [places[each] for each in places if each.startswith(f"{key}.")]
        if inside:
            return inside[0]
        key = key.rpartition(".")[0]
    return str(path or "the configuration")


def _is_part(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _plain(kind: Any) -> Any:
    """The type without its None."""
    if get_origin(kind) in (Union, types.UnionType):
        return next(each for each in get_args(kind) if each is not type(None))
    return kind


def _wanted(kind: Any) -> str:
    plain = _plain(kind)
    if get_origin(plain) is Literal:
        *first, last = get_args(plain)
        return f"{', '.join(first)} or {last}"
    return {
        str: "a text",
        Texts: "a list of texts",
        Secret: "a text",
        bool: "true or false",
        int: "a whole number",
    }.get(plain, "a number")


def _short(text: str) -> str:
    return text if len(text) <= 64 else text[:61] + "..."


def _advice(name: str, known: Mapping[str, Any], prefix: str) -> str:
    everywhere = {key.rpartition(".")[2]: key for key, _ in keys(ServerConfig)}
    if near := difflib.get_close_matches(name, known, 1):
        return f"did you mean {prefix}{near[0]}?"
    if name in everywhere:
        return f"did you mean {everywhere[name]}?"
    return f"there is {', '.join(known)}"
