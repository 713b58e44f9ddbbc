"""Intervals: laws, numbers by hand, and how often they hold what they estimate."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from everstep.core.intervals import mean_interval, median_interval, student_t


@pytest.mark.parametrize("freedom", [1, 2, 3, 5, 10, 11, 12, 20, 50, 200])
def test_95_percent_of_students_t_are_below_its_quantile(freedom: int) -> None:
    angles = np.linspace(0, math.atan(student_t(freedom) / math.sqrt(freedom)), 20_001)
    density = np.cos(angles) ** (freedom - 1)  # of t = √n·tan(angle)
    half = np.trapezoid(density, angles) / np.trapezoid(
        np.cos(whole := np.linspace(0, math.pi / 2, 20_001)) ** (freedom - 1), whole
    )
    assert half == pytest.approx(0.95, abs=1e-4)


def test_the_interval_is_that_of_the_mean() -> None:
    half = 4.3027 / math.sqrt(3)  # s = 1, t = 4.3027
    assert mean_interval([1.0, 2.0, 3.0]) == pytest.approx((2.0, 2.0 - half, 2.0 + half))
    assert mean_interval(np.full(10, 3.0)) == (3.0, 3.0, 3.0)


def test_the_interval_of_a_median_is_between_values() -> None:
    assert median_interval([5.0, 1.0, 4.0, 2.0, 3.0]) == (3.0, 1.0, 5.0)
    assert median_interval([1.5] * 7) == (1.5, 1.5, 1.5)
    # Of six the extremes hold it in 1 - 2/64 = 96.9 %, the second ones in 78.1 %: by (6 - 1)·I /
    # (1 + (6 - 2)·I) of the way between, where I = (0.96875 - 0.95) / (0.96875 - 0.78125) = 0.1.
    value, low, high = median_interval(range(6))
    assert (value, low, high) == pytest.approx((2.5, 0.5 / 1.4, 5 - 0.5 / 1.4))


def test_a_median_of_four_has_no_interval() -> None:
    with pytest.raises(ValueError, match="needs 5 values or more; got 4"):
        median_interval([1.0, 2.0, 3.0, 4.0])


@pytest.mark.parametrize("count", [5, 6, 7, 9, 15, 40])
@pytest.mark.parametrize(
    ("draw", "median"),
    [
        (lambda rng, shape: rng.normal(size=shape), 0.0),
        (lambda rng, shape: rng.exponential(size=shape), math.log(2)),
        (lambda rng, shape: rng.standard_t(2, size=shape), 0.0),
    ],
    ids=["normal", "skewed", "heavy tails"],
)
def test_a_median_is_held_as_often_as_said(
    count: int, draw: Callable[..., Any], median: float
) -> None:
    samples = draw(np.random.default_rng(count), (2000, count))
    found = [median_interval(sample) for sample in samples]
    held = np.mean([low <= median <= high for _, low, high in found])
    assert 0.925 <= held <= 0.97


@pytest.mark.parametrize("count", [2, 3, 5, 20])
def test_a_mean_of_normal_values_is_held_in_95_percent(count: int) -> None:
    samples = np.random.default_rng(count).normal(size=(2000, count))
    held = np.mean([low <= 0 <= high for _, low, high in map(mean_interval, samples)])
    assert 0.935 <= held <= 0.965
