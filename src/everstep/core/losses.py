"""Per-row losses, `[B, 1]` or `[B, K]`, and the weighted sum that turns rows into a loss."""

from typing import Any, Literal

import torch
from torch.autograd.function import once_differentiable

from ..errors import ConfigError


def check_terms(terms: Any, whose: str) -> None:
    """Check terms of a loss, which has their sum as `total`.

    Args:
        terms: Terms by name, 0-d each.
        whose: Who returned them, for errors.

    Raises:
        ConfigError: If they are no mapping of tensors of one number, or `total` is missing.

    """
    if not isinstance(terms, dict) or "total" not in terms:
        found = f"the keys {sorted(map(str, terms))}" if isinstance(terms, dict) else repr(terms)
        raise ConfigError(
            f"{whose} must return a dict of terms of the loss with their sum as 'total'; got "
            f"{found[:200]}."
        )
    for name, term in terms.items():
        if not isinstance(term, torch.Tensor) or term.numel() != 1:
            got = f"the shape {list(term.shape)}" if hasattr(term, "shape") else repr(term)
            raise ConfigError(
                f"{whose}: `{name}` must be a tensor of one number, such as "
                f"`weighted_sum(rows, minibatch.weight)`; got {got}."
            )


def with_term(
    terms: dict[str, torch.Tensor], name: str, loss: torch.Tensor, whose: str
) -> dict[str, torch.Tensor]:
    """The terms of a loss with one more, also in their sum.

    Args:
        terms: Terms by name, 0-d each, with their sum as `total`.
        name: Name of the further term.
        loss: The term.
        whose: What adds it, for errors.

    Raises:
        ConfigError: If there is a term of that name.

    """
    if name in terms:
        raise ConfigError(
            f"{whose}: the loss has a term `{name}` already, which would be lost among the "
            f"statistics; its terms are {', '.join(terms)}. Choose another `name`."
        )
    return {**terms, name: loss, "total": terms["total"] + loss}


def weighted_sum(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Σ x·weight over all rows, a scalar.

    Args:
        x: Per-row terms, `[B, K]`.
        weight: Each row's share, `[B, 1]`; sums to 1 over what one optimizer step sees.

    Raises:
        ConfigError: If the terms have another shape: `[B]` times `[B, 1]` would be `[B, B]`.

    """
    if x.ndim != 2 or len(x) != len(weight):
        raise ConfigError(
            f"Terms of the rows of a loss must have the shape [{len(weight)}, K]; got "
            f"{list(x.shape)}. Keep the last dimension: `unsqueeze(-1)`."
        )
    return (x * weight).sum()


def clipped_surrogate(
    ratio: torch.Tensor,
    advantages: torch.Tensor,
    *,
    clip_param: float | torch.Tensor,
    dual_clip_param: None | float = None,
) -> torch.Tensor:
    """min(ρA, clip(ρ, 1−ε, 1+ε)A), `[B, 1]`, to be maximised.

    With `dual_clip_param` c it is at least cA where A is negative.

    Args:
        ratio: ρ, probability of the action now over probability when it was taken, `[B, 1]`.
        advantages: A, `[B, 1]`.
        clip_param: ε, a number or 0-d.
        dual_clip_param: c, above 1.

    Source: arXiv 1707.06347, eq. 7; arXiv 1912.09729, eq. 5.

    """
    bound = None if dual_clip_param is None else float(dual_clip_param)
    clip = clip_param if isinstance(clip_param, torch.Tensor) else float(clip_param)
    found: torch.Tensor = _ClippedSurrogate.apply(  # type: ignore[no-untyped-call]
        ratio, advantages, clip, bound
    )
    return found


def clipped_surrogate_and_derivative(
    ratio: torch.Tensor,
    advantages: torch.Tensor,
    clip_param: float | torch.Tensor,
    dual_clip_param: None | float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`clipped_surrogate` and its derivative by ρ, A where nothing is clipped, else 0; `[B, 1]`."""
    plain = ratio * advantages
    bounds: Any = (1 - clip_param, 1 + clip_param)  # both numbers, or both tensors
    clipped = ratio.clamp(*bounds) * advantages
    is_clipped = plain > clipped  # false for NaN, which must reach the gradient
    surrogate = torch.min(plain, clipped)
    if dual_clip_param is not None:
        least = dual_clip_param * advantages
        is_bounded = (advantages < 0) & (surrogate < least)
        surrogate = torch.where(is_bounded, least, surrogate)
        is_clipped |= is_bounded
    return surrogate, advantages.masked_fill(is_clipped, 0.0)


class _ClippedSurrogate(torch.autograd.Function):
    """`clipped_surrogate`, with its derivative."""

    @staticmethod
    def forward(
        ctx: Any,
        ratio: torch.Tensor,
        advantages: torch.Tensor,
        clip: float | torch.Tensor,
        bound: None | float,
    ) -> torch.Tensor:
        surrogate, derivative = clipped_surrogate_and_derivative(ratio, advantages, clip, bound)
        ctx.save_for_backward(derivative)
        return surrogate

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        (derivative,) = ctx.saved_tensors
        return gradient * derivative, None, None, None


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
    clip = None if vf_clip_param is None else float(vf_clip_param)
    found: torch.Tensor = _ValueErrors.apply(  # type: ignore[no-untyped-call]
        values, returns, previous, kind, clip
    )
    return found


def value_errors_and_derivative(
    values: torch.Tensor,
    returns: torch.Tensor,
    previous: torch.Tensor,
    kind: str,
    vf_clip_param: None | float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`value_errors`, and their derivative by the values: 0 where clipping makes the loss larger;
    `[B, K]`.
    """
    difference = values - returns
    derivative = difference if kind == "mse" else difference.clamp(-1.0, 1.0)
    distance = difference.abs()
    if vf_clip_param is not None:
        moved = values - previous
        # 0 where values are near enough: no other row is then further off by rounding.
        beyond = moved - moved.clamp(-vf_clip_param, vf_clip_param)
        clipped = (difference - beyond).abs_()
        derivative.masked_fill_(clipped > distance, 0.0)
        distance = torch.max(distance, clipped)
    return _errors(distance, kind), derivative


class _ValueErrors(torch.autograd.Function):
    """`value_errors`, with their derivative."""

    @staticmethod
    def forward(
        ctx: Any,
        values: torch.Tensor,
        returns: torch.Tensor,
        previous: torch.Tensor,
        kind: str,
        clip: None | float,
    ) -> torch.Tensor:
        errors, derivative = value_errors_and_derivative(values, returns, previous, kind, clip)
        ctx.save_for_backward(derivative)
        return errors

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None, None, None]:
        (derivative,) = ctx.saved_tensors
        return gradient * derivative, None, None, None, None


def _errors(distance: torch.Tensor, kind: str) -> torch.Tensor:
    """Half the square of a distance, or Huber's function of it with threshold 1."""
    near = distance if kind == "mse" else distance.clamp(max=1.0)
    return torch.sub(distance, near, alpha=0.5).mul_(near)


def approximate_kl(log_ratio: torch.Tensor) -> torch.Tensor:
    """ρ − 1 − log ρ, `[B, 1]`: an unbiased, non-negative estimate of the KL divergence.

    Args:
        log_ratio: log ρ of the sampled actions, `[B, 1]`.

    Source: http://joschu.net/blog/kl-approx.html (k3).

    """
    return log_ratio.expm1() - log_ratio
