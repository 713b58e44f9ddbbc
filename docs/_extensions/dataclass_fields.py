"""Fields of a dataclass and the docstrings beneath them, which Python itself throws away."""

import ast
import inspect
import textwrap
from dataclasses import MISSING, fields
from typing import Any, NamedTuple, get_type_hints

from everstep.validation import describe


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


def field_docstrings(cls: type[Any]) -> dict[str, str]:
    """The string beneath each annotated name in the class's source, on one line."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
    [definition] = tree.body
    assert isinstance(definition, ast.ClassDef)
    found = {}
    for statement, following in zip(definition.body, definition.body[1:], strict=False):
        if (
            isinstance(statement, ast.AnnAssign)
            and isinstance(statement.target, ast.Name)
            and isinstance(following, ast.Expr)
            and isinstance(following.value, ast.Constant)
        ):
            found[statement.target.id] = " ".join(str(following.value.value).split())
    return found


def _default(field: Any) -> str:
    if field.default is MISSING:
        return "required" if field.default_factory is MISSING else "empty"
    if isinstance(field.default, type):
        return f"{field.default.__module__.partition('.')[0]}.optim.{field.default.__name__}"
    if field.default is None or isinstance(field.default, bool):
        return {None: "null", True: "true", False: "false"}[field.default]
    return str(field.default)
