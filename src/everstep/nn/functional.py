"""Functions of batches: masks over sequences, skip connections, advantages and losses of PPO.

Masks say what counts: True or 1 for what does, False or 0 for what does not. A mask with fewer
dimensions than what it masks holds for all of the trailing ones.
"""

from typing import Protocol

import torch
from tensordict import TensorDict

from ..advantages import gae, standardize
from ..data import EPISODE_KEYS, DataKeys
from ..losses import clipped_surrogate, value_errors

#: Limits of PyTorch's default dtype, for masks of models' own; the functions here go by the dtype
#: of what they are given.
FINFO = torch.finfo()

#: Kinds of skip connections.
SKIP_KINDS = ("residual", "cat", None)


class ActionDistribution(Protocol):
    """What `ppo_losses` asks of a distribution."""

    def logp(self, samples: torch.Tensor | TensorDict) -> torch.Tensor:
        """Log-probability of actions `[B, …]`, `[B, 1]`."""
        ...

    def entropy(self) -> torch.Tensor:
        """Entropy in nats, `[B, 1]`."""
        ...


def binary_mask_to_float_mask(mask: torch.Tensor, /) -> torch.Tensor:
    """0 where `mask` is True or 1, −inf where it is False or 0.

    Args:
        mask: Mask of any shape. One of floating point keeps its dtype; from any other comes the
            default dtype.

    """
    dtype = mask.dtype if mask.is_floating_point() else torch.get_default_dtype()
    return torch.zeros_like(mask, dtype=dtype).masked_fill(mask == 0, -torch.inf)


def float_mask_to_binary_mask(mask: torch.Tensor, /) -> torch.Tensor:
    """False where `mask` is −inf or the least finite number, True elsewhere; bool.

    Args:
        mask: What is added to scores, floating point of any shape.

    Raises:
        TypeError: For a mask that is not of floating point.

    """
    if not mask.is_floating_point():
        raise TypeError(
            f"A mask of 0 and -inf must be of floating point; got {mask.dtype}. "
            "A mask of True and False is binary already."
        )
    return mask > torch.finfo(mask.dtype).min


def mask_from_lengths(x: torch.Tensor, lengths: torch.Tensor, /) -> torch.Tensor:
    """Which elements of sequences are not padding, bool `[B, T]`.

    Args:
        x: Sequences `[B, T, …]`, padded at their ends.
        lengths: Elements of each, `[B]`.

    """
    places = torch.arange(x.shape[1], device=x.device)
    return places < lengths.to(x.device).reshape(-1, 1)


def masked_avg(
    x: torch.Tensor,
    /,
    *,
    mask: None | torch.Tensor = None,
    dim: int = 1,
    keepdim: bool = False,
) -> torch.Tensor:
    """Average of `x` along `dim` over what counts; 0 where nothing does.

    Args:
        x: `[B, T, …]`. What does not count may be anything, NaN included.
        mask: What counts, `[B, T]`; fractions are weights. None counts everything.
        dim: Dimension to average.
        keepdim: Whether to keep it, with size 1.

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
    """Largest elements of `x` along `dim` among what counts, and their places in it.

    Where nothing counts it is the least number that the dtype has, at place 0.

    Args:
        x: `[B, T, …]`.
        mask: What counts, `[B, T]`; None for everything.
        dim: Dimension to search; both results keep it, with size 1.

    """
    if mask is not None:
        x = x.masked_fill(_aligned(mask, x) == 0, _least(x.dtype))
    places = x.argmax(dim, keepdim=True)
    return x.gather(dim, places), places


def masked_log_softmax(
    x: torch.Tensor, /, *, mask: None | torch.Tensor = None, dim: int = -1
) -> torch.Tensor:
    """Log-probabilities along `dim`, finite everywhere.

    What does not count has probability 0, to rounding. Where nothing counts all are equally likely.

    Args:
        x: Scores `[B, T, …]`.
        mask: What counts, `[B, T]` or more; fractions are prior weights. None counts everything.
        dim: Dimension that the probabilities sum to 1 over.

    """
    logp = _masked_scores(x, mask).log_softmax(dim)
    return logp if mask is None else logp.clamp(min=_least(logp.dtype))


def masked_categorical_sample(
    x: torch.Tensor, /, *, mask: None | torch.Tensor = None, dim: int = 1
) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores of options drawn at random from those that count, and the options, `[B, …, 1]`.

    The options lie along the last dimension of `x`. `dim` is where their scores are looked up: the
    same one, so `-1` wherever `x` has more than two dimensions.

    Args:
        x: Scores `[B, …, options]`, such as `masked_log_softmax` returns.
        mask: What counts, `[B, T]` or more; fractions are prior weights. None counts everything.
        dim: Dimension of `x` that the drawn options index.

    """
    x = _masked_scores(x, mask)
    # Checking the scores would wait for the device.
    options = torch.distributions.Categorical(logits=x, validate_args=False).sample().unsqueeze(-1)
    return x.gather(dim, options), options


