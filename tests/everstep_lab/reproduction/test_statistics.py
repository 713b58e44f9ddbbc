"""Statistics over seeds: laws, numbers that were computed by hand, and the rule of verdicts."""

import numpy as np
import pytest

from everstep_lab.reproduction import improvement, performance_profile, summarize, verdict
from everstep_lab.reproduction._statistics import iqm, stratified_interval

pytest.importorskip("scipy")


def test_numbers_by_hand() -> None:
    found = summarize([1.0, 2.0, 3.0, 10.0])
    assert (found.count, found.mean, found.iqm) == (4, 4.0, 2.5)
    assert found.std == pytest.approx(np.sqrt(12.5))
    assert summarize([7.0]).interval is None


def test_intervals_hold_the_statistic_and_move_with_the_scores() -> None:
    scores = [3.0, 5.0, 4.0, 8.0, 1.0]
    first, shifted = summarize(scores), summarize([x + 100 for x in scores])
    assert first.interval is not None
    assert shifted.interval is not None
    low, high = first.interval
    assert min(scores) <= low < first.mean < high <= max(scores)
    assert shifted.interval == pytest.approx((low + 100, high + 100))
    assert summarize([2.0, 2.0, 2.0]).interval == (2.0, 2.0)


def test_the_interval_of_a_mean_covers_as_often_as_it_says() -> None:
    """About 95 of 100, a little less for the percentile bootstrap of 20 values."""
    generator = np.random.default_rng(1)
    hits = 0
    for _ in range(100):
        low, high = stratified_interval([generator.normal(size=20)], lambda x: np.mean(x, -1))
        hits += low < 0 < high
    assert 85 <= hits <= 99


def test_strata_are_resampled_apart() -> None:
    """Two recipes without any spread have none together; pooled they would have one."""
    strata = [np.zeros(5), np.full(5, 10.0)]
    assert stratified_interval(strata, lambda x: np.mean(x, -1)) == (5.0, 5.0)
    low, high = stratified_interval([np.concatenate(strata)], lambda x: np.mean(x, -1))
    assert low < 5.0 < high


def test_the_interquartile_mean_ignores_outliers() -> None:
    assert iqm(np.array([1.0, 2.0, 3.0, 4.0])) == iqm(np.array([-1e9, 2.0, 3.0, 1e9]))


@pytest.mark.parametrize(
    ("interval", "mean", "std", "expected"),
    [
        ((10.0, 12.0), 8.0, 1.0, "above"),
        ((9.0, 12.0), 8.0, 1.0, "within"),  # touches mean + std
        ((5.0, 7.0), 8.0, 1.0, "within"),
        ((5.0, 6.9), 8.0, 1.0, "below"),
        ((7.0, 9.0), 8.0, None, "within"),
        ((8.1, 9.0), 8.0, None, "above"),
        ((-200.0, -180.0), -160.0, 10.0, "below"),
    ],
)
def test_verdicts(interval: tuple[float, float], mean: float, std: float, expected: str) -> None:
    assert verdict(interval, mean, std) == expected


def test_probability_of_improvement() -> None:
    assert improvement([2.0, 3.0], [0.0, 1.0]) == 1.0
    assert improvement([1.0, 2.0], [1.0, 2.0]) == 0.5
    ours, theirs = [1.0, 4.0, 6.0], [2.0, 5.0]
    assert improvement(ours, theirs) == pytest.approx(3 / 6)
    assert improvement(ours, theirs) + improvement(theirs, ours) == 1.0


def test_a_performance_profile_falls_from_one_to_zero() -> None:
    found = performance_profile([0.1, 0.5, 0.9], [0.0, 0.2, 0.5, 1.0])
    assert found == [1.0, 2 / 3, 1 / 3, 0.0]
