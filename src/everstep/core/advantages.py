"""Advantages, bootstraps and return filters, time-major: `[T, N, K]`, one column K per stream."""

import torch

from .ranks import Measured, Moments


def bootstrap_values(
    next_values: torch.Tensor,
    terminated: torch.Tensor,
    final: torch.Tensor,
    final_values: torch.Tensor,
) -> torch.Tensor:
    """Bootstrap value of each row, `[T, N, K]`.

    0 after a termination, V(final_obs) where `final`, V(obs_{t+1}) otherwise.

    Args:
        next_values: V(obs_{t+1}), `[T, N, K]`.
        terminated: Rows whose episode terminated, bool `[T, N, 1]`; overrides `final`.
        final: Rows whose final observation is not `obs_{t+1}`, bool `[T, N, 1]`.
        final_values: V(final_obs) where `final`, any values elsewhere, `[T, N, K]`.

    """
    return torch.where(final, final_values, next_values).masked_fill(terminated, 0.0)


def values_beyond(values: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
    """Value of the next observation that is acted on, `[T, N, K]`, across ends of episodes.

    Non-episodic streams bootstrap from it.

    Args:
        values: V(obs_t), the last one included, `[T + 1, N, K]`.
        valid: Rows that are results of the policy's actions, bool `[T, N, 1]`.

    """
    acted_on = torch.where(valid, values[:-1], 0.0)
    passed_on = (~valid).to(values.dtype)
    following = recurrence(
        torch.cat([acted_on, values[-1:]]).flip(0),
        torch.cat([passed_on, torch.zeros_like(passed_on[:1])]).flip(0),
    )
    return following.flip(0)[1:]


def gae(
    rewards: torch.Tensor,
    values: torch.Tensor,
    next_values: torch.Tensor,
    done: torch.Tensor,
    *,
    gamma: float | torch.Tensor,
    gae_lambda: float | torch.Tensor,
    known: None | torch.Tensor = None,
    passed: None | torch.Tensor = None,
) -> torch.Tensor:
    """Generalised advantage estimates `[T, N, K]`.

        δ_t = r_t + γ·next_v_t − v_t        A_t = δ_t + (0 if done_t else γλ·A_{t+1})

    Cut by selection, not by multiplication, because values beyond a boundary may be NaN.

    Args:
        rewards: r_t, `[T, N, K]`.
        values: V(obs_t), `[T, N, K]`.
        next_values: Bootstrap value of each row, `[T, N, K]`; see `bootstrap_values`.
        done: Rows that end an episode, bool `[T, N, K]` or `[T, N, 1]`.
        gamma: Discount, a number or a tensor that broadcasts to `[T, N, K]`.
        gae_lambda: λ, likewise.
        known: Rows whose δ is known, bool; where False it counts as 0.
        passed: Rows to skip, bool: their advantage is the next row's.

    Source: arXiv 1506.02438, eq. 16.

    """
    deltas = rewards + gamma * next_values - values
    if known is not None:
        deltas = torch.where(known, deltas, 0.0)
    trace = gamma * gae_lambda
    if not isinstance(trace, torch.Tensor):
        trace = rewards.new_full((), trace)  # a fill; copying a number would synchronise
    trace = trace.to(rewards.dtype)
    if passed is not None:
        deltas, trace = torch.where(passed, 0.0, deltas), torch.where(passed, 1.0, trace)
    trace = trace.expand_as(rewards).masked_fill(done, 0.0)
    return recurrence(deltas.flip(0), trace.flip(0)).flip(0)


def recurrence(x: torch.Tensor, decay: torch.Tensor) -> torch.Tensor:
    """y_t = x_t + decay_t·y_{t−1} along the first dimension, with y_{−1} = 0.

    In log₂ T rounds of a few operations, each of which doubles the number of rows in every sum. If
    `decay` is 0, earlier rows are ignored, even NaN.

    Args:
        x: `[T, …]`.
        decay: The same shape.

    Source: W. D. Hillis and G. L. Steele, "Data parallel algorithms", 1986.

    """
    y, reach = x.clone(), decay.clone()
    distance = 1
    while distance < len(x):
        later, still = y[distance:], reach[distance:]
        extended = torch.addcmul(later, still, y[:-distance])
        later.copy_(torch.where(still == 0, later, extended))
        if 2 * distance < len(x):  # not needed in the last round
            still.copy_(still * reach[:-distance])
        distance *= 2
    return y


def reversed_discounted_returns(
    rewards: torch.Tensor, initial: torch.Tensor, done: torch.Tensor, *, gamma: float
) -> torch.Tensor:
    """Discounted sums of past rewards, `[T, N, 1]`: R_t = r_t + γ·(0 if done_{t−1} else R_{t−1}).

    Args:
        rewards: r_t, `[T, N, 1]`.
        initial: R before the first row, already 0 where an episode starts there, `[N, 1]`.
        done: Rows that end an episode, bool `[T, N, 1]`.
        gamma: Discount.

    Source: arXiv 2005.12729, section 3 ("reward scaling").

    """
    decay = torch.full_like(rewards, gamma)
    decay[1:].masked_fill_(done[:-1], 0.0)
    first = torch.add(rewards[:1], initial, alpha=gamma)
    return recurrence(torch.cat([first, rewards[1:]]), decay)


def masked_moments(
    x: torch.Tensor, mask: torch.Tensor, dim: tuple[int, ...] = ()
) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and unbiased standard deviation of `x` where `mask`; 0 if there are too few rows.

    Args:
        x: Values, any shape.
        mask: True where a value counts, bool, broadcastable to `x`.
        dim: Dimensions that they are of, which the results have as 1; () for all, and 0-d results.

    """
    moments = moments_of(x, mask, dim)
    return moments[1].to(x.dtype), deviation(moments).to(x.dtype)


def moments_of(x: torch.Tensor, mask: torch.Tensor, dim: tuple[int, ...] = ()) -> Moments:
    """Count, mean and sum of squared distances from it; see `masked_moments`.

    In float64: squares of float32 are infinite from 2**64 on, and 0 below 2**-74.
    """
    x, mask, kept = x.double(), mask.expand_as(x), bool(dim)
    count = mask.sum(dim, keepdim=kept)
    mean = torch.where(mask, x, 0.0).sum(dim, keepdim=kept) / count.clamp(min=1)
    return count, mean, torch.where(mask, x - mean, 0.0).square().sum(dim, keepdim=kept)


def variance(moments: Moments) -> torch.Tensor:
    """Unbiased variance; 0 if there are too few rows."""
    count, _, squares = moments
    return squares / (count - 1).clamp(min=1)


def deviation(moments: Moments) -> torch.Tensor:
    """Unbiased standard deviation; 0 if there are too few rows."""
    return variance(moments).sqrt()


def standardize(x: torch.Tensor, mask: torch.Tensor, dim: tuple[int, ...] = ()) -> torch.Tensor:
    """`x` centred and scaled to unit deviation over `mask`; 0 elsewhere.

    If the deviation vanishes (fewer than two rows, or rows that are equal up to rounding), `x` is
    centred only, because division would amplify rounding errors.

    Args:
        x: Values, any shape.
        mask: True where a value counts, bool, broadcastable to `x`.
        dim: Dimensions that are standardised together; () for all.

    """
    return standardize_by(x, mask, moments_of(x, mask, dim), largest_of(x, mask, dim))


def standardize_by(
    x: torch.Tensor, mask: torch.Tensor, moments: Moments, largest: torch.Tensor
) -> torch.Tensor:
    """`standardize` over rows with these moments and this largest magnitude."""
    mean, scale = scale_of(moments, largest)
    return torch.where(mask, x - mean, 0.0) / scale


def centre_and_scale(
    x: torch.Tensor, mask: torch.Tensor, dim: tuple[int, ...] = ()
) -> tuple[torch.Tensor, torch.Tensor]:
    """The mean that `standardize` subtracts, and the divisor that it scales by."""
    return scale_of(moments_of(x, mask, dim), largest_of(x, mask, dim))


def scale_of(moments: Moments, largest: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """`centre_and_scale` of rows with these moments and this largest magnitude, in its dtype."""
    std = deviation(moments).to(largest.dtype)
    return moments[1].to(largest.dtype), torch.where(vanishes(std, largest), 1.0, std + 1e-8)


def largest_of(x: torch.Tensor, mask: torch.Tensor, dim: tuple[int, ...] = ()) -> torch.Tensor:
    """Largest magnitude of `x` where `mask`."""
    return torch.where(mask, x, 0.0).abs().amax(dim, keepdim=bool(dim))


def measured_rows(x: torch.Tensor, mask: torch.Tensor) -> Measured:
    """Moments, and the largest magnitude, of each row of `[M, B]` where `mask`, `[M]` each."""
    count, mean, squares = (y.squeeze(1) for y in moments_of(x, mask, (1,)))
    return (count, mean, squares), largest_of(x, mask, (1,)).squeeze(1)


def vanishes(std: torch.Tensor, largest: torch.Tensor) -> torch.Tensor:
    """Whether a deviation is the rounding error of equal numbers, 0-d bool.

    Args:
        std: Standard deviation, 0-d.
        largest: Largest magnitude of the numbers, 0-d.

    """
    return std <= 8 * torch.finfo(std.dtype).eps * largest
