"""Functions of batches: masks over sequences, skip connections, advantages and losses of PPO.

Masks are True or 1 for elements that count, False or 0 for elements that do not. A mask with fewer
dimensions than its tensor applies to all of the trailing dimensions.
"""

from typing import Protocol

import torch
from tensordict import TensorDict

from ..core.advantages import gae, standardize
from ..core.losses import clipped_surrogate, value_errors
from ..data import EPISODE_KEYS, DataKeys

#: Limits of PyTorch's default dtype, for masks in models; the functions here use the limits of
#: their arguments' dtypes.
FINFO = torch.finfo()

#: Kinds of skip connections.
SKIP_KINDS = ("residual", "cat", None)


class ActionDistribution(Protocol):
    """Interface of distributions for `ppo_losses`."""

    def logp(self, samples: torch.Tensor | TensorDict) -> torch.Tensor:
        """Log-probability of actions `[B, …]`, `[B, 1]`."""
        ...

    def entropy(self) -> torch.Tensor:
        """Entropy in nats, `[B, 1]`."""
        ...


def binary_mask_to_float_mask(mask: torch.Tensor, /) -> torch.Tensor:
    """0 where `mask` is True or 1, −inf where it is False or 0.

    Args:
        mask: Mask of any shape. The result has its dtype if that is floating-point, else the
            default dtype.

    """
    dtype = mask.dtype if mask.is_floating_point() else torch.get_default_dtype()
    return torch.zeros_like(mask, dtype=dtype).masked_fill(mask == 0, -torch.inf)


def float_mask_to_binary_mask(mask: torch.Tensor, /) -> torch.Tensor:
    """False where `mask` is −inf or the least finite number, True elsewhere; bool.

    Args:
        mask: Floating-point mask that is added to scores, any shape.

    Raises:
        TypeError: If the mask is not floating-point.

    """
    if not mask.is_floating_point():
        raise TypeError(
            f"A mask of 0 and -inf must be of floating point; got {mask.dtype}. "
            "A mask of True and False is binary already."
        )
    return mask > torch.finfo(mask.dtype).min


def mask_from_lengths(x: torch.Tensor, lengths: torch.Tensor, /) -> torch.Tensor:
    """True for the elements of sequences that are not padding, bool `[B, T]`.

    Args:
        x: Sequences `[B, T, …]`, padded at their ends.
        lengths: Elements of each, `[B]`.

    """
    positions = torch.arange(x.shape[1], device=x.device)
    return positions < lengths.to(x.device).reshape(-1, 1)


def masked_avg(
    x: torch.Tensor, /, *, mask: None | torch.Tensor = None, dim: int = 1, keepdim: bool = False
) -> torch.Tensor:
    """Average of `x` along `dim` over the elements that count; 0 if none does.

    Args:
        x: `[B, T, …]`. Elements that do not count may be NaN.
        mask: Elements that count, `[B, T]`; fractions are weights. None: all count.
        dim: Dimension to average.
        keepdim: Whether to keep the dimension, with size 1.

    """
    if mask is None:
        return x.mean(dim, keepdim=keepdim)
    weight = _aligned(mask, x).expand_as(x)
    wide = torch.promote_types(x.dtype, torch.float32)  # sums of half precision overflow
    total = (x.masked_fill(weight == 0, 0) * weight).sum(dim, keepdim=keepdim, dtype=wide)
    count = weight.sum(dim, keepdim=keepdim, dtype=wide)
    average = total / count.masked_fill(count == 0, 1)
    return average.to(torch.result_type(x, 1.0))


def masked_max(
    x: torch.Tensor, /, *, mask: None | torch.Tensor = None, dim: int = 1
) -> tuple[torch.Tensor, torch.Tensor]:
    """Largest elements of `x` along `dim` among those that count, and their indices.

    If none counts, the result is the lowest number of the dtype, at index 0.

    Args:
        x: `[B, T, …]`.
        mask: Elements that count, `[B, T]`. None: all count.
        dim: Dimension to search; both results keep it, with size 1.

    """
    if mask is not None:
        x = x.masked_fill(_aligned(mask, x) == 0, _least(x.dtype))
    indices = x.argmax(dim, keepdim=True)
    return x.gather(dim, indices), indices


