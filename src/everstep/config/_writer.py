"""Writer of YAML that the loader reads back equal."""

import numbers
import re
from collections.abc import Mapping
from typing import Any

import yaml

from ..names import dotted_name
from ._loader import PLAIN_SCALARS, TAG


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
    """YAML that `load` reads back equal to `plain(values)`, floats to the last bit."""
    return yaml.dump(
        plain(values),
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=True,
        default_flow_style=False,
        width=100,
    )


def plain(value: Any) -> Any:
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
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if hasattr(value, "__qualname__"):
        return dotted_name(value)
    return plain(value.as_config()) if hasattr(value, "as_config") else str(value)
