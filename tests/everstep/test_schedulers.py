"""Schedules: values at, between and beyond their points."""

import pytest
import torch
from torch import nn, optim

from everstep.schedulers import (
    ClipScheduler,
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


def adapted(lr: float, kl_div: float, target: float, *, on_device: bool) -> list[float]:
    """Learning rates of two groups, the second's ten times the first's, after one minibatch."""
    parameters = [nn.Parameter(torch.zeros(1)) for _ in range(2)]
    rates: list[float | torch.Tensor] = [lr, 10 * lr]
    if on_device:
        rates = [torch.tensor(rate, dtype=torch.float64) for rate in rates]
    groups = [{"params": [p], "lr": rate} for p, rate in zip(parameters, rates, strict=True)]
    optimizer = optim.Adam(groups)
    scheduler = LRScheduler(optimizer, kind="adaptive")
    if on_device:
        no = torch.tensor(False)
        scheduler.adapt_on_device(torch.tensor(kl_div, dtype=torch.float64), target, unless=no)
    else:
        scheduler.adapt(kl_div, target)
        assert scheduler.coeff == optimizer.param_groups[0]["lr"]
    return [float(group["lr"]) for group in optimizer.param_groups]


@pytest.mark.parametrize("on_device", [False, True])
@pytest.mark.parametrize(
    ("kl_div", "factor"),
    [(0.0, 1.5), (0.0049, 1.5), (0.0051, 1.0), (0.01, 1.0), (0.0199, 1.0), (0.0201, 1 / 1.5)],
)
def test_learning_rates_move_where_the_divergence_is_off_by_a_factor_of_two(
    kl_div: float, factor: float, on_device: bool
) -> None:
    found = adapted(1e-4, kl_div, 0.01, on_device=on_device)
    assert found == pytest.approx([factor * 1e-4, factor * 1e-3], rel=1e-12)


@pytest.mark.parametrize("on_device", [False, True])
@pytest.mark.parametrize(
    ("lr", "kl_div", "expected"),
    [
        (9e-4, 0.0, [1.35e-3, 1e-2]),  # at most 1e-2
        (1.1e-5, 1.0, [1e-5, 1.1e-4 / 1.5]),  # at least 1e-5
        (0.5, 0.0, [0.5, 5.0]),  # what is beyond already is not pushed further
        (0.5, 1.0, [0.5 / 1.5, 5.0 / 1.5]),  # and comes back
        (1e-7, 1.0, [1e-7, 1e-6]),
        (1e-7, 0.0, [1.5e-7, 1.5e-6]),
    ],
)
def test_adapted_learning_rates_stay_in_their_range(
    lr: float, kl_div: float, expected: list[float], on_device: bool
) -> None:
    assert adapted(lr, kl_div, 0.01, on_device=on_device) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("kl_div", [0.0, 1.0, float("nan")])
def test_learning_rates_on_the_device_are_left_alone_before_the_policy_has_moved(
    kl_div: float,
) -> None:
    lr = torch.tensor(1e-4, dtype=torch.float64)
    optimizer = optim.Adam([{"params": [nn.Parameter(torch.zeros(1))], "lr": lr}])
    scheduler = LRScheduler(optimizer, kind="adaptive")
    scheduler.adapt_on_device(torch.tensor(kl_div), 0.01, unless=torch.tensor(True))
    assert float(lr) == 1e-4
    scheduler.adapt_on_device(torch.tensor(kl_div), 0.01, unless=torch.tensor(False))
    assert float(lr) == pytest.approx(1.5e-4 if kl_div == 0 else 1e-4 / 1.5)


def test_a_learning_rate_that_is_a_tensor_is_filled_and_stays_where_it_is() -> None:
    lr = torch.tensor(3.0, dtype=torch.float64)
    optimizer = optim.Adam([{"params": [nn.Parameter(torch.zeros(1))], "lr": lr}])
    scheduler = LRScheduler(optimizer, schedule=POINTS)
    assert scheduler.step(10) == float(lr) == 0.5
    assert optimizer.param_groups[0]["lr"] is lr


# ---- clip_param -------------------------------------------------------------------------------


def test_clip_param_follows_its_points() -> None:
    assert ClipScheduler(0.2).step(100) == 0.2
    assert ClipScheduler(0.2, schedule=POINTS, kind="interp").step(5) == pytest.approx(0.75)


@pytest.mark.parametrize("total", [1, 7, 100, 100_001, 133_333, 133_334, 150_000, 10_000_000])
def test_a_schedule_is_constant_for_100_000_env_steps_at_most_for_three_quarters(
    total: int,
) -> None:
    """Then it falls in a line to 0, at the budget's end, and stays there."""
    scheduler = ClipScheduler(0.2, schedule="constant_then_linear")
    assert scheduler.step(total) == 0.2
    scheduler.anneal(total)
    begin = min(100_000, 3 * total // 4)
    assert {scheduler.step(n) for n in (0, begin // 2, begin)} == {0.2}
    for share in (0.25, 0.5, 0.75, 1.0):
        n = begin + share * (total - begin)
        assert scheduler.step(n) == pytest.approx(0.2 * (1 - share))  # type: ignore[arg-type]
    assert scheduler.step(2 * total) == 0


def test_a_linear_clip_param_ends_with_the_budget() -> None:
    """After n of N transitions it is ε·(1 - n/N); it is constant without a budget."""
    scheduler = ClipScheduler(0.2, schedule="linear")
    assert scheduler.step(50) == 0.2
    scheduler.anneal(100)
    assert [scheduler.step(n) for n in (0, 25, 100, 200)] == pytest.approx([0.2, 0.15, 0.0, 0.0])
    another = ClipScheduler(0.4, schedule="linear")
    another.continue_from(scheduler)
    assert another.step(25) == pytest.approx(0.3)
