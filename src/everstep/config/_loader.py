"""Loader of YAML and JSON: values, their lines, and problems of the file itself."""

import json
import math
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from ..core.plain_files import read_plain
from ..core.validation import Problem
from ..errors import ConfigError
from ._document import Document, KeyPath, Place
from ._recipes import PREFIX, recipe_path

#: Largest number of values in a file: with aliases, a small file could fill the memory.
MAX_VALUES = 100_000

#: Largest number of characters in the values of a file, those of an alias each time.
MAX_CHARACTERS = 10_000_000

#: Deepest nesting: that of a list in `stop: [{And: [{Or: […]}]}]` is 6.
MAX_DEPTH = 32

TAG = "tag:yaml.org,2002:"

#: Patterns of plain scalars that are not strings: YAML 1.2's core schema, and underscores between
#: the digits of integers. JSON's NaN and Infinity are recognised as numbers, to be refused.
PLAIN_SCALARS = {
    TAG + "null": r"~|null|Null|NULL|",
    TAG + "bool": r"true|True|TRUE|false|False|FALSE",
    TAG + "int": r"[-+]?[0-9]+(?:_[0-9]+)*|0o[0-7]+|0x[0-9a-fA-F]+",
    TAG + "float": r"[-+]?(?:\.[0-9]+|[0-9]+\.[0-9]*)(?:[eE][-+]?[0-9]+)?"
    r"|[-+]?[0-9]+[eE][-+]?[0-9]+"
    r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)|-?Infinity|NaN",
}


class _Syntax(yaml.SafeLoader):
    """YAML with the scalars of version 1.2: no dates, no `yes`, no base 60."""

    yaml_implicit_resolvers: dict[Any, Any] = {}  # noqa: RUF012 (PyYAML's way to drop its own)


for _tag, _pattern in PLAIN_SCALARS.items():
    _Syntax.add_implicit_resolver(_tag, re.compile(f"(?:{_pattern})$"), None)


# JSON allows tabs, but not in strings, and Unicode's line breaks in strings only.
_FROM_JSON = str.maketrans({"\t": " ", "\x85": "\\x85", "\u2028": "\\u2028", "\u2029": "\\u2029"})


def _integer(text: str) -> int:
    value = int(text[:100], {"0o": 8, "0x": 16}.get(text[:2], 10))
    if len(text) > 100 or not -(2**63) <= value < 2**63:
        raise OverflowError
    return value


def _float(text: str) -> float:
    return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))


def _string(text: str) -> str:
    """`text` with surrogate pairs joined: JSON escapes characters beyond 16 bits as pairs."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


_SCALARS: dict[str, Callable[[str], Any]] = {
    TAG + "null": lambda text: None,
    TAG + "bool": lambda text: {"true": True, "false": False}[text.lower()],
    TAG + "int": _integer,
    TAG + "float": _float,
    TAG + "str": _string,
}


class Values:
    """Converts YAML nodes to values, and records places and problems.

    Args:
        place: Returns the place of a node.

    """

    def __init__(self, place: Callable[[yaml.Node], Place]) -> None:
        self.place = place
        self.places: dict[KeyPath, Place] = {}
        self.problems: list[tuple[Place, Problem]] = []
        self.count = self.characters = 0

    def value(self, node: yaml.Node, path: KeyPath, parents: tuple[yaml.Node, ...] = ()) -> Any:
        """The node's value. `parents` are the nodes around it: an alias may lead back to one."""
        self.count += 1
        if self.count > MAX_VALUES:
            raise ConfigError(f"{self.place(node).label}: more than {MAX_VALUES:,} values.")
        if len(path) > MAX_DEPTH:
            raise ConfigError(f"{self.place(node).label}: nested more than {MAX_DEPTH} deep.")
        if node in parents:
            return self.problem(node, path, "contains itself")
        parents = (*parents, node)
        if isinstance(node, yaml.MappingNode) and node.tag == TAG + "map":
            return self.mapping(node, path, parents)
        if isinstance(node, yaml.SequenceNode) and node.tag == TAG + "seq":
            return [self.entry(item, (*path, i), parents) for i, item in enumerate(node.value)]
        if isinstance(node, yaml.ScalarNode) and node.tag in _SCALARS:
            return self.scalar(node, path)
        return self.problem(node, path, f"the tag {node.tag!r} is not supported; drop it")

    def mapping(
        self, mapping: yaml.MappingNode, path: KeyPath, parents: tuple[yaml.Node, ...]
    ) -> dict[str, Any]:
        """The mapping's values; of a duplicate key, the first."""
        values: dict[str, Any] = {}
        for key_node, node in mapping.value:
            key = key_node.value if isinstance(key_node, yaml.ScalarNode) else "?"
            key_path = (*path, key)
            if key_node.tag != TAG + "str" or key == "<<":
                self.problem(key_node, key_path, "a key must be a name; quote it if it is one")
            elif key in values:
                first = self.places[key_path].label
                self.problem(key_node, key_path, f"duplicate key; first given at {first}")
            else:
                self.places[key_path] = self.place(key_node)
                values[key] = self.value(node, key_path, parents)
        return values

    def entry(self, node: yaml.Node, path: KeyPath, parents: tuple[yaml.Node, ...]) -> Any:
        """The value of a list's element."""
        self.places[path] = self.place(node)
        return self.value(node, path, parents)

    def scalar(self, node: yaml.ScalarNode, path: KeyPath) -> Any:
        """The value of a string, number, boolean or null."""
        self.characters += len(node.value)
        if self.characters > MAX_CHARACTERS:
            raise ConfigError(f"{self.place(node).label}: more than {MAX_CHARACTERS:,} characters.")
        try:
            value = _SCALARS[node.tag](node.value)
        except OverflowError:
            shown = node.value[:40] + "…" * (len(node.value) > 40)
            return self.problem(node, path, f"expected an integer of at most 64 bits; got {shown}")
        except (ValueError, KeyError):
            kind = node.tag.removeprefix(TAG)
            return self.problem(node, path, f"expected {kind}; got {node.value[:40]!r}")
        if isinstance(value, float) and not math.isfinite(value):
            self.problem(node, path, f"expected a finite number; got {node.value}")
        return value

    def problem(self, node: yaml.Node, path: KeyPath, message: str) -> None:
        """Record a problem of a node, whose value is then None."""
        self.problems.append((self.place(node), Problem(path, message)))


