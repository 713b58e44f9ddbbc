"""Conditions on the statistics of a train step, most often used to stop training.

A condition is called once a train step. A statistic that the train step did not produce leaves the
condition as it was, and unmet. NaN is no progress: it hits no bound, beats no best and moves no
reference value, and it counts against patience, so a run whose statistic turned NaN still ends.
"""

import difflib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from .data import TrainStatKey, TrainStats
from .errors import ConfigError


class Condition(Protocol):
    """Callable that returns True once a condition on the statistics of a train step is met."""

    def __call__(self, train_stats: TrainStats, /) -> bool:
        """True where training should stop; called once a train step."""


class And:
    """True where every condition is; each is called at every train step, so each keeps count.

    Args:
        conditions: Conditions to join, at least one.

    """

    #: Conditions that are joined.
    conditions: list[Condition]

    def __init__(self, conditions: Sequence[Condition], /) -> None:
        self.conditions = _joined("And", conditions)

    def __call__(self, train_stats: TrainStats, /) -> bool:
        """True where every condition is met."""
        met = [condition(train_stats) for condition in self.conditions]
        return all(met)

    def __repr__(self) -> str:
        return f"And({self.conditions!r})"


class Or:
    """True where any condition is; each is called at every train step, so each keeps count.

    Args:
        conditions: Conditions to join, at least one.

    """

    #: Conditions that are joined.
    conditions: list[Condition]

    def __init__(self, conditions: Sequence[Condition], /) -> None:
        self.conditions = _joined("Or", conditions)

    def __call__(self, train_stats: TrainStats, /) -> bool:
        """True where at least one condition is met."""
        met = [condition(train_stats) for condition in self.conditions]
        return any(met)

    def __repr__(self) -> str:
        return f"Or({self.conditions!r})"


class HitsLowerBound:
    """True in train steps whose statistic is at or below a bound.

    Args:
        key: Name of the statistic, such as `"losses/vf"`.
        lower_bound: Largest value that meets the condition.

    """

    #: Name of the statistic.
    key: TrainStatKey

    #: Largest value that meets the condition.
    lower_bound: float

    def __init__(self, key: TrainStatKey, lower_bound: float, /) -> None:
        _check(_name_problem("key", key), _finite_problem("lower_bound", lower_bound))
        self.key = key
        self.lower_bound = lower_bound

    def __call__(self, train_stats: TrainStats, /) -> bool:
        """True where the statistic is at or below the bound."""
        value = _read(train_stats, self.key)
        return value is not None and value <= self.lower_bound

    def __repr__(self) -> str:
        return f"HitsLowerBound({self.key!r}, {self.lower_bound!r})"


class HitsUpperBound:
    """True in train steps whose statistic is at or above a bound.

    Args:
        key: Name of the statistic, such as `"episodes/return_mean_100"`.
        upper_bound: Smallest value that meets the condition.

    """

    #: Name of the statistic.
    key: TrainStatKey

    #: Smallest value that meets the condition.
    upper_bound: float

    def __init__(self, key: TrainStatKey, upper_bound: float, /) -> None:
        _check(_name_problem("key", key), _finite_problem("upper_bound", upper_bound))
        self.key = key
        self.upper_bound = upper_bound

    def __call__(self, train_stats: TrainStats, /) -> bool:
        """True where the statistic is at or above the bound."""
        value = _read(train_stats, self.key)
        return value is not None and value >= self.upper_bound

    def __repr__(self) -> str:
        return f"HitsUpperBound({self.key!r}, {self.upper_bound!r})"


