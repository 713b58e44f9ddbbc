"""Short `repr` of objects: what differs from the default, and classes by their names."""

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any


def named(value: Any) -> str:
    """The `repr` of an object, by its class where it has none of its own; a class by its name."""
    if isinstance(value, type):
        return value.__qualname__
    if isinstance(value, list | tuple):
        items = ", ".join(map(named, value))
        return f"[{items}]" if isinstance(value, list) else f"({items}{',' * (len(value) == 1)})"
    kind: Any = type(value)
    return f"{kind.__name__}()" if kind.__repr__ is object.__repr__ else repr(value)


def call(name: str, *values: Any, **options: Any) -> str:
    """The call that makes an object, as text."""
    given = [*map(named, values), *(f"{key}={named(value)}" for key, value in options.items())]
    return f"{name}({', '.join(given)})"


def given_fields(config: Any) -> Mapping[str, Any]:
    """Fields of a dataclass that are not as they are by default."""
    given = {}
    for field in fields(config):
        value, factory = getattr(config, field.name), field.default_factory
        default = field.default if factory is MISSING else factory()
        # Not by ==, which tensors and modules have other results of.
        if value is not default and (type(value), repr(value)) != (type(default), repr(default)):
            given[field.name] = value
    return given
