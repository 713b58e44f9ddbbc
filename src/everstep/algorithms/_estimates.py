"""What is computed from a complete rollout before anything is learned from it."""

from collections.abc import Sequence

import torch

from ..advantages import (
    bootstrap_values,
    gae,
    masked_moments,
    standardize,
    values_beyond,
    vanishes,
)
from ..bonuses import Stream
from ..hyperparameters import Hyperparameters
from ..normalizers import RunningMoments
from ..rollouts import Rollout


def scale_rewards(rollout: Rollout, running: None | RunningMoments) -> torch.Tensor:
    """What rewards are divided by, 0-d: the spread of their discounted sums.

    Args:
        rollout: Rollout whose `reversed_returns` are filled in.
        running: Moments of all rollouts' sums, which take in this one's; None for the spread in
            this rollout alone.

    """
    returns, valid = rollout.reversed_returns[1:], rollout.valid
    if running is None:
        _, scale = masked_moments(returns, valid)
    else:
        running.update(returns.flatten(), valid.flatten())
        scale = running.std.to(returns.dtype)
    return torch.where(vanishes(scale, returns.abs().max()), 1.0, scale)


@torch.no_grad()
def estimate_advantages(
    rollout: Rollout,
    config: Hyperparameters,
    streams: Sequence[Stream],
    learnable: torch.Tensor,
    reward_scale: None | torch.Tensor,
) -> torch.Tensor:
    """Fill in advantages and returns; how much of the returns' variance the values explain, 0-d.

    Args:
        rollout: Complete rollout.
        config: Hyperparameters.
        streams: What the columns of rewards and values are.
        learnable: Rows that the losses see, bool `[T, N, 1]`.
        reward_scale: What the environment's rewards are divided by, 0-d; None where they are not.

    """
    values = rollout.values[:-1]
    advantages = _advantages(rollout, config, streams, _scaled(rollout, reward_scale))
    rollout.returns[:-1] = advantages + values
    weights = _filled([stream.weight for stream in streams], rollout.values)
    combined = (advantages * weights).sum(-1, keepdim=True)
    if config.normalize_advantages:
        combined = standardize(combined, learnable)
    rollout.advantages[:-1] = combined
    _, error = masked_moments(advantages[..., :1], learnable)
    _, spread = masked_moments(rollout.returns[:-1, :, :1], learnable)
    return 1 - error.square() / spread.square().clamp(min=1e-12)


def _filled(numbers: list[float], like: torch.Tensor) -> torch.Tensor:
    """A tensor of these numbers, made on the device: copied there from the host it would wait."""
    return torch.cat([like.new_full((1,), number) for number in numbers])


def _scaled(rollout: Rollout, scale: None | torch.Tensor) -> torch.Tensor:
    """Rewards `[T, N, K]`, the environment's divided by `scale`."""
    rewards = rollout.rewards[:-1]
    if scale is None:
        return rewards
    scaled = rewards[..., :1] / (scale + 1e-8)
    return scaled if rewards.shape[-1] == 1 else torch.cat([scaled, rewards[..., 1:]], -1)


def _advantages(
    rollout: Rollout, config: Hyperparameters, streams: Sequence[Stream], rewards: torch.Tensor
) -> torch.Tensor:
    """Advantages of every stream, `[T, N, K]`."""
    following = bootstrap_values(
        rollout.values[1:], rollout.terminated, rollout.final, rollout.final_values
    )
    done, known, passed = rollout.done, rollout.known & rollout.valid, None
    gamma: float | torch.Tensor = config.gamma
    if len(streams) > 1:
        gamma = _filled([stream.gamma for stream in streams], rewards)
        ends = _filled([stream.episodic for stream in streams], done)
        beyond = values_beyond(rollout.values, rollout.valid)
        following = torch.where(ends, following, beyond)
        done, known = done & ends, known | ~ends
        passed = ~rollout.valid & ~ends
    return gae(
        rewards,
        rollout.values[:-1],
        following,
        done,
        gamma=gamma,
        gae_lambda=config.gae_lambda,
        known=known,
        passed=passed,
    )
