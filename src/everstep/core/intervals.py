"""95 % intervals of a mean and of a median, for few values."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

#: Values from which the interval of a median has 94 % at least: of five, all of them.
LEAST_FOR_MEDIAN = 5

#: 0.975 quantiles of Student's t distribution, by degrees of freedom from 1.
_T = (12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281)


class Interval(NamedTuple):
    """A statistic, and the 95 % interval of what it estimates."""

    value: float
    low: float
    high: float


def mean_interval(values: Sequence[float] | Any) -> Interval:
    """Mean of at least two values, ± t₀.₉₇₅ · s / √n.

    It covers 95 % for values of a normal distribution, and about that for others whose mean is
    nearly normal.
    """
    mean, half = mean_and_half(np.asarray(values, np.float64))
    return Interval(float(mean), float(mean - half), float(mean + half))


def mean_and_half(values: Any) -> tuple[Any, Any]:
    """Mean over the first axis, and half of its 95 % interval; of `[n, …]`, n at least 2."""
    count = len(values)
    spread = values.std(axis=0, ddof=1)
    return values.mean(axis=0), student_t(count - 1) * spread / np.sqrt(count)


def median_interval(values: Sequence[float] | Any) -> Interval:
    """Median of at least five values, between two of them, whatever their distribution.

    The i-th smallest and the i-th largest value hold the median unless fewer than i values lie on
    one side of it, which coin throws count. Of two such intervals, one above and one below 95 %,
    the ends are interpolated. Five values have 93.75 % at most.

    Raises:
        ValueError: For fewer than five values, which no interval covers 90 % for.

    Source: T. Hettmansperger and S. Sheather, "Confidence intervals based on interpolated order
    statistics", 1986.

    """
    ordered = np.sort(np.asarray(values, np.float64))
    count = len(ordered)
    if count < LEAST_FOR_MEDIAN:
        raise ValueError(
            f"A 95 % interval of a median needs {LEAST_FOR_MEDIAN} values or more; got {count}."
        )
    middle = float(np.median(ordered))
    depth = 1
    while depth < count // 2 and _covered(count, depth + 1) >= 0.95:
        depth += 1
    low, high = ordered[depth - 1], ordered[count - depth]
    covered = _covered(count, depth)
    if covered > 0.95 and depth < count // 2:
        inner = _covered(count, depth + 1)
        excess = (covered - 0.95) / (covered - inner)
        weight = (count - depth) * excess / (depth + (count - 2 * depth) * excess)
        low += weight * (ordered[depth] - low)
        high -= weight * (high - ordered[count - depth - 1])
    return Interval(middle, float(low), float(high))


def _covered(count: int, depth: int) -> float:
    """Probability that the depth-th smallest and the depth-th largest hold the median."""
    tail, term = 0.0, 0.5**count
    for below in range(depth):
        tail += term
        term *= (count - below) / (below + 1)
    return 1 - 2 * tail


def student_t(freedom: int) -> float:
    """0.975 quantile of Student's t distribution; above 10 degrees of freedom by an expansion.

    Source: Abramowitz and Stegun, 26.7.5; the error is below 0.01 %.
    """
    if freedom <= len(_T):
        return _T[freedom - 1]
    z = 1.959964
    terms: tuple[float, ...] = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return z + sum(term / float(freedom) ** power for power, term in enumerate(terms, start=1))
