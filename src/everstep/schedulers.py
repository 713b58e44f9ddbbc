"""Schedules of values over the number of env steps."""

import bisect
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import optim

from .data import LRScheduleKind, ScheduleKind, ScheduleName
from .errors import ConfigError

#: (env steps, value) points of a schedule.
Points = Sequence[tuple[int, float]]

#: A value of the fraction of the budget that is left, which falls from 1 to 0.
Function = Callable[[float], float]

#: Largest values of schedules, by the name of what they set. The smallest is 0.
MOST = {"lr": 1000.0, "entropy_coeff": 1000.0, "clip_param": 1.0}

#: Schedules with a name fall to 0 over the budget, in a line that begins after these env steps, or
#: after three quarters of the budget if that is earlier.
HOLDS: dict[ScheduleName, int] = {"linear": 0, "constant_then_linear": 100_000}

#: Keys of configuration files that take functions: values that follow a schedule, and schedules.
FUNCTIONS = (*MOST, *(f"{name}_schedule" for name in MOST))


class Scheduler(Protocol):
    """A value over env steps."""

    def step(self, count: int, /) -> float:
        """The value after `count` env steps."""
        ...


class ConstantScheduler:
    """A constant value.

    Args:
        value: The value.

    """

    #: The value.
    value: float

    def __init__(self, value: float, /) -> None:
        self.value = value

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.value!r})"

    def step(self, _: int, /) -> float:
        """The value."""
        return self.value


class _PointScheduler:
    """Base class of schedules between points."""

    #: (env steps, value) points.
    schedule: Points

    #: Env steps of the points.
    x: list[int]

    #: Values of the points.
    y: list[float]

    #: Env steps from which the value is 0 for good; None if it is not.
    end: None | int = None

    def __init__(self, schedule: Points, /) -> None:
        self.schedule = schedule
        self.x = [count for count, _ in schedule]
        self.y = [float(value) for _, value in schedule]
        if not self.x or self.x[0] != 0 or self.x != sorted(set(self.x)):
            raise ValueError(
                f"{type(self).__name__}: `schedule` must start at 0 env steps and "
                f"count upwards; got {list(schedule)!r}."
            )
        # The first of the zeros at its end, if there is anything before them.
        zeros = sum(1 for _ in itertools.takewhile(lambda value: value == 0, reversed(self.y)))
        if 0 < zeros < len(self.y):
            self.end = self.x[-zeros]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({list(self.schedule)!r})"


class InterpScheduler(_PointScheduler):
    """Linear interpolation between points; the last value after them.

    Args:
        schedule: (env steps, value) points; env steps increase from 0.

    Raises:
        ValueError: If they do not.

    """

    def step(self, count: int, /) -> float:
        """The value after `count` env steps."""
        i = bisect.bisect_right(self.x, count)
        if i == len(self.x):
            return self.y[-1]
        x0, x1, y0, y1 = self.x[i - 1], self.x[i], self.y[i - 1], self.y[i]
        return y0 + (y1 - y0) * (count - x0) / (x1 - x0)


class StepScheduler(_PointScheduler):
    """Step function: each point's value holds until the next point.

    Args:
        schedule: (env steps, value) points; env steps increase from 0.

    Raises:
        ValueError: If they do not.

    """

    def step(self, count: int, /) -> float:
        """The value after `count` env steps."""
        return self.y[bisect.bisect_right(self.x, count) - 1]


def count_of(numbers: int | Points, budget: None | int) -> int:
    """A whole number: itself, or that of its (budget, number) points; without one the last."""
    if isinstance(numbers, int):
        return numbers
    return int(numbers[-1][1] if budget is None else StepScheduler(numbers).step(budget))


class FunctionScheduler:
    """A function of the fraction of the budget that is left.

    Args:
        name: What it sets, a key of `MOST`.
        function: The function.
        total: Env steps of the budget.

    """

    #: Env steps from which the value is 0, to a hundredth of the budget; None if it is not.
    end: None | int

    def __init__(self, name: str, function: Function, total: int, /) -> None:
        self.name, self.function, self.total = name, function, total
        zeros = itertools.takewhile(lambda i: not value_of(name, function, i / 100), range(101))
        last = max(zeros, default=None)  # hundredths that are left from which it is 0 for good
        if last == 100:  # everywhere: as a constant 0, which somebody wants
            last = 0
        self.end = None if last is None else math.ceil(total * (100 - last) / 100)

    def __repr__(self) -> str:
        function = described(self.function)
        return f"{type(self).__name__}({self.name!r}, {function}, {self.total!r})"

    def step(self, count: int, /) -> float:
        """The value after `count` env steps."""
        return value_of(self.name, self.function, max(0.0, 1 - count / self.total))


