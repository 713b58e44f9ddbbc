"""Per-row losses, `[B, 1]` or `[B, K]`, and the weighted sum that turns rows into a loss."""

from typing import Literal

import torch
import torch.nn.functional as F


def weighted_sum(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Σ x·weight over all rows, a scalar.

    Args:
        x: Per-row terms, `[B, K]`.
        weight: Each row's share, `[B, 1]`; sums to 1 over what one optimizer step sees.

    """
    return (x * weight).sum()


def clipped_surrogate(
    ratio: torch.Tensor,
    advantages: torch.Tensor,
    *,
    clip_param: float,
    dual_clip_param: None | float = None,
) -> torch.Tensor:
    """min(ρA, clip(ρ, 1−ε, 1+ε)A), `[B, 1]`, to be maximised.

    With `dual_clip_param` c it is at least cA where A is negative.

    Args:
        ratio: ρ, probability of the action now over probability when it was taken, `[B, 1]`.
        advantages: A, `[B, 1]`.
        clip_param: ε.
        dual_clip_param: c, above 1.

    Source: arXiv 1707.06347, eq. 7; arXiv 1912.09729, eq. 5.

    """
    clipped = ratio.clamp(1 - clip_param, 1 + clip_param)
    surrogate = torch.min(ratio * advantages, clipped * advantages)
    if dual_clip_param is None:
        return surrogate
    bounded = torch.max(surrogate, dual_clip_param * advantages)
    return torch.where(advantages < 0, bounded, surrogate)


def value_errors(
    values: torch.Tensor,
    returns: torch.Tensor,
    previous: torch.Tensor,
    *,
    kind: Literal["smooth_l1", "mse"],
    vf_clip_param: None | float = None,
) -> torch.Tensor:
    """Per-row value loss `[B, K]`.

    With `vf_clip_param` c it is the larger of the losses of `values` and of `values` kept within
    c of `previous`: moving further from the previous estimate is not rewarded.

    Args:
        values: Estimates now, `[B, K]`.
        returns: Targets, `[B, K]`.
        previous: Estimates when the rollout was collected, `[B, K]`.
        kind: Huber's loss with threshold 1, or half the squared error.
        vf_clip_param: c.

    Source: arXiv 2005.12729, section 3 ("value function clipping").

    """
    errors = _errors(values, returns, kind)
    if vf_clip_param is None:
        return errors
    near = previous + (values - previous).clamp(-vf_clip_param, vf_clip_param)
    return torch.max(errors, _errors(near, returns, kind))


def _errors(values: torch.Tensor, returns: torch.Tensor, kind: str) -> torch.Tensor:
    if kind == "mse":
        return 0.5 * (values - returns).square()
    return F.smooth_l1_loss(values, returns, reduction="none")


def approximate_kl(log_ratio: torch.Tensor) -> torch.Tensor:
    """ρ − 1 − log ρ, `[B, 1]`: an unbiased, non-negative estimate of the KL divergence.

    Args:
        log_ratio: log ρ of the sampled actions, `[B, 1]`.

    Source: http://joschu.net/blog/kl-approx.html (k3).

    """
    return log_ratio.expm1() - log_ratio
