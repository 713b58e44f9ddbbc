"""Helpers of programs that step vector environments of Gymnasium or EnvPool."""

from collections import deque
from typing import Any

import numpy as np


class Returns:
    """Returns of the last 100 episodes of a vector environment."""

    def __init__(self, num_envs: int) -> None:
        self.last: deque[float] = deque(maxlen=100)
        self._open = np.zeros(num_envs)

    def add(self, rewards: np.ndarray, done: np.ndarray) -> None:
        """Take in a vector step: rewards and ends, `[N]`."""
        self._open += rewards
        if done.any():
            self.last.extend(self._open[done].tolist())
            self._open[done] = 0.0

    def mean(self) -> float | None:
        """Mean return; None before the first end."""
        return float(np.mean(self.last)) if self.last else None


def make_vector_env(work: dict[str, Any], vectorization: str | None) -> Any:
    """A vector environment with Gymnasium's interface.

    Args:
        work: Names the environment, such as `gymnasium:CartPole-v1`, `envpool:HalfCheetah-v4` or
            `frames`, which has no form of its own and is stepped one after the other.
        vectorization: Gymnasium's `vectorization_mode`; None is the environment's own.

    """
    family, _, name = work["env"].partition(":")
    if family == "envpool":
        import envpool

        threads = work["threads"]
        return envpool.make_gymnasium(
            name, num_envs=work["num_envs"], num_threads=threads, seed=work["seed"]
        )
    import gymnasium

    if family == "frames":
        from ._frames import Frames

        return gymnasium.vector.SyncVectorEnv([Frames] * work["num_envs"])
    return gymnasium.make_vec(name, num_envs=work["num_envs"], vectorization_mode=vectorization)
