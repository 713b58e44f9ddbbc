"""Writer of YAML that the loader reads back equal."""

import numbers
import re
from collections.abc import Mapping
from typing import Any

import yaml

from ..core.names import dotted_name
from ..core.validation import Problem
from ..errors import ConfigError
from ._document import KeyPath
from ._loader import MAX_DEPTH, PLAIN_SCALARS, TAG, read


class _Dumper(yaml.SafeDumper):
    """Quotes every string that YAML 1.1 or 1.2 would read as another type."""

    def ignore_aliases(self, data: Any) -> bool:
        """True: repeated values are written out."""
        return True

    def represent_sequence(
        self, tag: str, sequence: Any, flow_style: Any = None
    ) -> yaml.SequenceNode:
        """Lists of plain values on one line: `[64, 64]`."""
        plain_items = not any(isinstance(item, dict | list) for item in sequence)
        return super().represent_sequence(tag, sequence, flow_style=plain_items)


def _represent_string(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    """The string, with Unicode's line breaks escaped, which PyYAML would write as they are."""
    style = '"' if re.search("[\x85\u2028\u2029]", text) else None
    return dumper.represent_scalar(f"{TAG}str", text, style=style)


_Dumper.add_representer(str, _represent_string)
for _tag, _pattern in PLAIN_SCALARS.items():
    _Dumper.add_implicit_resolver(_tag, re.compile(f"(?:{_pattern})$"), None)


def dump(values: Mapping[str, Any]) -> str:
    """YAML that `load` reads back equal to `plain(values)`, floats to the last bit.

    Raises:
        ConfigError: If there is none: names the key and value that a file cannot hold.

    """
    written = plain(values)
    try:
        text = _text(written)
    except ValueError:  # of Python, beyond 4,300 digits
        raise ConfigError(f"A file cannot hold an integer of that many digits{_WAY_OUT}.") from None
    document = read(text, "the file that is written")
    problems = [problem for _, problem in document.problems]
    if not problems and document.values != written:
        path = _difference(document.values, written, ())
        problems = [Problem(path, "it would be read as another one")]
    if problems:
        texts = [(".".join(map(str, x.path)), x.message) for x in problems]
        raise ConfigError([f"{x}: a file cannot hold the value: {y}{_WAY_OUT}" for x, y in texts])
    return text


def holds(values: Mapping[str, Any]) -> bool:
    """Whether a file can hold values, so that `load` reads them."""
    try:
        dump(values)
    except ConfigError:
        return False
    return True


_WAY_OUT = ". Give it as text, or set it in the program"


def _difference(one: Any, other: Any, path: KeyPath) -> KeyPath:
    """Path to the first value that differs."""
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        pairs: Any = [(key, one[key], other[key]) for key in one]
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        pairs = [(i, *both) for i, both in enumerate(zip(one, other, strict=True))]
    else:
        return path
    key, first, second = next(x for x in pairs if x[1] != x[2])
    return _difference(first, second, (*path, key))


def _text(values: Any) -> str:
    return yaml.dump(
        values,
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=True,
        default_flow_style=False,
        width=100,
    )


def plain(value: Any, depth: int = 0) -> Any:
    """`value` in types that a file can hold: tuples become lists, classes and functions dotted
    names, objects with `as_config()` its result, other objects strings.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    if isinstance(value, Mapping | list | tuple | set | frozenset) and depth > MAX_DEPTH:
        raise ConfigError(f"A file cannot hold values nested more than {MAX_DEPTH} deep{_WAY_OUT}.")
    if isinstance(value, Mapping):
        names = [str(plain(key)) for key in value]
        items = {n: plain(item, depth + 1) for n, item in zip(names, value.values(), strict=True)}
        if len(items) < len(value):
            twice = next(name for name in names if names.count(name) > 1)
            raise ConfigError(f"{twice}: two keys of a mapping have this name in a file. Drop one.")
        return items
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item, depth + 1) for item in value]
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        return plain(value.item())  # NumPy's booleans, and tensors of one number
    if hasattr(value, "__qualname__"):
        return dotted_name(value)
    return plain(value.as_config()) if hasattr(value, "as_config") else str(value)