def _masked_scores(x: torch.Tensor, mask: None | torch.Tensor) -> torch.Tensor:
    """Scores plus log mask, and the least finite number where the mask is 0."""
    if mask is None:
        return x
    mask = _aligned(mask, x).to(x.dtype)
    excluded = mask == 0
    prior = mask.masked_fill(excluded, 1).log()
    return (x + prior).masked_fill(excluded, _least(x.dtype))


def _aligned(mask: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """`mask` with as many dimensions as `x`, those it lacks of size 1 and last."""
    return mask.reshape(*mask.shape, *(1,) * (x.dim() - mask.dim()))


def _least(dtype: torch.dtype) -> float | int:
    return torch.finfo(dtype).min if dtype.is_floating_point else torch.iinfo(dtype).min


def skip_connection(
    x: torch.Tensor,
    y: torch.Tensor,
    /,
    *,
    kind: None | str = "cat",
    dim: int = -1,
) -> torch.Tensor:
    """`y`, connected with what it was made from.

    Args:
        x: What went into a module.
        y: What came out of it, of the same shape.
        kind: `"residual"` for their sum, `"cat"` for both side by side, None for `y` alone.
        dim: Dimension along which `"cat"` puts them.

    Raises:
        ValueError: For an unknown kind.

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
    """Advantages and returns, batch `[B, T + 1, …]`, of streams that never end.

    The last row is there for its value. Its advantage is 0 and its return that value. No gradient
    flows through the estimates, and rewards stay as they are.

    Args:
        batch: Batch `[B, T + 1, …]` of `rewards` and `values`. The last row's reward is not read.
        gae_lambda: λ, from 0 (one env step, then the value) to 1 (all rewards to the end).
        gamma: Discount of an env step.
        inplace: Whether the results go into `batch`; else into a new TensorDict.
        normalize_advantages: Whether to centre advantages and scale them to unit deviation; where
            they are all equal they are centred only. Returns are of the raw ones.
        return_returns: Whether to add the returns, advantage plus value.
        reward_scale: What rewards are divided by.

    Raises:
        ValueError: For a batch with ends of episodes.

    Source: `everstep.advantages.gae`, which knows episodes.

    """
    ends = sorted(EPISODE_KEYS.intersection(batch.keys()))
    if ends:
        raise ValueError(
            f"The rows of `batch` must be one episode that goes on; it has {', '.join(ends)}. "
            "`everstep.advantages.gae` estimates advantages of rows with ends of episodes."
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
        buffer_batch: What was collected, batch `[B, …]`: `actions`, their `logp`, `advantages`,
            `returns`, and the `values` of then. Without `values`, values are not clipped.
        sample_batch: What the policy says now, batch `[B, …]`: `values`.
        sample_distribution: The policy's distribution now.
        clip_param: Distance from 1 beyond which the probability ratio earns nothing.
        dual_clip_param: Bound, as a multiple of a negative advantage, on what one row can cost;
            None for no bound.
        entropy_coeff: Weight of the entropy. Where it is 0 the entropy is not computed, and 0.
        vf_clip_param: Distance from the previous values beyond which values earn nothing; None
            for no clipping.
        vf_coeff: Weight of the value loss.

    Source: `everstep.losses`, where each term stands.

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
    previous = buffer_batch.get(DataKeys.VALUES, values)  # what has not moved is not clipped
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
