"""Validation of values against the annotations of a dataclass; all problems are reported at once.

Constructors in Python and configuration files are checked against the same annotations.
"""

import ast
import contextlib
import difflib
import inspect
import itertools
import os
import textwrap
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass, make_dataclass
from functools import cache, wraps
from numbers import Integral, Real
from typing import Annotated, Any, Literal, ParamSpec, TypeVar

import numpy as np
from pydantic import BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from typing_extensions import NotRequired, TypedDict

from ..errors import ConfigError
from .synonyms import ABSENT, SYNONYMS

T = TypeVar("T")
P = ParamSpec("P")

#: A class of each kind that fields take, by their descriptions.
_CLASSES = {
    "a subclass of Optimizer": "torch.optim.Adam",
    "a subclass of Distribution or null": "everstep.distributions.Normal",
}

#: Descriptions of generic types, by their names.
_KINDS = {
    "dict": "a mapping",
    "Mapping": "a mapping",
    "Callable": "a callable",
    "PathLike": "a path",
    "Sequence": "a list",
}

#: Likeness from which on a name is suggested: less than this are names of other things.
_ALIKE = 0.75

#: Value of `__pydantic_config__` in checked dataclasses: no conversions, no NaN, no infinity.
STRICT = ConfigDict(
    strict=True, allow_inf_nan=False, arbitrary_types_allowed=True, protected_namespaces=()
)


def _integral(value: Any) -> Any:
    """`value`, a whole float as an int: `1e6` is a valid number of env steps. NumPy's are taken."""
    value = value.item() if isinstance(value, np.integer) else value
    is_whole = isinstance(value, float) and value.is_integer() and abs(value) < 2**63
    return int(value) if is_whole else value


def _points(value: Any) -> Any:
    """Points of a schedule as tuples; configuration files have lists."""
    if not isinstance(value, list | tuple):
        return value
    return [tuple(p) if isinstance(p, list) else p for p in value]


Integer = Annotated[int, BeforeValidator(_integral)]
PositiveInt = Annotated[int, BeforeValidator(_integral), Field(gt=0)]
#: Numbers of episodes and of files: what is larger is a slip, and would never end.
Count = Annotated[PositiveInt, Field(le=10**6)]
NonNegativeInt = Annotated[int, BeforeValidator(_integral), Field(ge=0)]
#: Text that is not empty.
Name = Annotated[str, Field(min_length=1)]
FilePath = Name | os.PathLike[str]
PositiveFloat = Annotated[float, Field(gt=0)]
NonNegativeFloat = Annotated[float, Field(ge=0)]


class _OfBudget:
    """Metadata of a function of the fraction of the budget that is left."""


#: A value of the fraction of the budget that is left.
ScheduleFunction = Annotated[Callable[[float], float], _OfBudget()]
#: `(env steps, value)` points of a schedule.
Schedule = Annotated[list[tuple[NonNegativeInt, float]], BeforeValidator(_points)]
#: `(budget, number)` points of a number that is whole and positive.
CountsOfBudgets = Annotated[list[tuple[NonNegativeInt, PositiveInt]], BeforeValidator(_points)]


@dataclass(frozen=True)
class Problem:
    """A value that violates a rule."""

    #: Names and indices that lead to the value; the first is the field's name.
    path: tuple[str | int, ...]

    #: Rule and value, without the path.
    message: str

    def __str__(self) -> str:
        return f"{'.'.join(map(str, self.path))}: {self.message}"


class InvalidError(Exception):
    """Values that do not fit a dataclass; callers raise an error of their own from it."""

    #: All values that violate a rule.
    problems: list[Problem]

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = problems
        super().__init__("\n".join(map(str, problems)))


def validate(cls: type[T], values: Mapping[str, Any]) -> T:
    """An instance of the dataclass `cls` with `values`.

    Raises:
        InvalidError: Lists all unknown names and all values that violate their field's rule.

    """
    return cls(**check_fields(cls, values))


