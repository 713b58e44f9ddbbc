"""Losses: laws and hand-computed numbers."""

import math

import pytest
import torch

from everstep.losses import approximate_kl, clipped_surrogate, value_errors, weighted_sum

pytestmark = pytest.mark.usefixtures("float64")


def column(*values: float) -> torch.Tensor:
    return torch.tensor(values).unsqueeze(-1)


def test_surrogate_is_the_advantage_where_nothing_changed() -> None:
    advantages = torch.randn(7, 1)
    found = clipped_surrogate(torch.ones(7, 1), advantages, clip_param=0.2)
    torch.testing.assert_close(found, advantages, rtol=0, atol=0)


def test_surrogate_by_hand() -> None:
    ratio, advantages = column(1.5, 1.5, 0.5, 0.5), column(2.0, -2.0, 2.0, -2.0)
    found = clipped_surrogate(ratio, advantages, clip_param=0.2)
    torch.testing.assert_close(found, column(2.4, -3.0, 1.0, -1.6))


def test_dual_clip_bounds_only_negative_advantages() -> None:
    ratio, advantages = column(10.0, 10.0), column(1.0, -1.0)
    found = clipped_surrogate(ratio, advantages, clip_param=0.2, dual_clip_param=3.0)
    torch.testing.assert_close(found, column(1.2, -3.0))


def test_clipped_rows_have_no_gradient() -> None:
    ratio = column(1.5, 0.5).requires_grad_()
    clipped_surrogate(ratio, column(1.0, -1.0), clip_param=0.2).sum().backward()
    assert ratio.grad is not None
    assert ratio.grad.abs().max() == 0


def test_value_errors_by_hand() -> None:
    values, returns, previous = column(0.5, 3.0), column(0.0, 0.0), column(0.5, 0.0)
    mse = value_errors(values, returns, previous, kind="mse")
    torch.testing.assert_close(mse, column(0.125, 4.5))
    huber = value_errors(values, returns, previous, kind="smooth_l1")
    torch.testing.assert_close(huber, column(0.125, 2.5))


def test_value_clipping_keeps_to_the_previous_value() -> None:
    # The value moved from 3 towards its target 0, beyond the allowed distance: the loss is that
    # of the nearest allowed value, and moving further earns nothing.
    values = column(1.0).requires_grad_()
    loss = value_errors(values, column(0.0), column(3.0), kind="mse", vf_clip_param=0.5)
    torch.testing.assert_close(loss, column(0.5 * 2.5**2))
    loss.sum().backward()
    assert values.grad is not None
    assert values.grad.item() == 0


def test_value_clipping_never_hides_an_error() -> None:
    # Far from the target, and moved away from it: the full gradient stays.
    values = column(20.0).requires_grad_()
    value_errors(values, column(0.0), column(5.0), kind="mse", vf_clip_param=1.0).sum().backward()
    assert values.grad is not None
    assert values.grad.item() == 20


@pytest.mark.parametrize("kind", ["mse", "smooth_l1"])
def test_wide_value_clipping_is_none(kind: str) -> None:
    values, returns, previous = torch.randn(3, 50, 2).unbind(0)
    clipped = value_errors(values, returns, previous, kind=kind, vf_clip_param=1e9)
    torch.testing.assert_close(clipped, value_errors(values, returns, previous, kind=kind))


def test_kl_estimate_is_zero_at_no_change_and_never_negative() -> None:
    assert approximate_kl(torch.zeros(3, 1)).abs().max() == 0
    assert approximate_kl(torch.linspace(-3, 3, 99)).min() >= 0
    assert approximate_kl(torch.tensor(1.0)).item() == pytest.approx(math.e - 2)


def test_weighted_sum_is_a_mean_under_equal_weights() -> None:
    x = torch.randn(10, 1)
    assert weighted_sum(x, torch.full((10, 1), 0.1)).item() == pytest.approx(x.mean().item())
