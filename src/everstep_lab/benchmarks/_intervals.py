"""Medians and how sure they are."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

#: Resamples of a bootstrap; the interval's ends no longer move in the third digit.
RESAMPLES = 10_000


class Interval(NamedTuple):
    """A median, and an interval that holds it with 95 % confidence."""

    median: float
    low: float
    high: float


def bootstrap_median(values: Sequence[float], *, seed: int = 0) -> Interval:
    """Median of `values`, with the percentile bootstrap's 95 % interval.

    Values are ratios of pairs here. The interval of five has at best their smallest and largest
    for its ends.

    Source: B. Efron, "Bootstrap methods: another look at the jackknife", 1979.
    """
    sample = np.asarray(values, dtype=np.float64)
    chosen = np.random.default_rng(seed).integers(len(sample), size=(RESAMPLES, len(sample)))
    low, high = np.quantile(np.median(sample[chosen], axis=1), [0.025, 0.975])
    return Interval(float(np.median(sample)), float(low), float(high))
