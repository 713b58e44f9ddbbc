"""Statistics over seeds: means, interquartile means, bootstrap intervals, verdicts.

Source: R. Agarwal et al., "Deep reinforcement learning at the edge of the statistical precipice",
2021, arXiv 2108.13264.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from everstep.errors import EverstepError
from everstep.installation import install_command

#: Resamples of a bootstrap.
RESAMPLES = 5_000

Interval = tuple[float, float]
Verdict = Literal["above", "within", "below"]


@dataclass(frozen=True)
class Summary:
    """Statistics of one score a seed."""

    #: Number of seeds.
    count: int

    #: Mean.
    mean: float

    #: Standard deviation over seeds, of the population (÷ n).
    std: float

    #: Interquartile mean: that of the middle half.
    iqm: float

    #: 95 % interval of the mean; None for a single seed.
    interval: None | Interval

    #: 95 % interval of the interquartile mean; None for a single seed.
    iqm_interval: None | Interval


def summarize(scores: Sequence[float]) -> Summary:
    """Statistics of the scores of one recipe, one a seed."""
    values = np.asarray(scores, np.float64)
    mean, std = float(values.mean()), float(values.std())
    if len(values) < 2:
        return Summary(len(values), mean, std, mean, None, None)
    intervals = [stratified_interval([values], statistic) for statistic in (_mean, iqm)]
    return Summary(len(values), mean, std, float(iqm(values)), *intervals)


def stratified_interval(strata: Sequence[Any], statistic: Any) -> Interval:
    """95 % percentile interval of a statistic by the stratified bootstrap.

    Seeds are drawn with replacement within each stratum, which is a recipe.

    Args:
        strata: Scores `[seeds]` of each recipe.
        statistic: Function of scores `[…, n]` over the last axis.

    Raises:
        EverstepError: If SciPy is not installed.

    """
    scipy = require_scipy()

    def pooled(*resampled: Any, axis: int = -1) -> Any:
        return statistic(np.concatenate(resampled, axis=-1))

    found = scipy.bootstrap(
        [np.asarray(scores, np.float64) for scores in strata],
        pooled,
        n_resamples=RESAMPLES,
        vectorized=True,
        paired=False,
        method="percentile",
        rng=np.random.default_rng(0),
    ).confidence_interval
    return float(found.low), float(found.high)


def _mean(values: Any) -> Any:
    return np.mean(values, axis=-1)


def iqm(values: Any) -> Any:
    """Mean of the middle half over the last axis."""
    return require_scipy().trim_mean(values, 0.25, axis=-1)


def verdict(interval: Interval, mean: float, std: None | float) -> Verdict:
    """How our mean stands to a published one, by our interval and mean ± std of theirs.

    `above` if our interval lies above mean + std, `below` if it lies below mean − std, else
    `within`. A published mean without a standard deviation is an interval of one point.
    """
    low, high = interval
    spread = std or 0.0
    if low > mean + spread:
        return "above"
    return "below" if high < mean - spread else "within"


def improvement(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Probability that a run of ours has a higher score than one of theirs; ties count half."""
    pairs = len(ours) * len(theirs)
    return float(require_scipy().mannwhitneyu(ours, theirs).statistic) / pairs


def performance_profile(scores: Sequence[float], levels: Sequence[float]) -> list[float]:
    """Fraction of runs with a score above each level."""
    values = np.asarray(scores, np.float64)
    return [float((values > level).mean()) for level in levels]


def require_scipy() -> Any:
    """`scipy.stats`.

    Raises:
        EverstepError: If it is not installed.

    """
    try:
        from scipy import stats
    except ImportError:
        raise EverstepError(
            "Intervals are computed with SciPy, which is not installed: "
            f"{install_command('results')}"
        ) from None
    return stats
