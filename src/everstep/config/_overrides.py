"""`key=value` assignments of a command line, which override a file."""

import re
from collections.abc import Sequence
from typing import Any

from ..core.validation import Problem
from ..errors import ConfigError
from ._document import COMMAND_LINE, Document, Place
from ._loader import Values, compose


def apply_overrides(document: Document, assignments: Sequence[str]) -> Document:
    """A copy of `document` with `key=value` assignments made in order.

    Keys are dotted (`env_kwargs.max_episode_steps=200`), values are YAML (`3e-4`, `[64, 64]`).
    An invalid assignment becomes one of the copy's problems.
    """
    values, places = _copy(document.values), dict(document.places)
    problems = list(document.problems)
    for assignment in assignments:
        try:
            path, value = _parse(assignment)
            _assign(values, path, value)
        except ConfigError as error:
            path = tuple((assignment.partition("=")[0] or assignment).split("."))
            place = Place(COMMAND_LINE.rank, f"{COMMAND_LINE.label}: {assignment}", path)
            problems += [(place, Problem(path, text)) for text in error.problems]
        else:
            places = {at: place for at, place in places.items() if at[: len(path)] != path}
            label = f"{COMMAND_LINE.label}: {assignment}"
            places[path] = Place(COMMAND_LINE.rank, label, path)
    return Document(document.name, values, places, tuple(problems))


def _parse(assignment: str) -> tuple[tuple[str, ...], Any]:
    key, equals, text = assignment.partition("=")
    path = tuple(key.split("."))
    if not equals or not all(re.fullmatch(r"[\w-]+", part) for part in path):
        raise ConfigError(f"expected key=value, such as gamma=0.99; got {assignment!r}")
    if not text.strip():
        raise ConfigError(f"no value given; {key}=null means none")
    try:
        node = compose(text, key)
    except ConfigError:
        raise ConfigError(f"not a YAML value: {text!r}") from None
    values = Values(lambda node: COMMAND_LINE)
    value = None if node is None else values.value(node, path)
    if values.problems:
        raise ConfigError([problem.message for _, problem in values.problems])
    return path, value


def _assign(values: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    """Set the value at `path`; missing mappings are created."""
    inner = values
    for i, name in enumerate(path[:-1]):
        if inner.get(name) is None:
            inner[name] = {}
        if not isinstance(inner[name], dict):
            key = ".".join(path[: i + 1])
            raise ConfigError(f"{key} is {inner[name]!r}, which has no keys; assign it whole")
        inner = inner[name]
    inner[path[-1]] = value


def _copy(value: Any) -> Any:
    """A copy of the mappings, since assignments change them."""
    return {k: _copy(v) for k, v in value.items()} if isinstance(value, dict) else value
