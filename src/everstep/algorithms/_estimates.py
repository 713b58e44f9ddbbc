"""What is computed from a complete rollout before anything is learned from it."""

import torch

from ..advantages import bootstrap_values, gae, masked_moments, standardize, vanishes
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
    learnable: torch.Tensor,
    reward_scale: None | torch.Tensor,
) -> torch.Tensor:
    """Fill in advantages and returns; how much of the returns' variance the values explain, 0-d.

    Args:
        rollout: Complete rollout.
        config: Hyperparameters.
        learnable: Rows that the losses see, bool `[T, N, 1]`.
        reward_scale: What rewards are divided by, 0-d; None where they are not.

    """
    rewards, values = rollout.rewards[:-1], rollout.values[:-1]
    if reward_scale is not None:
        rewards = rewards / (reward_scale + 1e-8)
    following = bootstrap_values(
        rollout.values[1:], rollout.terminated, rollout.final, rollout.final_values
    )
    advantages = gae(
        rewards,
        values,
        following,
        rollout.done,
        gamma=config.gamma,
        gae_lambda=config.gae_lambda,
        known=rollout.known & rollout.valid,
    )
    rollout.returns[:-1] = advantages + values
    combined = advantages.sum(-1, keepdim=True)
    if config.normalize_advantages:
        combined = standardize(combined, learnable)
    rollout.advantages[:-1] = combined
    _, error = masked_moments(advantages[..., :1], learnable)
    _, spread = masked_moments(rollout.returns[:-1, :, :1], learnable)
    return 1 - error.square() / spread.square().clamp(min=1e-12)
