"""PPO in one file, in the manner of CleanRL: plain PyTorch and `torch.distributions`, eager.

`vectorization: sync` in the options steps Gymnasium's environments one after the other, as such
scripts do; without it an environment's own vectorised form is used.
"""

from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical, Normal

from ._gymnasium import Returns, make_vector_env
from ._serving import Iteration, Stopwatch, serve


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
    """Actor and critic, apart."""

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


class CleanRL:
    """The script's variables, and its loop cut into a rollout and an update."""

    def __init__(self, work: dict[str, Any]) -> None:
        self.work = work
        self.envs = make_vector_env(work, work["options"].get("vectorization"))
        space = self.envs.single_action_space
        obs_shape = self.envs.single_observation_space.shape
        self.low, self.high = getattr(space, "low", None), getattr(space, "high", None)
        self.device = torch.device(work["device"])
        self.agent = Agent(space, int(np.prod(obs_shape)), work["hiddens"]).to(self.device)
        self.optimizer = torch.optim.Adam(self.agent.parameters(), lr=work["lr"], eps=1e-5)
        shape = (work["horizon"], work["num_envs"])
        self.obs = torch.zeros(shape + obs_shape, device=self.device)
        self.actions = torch.zeros(shape + space.shape, device=self.device)
        self.logp, self.rewards, self.dones, self.values = (
            torch.zeros(shape, device=self.device) for _ in range(4)
        )
        self.next_obs = self._tensor(self.envs.reset(seed=work["seed"])[0])
        self.next_done = torch.zeros(work["num_envs"], device=self.device)
        self.returns = Returns(work["num_envs"])

    def _tensor(self, array: Any) -> torch.Tensor:
        return torch.as_tensor(array, dtype=torch.float32, device=self.device)

    def iterate(self) -> Iteration:
        """A rollout, and an update from it."""
        elapsed = Stopwatch()
        for t in range(self.work["horizon"]):
            self._step(t)
        collect_s = elapsed()
        self._update()
        return Iteration(self.rewards.numel(), collect_s, elapsed())

    def _step(self, t: int) -> None:
        self.obs[t], self.dones[t] = self.next_obs, self.next_done
        with torch.no_grad():
            action, logp, _, value = self.agent.act(self.next_obs)
        self.values[t], self.actions[t], self.logp[t] = value.flatten(), action, logp
        array = action.cpu().numpy()
        if self.low is not None:
            array = np.clip(array, self.low, self.high)
        obs, rewards, terminated, truncated, _ = self.envs.step(array)
        done = np.logical_or(terminated, truncated)
        self.returns.add(rewards, done)
        self.rewards[t] = self._tensor(rewards)
        self.next_obs, self.next_done = self._tensor(obs), self._tensor(done)

    def _advantages(self) -> torch.Tensor:
        gamma, gae_lambda = self.work["gamma"], self.work["gae_lambda"]
        with torch.no_grad():
            value = self.agent.critic(self.next_obs).flatten()
            advantages = torch.zeros_like(self.rewards)
            last: Any = 0.0
            done = self.next_done
            for t in reversed(range(self.work["horizon"])):
                delta = self.rewards[t] + gamma * value * (1 - done) - self.values[t]
                last = advantages[t] = delta + gamma * gae_lambda * (1 - done) * last
                value, done = self.values[t], self.dones[t]
        return advantages

    def _update(self) -> None:
        advantages = self._advantages()
        rows = {
            "obs": self.obs.flatten(0, 1),
            "actions": self.actions.flatten(0, 1),
            "logp": self.logp.flatten(),
            "advantages": advantages.flatten(),
            "returns": (advantages + self.values).flatten(),
        }
        count = self.rewards.numel()
        size = count // self.work["num_minibatches"]
        order = np.arange(count)
        for _ in range(self.work["num_sgd_iters"]):
            np.random.shuffle(order)
            for start in range(0, count, size):
                chosen = order[start : start + size]
                self._descend(**{name: row[chosen] for name, row in rows.items()})

    def _descend(
        self,
        obs: torch.Tensor,
        actions: torch.Tensor,
        logp: torch.Tensor,
        advantages: torch.Tensor,
        returns: torch.Tensor,
    ) -> None:
        clip = self.work["clip_param"]
        _, new_logp, entropy, values = self.agent.act(obs, actions)
        log_ratio = new_logp - logp
        ratio = log_ratio.exp()
        with torch.no_grad():  # what such scripts log
            float(((ratio - 1) - log_ratio).mean())
            float(((ratio - 1.0).abs() > clip).float().mean())
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        clipped = torch.clamp(ratio, 1 - clip, 1 + clip)
        policy_loss = torch.max(-advantages * ratio, -advantages * clipped).mean()
        value_loss = 0.5 * (values.flatten() - returns).square().mean()
        loss = (
            policy_loss
            - self.work["entropy_coeff"] * entropy.mean()
            + self.work["vf_coeff"] * value_loss
        )
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.agent.parameters(), self.work["max_grad_norm"])
        self.optimizer.step()

    def score(self, metric: str) -> None | float:
        """Mean return of the last episodes, or mean reward of the last rollout."""
        return self.returns.mean() if metric == "return" else float(self.rewards.mean())

    def close(self) -> None:
        """Close the environment."""
        self.envs.close()


if __name__ == "__main__":
    serve(CleanRL, ("numpy", "gymnasium"))
