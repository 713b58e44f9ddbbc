"""Fields of a dataclass and the docstrings beneath them, which Python itself throws away."""

from dataclasses import MISSING, fields
from typing import Any, NamedTuple, get_type_hints

from everstep.core.validation import describe, field_docstrings


class Field(NamedTuple):
    """One row of a table of fields."""

    name: str
    allowed: str
    default: str
    description: str


def dataclass_fields(cls: type[Any]) -> list[Field]:
    """The fields that `cls` itself declares, in their order.

    Raises:
        ValueError: Names a field without a docstring.

    """
    docstrings = field_docstrings(cls)
    missing = [field.name for field in fields(cls) if field.name not in docstrings]
    if missing:
        raise ValueError(f"{cls.__name__}: no docstring beneath {', '.join(missing)}.")
    hints = get_type_hints(cls, include_extras=True)
    return [
        Field(field.name, describe(hints[field.name]), _default(field), docstrings[field.name])
        for field in fields(cls)
    ]


def _default(field: Any) -> str:
    if field.default is MISSING:
        return "required" if field.default_factory is MISSING else "empty"
    if isinstance(field.default, type):
        return f"{field.default.__module__.partition('.')[0]}.optim.{field.default.__name__}"
    if field.default is None or isinstance(field.default, bool):
        return {None: "null", True: "true", False: "false"}[field.default]
    return str(field.default)
