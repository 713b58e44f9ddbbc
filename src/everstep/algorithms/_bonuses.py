"""Bonuses at work: their streams, their critics, and what they add to a rollout and a loss."""

from typing import Any

import torch
from torchrl.data import TensorSpec

from ..advantages import masked_moments
from ..bonuses import Bonus, Stream
from ..bonuses._base import Critics
from ..env import Env
from ..errors import ConfigError
from ..hyperparameters import Hyperparameters
from ..models import ObservationNetwork
from ..policies import GenericPolicyBase, model_mode
from ..rollouts import Minibatch, Rollout
from ..specs import Leaves


def streams_of(config: Hyperparameters, bonuses: tuple[Bonus, ...]) -> tuple[Stream, ...]:
    """The environment's stream, and one for each bonus."""
    weight = bonuses[0].extrinsic_weight if bonuses else 1.0
    return (Stream(config.gamma, weight), *(bonus.stream for bonus in bonuses))


def add_critics(
    policy: GenericPolicyBase[Any], bonuses: tuple[Bonus, ...], observation_spec: TensorSpec
) -> None:
    """Give the policy values of the bonuses' streams, where its model has but one.

    Raises:
        ConfigError: Where the model has neither one value nor one for each stream.

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
    for bonus in bonuses:
        bonus.critic = ObservationNetwork(observation_spec, 1).to(policy.device)
    policy.critic = Critics([bonus.critic for bonus in bonuses if bonus.critic is not None])


def _values_width(policy: GenericPolicyBase[Any]) -> int:
    """Columns of the model's values, of an observation of zeros."""
    device = policy.device
    window = [policy.history + 1] if policy.history else []
    obs = policy._observation.zeros(1, *window, device=device)
    forked = torch.random.fork_rng([device] if device.type == "cuda" else [])
    with forked, torch.no_grad(), model_mode(policy.model, training=False):
        states = policy.memory.flatten(policy.init_states(1))
        return policy.values(obs, states).shape[-1]


def prepare(bonuses: tuple[Bonus, ...], env: Env) -> None:
    """Let each bonus look at the environment, before the first rollout."""
    for bonus in bonuses:
        bonus.prepare(env)


def write_rewards(bonuses: tuple[Bonus, ...], rollout: Rollout) -> dict[str, torch.Tensor]:
    """Fill in the bonuses' columns of a complete rollout's rewards; their means, 0-d each."""
    means = {}
    for column, bonus in enumerate(bonuses, start=1):
        rewards = torch.where(rollout.valid, bonus.rewards(rollout), 0.0)
        rollout.rewards[:-1, :, column : column + 1] = rewards
        means[f"bonuses/{bonus.name}_mean"], _ = masked_moments(rewards, rollout.valid)
    return means


def kept_by(bonuses: tuple[Bonus, ...]) -> None | dict[str, Leaves]:
    """What the bonuses have kept of a rollout, by name; None where there are none."""
    return {bonus.name: bonus.kept for bonus in bonuses} or None


def add_losses(
    bonuses: tuple[Bonus, ...], minibatch: Minibatch, terms: dict[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """The terms of a loss with those of the bonuses, each under its name and in `total`."""
    for bonus in bonuses:
        loss = bonus.losses(minibatch)
        terms = {**terms, bonus.name: loss, "total": terms["total"] + loss}
    return terms
