"""The search space of a file, under its key `tune`."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from everstep.config import Document
from everstep.core.validation import Problem
from everstep.errors import ConfigError

#: Key of a file that holds the search space.
KEY = "tune"

_FORMS = "expected a list of choices, or {low: …, high: …} with `log: true` or `step: …`; got"


@dataclass(frozen=True)
class Space:
    """Hyperparameters that are searched: by dotted key a list of choices, or a range."""

    #: Choices, or `low`, `high`, and perhaps `log` and `step`, by dotted key.
    ranges: Mapping[str, Any]

    def suggest(self, trial: Any) -> dict[str, Any]:
        """Values by dotted key for an Optuna trial."""
        return {key: _suggest(trial, key, range_) for key, range_ in self.ranges.items()}

    def first(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The file's own values, as parameters of a trial; empty if one is not in the space."""
        found = {key: _value(values, key) for key in self.ranges}
        inside = all(_contains(self.ranges[key], value) for key, value in found.items())
        return {key: _encoded(self.ranges[key], x) for key, x in found.items()} if inside else {}

    def decode(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Values by dotted key of a trial's parameters."""
        return {
            key: json.loads(value) if isinstance(self.ranges[key], list) else value
            for key, value in params.items()
            if key in self.ranges
        }


def read_space(document: Document) -> Space:
    """The search space of a file.

    Raises:
        ConfigError: Lists the entries that are neither choices nor ranges.

    """
    given = document.values.get(KEY)
    if not isinstance(given, dict) or not given:
        raise ConfigError(
            f"{document.name}: {KEY}: no search space. Add one, for example "
            f"`{KEY}: {{lr: {{low: 1e-4, high: 1e-2, log: true}}, num_sgd_iters: [4, 10]}}`."
        )
    problems = [
        Problem((KEY, key), f"{_FORMS} {range_!r}")
        for key, range_ in given.items()
        if not _is_valid(range_)
    ]
    document.check(problems)
    return Space(given)


def _is_valid(range_: Any) -> bool:
    if isinstance(range_, list):
        return len(range_) > 0
    if not isinstance(range_, dict) or not {"low", "high"} <= range_.keys() <= _OPTIONS:
        return False
    numbers = [range_[name] for name in ("low", "high", "step") if name in range_]
    are_numbers = all(type(x) in (int, float) for x in numbers)
    return are_numbers and range_["low"] < range_["high"]


_OPTIONS = {"low", "high", "log", "step"}


def _suggest(trial: Any, key: str, range_: Any) -> Any:
    if isinstance(range_, list):  # lists and mappings are choices, too, so they are text there
        return json.loads(trial.suggest_categorical(key, [json.dumps(x) for x in range_]))
    low, high, log = range_["low"], range_["high"], bool(range_.get("log", False))
    if type(low) is int and type(high) is int:
        return trial.suggest_int(key, low, high, log=log, step=range_.get("step", 1))
    return trial.suggest_float(key, low, high, log=log, step=range_.get("step"))


def _value(values: Mapping[str, Any], key: str) -> Any:
    found: Any = values
    for part in key.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def _contains(range_: Any, value: Any) -> bool:
    if isinstance(range_, list):
        return value in range_
    is_number = type(value) in (int, float)
    return is_number and bool(range_["low"] <= value <= range_["high"])


def _encoded(range_: Any, value: Any) -> Any:
    return json.dumps(value) if isinstance(range_, list) else value
