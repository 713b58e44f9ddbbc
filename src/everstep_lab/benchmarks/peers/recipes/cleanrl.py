"""Recipes with PPO in one file, in the manner of CleanRL: truncated episodes bootstrap nothing."""

from dataclasses import fields
from typing import Any

import numpy as np
import torch

from .._ppo import PPO, Settings
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
    """The script's loop, with normalised observations and rewards."""

    def __init__(self, values: dict[str, Any], seed: int) -> None:
        self.values, num_envs = values, values["num_envs"]
        self.batch = Batch(values["env_cls"], num_envs, seed)
        self.curve = Curve(num_envs)
        shape = self.batch.observation_space.shape
        given = {field.name for field in fields(Settings)} & values.keys()
        self.ppo = PPO(
            self.batch.action_space,
            shape,
            (values["horizon"], num_envs),
            values["model_config"]["hiddens"],
            Settings(**{name: values[name] for name in given}),
        )
        self.obs_moments, self.return_moments = Moments(shape), Moments(())
        self.sums = np.zeros(num_envs)
        self.next_obs = self._seen(self.batch.reset())
        self.next_done = torch.zeros(num_envs)
        self.env_steps = 0
        self._train()

    def _train(self) -> None:
        rows = self.ppo.rewards.numel()
        updates = self.values["total_env_steps"] // rows
        self.curve.begin()
        for update in range(updates):
            if self.values["lr_schedule"] == "linear":
                lr = self.values["lr"] * (1 - update / updates)
                self.ppo.optimizer.param_groups[0]["lr"] = lr
            for t in range(self.values["horizon"]):
                self._step(t)
            self.env_steps += rows
            self.ppo.update(self.next_obs, self.next_done)
            self.curve.record(self.env_steps)

    def _seen(self, obs: Array, *, is_training: bool = True) -> torch.Tensor:
        """Observations as the agent sees them."""
        if self.values["normalize_observations"]:
            if is_training:
                self.obs_moments.add(obs)
            obs = np.clip(self.obs_moments.scale(obs - self.obs_moments.mean), -10, 10)
        return torch.as_tensor(obs, dtype=torch.float32)

    def _scaled(self, rewards: Array) -> torch.Tensor:
        """Rewards as the agent sees them."""
        if self.values["normalize_rewards"]:
            goes_on = 1 - self.next_done.numpy()
            self.sums = self.sums * self.values["gamma"] * goes_on + rewards
            self.return_moments.add(self.sums)
            limit = self.values.get("clip_rewards") or np.inf
            rewards = np.clip(self.return_moments.scale(rewards), -limit, limit)
        return torch.as_tensor(rewards, dtype=torch.float32)

    def _step(self, t: int) -> None:
        action = self.ppo.act(t, self.next_obs, self.next_done)
        obs, rewards, terminated, truncated, _ = self.batch.step(action)
        done = np.logical_or(terminated, truncated)
        self.curve.returns.add(rewards, done)
        self.ppo.rewards[t] = self._scaled(rewards)
        self.next_obs = self._seen(obs)
        self.next_done = torch.as_tensor(done, dtype=torch.float32)

    def predict(self, obs: Array) -> Array:
        """Most likely actions."""
        agent = self.ppo.agent
        with torch.no_grad():
            features = agent.actor(self._seen(obs, is_training=False))
        return self.ppo.bounded(features if agent.log_std is not None else features.argmax(-1))


if __name__ == "__main__":
    serve(Trained, ("numpy", "gymnasium"))
