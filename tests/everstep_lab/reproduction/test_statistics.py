"""Statistics over seeds: laws, numbers that were computed by hand, and the rule of verdicts."""

from typing import Any

import numpy as np
import pytest

from everstep_lab.reproduction import improvement, performance_profile, summarize, verdict
from everstep_lab.reproduction._statistics import (
    Summary,
    iqm,
    margin_of,
    stratified_interval,
)

pytest.importorskip("scipy")


def test_numbers_by_hand() -> None:
    found = summarize([1.0, 2.0, 3.0, 10.0])
    assert (found.count, found.mean, found.iqm) == (4, 4.0, 2.5)
    assert found.std == pytest.approx(np.sqrt(50 / 3))
    assert summarize([7.0]).interval is None


def test_intervals_hold_the_statistic_and_move_with_the_scores() -> None:
    scores = [3.0, 5.0, 4.0, 8.0, 1.0]
    first, shifted = summarize(scores), summarize([x + 100 for x in scores])
    assert first.interval is not None
    assert shifted.interval is not None
    low, high = first.interval
    assert low < first.mean < high
    assert shifted.interval == pytest.approx((low + 100, high + 100))
    assert summarize([2.0, 2.0, 2.0]).interval == (2.0, 2.0)


@pytest.mark.long
@pytest.mark.parametrize(("recipes", "seeds"), [(6, 5), (12, 5), (20, 5)])
@pytest.mark.parametrize("is_skewed", [False, True])
def test_the_interval_of_all_recipes_covers_as_often_as_it_says(
    recipes: int, seeds: int, is_skewed: bool
) -> None:
    """Recipes differ in their means and in how much their seeds differ."""
    generator = np.random.default_rng(recipes + seeds)
    means, spreads = np.linspace(0.6, 1.2, recipes), np.linspace(0.02, 0.3, recipes)

    def draw(count: int) -> list[Any]:
        shape = (recipes, count)
        drawn = 1 - generator.exponential(size=shape) if is_skewed else generator.normal(size=shape)
        return list(means[:, None] + spreads[:, None] * drawn)

    true = float(iqm(np.concatenate(draw(100_000))))
    found = [stratified_interval(draw(seeds), iqm) for _ in range(400)]
    assert 0.91 <= np.mean([low <= true <= high for low, high in found]) <= 0.98


def test_strata_are_resampled_apart() -> None:
    """Two recipes without any spread have none together; pooled they would have one."""
    strata = [np.zeros(5), np.full(5, 10.0)]
    assert stratified_interval(strata, lambda x: np.mean(x, -1)) == (5.0, 5.0)
    low, high = stratified_interval([np.concatenate(strata)], lambda x: np.mean(x, -1))
    assert low < 5.0 < high


def test_the_interquartile_mean_ignores_outliers() -> None:
    assert iqm(np.array([1.0, 2.0, 3.0, 4.0])) == iqm(np.array([-1e9, 2.0, 3.0, 1e9]))


@pytest.mark.parametrize(
    ("interval", "mean", "margin", "expected"),
    [
        ((10.0, 12.0), 8.0, 1.0, "above"),
        ((9.0, 12.0), 8.0, 1.0, "undecided"),  # touches mean + margin
        ((7.0, 9.0), 8.0, 1.0, "within"),
        ((6.9, 9.0), 8.0, 1.0, "undecided"),
        ((0.0, 20.0), 8.0, 1.0, "undecided"),
        ((5.0, 7.0), 8.0, 1.0, "undecided"),
        ((5.0, 6.9), 8.0, 1.0, "below"),
        ((8.0, 8.0), 8.0, 0.0, "within"),
        ((-200.0, -180.0), -160.0, 10.0, "below"),
    ],
)
def test_verdicts(interval: tuple[float, float], mean: float, margin: float, expected: str) -> None:
    assert verdict(Summary(5, 0.0, 0.0, 0.0, interval), mean, margin) == expected
    assert verdict(Summary(4, 0.0, 0.0, 0.0, interval), mean, margin) == "too few seeds"


def test_the_margin_is_the_published_deviation_or_a_share_of_the_way() -> None:
    assert margin_of(500.0, 30.0, first=20.0) == 30.0
    assert margin_of(500.0, 0.0, first=20.0) == margin_of(500.0, None, first=20.0) == 24.0
    assert margin_of(-160.0, None, first=-1200.0) == 52.0


def test_probability_of_improvement() -> None:
    assert improvement([2.0, 3.0], [0.0, 1.0]) == 1.0
    assert improvement([1.0, 2.0], [1.0, 2.0]) == 0.5
    ours, theirs = [1.0, 4.0, 6.0], [2.0, 5.0]
    assert improvement(ours, theirs) == pytest.approx(3 / 6)
    assert improvement(ours, theirs) + improvement(theirs, ours) == 1.0


def test_a_performance_profile_falls_from_one_to_zero() -> None:
    found = performance_profile([0.1, 0.5, 0.9], [0.0, 0.2, 0.5, 1.0])
    assert found == [1.0, 2 / 3, 1 / 3, 0.0]