class Plateaus:
    """True once a statistic has stayed near its previous value several times in a row.

    `|new − old| ≤ rtol · |old|` counts as staying near; so does NaN, which does not become the
    next `old`.

    Args:
        key: Name of the statistic.
        patience: Times in a row that meet the condition.
        rtol: Relative change that still counts as staying near.

    """

    #: Name of the statistic.
    key: TrainStatKey

    #: Times in a row that the statistic has stayed near its previous value.
    losses: int

    #: Previous value; NaN before the first.
    old_value: float

    #: Times in a row that meet the condition.
    patience: int

    #: Relative change that still counts as staying near.
    rtol: float

    def __init__(self, key: TrainStatKey, /, *, patience: int = 5, rtol: float = 1e-3) -> None:
        _check(
            _name_problem("key", key),
            _patience_problem("patience", patience),
            _tolerance_problem("rtol", rtol),
        )
        self.key = key
        self.patience = patience
        self.rtol = rtol
        self.losses = 0
        self.old_value = math.nan

    def __call__(self, train_stats: TrainStats, /) -> bool:
        """True once the statistic has stayed near its previous value `patience` times in a row."""
        value = _read(train_stats, self.key)
        if value is None:
            return False
        near = math.isnan(value) or self._is_near(value)
        self.losses = self.losses + 1 if near else 0
        if not math.isnan(value):
            self.old_value = value
        return self.losses >= self.patience

    def _is_near(self, value: float) -> bool:
        if not math.isfinite(self.old_value):  # `rtol · inf` would take anything for near
            return value == self.old_value
        return abs(value - self.old_value) <= self.rtol * abs(self.old_value)

    def __repr__(self) -> str:
        return f"Plateaus({self.key!r}, patience={self.patience!r}, rtol={self.rtol!r})"


class _StopsImproving(ABC):
    """True once a statistic has set no new record several times in a row."""

    #: Name of the statistic.
    key: TrainStatKey

    #: Times in a row without a new record.
    losses: int

    #: Times in a row without a new record that meet the condition.
    patience: int

    def __init__(self, key: TrainStatKey, /, *, patience: int = 5) -> None:
        _check(_name_problem("key", key), _patience_problem("patience", patience))
        self.key = key
        self.patience = patience
        self.losses = 0

    @abstractmethod
    def _is_record(self, value: float) -> bool:
        """Whether `value` is a new record, which is then kept. False for NaN."""

    def __call__(self, train_stats: TrainStats, /) -> bool:
        """True once there has been no new record `patience` times in a row."""
        value = _read(train_stats, self.key)
        if value is None:
            return False
        self.losses = 0 if self._is_record(value) else self.losses + 1
        return self.losses >= self.patience

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.key!r}, patience={self.patience!r})"


class StopsDecreasing(_StopsImproving):
    """True once a statistic has not gone below its minimum several times in a row.

    Args:
        key: Name of the statistic.
        patience: Times in a row without a new minimum that meet the condition.

    """

    #: Smallest value so far.
    min_: float = math.inf

    def _is_record(self, value: float) -> bool:
        lower = value < self.min_
        self.min_ = value if lower else self.min_
        return lower


class StopsIncreasing(_StopsImproving):
    """True once a statistic has not gone above its maximum several times in a row.

    Args:
        key: Name of the statistic.
        patience: Times in a row without a new maximum that meet the condition.

    """

    #: Largest value so far.
    max_: float = -math.inf

    def _is_record(self, value: float) -> bool:
        higher = value > self.max_
        self.max_ = value if higher else self.max_
        return higher


def condition_from_config(config: object, /) -> Condition:
    """The condition that one entry of a configuration file describes.

    An entry is a mapping from a condition's name to its options, such as
    `{HitsUpperBound: {key: episodes/return_mean, bound: 475}}` or
    `{Plateaus: {key: losses/vf, patience: 10, rtol: 0.01}}`; `And` and `Or` take a list of entries.

    Args:
        config: The entry, as a YAML or JSON parser returns it.

    Raises:
        ConfigError: Lists everything wrong with the entry, each problem opening with the path to
            it, such as `And[1].Plateaus.patience`.

    """
    problems = _config_problems(config, "")
    if problems:
        raise ConfigError(problems)
    return _build(config)


def _read(train_stats: Mapping[str, Any], key: TrainStatKey) -> None | float:
    return float(train_stats[key]) if key in train_stats else None


def _check(*problems: None | str) -> None:
    found = [problem for problem in problems if problem is not None]
    if found:
        raise ConfigError(found)


def _joined(name: str, conditions: Sequence[Condition]) -> list[Condition]:
    joined = list(conditions)
    if not joined:
        raise ConfigError(f"`{name}` needs at least one condition; got an empty list.")
    for condition in joined:
        if not callable(condition):
            raise ConfigError(f"`{name}` joins conditions; got {condition!r}, which is not one.")
    return joined


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _name_problem(option: str, value: object) -> None | str:
    if isinstance(value, str) and value:
        return None
    return f"`{option}` must be the name of a statistic; got {value!r}."