def value_of(name: str, function: Function, left: float) -> float:
    """A function's value at a fraction of the budget.

    Raises:
        ConfigError: If it raises an error, or its value is not a finite number in the range of what
            it sets.

    """
    most = MOST[name]
    shown = f"`{name}_schedule` (or `{name}`) is the function {described(function)}"
    expected = f"It must return a number from 0 to {most:g} for each fraction from 1 to 0."
    try:
        found: Any = function(left)
    except Exception as error:
        raise ConfigError(
            f"{shown}, which raised {type(error).__name__}: {error}, with {left:g} of the budget "
            f"left. {expected}"
        ) from error
    number = found
    if getattr(found, "shape", None) == () and hasattr(found, "item"):
        number = found.item()  # NumPy's numbers, and tensors of one number
    is_number = isinstance(number, int | float) and not isinstance(number, bool)
    if not is_number or not math.isfinite(number) or not 0 <= number <= most:
        text = repr(found)
        text = text if len(text) <= 100 else f"{text[:100]}…"
        raise ConfigError(
            f"{shown}, which returned {text} with {left:g} of the budget left. {expected}"
        )
    return float(number)


def described(function: Any) -> str:
    """A function's dotted name; with its file and line, if no file could name it."""
    name = getattr(function, "__qualname__", None)
    if name is None:
        return repr(function)
    dotted = f"{function.__module__}.{name}"
    code = getattr(function, "__code__", None)
    if "<" not in name or code is None:
        return dotted
    return f"{dotted} ({code.co_filename}:{code.co_firstlineno})"


