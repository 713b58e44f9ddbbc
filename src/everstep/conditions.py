"""Conditions on the statistics of a train step, most often used to stop training.

A condition is called once per train step. If the train step did not produce its statistic, the
condition does not change and is not met. NaN is no progress: it hits no bound, sets no record and
moves no reference value, and it counts against patience, so a run whose statistic became NaN ends.
"""

import difflib
import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Real
from typing import Any, ClassVar, Protocol, get_type_hints

from .core.validation import binds, signature_of, unknown_name
from .data import TrainStatKey, TrainStats
from .errors import ConfigError

#: Names of the statistics of a train step.
_STATISTICS = tuple(get_type_hints(TrainStats))

#: Hyperparameters whose terms of the loss have statistics of their own names.
_TERMS = ("bonuses", "objective", "policy_loss_addons", "symmetry")


class Condition(Protocol):
    """Callable that returns True once a condition on the statistics of a train step is met."""

    def __call__(self, train_stats: TrainStats, /) -> bool:
        """Whether training should stop; called once per train step."""


class _Join:
    """Several conditions as one. All are called at every train step, because some of them count."""

    #: Conditions that are joined.
    conditions: list[Condition]

    #: `all` or `any`.
    _rule: "ClassVar[staticmethod[[Iterable[object]], bool]]"

    def __init__(self, conditions: Sequence[Condition], /) -> None:
        name = type(self).__name__
        self.conditions = list(conditions)
        if not self.conditions:
            raise ConfigError(f"`{name}` needs at least one condition; got an empty list.")
        others = [x for x in self.conditions if not callable(x)]
        if others:
            raise ConfigError(f"`{name}` joins conditions; got {others[0]!r}, which is not one.")

    def __call__(self, train_stats: TrainStats, /) -> bool:
        """Whether the joined conditions are met."""
        return self._rule([condition(train_stats) for condition in self.conditions])

    def as_config(self) -> dict[str, Any]:
        """The entry of a configuration file that `condition_from_config` reads."""
        return {type(self).__name__: self.conditions}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.conditions!r})"


class And(_Join):
    """Met when every condition is met.

    Args:
        conditions: Conditions to join, at least one.

    """

    _rule = staticmethod(all)


class Or(_Join):
    """Met when any condition is met.

    Args:
        conditions: Conditions to join, at least one.

    """

    _rule = staticmethod(any)


class _OnStatistic(ABC):
    """Base class of conditions on one statistic, whose arguments are attributes."""

    #: Name of the statistic.
    key: TrainStatKey

    def __init__(self, key: TrainStatKey, **options: Any) -> None:
        _check(key=key, **options)
        vars(self).update(key=key, **options)

    def __call__(self, train_stats: TrainStats, /) -> bool:
        """Whether the condition is met; False if the train step has no such statistic."""
        stats: Mapping[str, Any] = train_stats
        return self.key in stats and self._is_met(float(stats[self.key]))

    @abstractmethod
    def _is_met(self, value: float) -> bool:
        """Whether the condition is met by the statistic's next value."""

    def as_config(self) -> dict[str, Any]:
        """The entry of a configuration file that `condition_from_config` reads."""
        names = inspect.signature(type(self)).parameters
        options = {name: getattr(self, name) for name in names}
        bounds = {"lower_bound": "bound", "upper_bound": "bound"}
        return {type(self).__name__: {bounds.get(k, k): value for k, value in options.items()}}

    def __repr__(self) -> str:
        arguments = [
            ("" if parameter.kind is parameter.POSITIONAL_ONLY else f"{name}=")
            + repr(getattr(self, name))
            for name, parameter in inspect.signature(type(self)).parameters.items()
        ]
        return f"{type(self).__name__}({', '.join(arguments)})"


class HitsLowerBound(_OnStatistic):
    """Met in train steps whose statistic is at or below a bound.

    Args:
        key: Name of the statistic, such as `"losses/vf"`.
        lower_bound: Largest value that meets the condition.

    """

    #: Largest value that meets the condition.
    lower_bound: float

    def __init__(self, key: TrainStatKey, lower_bound: float, /) -> None:
        super().__init__(key, lower_bound=lower_bound)

    def _is_met(self, value: float) -> bool:
        return value <= self.lower_bound


class HitsUpperBound(_OnStatistic):
    """Met in train steps whose statistic is at or above a bound.

    Args:
        key: Name of the statistic, such as `"episodes/return_mean_100"`.
        upper_bound: Smallest value that meets the condition.

    """

    #: Smallest value that meets the condition.
    upper_bound: float

    def __init__(self, key: TrainStatKey, upper_bound: float, /) -> None:
        super().__init__(key, upper_bound=upper_bound)

    def _is_met(self, value: float) -> bool:
        return value >= self.upper_bound


