"""Schedules of values over the number of env steps."""

import bisect
import itertools
from collections.abc import Sequence
from typing import Literal, Protocol

import torch
from torch import optim

from .data import LRScheduleKind, ScheduleKind

#: (env steps, value) points of a schedule.
Points = Sequence[tuple[int, float]]


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


class _Annealed:
    """Base class of what falls linearly to 0, once `anneal` is called."""

    #: Schedule of the value.
    scheduler: Scheduler

    #: Env steps at which the value is 0; None before `anneal`.
    total: None | int = None

    _initial: float

    def anneal(self, total: int, /) -> None:
        """From now on, interpolate between the initial value and 0 at `total` env steps.

        Args:
            total: Env steps.

        """
        self.total = total
        self.scheduler = InterpScheduler([(0, self._initial), (total, 0.0)])


class _Coefficient:
    """Base class of a coefficient that follows a schedule."""

    #: Current value.
    coeff: float

    #: Schedule of the value.
    scheduler: Scheduler

    def step(self, count: int, /) -> float:
        """Set `coeff` to the value after `count` env steps, and return it."""
        self.coeff = self.scheduler.step(count)
        return self.coeff


class ClipScheduler(_Annealed, _Coefficient):
    """`clip_param` over env steps.

    With the schedule "linear" it is constant until `anneal` is called.

    Args:
        clip_param: Value if there is no schedule, and where "linear" begins.
        schedule: (env steps, value) points, or "linear".
        kind: `"step"` for a step function, `"interp"` for linear interpolation.

    """

    def __init__(
        self,
        clip_param: float,
        /,
        *,
        schedule: None | Points | Literal["linear"] = None,
        kind: ScheduleKind = "step",
    ) -> None:
        self._initial = clip_param
        points = None if isinstance(schedule, str) else schedule
        self.scheduler = make_scheduler(clip_param, points, kind)
        self.coeff = self.step(0)

    def continue_from(self, previous: "ClipScheduler") -> None:
        """Anneal over the env steps that `previous` anneals over."""
        if previous.total is not None:
            self.anneal(previous.total)


class EntropyScheduler(_Coefficient):
    """Weight of the entropy bonus over env steps.

    Args:
        coeff: Weight if there is no schedule.
        schedule: (env steps, weight) points.
        kind: `"step"` for a step function, `"interp"` for linear interpolation.

    """

    def __init__(
        self, coeff: float, /, *, schedule: None | Points = None, kind: ScheduleKind = "step"
    ) -> None:
        self.scheduler = make_scheduler(coeff, schedule, kind)
        self.coeff = self.step(0)


#: Factor of one change of an adaptive learning rate, and the rate's range.
ADAPTIVE_FACTOR, ADAPTIVE_MIN, ADAPTIVE_MAX = 1.5, 1e-5, 1e-2


class LRScheduler(_Annealed):
    """Learning rate over env steps, written into the optimizer.

    Without a schedule the optimizer keeps its own learning rates, and so it does with "linear"
    until `anneal` is called.

    Args:
        optimizer: Optimizer whose parameter groups are written.
        schedule: (env steps, learning rate) points, or "linear".
        kind: `"step"` for a step function, `"interp"` for linear interpolation, `"adaptive"` if
            only `adapt` changes the learning rate.

    """

    #: Current learning rate of the first parameter group.
    coeff: float

    #: Optimizer whose parameter groups are written.
    optimizer: optim.Optimizer

    #: Schedule of the learning rate.
    scheduler: Scheduler

    def __init__(
        self,
        optimizer: optim.Optimizer,
        /,
        *,
        schedule: None | Points | Literal["linear"] = None,
        kind: LRScheduleKind = "step",
    ) -> None:
        self.optimizer = optimizer
        self._initial = lr = float(optimizer.param_groups[0]["lr"])
        if kind == "adaptive" or isinstance(schedule, str):
            self.scheduler = ConstantScheduler(lr)
        else:
            self.scheduler = make_scheduler(lr, schedule, kind)
        self.coeff = self.step(0)

    def step(self, count: int, /) -> float:
        """Set `coeff` to the learning rate after `count` env steps, and return it."""
        if isinstance(self.scheduler, ConstantScheduler):
            self.coeff = float(self.optimizer.param_groups[0]["lr"])
        else:
            self.coeff = self.scheduler.step(count)
            for group in self.optimizer.param_groups:
                if isinstance(group["lr"], torch.Tensor):
                    group["lr"].fill_(self.coeff)  # in place: a CUDA graph reads this tensor
                else:
                    group["lr"] = self.coeff
        return self.coeff

    def continue_from(self, previous: "LRScheduler", *, keep_rate: bool) -> None:
        """Anneal as `previous` does, from its initial learning rate if `keep_rate`."""
        self._initial = previous._initial if keep_rate else self._initial
        if previous.total is not None:
            self.anneal(previous.total)

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