def check_fields(cls: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """`values` converted for the fields of the dataclass `cls`: `1e6` to an int, points to tuples.

    Raises:
        InvalidError: Lists all unknown names and all values that violate their field's rule.

    """
    known = [field.name for field in fields(cls) if field.init]
    problems = [
        Problem((name,), unknown_name("key", name, known)) for name in values if name not in known
    ]
    try:
        checked = _adapter(cls).validate_python({k: v for k, v in values.items() if k in known})
    except ValidationError as error:
        raise InvalidError(problems + _field_problems(cls, values, error)) from None
    if problems:
        raise InvalidError(problems)
    return checked


def unknown_name(kind: str, name: str, known: typing.Iterable[str]) -> str:
    """Message for an unknown name, such as `unknown key (did you mean gamma?)`."""
    name, known = str(name), [str(k) for k in known]
    if (synonym := synonym_of(name, known)) is not None:
        return f"unknown {kind} (Everstep's name is {synonym})"
    if kind in ("key", "argument", "field") and (advice := ABSENT.get(name)):
        return f"unknown {kind} ({advice})"
    others = [x for x in SYNONYMS if x != name and synonym_of(x, known) is not None]
    alike = _ALIKE if len(name) > 3 else 0.5
    if not (nearest := difflib.get_close_matches(name, [*known, *others], n=1, cutoff=alike)):
        return f"unknown {kind}"
    return f"unknown {kind} (did you mean {synonym_of(nearest[0], known) or nearest[0]}?)"


def explained(usual: str, **rules: Any) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """A decorator of functions: a call that does not fit is a `ConfigError` with a way out.

    It takes the place of Python's `TypeError`.

    Args:
        usual: Sentence on how it is called, with `{}` for a value that has no place.
        rules: Annotations that arguments must fit, as fields do; others are not looked at.

    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        name, signature = function.__name__, inspect.signature(function)
        checked = make_dataclass(name, [(x, rule, None) for x, rule in rules.items()])
        parameters = signature.parameters.values()
        known = [x.name for x in parameters if x.kind in (x.KEYWORD_ONLY, x.POSITIONAL_OR_KEYWORD)]
        known = [x for x in known if x not in ("self", "cls")]
        rest = next((x.name for x in parameters if x.kind is x.VAR_KEYWORD), "")
        places = [x for x in parameters if x.kind in (x.POSITIONAL_ONLY, x.POSITIONAL_OR_KEYWORD)]

        @wraps(function)
        def call(*values: P.args, **options: P.kwargs) -> T:
            way = usual.replace("{}", "…")
            try:
                bound = signature.bind(*values, **options)
            except TypeError as error:
                reason = str(error)
            else:
                taken = [bound.arguments, bound.arguments.get(rest, {})]
                given = {x: found[x] for found in taken for x in rules if x in found}
                try:
                    given = check_fields(checked, given)
                except InvalidError as error:
                    raise ConfigError(
                        [f"`{name}`: `{x.path[0]}`: {x.message}. {way}" for x in error.problems]
                    ) from None
                for x, value in given.items():
                    taken[x not in bound.arguments][x] = value
                return function(*bound.args, **bound.kwargs)
            if more := values[len(places) :]:
                rule = "takes keyword arguments only" if known else "takes no argument"
                got, way = ", ".join(map(_shown, more)), usual.replace("{}", _shown(more[0]))
                raise ConfigError(f"`{name}` {rule}; got {got}. {way}")
            unknown = [x for x in options if x not in known]
            unknown = [x for x in unknown if synonym_of(x, known)] if rest else unknown
            if unknown:
                raise ConfigError(
                    [f"`{name}`: `{x}`: {unknown_name('argument', x, known)}." for x in unknown]
                )
            raise ConfigError(f"`{name}`: {reason}. {way}")

        return call

    return decorate


def synonym_of(name: str, known: Sequence[str]) -> None | str:
    """Everstep's name for another library's, if it is one of the known names."""
    ours = SYNONYMS.get(name) or SYNONYMS.get(name.replace("-", "_"), ())
    for text in (ours,) if isinstance(ours, str) else ours:
        path, _, note = text.partition(": ")
        key, _, option = path.partition(".")
        if key.split(",")[0] in known:
            return text
        if option in known:
            return option + (note and f": {note}")
    return None


def field_docstrings(cls: type[Any]) -> dict[str, str]:
    """The string beneath each field in the source of a dataclass and its bases, on one line.

    Python itself throws them away.
    """
    found = {}
    for base in [base for base in reversed(cls.__mro__) if is_dataclass(base)]:
        [definition] = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        assert isinstance(definition, ast.ClassDef)
        for statement, following in itertools.pairwise(definition.body):
            if (
                isinstance(statement, ast.AnnAssign)
                and isinstance(statement.target, ast.Name)
                and isinstance(following, ast.Expr)
                and isinstance(following.value, ast.Constant)
            ):
                found[statement.target.id] = " ".join(str(following.value.value).split())
    return found


def signature_of(function: Callable[..., Any]) -> inspect.Signature:
    """The function's signature; one that takes anything if it has none."""
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):  # compiled
        return inspect.signature(lambda *arguments, **options: None)