class Plateaus(_OnStatistic):
    """Met once a statistic has stayed near its previous value several times in a row.

    A value is near if `|new − old| ≤ rtol · |old|`, or if it is NaN, which does not become the next
    `old`.

    Args:
        key: Name of the statistic.
        patience: Times in a row that meet the condition.
        rtol: Relative change that still counts as staying near.

    """

    #: Times in a row that the statistic has stayed near its previous value.
    losses: int = 0

    #: Previous value; NaN before the first.
    old_value: float = math.nan

    #: Times in a row that meet the condition.
    patience: int

    #: Relative change that still counts as staying near.
    rtol: float

    def __init__(self, key: TrainStatKey, /, *, patience: int = 5, rtol: float = 1e-3) -> None:
        super().__init__(key, patience=patience, rtol=rtol)

    def _is_met(self, value: float) -> bool:
        near = math.isnan(value) or self._is_near(value)
        self.losses = self.losses + 1 if near else 0
        if not math.isnan(value):
            self.old_value = value
        return self.losses >= self.patience

    def _is_near(self, value: float) -> bool:
        if not math.isfinite(self.old_value):  # anything is near `rtol · inf`
            return value == self.old_value
        return abs(value - self.old_value) <= self.rtol * abs(self.old_value)


class _StopsImproving(_OnStatistic):
    """Met once a statistic has set no new record several times in a row."""

    #: Times in a row without a new record.
    losses: int = 0

    #: Times in a row without a new record that meet the condition.
    patience: int

    def __init__(self, key: TrainStatKey, /, *, patience: int = 5) -> None:
        super().__init__(key, patience=patience)

    @abstractmethod
    def _is_record(self, value: float) -> bool:
        """Whether `value` is a new record, which is then stored. False for NaN."""

    def _is_met(self, value: float) -> bool:
        self.losses = 0 if self._is_record(value) else self.losses + 1
        return self.losses >= self.patience


