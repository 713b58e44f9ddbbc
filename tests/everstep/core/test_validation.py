"""Checking values against annotations: what fits, what is said where it does not."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

import pytest
from pydantic import Field

from everstep.core.validation import (
    STRICT,
    Integer,
    InvalidError,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Problem,
    Schedule,
    check_fields,
    describe,
    unknown_name,
    validate,
)
from everstep.errors import ConfigError


class Animal:
    pass


class Dog(Animal):
    pass


@dataclass
class Everything:
    __pydantic_config__: ClassVar[Any] = STRICT

    required: int
    flag: bool = False
    integer: Integer = 0
    count: PositiveInt = 1
    seed: NonNegativeInt | None = None
    rate: PositiveFloat = 1.0
    coeff: NonNegativeFloat = 0.0
    gamma: Annotated[float, Field(gt=0, le=1)] = 0.95
    clip: Annotated[float, Field(gt=0, lt=1)] = 0.2
    dual: Annotated[float, Field(gt=1)] | None = None
    size: PositiveInt | Literal["auto"] = "auto"
    kind: Literal["step", "interp"] = "step"
    name: Annotated[str, Field(min_length=1)] | None = None
    options: dict[str, Any] | None = None
    schedule: Schedule | None = None
    sizes: list[int] = field(default_factory=list)
    animal_cls: type[Animal] = Animal
    animal: Animal | None = None
    function: Callable[..., Any] | None = None
    anything: Any = None


def check(**values):
    return check_fields(Everything, {"required": 0, **values})


@pytest.mark.parametrize(
    ("name", "value", "held"),
    [
        ("flag", True, True),
        ("integer", -3, -3),
        ("integer", 1e6, 1_000_000),
        ("count", 1e3, 1000),
        ("seed", None, None),
        ("seed", 0, 0),
        ("rate", 1, 1.0),
        ("rate", 1e-300, 1e-300),
        ("coeff", 0, 0.0),
        ("gamma", 1, 1.0),
        ("dual", None, None),
        ("dual", 5, 5.0),
        ("size", "auto", "auto"),
        ("size", 2.0, 2),
        ("kind", "interp", "interp"),
        ("name", "x", "x"),
        ("options", {"a": {"b": [1]}}, {"a": {"b": [1]}}),
        ("schedule", [[0, 1], [1e6, 0.5]], [(0, 1.0), (1_000_000, 0.5)]),
        ("schedule", ((0, 1.0),), [(0, 1.0)]),
        ("schedule", [], []),
        ("animal_cls", Dog, Dog),
        ("function", print, print),
        ("anything", object, object),
    ],
)
def test_what_fits_is_held_as_the_field_says(name, value, held):
    checked = check(**{name: value})[name]
    assert checked == held
    assert type(checked) is type(held)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("required", None, "int; got None"),
        ("required", "1", "int; got '1'"),
        ("flag", 1, "bool; got 1"),
        ("flag", "false", "bool; got 'false'"),
        ("flag", None, "bool; got None"),
        ("integer", 0.5, "int; got 0.5"),
        ("integer", True, "int; got True"),
        ("count", 0, "int > 0; got 0"),
        ("count", -1, "int > 0; got -1"),
        ("count", 1.5, "int > 0; got 1.5"),
        ("count", math.inf, "int > 0; got inf"),
        ("count", math.nan, "int > 0; got nan"),
        ("count", "8", "int > 0; got '8'"),
        ("seed", -1, "int >= 0 or null; got -1"),
        ("rate", 0, "float > 0; got 0"),
        ("rate", math.inf, "float > 0; got inf"),
        ("rate", "3e-4", "float > 0; got '3e-4'"),
        ("rate", True, "float > 0; got True"),
        ("coeff", math.nan, "float >= 0; got nan"),
        ("gamma", 1.5, "float in (0, 1]; got 1.5"),
        ("gamma", 0, "float in (0, 1]; got 0"),
        ("clip", 1, "float in (0, 1); got 1"),
        ("dual", 1.0, "float > 1 or null; got 1.0"),
        ("size", "Auto", "int > 0 or 'auto'; got 'Auto'"),
        ("size", None, "int > 0 or 'auto'; got None"),
        ("kind", "linear", "'step' or 'interp'; got 'linear'"),
        ("name", "", "non-empty str or null; got ''"),
        ("name", 7, "non-empty str or null; got 7"),
        ("options", {1: 2}, "a mapping or null; got {1: 2}"),
        ("options", [("a", 1)], "a mapping or null; got [('a', 1)]"),
        ("schedule", [[0, 1, 2]], "a list of [int >= 0, float] or null; got [[0, 1, 2]]"),
        ("schedule", [[-1, 1]], "a list of [int >= 0, float] or null; got [[-1, 1]]"),
        ("schedule", [[0, math.nan]], "a list of [int >= 0, float] or null; got [[0, nan]]"),
        ("schedule", 3, "a list of [int >= 0, float] or null; got 3"),
        ("sizes", [1, "2"], "a list of int; got [1, '2']"),
        ("animal_cls", int, "a subclass of Animal; got <class 'int'>"),
        ("animal_cls", "Dog", "a subclass of Animal; got 'Dog'"),
        ("animal", 3, "Animal or null; got 3"),
        ("function", 3, "a callable or null; got 3"),
    ],
)
def test_what_does_not_fit_is_told_with_the_rule_and_the_value(name, value, expected):
    with pytest.raises(InvalidError) as caught:
        check(**{name: value})
    assert caught.value.problems == [Problem((name,), f"expected {expected}")]


def test_every_problem_comes_at_once():
    with pytest.raises(InvalidError) as caught:
        check_fields(Everything, {"gama": 1, "gamma": 2, "count": 0, "qqqq": 3, "schedule": "x"})
    assert [str(problem) for problem in caught.value.problems] == [
        "gama: unknown key (did you mean gamma?)",
        "qqqq: unknown key",
        "required: required, and missing; expected int",
        "count: expected int > 0; got 0",
        "gamma: expected float in (0, 1]; got 2",
        "schedule: expected a list of [int >= 0, float] or null; got 'x'",
    ]


def test_an_instance_has_what_was_given_and_defaults():
    instance = validate(Everything, {"required": 3, "count": 2.0})
    assert instance == Everything(required=3, count=2)
    with pytest.raises(InvalidError):
        validate(Everything, {})


def test_values_are_neither_copied_into_other_types_nor_changed():
    options = {"a": (1, 2)}
    checked = check(options=options)
    assert checked["options"] == {"a": (1, 2)}
    assert options == {"a": (1, 2)}


def test_a_message_does_not_repeat_a_value_without_end():
    with pytest.raises(InvalidError) as caught:
        check(sizes=["x"] * 10_000)
    assert len(str(caught.value)) < 300


def test_names_that_are_near_are_suggested():
    known = ["gamma", "gae_lambda", "horizon"]
    assert unknown_name("key", "gama", known) == "unknown key (did you mean gamma?)"
    assert unknown_name("key", "lambda", known) == "unknown key (did you mean gae_lambda?)"
    assert unknown_name("option", "xyz", known) == "unknown option"
    assert unknown_name("key", 3, known) == "unknown key"


@pytest.mark.parametrize(
    ("annotation", "words"),
    [
        (int, "int"),
        (Any, "anything"),
        (None | int, "int or null"),
        (int | float | None, "int or float or null"),
        (list[tuple[int, float]], "a list of [int, float]"),
        (list[Any], "a list"),
        (dict[str, Any], "a mapping"),
        (Callable[..., Any], "a callable"),
        (type[Animal], "a subclass of Animal"),
        (Literal["a", 1], "'a' or 1"),
        (Annotated[int, Field(ge=2, le=5)], "int in [2, 5]"),
        (Annotated[int, Field(ge=2, lt=5)], "int in [2, 5)"),
        (Annotated[int, Field(le=5)], "int <= 5"),
    ],
)
def test_annotations_in_words(annotation, words):
    assert describe(annotation) == words


def test_config_errors_list_their_problems():
    error = ConfigError(["one", "two"])
    assert error.problems == ("one", "two")
    assert str(error) == "one\ntwo"
    assert isinstance(error, ValueError)
