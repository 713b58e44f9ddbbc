"""A batch of environments that resets in the env step that ends an episode."""

from typing import Any

import numpy as np

Array = np.ndarray


class Batch:
    """Environments side by side, with the returns of the last 100 episodes.

    Args:
        env_cls: `gymnasium:CartPole-v1` or `envpool:Hopper-v4`.
        num_envs: Number of environments.
        seed: Seed of the first; the others count up.

    """

    def __init__(self, env_cls: str, num_envs: int, seed: int) -> None:
        family, _, name = env_cls.partition(":")
        self.num_envs, self.seed = num_envs, seed
        self.pool: Any = None
        self.envs: list[Any] = []
        if family == "envpool":
            import envpool

            self.pool = envpool.make_gymnasium(name, num_envs=num_envs, num_threads=1, seed=seed)
            self.observation_space = self.pool.observation_space
            self.action_space = self.pool.action_space
        else:
            import gymnasium

            self.envs = [gymnasium.make(name) for _ in range(num_envs)]
            self.observation_space = self.envs[0].observation_space
            self.action_space = self.envs[0].action_space

    def reset(self) -> Array:
        """First observations, float32 `[N, D]`."""
        if self.pool is not None:
            return np.asarray(self.pool.reset()[0], np.float32)
        first = [env.reset(seed=self.seed + i)[0] for i, env in enumerate(self.envs)]
        return np.stack(first).astype(np.float32)

    def step(self, actions: Array) -> tuple[Array, Array, Array, Array, Array]:
        """Observations, rewards, terminated, truncated, and the observations before resets."""
        if self.pool is not None:
            obs, rewards, terminated, truncated, _ = self.pool.step(actions)
            final = np.array(obs, np.float32)
            obs, done = final.copy(), np.logical_or(terminated, truncated)
            if done.any():
                which = np.flatnonzero(done)
                obs[which] = self.pool.reset(which.astype(np.int32))[0]
            return obs, np.asarray(rewards, np.float64), terminated, truncated, final
        rows = [env.step(action) for env, action in zip(self.envs, actions, strict=True)]
        final = np.stack([row[0] for row in rows]).astype(np.float32)
        rewards, terminated, truncated = (np.array([row[i] for row in rows]) for i in (1, 2, 3))
        obs = final.copy()
        for i in np.flatnonzero(terminated | truncated):
            obs[i] = self.envs[i].reset()[0]
        return obs, rewards.astype(np.float64), terminated, truncated, final

    def close(self) -> None:
        """Close the environments."""
        for env in self.envs:
            env.close()
        if self.pool is not None:
            self.pool.close()