def load(path: str | os.PathLike[str], *, within: None | str | os.PathLike[str] = None) -> Document:
    """The document in a `.yaml`, `.yml` or `.json` file, or of a recipe: `recipe:mujoco/Ant-v4`.

    Args:
        path: The file.
        within: Directory that it must be in, links followed, such as that of a run.

    Raises:
        ConfigError: If the file cannot be read as a mapping. Problems of single values are raised
            by `Document.check`, all at once.

    """
    name = str(path)
    path = recipe_path(name) if name.startswith(PREFIX) else Path(path)
    suffix = path.suffix.lower()
    if suffix not in (".yaml", ".yml", ".json"):
        raise ConfigError(f"{name}: expected a .yaml, .yml or .json file.")
    text = _read(path, name, within)
    return read(_checked_json(text, name) if suffix == ".json" else text, name)


def read(text: str, name: str) -> Document:
    """The document in a text; see `load`."""
    root = compose(text, name)
    if not isinstance(root, yaml.MappingNode):
        kinds = {yaml.SequenceNode: "a list", yaml.ScalarNode: "a single value"}
        raise ConfigError(
            f"{name}:1: expected a mapping, one `key: value` a line; "
            f"the file contains {kinds.get(type(root), 'nothing')}."
        )
    if _values_in(root, {}) > MAX_VALUES:  # before any of them takes memory
        raise ConfigError(f"{name}: more than {MAX_VALUES:,} values, repeated ones included.")
    values = Values(lambda node: _line(node, name))
    return Document(name, values.value(root, ()), values.places, tuple(values.problems))


def _values_in(node: yaml.Node, counts: dict[int, int], depth: int = 0) -> int:
    """Values of a node, an alias's each time; 1 for what is inside of itself, or too deep."""
    if depth > MAX_DEPTH:
        return 1
    if id(node) not in counts:
        counts[id(node)] = 1
        inner = node.value if isinstance(node, yaml.CollectionNode) else ()
        children = [x[1] for x in inner] if isinstance(node, yaml.MappingNode) else inner
        counts[id(node)] += sum(_values_in(child, counts, depth + 1) for child in children)
    return counts[id(node)]


def _line(node: yaml.Node, name: str) -> Place:
    line = node.start_mark.line + 1
    return Place(line, f"{name}:{line}")


def _read(path: Path, name: str, within: Any) -> str:
    try:
        content = read_plain(path, within=within)
    except OSError as error:
        raise ConfigError(f"{name}: cannot be read: {error.strerror}.") from None
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise ConfigError(f"{name}:{line}: not UTF-8 text; save the file as UTF-8.") from None


def _checked_json(text: str, name: str) -> str:
    """JSON `text` as YAML, of which it is a subset except for a few characters."""
    if not text.strip():
        return text
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{name}:{error.lineno}: not valid JSON: {error.msg}.") from None
    except (RecursionError, ValueError):
        raise ConfigError(f"{name}: nested too deeply, or a number is too long.") from None
    return text.translate(_FROM_JSON)


#: Advice, by a part of PyYAML's message.
_HINTS = {
    "'\\t'": "; indent with spaces, not tabs",
    "mapping values are not allowed": "; a key is followed by a colon and a space, keys of one "
    "mapping begin in the same column, and a value with a colon and a space needs quotes",
    "unexpected end of stream": "; close the quote or bracket",
    "expected ',' or": "; close the bracket",
}


def compose(text: str, name: str) -> yaml.Node | None:
    """The root of YAML's node graph; None if the text is empty.

    Raises:
        ConfigError: If the text is not YAML; begins with `name` and the line.

    """
    try:
        return yaml.compose(text, _Syntax)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark else ""
        hint = next((hint for part, hint in _HINTS.items() if part in str(error.problem)), "")
        message = f"{name}{line}: not valid YAML: {error.problem or error.context}{hint}."
    except yaml.reader.ReaderError as error:
        line = str(text.count("\n", 0, error.position) + 1)
        message = f"{name}:{line}: not valid YAML: {error.reason}."
    except (RecursionError, ValueError, OverflowError):
        message = f"{name}: nested too deeply, or an escape is not a character."
    raise ConfigError(message)