def binds(signature: inspect.Signature, /, *arguments: Any, **options: Any) -> bool:
    """Whether a function of that signature can be called in this way."""
    try:
        signature.bind(*arguments, **options)
    except TypeError:
        return False
    return True


@cache
def _adapter(cls: Any) -> TypeAdapter[dict[str, Any]]:
    """Validator of the fields as a mapping; of a strict dataclass pydantic takes instances only."""
    hints = _hints(cls)
    names = {
        field.name: hints[field.name]
        if field.default is MISSING and field.default_factory is MISSING
        else NotRequired[hints[field.name]]
        for field in fields(cls)
        if field.init
    }
    mapping = typing.cast(Any, TypedDict)(cls.__name__, names)
    mapping.__pydantic_config__ = STRICT
    return TypeAdapter(mapping)


@cache
def _hints(cls: type[Any]) -> dict[str, Any]:
    return typing.get_type_hints(cls, include_extras=True)


def _field_problems(cls: Any, values: Mapping[str, Any], error: ValidationError) -> list[Problem]:
    """One problem per field, although a union reports one for each branch."""
    problems: dict[str | int, Problem] = {}
    for detail in error.errors(include_url=False):
        name = detail["loc"][0]
        if name in problems:  # a list reports each item
            continue
        hint = _hints(cls)[str(name)]
        expected = describe(_for_numbers(hint) if isinstance(values.get(str(name)), Real) else hint)
        message = (
            f"required, and missing; expected {expected}"
            if detail["type"] == "missing"
            else f"expected {expected}; got {_shown(values[str(name)])}"
            + _way_out(str(name), values[str(name)], _hints(cls))
        )
        problems[name] = Problem((name,), message)
    return list(problems.values())


def _way_out(name: str, value: Any, hints: Mapping[str, Any]) -> str:
    """How to write what a value of another kind was meant for; empty if that is unknown."""
    changes = isinstance(value, str) and value.startswith("lin_")
    if changes and (schedule := f"{name}_schedule") in hints:
        word = "'linear', or " if "linear" in str(hints[schedule]) else ""
        return (
            f". A value that changes while training is `{schedule}`: {word}points of (env steps, "
            "value) such as [(0, 1e-3), (1_000_000, 0.0)]"
        )
    expected = describe(hints[name])
    if isinstance(value, str) and (example := _CLASSES.get(expected)):
        return f". Give the class itself, not its name: {example}"
    return ""


