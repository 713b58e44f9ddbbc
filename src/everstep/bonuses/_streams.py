"""Reward streams and critics of bonuses."""

from typing import Any

import torch
from torchrl.data import TensorSpec

from ..core.advantages import masked_moments
from ..core.hyperparameters import Resolved
from ..core.rollouts import Rollout
from ..errors import ConfigError
from ..models import ObservationNetwork
from ..policies import GenericPolicyBase, trying
from ._base import Bonus, Critics, Stream


def streams_of(config: Resolved, bonuses: tuple[Bonus, ...]) -> tuple[Stream, ...]:
    """The environment's reward stream, and one for each bonus."""
    weight = bonuses[0].extrinsic_weight if bonuses else 1.0
    return (Stream(config.gamma, weight), *(bonus.stream for bonus in bonuses))


def add_critics(
    policy: GenericPolicyBase[Any], bonuses: tuple[Bonus, ...], observation_spec: TensorSpec
) -> None:
    """Give the policy values of the bonuses' streams, if its model has a single one.

    Raises:
        ConfigError: If the policy cannot act, or the model has neither one value nor one for each
            stream.

    """
    if not bonuses:
        return
    width, wanted = _values_width(policy), 1 + len(bonuses)
    if width == wanted:
        return
    if width != 1:
        raise ConfigError(
            f"`model_cls` {type(policy.model).__name__} gives values [B, {width}]; expected "
            f"[B, 1], or [B, {wanted}]: one column for the environment's rewards, and one for "
            "each bonus."
        )
    layouts = getattr(policy.model, "config", {}).get("image_layout")
    for bonus in bonuses:
        network = ObservationNetwork(observation_spec, 1, image_layout=layouts)
        bonus.critic = network.to(policy.device)
    policy.critic = Critics([bonus.critic for bonus in bonuses if bonus.critic is not None])


def _values_width(policy: GenericPolicyBase[Any]) -> int:
    """Columns of the model's values, for an observation of zeros."""
    window = [policy.history + 1] if policy.history else []
    obs = policy._observation.zeros(1, *window, device=policy.device)
    with trying(policy):
        states = policy.memory.flatten(policy.init_states(1))
        return policy.values(obs, states).shape[-1]
    raise AssertionError  # `trying` lets no error pass


def write_reward(bonus: Bonus, column: int, rollout: Rollout) -> torch.Tensor:
    """Write a bonus's column of a complete rollout's rewards; their mean, 0-d."""
    found, shape = bonus.rewards(rollout), list(rollout.valid.shape)
    if list(getattr(found, "shape", ())) != shape:
        got = list(found.shape) if hasattr(found, "shape") else repr(found)
        raise ConfigError(f"`rewards` of the bonus `{bonus.name}` must be {shape}; got {got}.")
    rewards = torch.where(rollout.valid, found, 0.0)
    rollout.rewards[:-1, :, column : column + 1] = rewards
    mean, _ = masked_moments(rewards, rollout.valid)
    return mean