def masked_log_softmax(
    x: torch.Tensor, /, *, mask: None | torch.Tensor = None, dim: int = -1
) -> torch.Tensor:
    """Log-probabilities along `dim`, finite everywhere.

    Elements that do not count have probability 0, up to rounding. If none counts, all are equally
    likely.

    Args:
        x: Scores `[B, T, …]`.
        mask: Elements that count, `[B, T]` or more; fractions are prior weights. None: all count.
        dim: Dimension that the probabilities sum to 1 over.

    """
    logp = _masked_scores(x, mask).log_softmax(dim)
    return logp if mask is None else logp.clamp(min=_least(logp.dtype))


def masked_categorical_sample(
    x: torch.Tensor, /, *, mask: None | torch.Tensor = None, dim: int = 1
) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores of options sampled from those that count, and the options, `[B, …, 1]`.

    The options are the last dimension of `x`, and `dim` is the dimension in which their scores are
    looked up: use `-1` if `x` has more than two dimensions.

    Args:
        x: Scores `[B, …, options]`, such as `masked_log_softmax` returns.
        mask: Elements that count, `[B, T]` or more; fractions are prior weights. None: all count.
        dim: Dimension of `x` that the sampled options index.

    """
    x = _masked_scores(x, mask)
    # Validating the scores would synchronise.
    options = torch.distributions.Categorical(logits=x, validate_args=False).sample().unsqueeze(-1)
    return x.gather(dim, options), options


def _masked_scores(x: torch.Tensor, mask: None | torch.Tensor) -> torch.Tensor:
    """Scores plus log mask; the lowest finite number where the mask is 0."""
    if mask is None:
        return x
    mask = _aligned(mask, x).to(x.dtype)
    excluded = mask == 0
    prior = mask.masked_fill(excluded, 1).log()
    return (x + prior).masked_fill(excluded, _least(x.dtype))


def _aligned(mask: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """`mask` with as many dimensions as `x`, by appending dimensions of size 1."""
    return mask.reshape(*mask.shape, *(1,) * (x.dim() - mask.dim()))


def _least(dtype: torch.dtype) -> float | int:
    return torch.finfo(dtype).min if dtype.is_floating_point else torch.iinfo(dtype).min


def skip_connection(
    x: torch.Tensor, y: torch.Tensor, /, *, kind: None | str = "cat", dim: int = -1
) -> torch.Tensor:
    """A module's output, connected with its input.

    Args:
        x: Input of a module.
        y: Output of the module, of the same shape.
        kind: `"residual"` for the sum, `"cat"` for the concatenation, None for `y` alone.
        dim: Dimension of the concatenation.

    Raises:
        ValueError: If the kind is unknown.

    """
    if kind == "residual":
        return x + y
    if kind == "cat":
        return torch.cat([x, y], dim)
    if kind is None:
        return y
    raise ValueError(f"`kind` must be one of {SKIP_KINDS}; got {kind!r}.")


@torch.no_grad()
def generalized_advantage_estimate(
    batch: TensorDict,
    /,
    *,
    gae_lambda: float = 0.95,
    gamma: float = 0.95,
    inplace: bool = False,
    normalize_advantages: bool = True,
    return_returns: bool = True,
    reward_scale: float = 1.0,
) -> TensorDict:
    """Advantages and returns, batch `[B, T + 1, …]`, of non-episodic sequences.

    The last row provides the bootstrap value: its advantage is 0 and its return that value. The
    estimates have no gradient, and rewards are not changed.

    Args:
        batch: Batch `[B, T + 1, …]` of `rewards` and `values`. The last row's reward is not read.
        gae_lambda: λ, from 0 (one env step, then the value) to 1 (all rewards to the end).
        gamma: Discount per env step.
        inplace: Whether to write the results to `batch` rather than to a new TensorDict.
        normalize_advantages: Whether to centre advantages and scale them to unit deviation; equal
            advantages are centred only. Returns are those of the raw advantages.
        return_returns: Whether to add the returns, advantage plus value.
        reward_scale: Divisor of the rewards.

    Raises:
        ValueError: If the batch has ends of episodes.

    Source: `everstep.core.advantages.gae`, which also handles ends of episodes.

    """
    ends = sorted(EPISODE_KEYS.intersection(batch.keys()))
    if ends:
        raise ValueError(
            f"`batch` must be non-episodic; it has {', '.join(ends)}. Use "
            "`everstep.core.advantages.gae` for rows with ends of episodes."
        )
    rewards, values = (batch[key].transpose(0, 1) for key in (DataKeys.REWARDS, DataKeys.VALUES))
    estimates = gae(
        rewards[:-1] / (reward_scale + 1e-8),
        values[:-1],
        values[1:],
        torch.zeros_like(rewards[:-1], dtype=torch.bool),
        gamma=gamma,
        gae_lambda=gae_lambda,
    )
    advantages = torch.zeros_like(values)
    advantages[:-1] = estimates
    returns = advantages + values
    if normalize_advantages:
        advantages[:-1] = standardize(estimates, torch.ones_like(estimates, dtype=torch.bool))
    out = batch if inplace else TensorDict({}, batch_size=batch.batch_size, device=batch.device)
    out[DataKeys.ADVANTAGES] = advantages.transpose(0, 1)
    if return_returns:
        out[DataKeys.RETURNS] = returns.transpose(0, 1)
    return out


def ppo_losses(
    buffer_batch: TensorDict,
    sample_batch: TensorDict,
    sample_distribution: ActionDistribution,
    /,
    *,
    clip_param: float = 0.2,
    dual_clip_param: None | float = 5.0,
    entropy_coeff: float = 0.0,
    vf_clip_param: None | float = 1.0,
    vf_coeff: float = 1.0,
) -> TensorDict:
    """Terms of the PPO loss, means over rows, 0-d: `policy`, `vf`, `entropy` and `total`.

        total = vf_coeff·vf − policy − entropy_coeff·entropy

    Args:
        buffer_batch: Collected batch `[B, …]` of `actions`, their `logp`, `advantages`, `returns`
            and previous `values`. Without `values`, values are not clipped.
        sample_batch: Batch `[B, …]` of the policy's current `values`.
        sample_distribution: The policy's current distribution.
        clip_param: Distance from 1 beyond which the probability ratio is clipped.
        dual_clip_param: Bound on the surrogate of a negative advantage, as a multiple of that
            advantage; None for no bound.
        entropy_coeff: Weight of the entropy. If it is 0, the entropy is 0 and not computed.
        vf_clip_param: Distance from the previous values beyond which values are clipped; None for
            no clipping.
        vf_coeff: Weight of the value loss.

    Source: `everstep.core.losses`.

    """
    log_ratio = sample_distribution.logp(buffer_batch[DataKeys.ACTIONS])
    ratio = (log_ratio - buffer_batch[DataKeys.LOGP]).exp()
    policy = clipped_surrogate(
        ratio,
        buffer_batch[DataKeys.ADVANTAGES],
        clip_param=clip_param,
        dual_clip_param=dual_clip_param or None,
    ).mean()
    values = sample_batch[DataKeys.VALUES]
    previous = buffer_batch.get(DataKeys.VALUES, values)  # equal values are not clipped
    vf = value_errors(
        values,
        buffer_batch[DataKeys.RETURNS],
        previous,
        kind="smooth_l1",
        vf_clip_param=vf_clip_param,
    ).mean()
    entropy = sample_distribution.entropy().mean() if entropy_coeff else torch.zeros_like(policy)
    total = vf_coeff * vf - policy - entropy_coeff * entropy
    return TensorDict(
        {"entropy": entropy, "policy": policy, "vf": vf, "total": total}, batch_size=[]
    )
