"""Medians of ratios and how sure they are."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from everstep.core.intervals import LEAST_FOR_MEDIAN, median_interval


class Ratio(NamedTuple):
    """A median, and its 95 % interval; None of fewer than five pairs, which have none."""

    median: float
    low: None | float
    high: None | float


def ratio_of(values: Sequence[float]) -> Ratio:
    """The median of the ratios of pairs; see `median_interval`."""
    if len(values) < LEAST_FOR_MEDIAN:
        return Ratio(float(np.median(values)), None, None)
    return Ratio(*median_interval(values))