def _finite_problem(option: str, value: Any) -> None | str:
    if _is_number(value) and math.isfinite(value):
        return None
    return f"`{option}` must be a finite number; got {value!r}."


def _patience_problem(option: str, value: Any) -> None | str:
    if _is_number(value) and isinstance(value, int) and value > 0:
        return None
    return f"`{option}` must be a whole number above 0; got {value!r}."


def _tolerance_problem(option: str, value: Any) -> None | str:
    if _is_number(value) and math.isfinite(value) and value >= 0:
        return None
    return f"`{option}` must be a finite number, 0 or above; got {value!r}."


class _Entry(NamedTuple):
    """How a configuration file spells one condition."""

    build: Callable[..., Condition]
    required: tuple[str, ...]
    optional: tuple[str, ...] = ()

    @property
    def options(self) -> tuple[str, ...]:
        return self.required + self.optional


_ENTRIES = {
    "HitsLowerBound": _Entry(lambda key, bound: HitsLowerBound(key, bound), ("key", "bound")),
    "HitsUpperBound": _Entry(lambda key, bound: HitsUpperBound(key, bound), ("key", "bound")),
    "Plateaus": _Entry(
        lambda key, **options: Plateaus(key, **options), ("key",), ("patience", "rtol")
    ),
    "StopsDecreasing": _Entry(
        lambda key, **options: StopsDecreasing(key, **options), ("key",), ("patience",)
    ),
    "StopsIncreasing": _Entry(
        lambda key, **options: StopsIncreasing(key, **options), ("key",), ("patience",)
    ),
}
_JOINS: dict[str, Callable[[list[Condition]], Condition]] = {"And": And, "Or": Or}
_OPTION_PROBLEMS: dict[str, Callable[[str, Any], None | str]] = {
    "key": _name_problem,
    "bound": _finite_problem,
    "patience": _patience_problem,
    "rtol": _tolerance_problem,
}


def _build(config: Any) -> Condition:
    [(name, options)] = config.items()
    if name in _JOINS:
        return _JOINS[name]([_build(entry) for entry in options])
    return _ENTRIES[name].build(**options)


def _config_problems(config: object, path: str) -> list[str]:
    if not isinstance(config, Mapping) or len(config) != 1:
        return [
            f"{path or 'condition'}: expected one condition, such as "
            f"{{HitsUpperBound: {{key: episodes/return_mean, bound: 475}}}}; got {config!r}"
        ]
    [(name, options)] = config.items()
    here = f"{path}.{name}" if path else f"{name}"
    if name in _JOINS:
        return _join_problems(options, here)
    if name in _ENTRIES:
        return _entry_problems(_ENTRIES[name], options, here)
    return [f"{here}: unknown condition{_hint(name, (*_ENTRIES, *_JOINS))}"]


def _join_problems(entries: object, path: str) -> list[str]:
    if not isinstance(entries, list) or not entries:
        return [f"{path}: expected a list of at least one condition; got {entries!r}"]
    return [
        problem
        for i, entry in enumerate(entries)
        for problem in _config_problems(entry, f"{path}[{i}]")
    ]


def _entry_problems(entry: _Entry, options: object, path: str) -> list[str]:
    if not isinstance(options, Mapping):
        return [f"{path}: expected a mapping with {', '.join(entry.options)}; got {options!r}"]
    problems = [
        f"{path}.{option}: unknown key{_hint(option, entry.options)}"
        for option in options
        if option not in entry.options
    ]
    problems += [f"{path}.{key}: missing" for key in entry.required if key not in options]
    for option in entry.options:
        problem = _OPTION_PROBLEMS[option](option, options[option]) if option in options else None
        if problem is not None:
            problems.append(f"{path}.{option}: {problem}")
    return problems


def _hint(name: object, names: Sequence[str]) -> str:
    near = difflib.get_close_matches(str(name), names, n=1)
    return f" (did you mean {near[0]}?)" if near else f" (known: {', '.join(sorted(names))})"
