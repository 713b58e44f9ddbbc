"""Schedules: values at, between and beyond their points."""

import pytest
import torch
from torch import nn, optim

from everstep.schedulers import (
    ConstantScheduler,
    EntropyScheduler,
    InterpScheduler,
    LRScheduler,
    StepScheduler,
)

POINTS = [(0, 1.0), (10, 0.5), (30, 0.1)]


@pytest.mark.parametrize(
    ("count", "value"), [(0, 1.0), (5, 0.75), (10, 0.5), (20, 0.3), (30, 0.1), (10**9, 0.1)]
)
def test_interp(count: int, value: float) -> None:
    assert InterpScheduler(POINTS).step(count) == pytest.approx(value)


@pytest.mark.parametrize(
    ("count", "value"), [(0, 1.0), (9, 1.0), (10, 0.5), (29, 0.5), (30, 0.1), (10**9, 0.1)]
)
def test_step(count: int, value: float) -> None:
    assert StepScheduler(POINTS).step(count) == value


def test_constant() -> None:
    assert ConstantScheduler(0.3).step(10**9) == 0.3


@pytest.mark.parametrize("scheduler", [InterpScheduler, StepScheduler])
@pytest.mark.parametrize("points", [[], [(1, 1.0)], [(0, 1.0), (10, 0.5), (5, 0.1)]])
def test_bad_points_are_refused(scheduler: type, points: list) -> None:
    with pytest.raises(ValueError, match="count upwards"):
        scheduler(points)


def test_entropy() -> None:
    assert EntropyScheduler(0.2).step(100) == 0.2
    scheduler = EntropyScheduler(0.2, schedule=POINTS, kind="interp")
    assert scheduler.coeff == 1.0
    assert scheduler.step(5) == scheduler.coeff == pytest.approx(0.75)


def test_learning_rate_is_written_into_every_group() -> None:
    parameters = [nn.Parameter(torch.zeros(1)) for _ in range(2)]
    optimizer = optim.SGD([{"params": [p]} for p in parameters], lr=3.0)
    scheduler = LRScheduler(optimizer, schedule=POINTS)
    assert [group["lr"] for group in optimizer.param_groups] == [1.0, 1.0]
    scheduler.step(10)
    assert [group["lr"] for group in optimizer.param_groups] == [0.5, 0.5]


def test_without_a_schedule_the_learning_rates_are_left_alone() -> None:
    parameters = [nn.Parameter(torch.zeros(1)) for _ in range(2)]
    groups = [{"params": [p], "lr": lr} for p, lr in zip(parameters, (0.1, 0.2), strict=True)]
    optimizer = optim.SGD(groups)
    scheduler = LRScheduler(optimizer)
    assert scheduler.step(10**6) == scheduler.coeff == 0.1
    assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.2]


def test_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="'interp' or 'step'"):
        EntropyScheduler(0.1, schedule=POINTS, kind="cosine")  # type: ignore[arg-type]
