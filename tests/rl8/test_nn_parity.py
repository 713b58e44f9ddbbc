"""The same answers as rl8 1.0.0's `nn`, in float64, and the same names of parameters.

The answers were recorded by `oracles/record_rl8_nn.py`, whose questions are asked here again.
"""

import functools
from pathlib import Path

import numpy as np
import pytest

from everstep import nn
from tests.rl8.oracles import record_rl8_nn as oracle

pytestmark = pytest.mark.usefixtures("float64")

RECORD = np.load(Path(__file__).parent / "oracles" / "rl8_nn.npz")


@functools.cache
def answers() -> dict[str, np.ndarray]:
    return oracle.answers(nn)


def test_everything_recorded_is_compared() -> None:
    assert set(answers()) == set(RECORD.files) - {"parameter_names"}


@pytest.mark.parametrize("name", [name for name in RECORD.files if name != "parameter_names"])
def test_the_same_answer(name: str) -> None:
    np.testing.assert_allclose(answers()[name], RECORD[name], rtol=0, atol=1e-9)


def test_state_dicts_of_rl8_fit() -> None:
    assert oracle.parameter_names(nn) == str(RECORD["parameter_names"]).splitlines()
