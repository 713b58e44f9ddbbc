"""Means of metrics, against means computed by hand."""

import math

import numpy as np
import pytest
import torch

from everstep_adapters.common.metrics import TensorMean

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("steps", "mean"),
    [
        ([[1.0, 2.0, 3.0]], 2.0),
        ([[1.0, NAN, 4.0]], 2.5),
        ([[1.0, INF, -INF]], 1.0),
        ([[1.0, NAN, NAN], [NAN, 3.0, 8.0]], 4.0),
        ([[True, False, False]], 1 / 3),
        ([[2, 4, 9]], 5.0),
    ],
)
def test_a_mean_is_of_rows_with_a_number(steps: list[list[float]], mean: float) -> None:
    for convert in (torch.tensor, np.array):
        found = TensorMean(3, torch.device("cpu"))
        for step in steps:
            found.add(convert(step))
        assert float(found.pop()) == mean
        assert math.isnan(found.pop())  # it begins anew


def test_rows_count_by_their_flags_and_weights() -> None:
    found = TensorMean(3, torch.device("cpu"))
    valid = torch.tensor([True, True, False])
    found.add(torch.tensor([1.0, NAN, 100.0]), valid)
    found.add(torch.tensor([4.0, 6.0, NAN]), valid, torch.tensor([3.0, 0.0, 1.0]))
    assert float(found.pop()) == (1 + 3 * 4) / 4
    found.add(torch.tensor([NAN, INF, 7.0]), valid)
    assert math.isnan(found.pop())


def test_what_is_no_number_a_row_is_left_out() -> None:
    found = TensorMean(3, torch.device("cpu"))
    for value in ("text", None, torch.ones(2), np.array(["a", "b", "c"]), {"a": 1}):
        found.add(value)
    assert math.isnan(found.pop())
