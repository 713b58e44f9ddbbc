"""Losses: laws and hand-computed numbers."""

import math

import pytest
import torch
import torch.nn.functional as F

from everstep.core.losses import approximate_kl, clipped_surrogate, value_errors, weighted_sum

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


def composed_surrogate(
    ratio: torch.Tensor, advantages: torch.Tensor, clip: float, bound: None | float
) -> torch.Tensor:
    """The clipped surrogate of PyTorch's own operations."""
    surrogate = torch.min(ratio * advantages, ratio.clamp(1 - clip, 1 + clip) * advantages)
    if bound is None:
        return surrogate
    return torch.where(advantages < 0, torch.max(surrogate, bound * advantages), surrogate)


@pytest.mark.parametrize("bound", [None, 3.0])
def test_the_surrogate_has_the_derivative_of_its_parts(bound: None | float) -> None:
    ratio = torch.cat([torch.rand(2000, 1) * 5, column(1.0, 0.8, 1.2)])
    advantages = torch.randn(len(ratio), 1)
    found, expected = ratio.clone().requires_grad_(), ratio.clone().requires_grad_()
    values = clipped_surrogate(found, advantages, clip_param=0.2, dual_clip_param=bound)
    parts = composed_surrogate(expected, advantages, 0.2, bound)
    torch.testing.assert_close(values, parts, rtol=0, atol=0)
    values.sum().backward()
    parts.sum().backward()
    torch.testing.assert_close(found.grad[:-2], expected.grad[:-2])


@pytest.mark.parametrize("clip", [None, 0.3])
@pytest.mark.parametrize("kind", ["mse", "smooth_l1"])
def test_value_errors_have_the_derivative_of_their_parts(kind: str, clip: None | float) -> None:
    values, returns, previous = (2 * torch.randn(2000, 2) for _ in range(3))
    previous[:5] = values[:5]

    def errors(x: torch.Tensor) -> torch.Tensor:
        if kind == "mse":
            return 0.5 * (x - returns) ** 2
        return F.smooth_l1_loss(x, returns, reduction="none")

    expected = values.clone().requires_grad_()
    parts = errors(expected)
    if clip is not None:
        parts = torch.max(parts, errors(previous + (expected - previous).clamp(-clip, clip)))
    found = values.clone().requires_grad_()
    whole = value_errors(found, returns, previous, kind=kind, vf_clip_param=clip)
    torch.testing.assert_close(whole, parts)
    whole.sum().backward()
    parts.sum().backward()
    torch.testing.assert_close(found.grad, expected.grad)


def test_nan_reaches_the_gradient() -> None:
    logp = column(torch.nan, 1.0).requires_grad_()
    clipped_surrogate(logp.exp(), column(1.0, 1.0), clip_param=0.2).sum().backward()
    values = column(torch.nan, 1.0).requires_grad_()
    zeros = torch.zeros(2, 1)
    value_errors(values, zeros, zeros, kind="mse", vf_clip_param=0.1).sum().backward()
    assert logp.grad.isnan().tolist() == values.grad.isnan().tolist() == [[True], [False]]