class StopsDecreasing(_StopsImproving):
    """Met once a statistic has not gone below its minimum several times in a row.

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
    """Met once a statistic has not gone above its maximum several times in a row.

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
        ConfigError: Lists every problem of the entry, each with its path, such as
            `And[1].Plateaus.patience`.

    """
    if problems := _config_problems(config, ""):
        raise ConfigError(problems)
    return _build(config)


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


#: For each option, what it must be, and whether a value is that.
_RULES: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "key": ("the name of a statistic", lambda value: isinstance(value, str) and value != ""),
    "bound": ("a finite number", _is_finite),
    "lower_bound": ("a finite number", _is_finite),
    "upper_bound": ("a finite number", _is_finite),
    "patience": (
        "a whole number above 0",
        lambda value: _is_finite(value) and isinstance(value, int) and value > 0,
    ),
    "rtol": ("a finite number, 0 or above", lambda value: _is_finite(value) and value >= 0),
}


def _problems(options: Mapping[str, Any]) -> dict[str, str]:
    """Messages for options that break their rules, by option."""
    return {
        name: f"`{name}` must be {_RULES[name][0]}; got {value!r}."
        for name, value in options.items()
        if not _RULES[name][1](value)
    }


def _check(**options: Any) -> None:
    if problems := _problems(options):
        raise ConfigError(list(problems.values()))


#: Conditions of a file with their required options, in the order of arguments, and optional ones.
_CONDITIONS: dict[str, tuple[Callable[..., Condition], tuple[str, ...], tuple[str, ...]]] = {
    "HitsLowerBound": (HitsLowerBound, ("key", "bound"), ()),
    "HitsUpperBound": (HitsUpperBound, ("key", "bound"), ()),
    "Plateaus": (Plateaus, ("key",), ("patience", "rtol")),
    "StopsDecreasing": (StopsDecreasing, ("key",), ("patience",)),
    "StopsIncreasing": (StopsIncreasing, ("key",), ("patience",)),
}
_JOINS: dict[str, Callable[[list[Condition]], Condition]] = {"And": And, "Or": Or}


def _build(config: Any) -> Condition:
    [(name, options)] = config.items()
    if name in _JOINS:
        return _JOINS[name]([_build(entry) for entry in options])
    cls, required, _ = _CONDITIONS[name]
    optional = {key: value for key, value in options.items() if key not in required}
    return cls(*(options[key] for key in required), **optional)


def _config_problems(config: object, path: str) -> list[str]:
    if not isinstance(config, Mapping) or len(config) != 1:
        return [
            f"{path or 'condition'}: expected one condition, such as "
            f"{{HitsUpperBound: {{key: episodes/return_mean, bound: 475}}}}; got {config!r}"
        ]
    [(name, options)] = config.items()
    here = f"{path}.{name}" if path else f"{name}"
    if name in _CONDITIONS:
        return _option_problems(name, options, here)
    if name not in _JOINS:
        return [f"{here}: unknown condition{_hint(name, (*_CONDITIONS, *_JOINS))}"]
    if not isinstance(options, list) or not options:
        return [f"{here}: expected a list of at least one condition; got {options!r}"]
    return [
        problem
        for i, entry in enumerate(options)
        for problem in _config_problems(entry, f"{here}[{i}]")
    ]


def _option_problems(name: str, options: object, path: str) -> list[str]:
    _, required, optional = _CONDITIONS[name]
    known = required + optional
    if not isinstance(options, Mapping):
        return [f"{path}: expected a mapping with {', '.join(known)}; got {options!r}"]
    problems = [
        f"{path}.{option}: unknown key{_hint(option, known)}"
        for option in options
        if option not in known
    ]
    problems += [f"{path}.{key}: missing" for key in required if key not in options]
    broken = _problems({key: options[key] for key in known if key in options})
    return problems + [f"{path}.{key}: {problem}" for key, problem in broken.items()]


def _hint(name: object, names: Sequence[str]) -> str:
    near = difflib.get_close_matches(str(name), names, n=1)
    return f" (did you mean {near[0]}?)" if near else f" (known: {', '.join(sorted(names))})"


def keys_of(condition: Any) -> list[str]:
    """Names of the statistics that a condition, or those it joins, depend on, as far as known."""
    if isinstance(condition, _Join):
        return [key for joined in condition.conditions for key in keys_of(joined)]
    return [condition.key] if isinstance(condition, _OnStatistic) else []


def unknown_statistic(name: str, *, own: Sequence[str] = ()) -> str:
    """Message for a name that no statistic of a train step has; empty if one may have it.

    Args:
        name: The name.
        own: How names begin that the training may add.

    """
    if name in _STATISTICS or name.startswith(("env/", *own)):  # an environment has own metrics
        return ""
    return f"{name}: {unknown_name('statistic', name, _STATISTICS)}"


def best_problem(best: Any, values: Mapping[str, Any]) -> str:
    """Why `best` names no statistic; empty if it may.

    Args:
        best: The name.
        values: Hyperparameters, and `callbacks`, by key.

    """
    if not isinstance(best, str) or values.get("callbacks"):
        return ""
    return unknown_statistic(best, own=("eval/", *own_statistics(values)))


def own_statistics(hyperparameters: Mapping[str, Any]) -> tuple[str, ...]:
    """How the names of statistics begin that a training adds to those of `TrainStats`."""
    if hyperparameters.get("policies") not in (None, "shared"):
        return ("",)  # of each group
    return ("losses/", "bonuses/") if any(hyperparameters.get(name) for name in _TERMS) else ()


def check_stopping(
    total_env_steps: Any, stop_conditions: Any, *, name: str = "total_env_steps"
) -> None:
    """Check when a training is to stop; None and an empty list say nothing.

    Raises:
        ConfigError: If the budget is no positive number, or `stop_conditions` no list of
            conditions.

    """
    problems = []
    is_number = isinstance(total_env_steps, Real) and not isinstance(total_env_steps, bool)
    if total_env_steps is not None and not (is_number and total_env_steps > 0):
        problems.append(
            f"`{name}` expected a number > 0, such as 100_000; got {total_env_steps!r}."
        )
    example = "HitsUpperBound('episodes/return_mean_100', 475)"
    if not isinstance(stop_conditions, list | tuple):
        problems.append(
            f"`stop_conditions` expected a list, such as [{example}]; got {stop_conditions!r}."
        )
    elif wrong := [x for x in stop_conditions if not callable(x) or isinstance(x, type)]:
        problems.append(
            f"`stop_conditions` expected conditions, such as {example}; got {wrong[0]!r}."
        )
    elif wrong := [x for x in stop_conditions if not binds(signature_of(x), {})]:
        problems.append(
            "`stop_conditions` expected functions of one argument, the statistics of a train step, "
            f"such as `lambda stats: stats['env/steps'] > 1_000`; got {wrong[0]!r}."
        )
    if problems:
        raise ConfigError(problems)
