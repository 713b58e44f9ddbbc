"""Recipes with PPO in one file, in the manner of CleanRL: truncated episodes bootstrap nothing."""

from typing import Any

import numpy as np
import torch
from torch import nn

from ..cleanrl import Agent
from ._envs import Array, Batch
from ._serving import Curve, serve


class Moments:
    """Running mean and variance of rows.

    Args:
        shape: Shape of a row.

    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.mean, self.var = np.zeros(shape), np.ones(shape)
        self.count = 1e-4

    def add(self, rows: Array) -> None:
        """Take in rows `[N, …]`, by the parallel algorithm of Chan et al."""
        count, mean, var = len(rows), rows.mean(0), rows.var(0)
        total, delta = self.count + count, mean - self.mean
        squares = self.var * self.count + var * count + delta**2 * self.count * count / total
        self.mean = self.mean + delta * count / total
        self.var, self.count = squares / total, total

    def scale(self, rows: Array) -> Array:
        """Rows in units of the standard deviation, not centred."""
        scaled: Array = rows / np.sqrt(self.var + 1e-8)
        return scaled


class Trained:
    """The script's variables, and its loop."""

    def __init__(self, values: dict[str, Any], seed: int) -> None:
        self.values = values
        self.batch = Batch(values["env_cls"], values["num_envs"], seed)
        self.curve = Curve(values["num_envs"])
        space, shape = self.batch.action_space, self.batch.observation_space.shape
        self.low, self.high = getattr(space, "low", None), getattr(space, "high", None)
        self.agent = Agent(space, int(np.prod(shape)), values["model_config"]["hiddens"])
        self.optimizer = torch.optim.Adam(self.agent.parameters(), lr=values["lr"], eps=1e-5)
        self.obs_moments, self.return_moments = Moments(shape), Moments(())
        self.sums = np.zeros(values["num_envs"])
        rows = (values["horizon"], values["num_envs"])
        self.obs = torch.zeros(rows + shape)
        self.actions = torch.zeros(rows + space.shape)
        self.logp, self.rewards, self.dones, self.values_ = (torch.zeros(rows) for _ in range(4))
        self.next_obs = self._seen(self.batch.reset())
        self.next_done = torch.zeros(values["num_envs"])
        self.env_steps = 0
        self._train()

    def _train(self) -> None:
        budget, rows = self.values["total_env_steps"], self.rewards.numel()
        updates = budget // rows
        self.curve.begin()
        for update in range(updates):
            if self.values["lr_schedule"] == "linear":
                self.optimizer.param_groups[0]["lr"] = self.values["lr"] * (1 - update / updates)
            for t in range(self.values["horizon"]):
                self._step(t)
            self.env_steps += rows
            self._update()
            self.curve.record(self.env_steps)

    def _seen(self, obs: Array, *, is_training: bool = True) -> torch.Tensor:
        """Observations as the agent sees them."""
        if self.values["normalize_observations"]:
            if is_training:
                self.obs_moments.add(obs)
            obs = np.clip(self.obs_moments.scale(obs - self.obs_moments.mean), -10, 10)
        return torch.as_tensor(obs, dtype=torch.float32)

    def _scaled(self, rewards: Array, done: Array) -> torch.Tensor:
        """Rewards as the agent sees them."""
        if self.values["normalize_rewards"]:
            self.sums = self.sums * self.values["gamma"] * (1 - self.done_before) + rewards
            self.return_moments.add(self.sums)
            rewards = np.clip(self.return_moments.scale(rewards), -10, 10)
        return torch.as_tensor(rewards, dtype=torch.float32)

    def _step(self, t: int) -> None:
        self.obs[t], self.dones[t] = self.next_obs, self.next_done
        self.done_before = self.next_done.numpy()
        with torch.no_grad():
            action, logp, _, value = self.agent.act(self.next_obs)
        self.values_[t], self.actions[t], self.logp[t] = value.flatten(), action, logp
        obs, rewards, terminated, truncated, _ = self.batch.step(self._bounded(action))
        done = np.logical_or(terminated, truncated)
        self.curve.returns.add(rewards, done)
        self.rewards[t] = self._scaled(rewards, done)
        self.next_obs = self._seen(obs)
        self.next_done = torch.as_tensor(done, dtype=torch.float32)

    def _bounded(self, action: torch.Tensor) -> Array:
        array: Array = action.numpy()
        return array if self.low is None else np.clip(array, self.low, self.high)

    def _advantages(self) -> torch.Tensor:
        gamma, gae_lambda = self.values["gamma"], self.values["gae_lambda"]
        with torch.no_grad():
            value = self.agent.critic(self.next_obs).flatten()
        advantages = torch.zeros_like(self.rewards)
        last: Any = 0.0
        done = self.next_done
        for t in reversed(range(len(self.rewards))):
            delta = self.rewards[t] + gamma * value * (1 - done) - self.values_[t]
            last = advantages[t] = delta + gamma * gae_lambda * (1 - done) * last
            value, done = self.values_[t], self.dones[t]
        return advantages

    def _update(self) -> None:
        advantages = self._advantages()
        columns = (self.obs, self.actions, self.logp, advantages, self.values_)
        rows = [x.flatten(0, 1) for x in columns]
        size, order = self.values["sgd_minibatch_size"], np.arange(self.rewards.numel())
        for _ in range(self.values["num_sgd_iters"]):
            np.random.shuffle(order)
            for start in range(0, len(order), size):
                self._descend(*(row[order[start : start + size]] for row in rows))

    def _descend(
        self,
        obs: torch.Tensor,
        actions: torch.Tensor,
        logp: torch.Tensor,
        advantages: torch.Tensor,
        old_values: torch.Tensor,
    ) -> None:
        clip, vf_clip = self.values["clip_param"], self.values["vf_clip_param"]
        returns = advantages + old_values
        _, new_logp, entropy, values = self.agent.act(obs, actions)
        ratio = (new_logp - logp).exp()
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        clipped = ratio.clamp(1 - clip, 1 + clip)
        policy_loss = torch.max(-advantages * ratio, -advantages * clipped).mean()
        errors = (values.flatten() - returns).square()
        if vf_clip is not None:
            near = old_values + (values.flatten() - old_values).clamp(-vf_clip, vf_clip)
            errors = torch.max(errors, (near - returns).square())
        loss = (
            policy_loss
            - self.values.get("entropy_coeff", 0.0) * entropy.mean()
            + self.values["vf_coeff"] * 0.5 * errors.mean()
        )
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.agent.parameters(), self.values["max_grad_norm"])
        self.optimizer.step()

    def predict(self, obs: Array) -> Array:
        """Most likely actions."""
        with torch.no_grad():
            features = self.agent.actor(self._seen(obs, is_training=False))
        chosen = features.argmax(-1) if self.agent.log_std is None else features
        return self._bounded(chosen)


if __name__ == "__main__":
    serve(Trained, ("numpy", "gymnasium"))