def _for_numbers(annotation: Any) -> Any:
    """The annotation without functions, which nobody means who has given a number."""
    options = typing.get_args(annotation)
    if ScheduleFunction not in options:
        return annotation
    return typing.Union[tuple(x for x in options if x != ScheduleFunction)]  # noqa: UP007


def describe(annotation: Any) -> str:
    """Description of an annotation, such as `float in (0, 1]` or `int > 0 or 'auto'`."""
    origin = typing.get_origin(annotation)
    if origin is Annotated:
        base, *metadata = typing.get_args(annotation)
        if any(isinstance(x, _OfBudget) for x in metadata):
            return "a function of the fraction of the budget left"
        return _bounded(describe(base), _constraints(metadata))
    if origin in (typing.Union, types.UnionType):
        options = sorted(typing.get_args(annotation), key=lambda a: a is type(None))
        return " or ".join(dict.fromkeys(describe(option) for option in options))
    if origin is Literal:
        return " or ".join(repr(option) for option in typing.get_args(annotation))
    if origin is type:
        return f"a subclass of {describe(typing.get_args(annotation)[0])}"
    if origin is list:
        (item,) = typing.get_args(annotation)
        return "a list" if item is Any else f"a list of {describe(item)}"
    if origin is tuple:
        return f"[{', '.join(describe(item) for item in typing.get_args(annotation))}]"
    if annotation is type(None):
        return "null"
    if annotation is Any:
        return "anything"
    if origin is not None:
        return _KINDS.get(origin.__name__, str(origin))
    return str(getattr(annotation, "__name__", annotation))


def _shown(value: Any) -> str:
    """`value` for a message, at most 200 characters of it."""
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}…"


def _constraints(metadata: list[Any]) -> dict[str, float]:
    """Constraints in an annotation's metadata, by name."""
    constraints = [c for x in metadata for c in (x.metadata if isinstance(x, FieldInfo) else [x])]
    names = ("gt", "ge", "lt", "le", "min_length")
    return {name: getattr(c, name) for c in constraints for name in names if hasattr(c, name)}


def _bounded(kind: str, bounds: dict[str, float]) -> str:
    """The description of a type with its constraints, such as `float in (0, 1]`."""
    if bounds.pop("min_length", None) == 1:
        kind = f"non-empty {kind}"
    if len(bounds) == 2:
        (low, start), (high, end) = sorted(bounds.items())
        if (kind, low, start, high) == ("int", "gt", 0, "le"):
            return f"int from 1 to {end:,}"
        opening, closing = "(" if low == "gt" else "[", ")" if high == "lt" else "]"
        return f"{kind} in {opening}{start:g}, {end:g}{closing}"
    signs = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}
    return kind + "".join(f" {signs[name]} {bound:g}" for name, bound in bounds.items())


def statistic(name: Any, value: Any) -> int | float:
    """A statistic as a number of Python: an int that a float can hold, or a float.

    Raises:
        ValueError: Says why it cannot be recorded.

    """
    if not isinstance(name, str):
        raise ValueError(f"the name of a statistic must be a string; got {name!r}")
    if name in ("step", "time"):
        raise ValueError(f"a statistic cannot be named `{name}`: the record uses the name")
    number = value
    if not isinstance(value, str | bytes | bytearray):
        with contextlib.suppress(Exception):  # arrays and tensors of one element have `item`
            number = value.item() if hasattr(value, "item") else value
        if isinstance(number, Integral):  # bools too
            number = int(number)
        elif isinstance(number, Real):
            number = float(number)
    kind = type(value)
    if not isinstance(number, int | float):
        shape = f" of shape {tuple(value.shape)}" if hasattr(value, "shape") else ""
        raise ValueError(
            f"`{name}` must be a number; got {kind.__module__}.{kind.__qualname__}{shape}. Leave "
            "it out, or add one number a name, such as a mean"
        )
    try:
        float(number)
    except OverflowError:
        raise ValueError(
            f"`{name}` is too large: an int must be below 1.8e308, which a float can hold"
        ) from None
    return number
