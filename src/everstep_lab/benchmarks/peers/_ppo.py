"""PPO in the manner of CleanRL's scripts: agent, storage of a rollout, and its update.

Plain PyTorch and `torch.distributions`, eager. The end of an episode bootstraps nothing, also where
it was truncated.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical, Normal


def _layer(inputs: int, outputs: int, gain: float) -> nn.Linear:
    layer = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


def _network(sizes: list[int], outputs: int, gain: float) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inputs, hidden in pairwise(sizes):
        layers += [_layer(inputs, hidden, 2**0.5), nn.Tanh()]
    return nn.Sequential(*layers, _layer(sizes[-1], outputs, gain))


class Agent(nn.Module):
    """Separate actor and critic."""

    def __init__(self, space: Any, obs_size: int, hiddens: list[int]) -> None:
        super().__init__()
        self.is_discrete = hasattr(space, "n")
        outputs = int(space.n) if self.is_discrete else int(space.shape[0])
        self.critic = _network([obs_size, *hiddens], 1, 1.0)
        self.actor = _network([obs_size, *hiddens], outputs, 0.01)
        self.log_std = None if self.is_discrete else nn.Parameter(torch.zeros(outputs))

    def act(
        self, obs: torch.Tensor, action: None | torch.Tensor = None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Action, its log-probability, entropy and value."""
        features = self.actor(obs)
        if self.log_std is None:
            choice = Categorical(logits=features)
            action = choice.sample() if action is None else action
            logp, entropy = choice.log_prob(action), choice.entropy()
        else:
            normal = Normal(features, self.log_std.exp().expand_as(features))
            action = normal.sample() if action is None else action
            logp, entropy = normal.log_prob(action).sum(-1), normal.entropy().sum(-1)
        return action, logp, entropy, self.critic(obs)


@dataclass(frozen=True)
class Settings:
    """Hyperparameters of the update, named as Everstep's."""

    lr: float
    gamma: float
    gae_lambda: float
    sgd_minibatch_size: int
    num_sgd_iters: int
    clip_param: float
    vf_coeff: float
    max_grad_norm: float
    entropy_coeff: float = 0.0
    vf_clip_param: None | float = None


class PPO:
    """The script's variables but for its environments, and its loop cut into steps and updates.

    Args:
        space: Space of an action.
        obs_shape: Shape of an observation.
        shape: Vector steps of a rollout, and environments.
        hiddens: Widths of the hidden layers.
        settings: Hyperparameters.
        device: Where all tensors are.

    """

    def __init__(
        self,
        space: Any,
        obs_shape: tuple[int, ...],
        shape: tuple[int, int],
        hiddens: list[int],
        settings: Settings,
        device: str | torch.device = "cpu",
    ) -> None:
        self.settings = settings
        self.low, self.high = getattr(space, "low", None), getattr(space, "high", None)
        self.agent = Agent(space, int(np.prod(obs_shape)), hiddens).to(device)
        self.optimizer = torch.optim.Adam(self.agent.parameters(), lr=settings.lr, eps=1e-5)
        self.obs = torch.zeros(shape + obs_shape, device=device)
        self.actions = torch.zeros(shape + space.shape, device=device)
        self.logp, self.rewards, self.dones, self.values = (
            torch.zeros(shape, device=device) for _ in range(4)
        )

    def act(self, t: int, obs: torch.Tensor, done: torch.Tensor) -> np.ndarray:
        """Actions for the environments, within their bounds.

        Args:
            t: Vector step of the rollout.
            obs: Observations `[N, D]`.
            done: Whether these are the first of their episodes, float `[N]`.

        """
        self.obs[t], self.dones[t] = obs, done
        with torch.no_grad():
            action, logp, _, value = self.agent.act(obs)
        self.values[t], self.actions[t], self.logp[t] = value.flatten(), action, logp
        return self.bounded(action)

    def bounded(self, action: torch.Tensor) -> np.ndarray:
        """Actions within the bounds of their space."""
        array: np.ndarray = action.cpu().numpy()
        return array if self.low is None else np.clip(array, self.low, self.high)

    def update(self, next_obs: torch.Tensor, next_done: torch.Tensor) -> None:
        """Learn from the rollout, whose last vector step led to the arguments."""
        advantages = self._advantages(next_obs, next_done)
        columns = (self.obs, self.actions, self.logp, advantages, self.values)
        rows = [x.flatten(0, 1) for x in columns]
        size, order = self.settings.sgd_minibatch_size, np.arange(self.rewards.numel())
        for _ in range(self.settings.num_sgd_iters):
            np.random.shuffle(order)
            for start in range(0, len(order), size):
                chosen = order[start : start + size]
                self._descend(*(row[chosen] for row in rows))

    def _advantages(self, next_obs: torch.Tensor, next_done: torch.Tensor) -> torch.Tensor:
        gamma, gae_lambda = self.settings.gamma, self.settings.gae_lambda
        with torch.no_grad():
            value = self.agent.critic(next_obs).flatten()
        advantages = torch.zeros_like(self.rewards)
        last: Any = 0.0
        done = next_done
        for t in reversed(range(len(self.rewards))):
            delta = self.rewards[t] + gamma * value * (1 - done) - self.values[t]
            last = advantages[t] = delta + gamma * gae_lambda * (1 - done) * last
            value, done = self.values[t], self.dones[t]
        return advantages

    def _descend(
        self,
        obs: torch.Tensor,
        actions: torch.Tensor,
        logp: torch.Tensor,
        advantages: torch.Tensor,
        old_values: torch.Tensor,
    ) -> None:
        settings = self.settings
        clip, vf_clip = settings.clip_param, settings.vf_clip_param
        returns = advantages + old_values
        _, new_logp, entropy, values = self.agent.act(obs, actions)
        log_ratio = new_logp - logp
        ratio = log_ratio.exp()
        with torch.no_grad():  # what such scripts log
            float(((ratio - 1) - log_ratio).mean())
            float(((ratio - 1.0).abs() > clip).float().mean())
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        clipped = torch.clamp(ratio, 1 - clip, 1 + clip)
        policy_loss = torch.max(-advantages * ratio, -advantages * clipped).mean()
        errors = (values.flatten() - returns).square()
        if vf_clip is not None:
            near = old_values + (values.flatten() - old_values).clamp(-vf_clip, vf_clip)
            errors = torch.max(errors, (near - returns).square())
        loss = (
            policy_loss
            - settings.entropy_coeff * entropy.mean()
            + settings.vf_coeff * 0.5 * errors.mean()
        )
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.agent.parameters(), settings.max_grad_norm)
        self.optimizer.step()