def functions_described(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values by key, those that are schedules' functions as `described`."""
    named = {key: described(values[key]) for key in FUNCTIONS if callable(values.get(key))}
    return {**values, **named}


def make_scheduler(value: float, schedule: None | Points, kind: ScheduleKind) -> Scheduler:
    """The scheduler of a schedule, or of a constant value if there is none.

    Raises:
        ValueError: If the kind is unknown.

    """
    if schedule is None:
        return ConstantScheduler(value)
    if kind == "interp":
        return InterpScheduler(schedule)
    if kind == "step":
        return StepScheduler(schedule)
    raise ValueError(f"`kind` must be 'interp' or 'step'; got {kind!r}.")


class _Coefficient:
    """Base class of what follows a schedule: points, a key of `HOLDS`, or a function.

    Points count env steps. Names and functions are of the budget: the value is constant until
    `anneal` is called.
    """

    #: What is set, a key of `MOST`.
    name: str

    #: Current value.
    coeff: float

    #: Points, a name or a function, as they were given; None for a constant.
    schedule: None | Points | ScheduleName | Function

    #: Schedule of the value.
    scheduler: Scheduler

    #: Env steps of the budget; None before `anneal`.
    total: None | int = None

    #: Value where a schedule that has a name begins.
    _initial: float

    def __repr__(self) -> str:
        return f"{type(self).__name__}(coeff={self.coeff!r}, scheduler={self.scheduler!r})"

    @property
    def is_of_budget(self) -> bool:
        """Whether the schedule depends on the budget."""
        return isinstance(self.schedule, str) or callable(self.schedule)

    def _make(self, initial: float, kind: ScheduleKind) -> Scheduler:
        """The scheduler before there is a budget."""
        self._initial = initial
        if callable(self.schedule):
            return ConstantScheduler(value_of(self.name, self.schedule, 1.0))
        if isinstance(self.schedule, str):
            return ConstantScheduler(initial)
        return make_scheduler(initial, self.schedule, kind)

    def anneal(self, total: int, /) -> None:
        """From now on the budget is `total` env steps: there schedules with names end in 0."""
        self.total = total
        if callable(self.schedule):
            self.scheduler = FunctionScheduler(self.name, self.schedule, total)
        elif isinstance(self.schedule, str):
            begin = min(HOLDS[self.schedule], 3 * total // 4)
            points = [(0, self._initial), *([(begin, self._initial)] if begin else [])]
            self.scheduler = InterpScheduler([*points, (total, 0.0)])

    def continue_from(self, previous: "_Coefficient") -> None:
        """Take the budget of `previous`."""
        if previous.total is not None:
            self.anneal(previous.total)

    def step(self, count: int, /) -> float:
        """Set `coeff` to the value after `count` env steps, and return it."""
        self.coeff = self.scheduler.step(count)
        return self.coeff


class ClipScheduler(_Coefficient):
    """`clip_param` over env steps.

    With a schedule of the budget it is constant until `anneal` is called.

    Args:
        clip_param: Value if there is no schedule, and where one with a name begins.
        schedule: (env steps, value) points, a key of `HOLDS`, or a function of the fraction of
            the budget that is left.
        kind: `"step"` for a step function, `"interp"` for linear interpolation.

    """

    name = "clip_param"

    def __init__(
        self,
        clip_param: float,
        /,
        *,
        schedule: None | Points | ScheduleName | Function = None,
        kind: ScheduleKind = "step",
    ) -> None:
        self.schedule = schedule
        self.scheduler = self._make(clip_param, kind)
        self.coeff = self.step(0)


class EntropyScheduler(_Coefficient):
    """Weight of the entropy bonus over env steps.

    Args:
        coeff: Weight if there is no schedule.
        schedule: (env steps, weight) points, or a function of the fraction of the budget that is
            left.
        kind: `"step"` for a step function, `"interp"` for linear interpolation.

    """

    name = "entropy_coeff"

    def __init__(
        self,
        coeff: float,
        /,
        *,
        schedule: None | Points | Function = None,
        kind: ScheduleKind = "step",
    ) -> None:
        self.schedule = schedule
        self.scheduler = self._make(coeff, kind)
        self.coeff = self.step(0)


#: Factor of one change of an adaptive learning rate, and the rate's range.
ADAPTIVE_FACTOR, ADAPTIVE_MIN, ADAPTIVE_MAX = 1.5, 1e-5, 1e-2


class LRScheduler(_Coefficient):
    """Learning rate over env steps, written into the optimizer.

    Without a schedule the optimizer keeps its own learning rates, and so it does with one that has
    a name until `anneal` is called; with a function, that of the whole budget.

    Args:
        optimizer: Optimizer whose parameter groups are written.
        schedule: (env steps, learning rate) points, a key of `HOLDS`, or a function of the fraction
            of the budget that is left.
        kind: `"step"` for a step function, `"interp"` for linear interpolation, `"adaptive"` if
            only `adapt` changes the learning rate.

    """

    name = "lr"

    #: Optimizer whose parameter groups are written; `coeff` is the rate of the first.
    optimizer: optim.Optimizer

    def __init__(
        self,
        optimizer: optim.Optimizer,
        /,
        *,
        schedule: None | Points | ScheduleName | Function = None,
        kind: LRScheduleKind = "step",
    ) -> None:
        self.optimizer, self.schedule = optimizer, schedule
        self._initial = lr = float(optimizer.param_groups[0]["lr"])
        if kind == "adaptive":
            self.scheduler = ConstantScheduler(lr)
        else:
            self.scheduler = self._make(lr, kind)
        if callable(schedule):
            self._write(self.scheduler.step(0))
        self.coeff = self.step(0)

    def step(self, count: int, rate: None | float = None, /) -> float:
        """Set `coeff` to the learning rate after `count` env steps, and return it.

        Args:
            count: Env steps.
            rate: The optimizer's learning rate, if it is known. To read one that is a tensor of
                a device waits for the device.

        """
        if isinstance(self.scheduler, ConstantScheduler):
            self.coeff = float(self.optimizer.param_groups[0]["lr"]) if rate is None else rate
        else:
            self.coeff = self.scheduler.step(count)
            self._write(self.coeff)
        return self.coeff

    def _write(self, rate: float) -> None:
        for group in self.optimizer.param_groups:
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].fill_(rate)  # in place: a CUDA graph reads this tensor
            else:
                group["lr"] = rate

    def continue_from(self, previous: "_Coefficient", *, keep_rate: bool = False) -> None:
        """Take the budget of `previous`, and its initial rate if `keep_rate`."""
        self._initial = previous._initial if keep_rate else self._initial
        super().continue_from(previous)

    def adapt(self, kl_div: float, target: float, /) -> None:
        """Lower the learning rates if the policy changed too much, raise them if too little.

        Source: the adaptive schedule of legged_gym and rsl_rl, with their constants.

        Args:
            kl_div: KL divergence of a minibatch, in nats.
            target: Desired KL divergence.

        """
        if kl_div > 2 * target:
            factor = 1 / ADAPTIVE_FACTOR
        elif kl_div < target / 2:
            factor = ADAPTIVE_FACTOR
        else:
            return
        for group in self.optimizer.param_groups:
            lr = float(group["lr"])
            # A learning rate outside of the range does not move further out.
            group["lr"] = min(max(lr * factor, min(lr, ADAPTIVE_MIN)), max(lr, ADAPTIVE_MAX))
        self.coeff = float(self.optimizer.param_groups[0]["lr"])

    def adapt_on_device(
        self, kl_div: torch.Tensor, target: float, /, *, unless: torch.Tensor
    ) -> None:
        """`adapt` for learning rates that are tensors, without synchronising.

        Args:
            kl_div: KL divergence of a minibatch, in nats, 0-d; NaN counts as infinite.
            target: Desired KL divergence.
            unless: True to change nothing, bool, 0-d.

        """
        is_far = (kl_div.isnan() | (kl_div > 2 * target)) & ~unless
        is_near = (kl_div < target / 2) & ~unless
        for group in self.optimizer.param_groups:
            lr = group["lr"]
            raised = torch.where(is_near, lr * ADAPTIVE_FACTOR, lr)
            changed = torch.where(is_far, lr * (1 / ADAPTIVE_FACTOR), raised)
            low, high = lr.clamp(max=ADAPTIVE_MIN), lr.clamp(min=ADAPTIVE_MAX)
            lr.copy_(torch.minimum(torch.maximum(changed, low), high))
