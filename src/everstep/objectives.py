"""Objectives: what an update minimises.

An objective is called with a minibatch, the policy's distribution over its actions and its values,
and returns its terms as scalars; `"total"` is minimised, the rest is reported.
"""

from typing import Protocol

import torch

from .distributions import Distribution
from .hyperparameters import Hyperparameters
from .losses import approximate_kl, clipped_surrogate, value_errors, weighted_sum
from .rollouts import Minibatch


class Objective(Protocol):
    """What an update minimises."""

    #: Weight of the entropy bonus, 0-d; filled by the entropy schedule.
    entropy_coeff: torch.Tensor

    def __call__(
        self, minibatch: Minibatch, distribution: Distribution, values: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        """Terms of the loss, 0-d each: `policy`, `vf`, `entropy`, `total`, and monitors.

        Args:
            minibatch: What was collected.
            distribution: The policy's distribution now, over the minibatch's rows.
            values: The policy's values now, `[B, K]`.

        """
        ...


class PPO:
    """Proximal policy optimisation: total = vf_coeff·vf − policy − entropy_coeff·entropy.

    Args:
        config: Hyperparameters.
        entropy_coeff: Weight of the entropy bonus, 0-d.

    Source: arXiv 1707.06347, eq. 9.

    """

    def __init__(self, config: Hyperparameters, *, entropy_coeff: torch.Tensor) -> None:
        self.config = config
        self.entropy_coeff = entropy_coeff
        schedule = config.entropy_coeff_schedule
        self._uses_entropy = config.entropy_coeff > 0 if schedule is None else bool(schedule)

    def __call__(
        self, minibatch: Minibatch, distribution: Distribution, values: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        """Terms of the loss; see `Objective`."""
        config, weight = self.config, minibatch.weight
        log_ratio = distribution.latents_logp(minibatch.actions) - minibatch.logp
        # What an invalid row did may be impossible, and infinity times a weight of 0 is NaN.
        log_ratio = log_ratio.where(weight > 0, 0.0)
        ratio = log_ratio.exp()
        surrogate = clipped_surrogate(
            ratio,
            minibatch.advantages,
            clip_param=config.clip_param,
            dual_clip_param=config.dual_clip_param,
        )
        errors = value_errors(
            values,
            minibatch.returns,
            minibatch.values,
            kind=config.vf_loss,
            vf_clip_param=config.vf_clip_param,
        )
        policy, vf = weighted_sum(surrogate, weight), weighted_sum(errors, weight)
        total = config.vf_coeff * vf - policy
        entropy = torch.zeros_like(policy)
        if self._uses_entropy:
            entropy = weighted_sum(distribution.entropy(), weight)
            total = total - self.entropy_coeff * entropy
        with torch.no_grad():
            clipped = (ratio - 1).abs() > config.clip_param
            kl_div = weighted_sum(approximate_kl(log_ratio), weight)
            clip_fraction = weighted_sum(clipped, weight)
        return {
            "policy": policy,
            "vf": vf,
            "entropy": entropy,
            "total": total,
            "kl_div": kl_div,
            "clip_fraction": clip_fraction,
        }
